//! Prompts and responses: paired in order, and never shifted by one.

use crate::{
    consumer::{letter, text},
    everywhere,
};
use fencepost::{Json, mail::Status};
use fencepost_client::consumer::{Consumer, Letter, Mispaired, Pairing};

/// Prompts an opening, and three messages ahead.
async fn prompted(consumer: &mut Consumer, pairing: &mut Pairing) -> Vec<u64> {
    let mut numbers = vec![pairing.sent_without_message()];
    for _ in 0..3 {
        numbers.push(pairing.sent(letter(consumer).await));
    }
    numbers
}

fn of(letter: Option<Letter>) -> Letter {
    letter.expect("a prompt about a message")
}

fn returned(parted: Result<impl std::fmt::Debug, Mispaired>) -> (String, Vec<i64>) {
    let parted = parted.expect_err("they do not fit");
    (parted.to_string(), parted.returned)
}

everywhere! {
    async fn prompts_sent_ahead_are_paired_and_an_opening_completes_nothing(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        let numbers = prompted(&mut consumer, &mut pairing).await;
        assert_eq!((numbers.as_slice(), pairing.waiting()), ([1, 2, 3, 4].as_slice(), 4));
        assert!(matches!(pairing.response(1).await, Ok(None)));
        assert_eq!(desk.counts().await, (0, 3, 0), "nothing was completed by it");
        for (number, expected) in [(2, "one"), (3, "two")] {
            let letter = of(pairing.response(number).await.expect("it fits"));
            assert_eq!(text(&letter), expected);
            letter.complete([Json::from(format!("saw {expected}").as_str())]).await.expect("completed");
        }
        // A continuation between messages.
        assert_eq!(pairing.sent_without_message(), 5);
        of(pairing.response(4).await.expect("it fits")).complete([]).await.expect("nothing to store, and complete");
        assert!(matches!(pairing.response(5).await, Ok(None)));
        pairing.ended().await.expect("all were answered");
        assert_eq!(desk.counts().await, (0, 0, 3));
        assert_eq!(desk.message(ids[1]).await.outputs, [Json::from("saw two")]);
        assert_eq!(desk.message(ids[2]).await.outputs, []);
    }

    /// The response to the second is dropped: the third's is not taken for it, and all that is in flight goes back.
    async fn a_dropped_response_returns_everything_in_flight(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        prompted(&mut consumer, &mut pairing).await;
        pairing.response(1).await.expect("it fits");
        of(pairing.response(2).await.expect("it fits")).complete([]).await.expect("completed");
        let (what, back) = returned(pairing.response(4).await);
        assert_eq!(what, "a response to prompt 4 came, and none to prompt 3; 2 messages were given back");
        assert_eq!(back, ids[1..]);
        assert_eq!(desk.counts().await, (2, 0, 1), "given back when the error is told");
        assert_eq!(desk.message(ids[1]).await.attempts, 0);
        // What comes late is not taken either, nor is anything after.
        assert!(pairing.response(3).await.is_err());
        pairing.sent(letter(&mut consumer).await);
        assert_eq!(returned(pairing.response(5).await).1, [ids[1]]);
    }

    /// The client says something twice.
    async fn an_extra_response_returns_everything_in_flight(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        prompted(&mut consumer, &mut pairing).await;
        pairing.response(1).await.expect("it fits");
        of(pairing.response(2).await.expect("it fits")).complete([]).await.expect("completed");
        let (what, back) = returned(pairing.response(2).await);
        assert_eq!(what, "a response to prompt 2 came, and that is not waited for; 2 messages were given back");
        assert_eq!((back.as_slice(), desk.counts().await), (&ids[1..], (2, 0, 1)));
        // Something that nobody asked, and nothing in flight.
        let mut fresh = Pairing::new();
        assert_eq!(returned(fresh.response(1).await).1, [0; 0]);
    }

    /// A client that echoes no numbers: before its turn has ended nothing is paired.
    async fn without_numbers_a_turn_is_paired_as_a_whole_or_not_at_all(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        prompted(&mut consumer, &mut pairing).await;
        let (what, back) = returned(pairing.turn(vec!["ready", "1", "3"]).await);
        assert_eq!(what, "the turn ended with 3 responses to 4 prompts; 3 messages were given back");
        assert_eq!((back, desk.counts().await), (ids.clone(), (3, 0, 0)));

        let mut pairing = Pairing::new();
        prompted(&mut consumer, &mut pairing).await;
        assert_eq!(returned(pairing.turn(vec!["ready", "1", "2", "2", "3"]).await).1, ids);

        let mut pairing = Pairing::new();
        prompted(&mut consumer, &mut pairing).await;
        let pairs = pairing.turn(vec!["ready", "one", "two", "three"]).await.expect("they fit");
        for (letter, response) in pairs.into_iter().skip(1) {
            let letter = of(letter);
            assert_eq!(text(&letter), response);
            letter.complete([Json::from(response)]).await.expect("completed");
        }
    }

    /// The client ends with prompts unanswered, or is dropped with the pairing.
    async fn a_client_that_ends_returns_what_it_did_not_answer(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        prompted(&mut consumer, &mut pairing).await;
        pairing.response(1).await.expect("it fits");
        let (what, back) = returned(pairing.ended().await);
        assert_eq!(what, "the client ended with 3 prompts unanswered; 3 messages were given back");
        assert_eq!((back, desk.counts().await), (ids.clone(), (3, 0, 0)));
        let mut pairing = Pairing::new();
        pairing.sent(letter(&mut consumer).await);
        drop(pairing);
        desk.until(ids[0], Status::Pending).await;
    }

    /// One of those to be given back was lost meanwhile: the others go back all the same.
    async fn a_lost_letter_keeps_no_other_from_going_back(desk: Desk) {
        let ids = desk.push(&["one", "two", "three"]).await;
        let (mut consumer, mut pairing) = (desk.prefetch(3), Pairing::new());
        prompted(&mut consumer, &mut pairing).await;
        let unclaim = fencepost::claim::Unclaim { resource: format!("message/{}", ids[1]), reason: None };
        desk.world.fleet.call(unclaim).await.expect("taken away");
        assert_eq!(returned(pairing.response(9).await).1, ids);
        assert_eq!(desk.counts().await, (3, 0, 0));
        assert_eq!(consumer.progress().borrow().in_flight, 0);
    }
}
