//! Prompts and responses: paired in order, and never shifted by one.

use crate::{
    consumer::{receive, text},
    on_every_fleet,
};
use fencepost::{Json, mail::Status};
use fencepost_client::consumer::{Consumer, Message, Mismatch, Prompts};

/// Prompts an opening, and three messages ahead.
async fn prompted(consumer: &mut Consumer, prompts: &mut Prompts) -> Vec<u64> {
    let mut numbers = vec![prompts.sent_without_message()];
    for _ in 0..3 {
        numbers.push(prompts.sent(receive(consumer).await));
    }
    numbers
}

fn of(message: Option<Message>) -> Message {
    message.expect("a prompt about a message")
}

fn returned(parted: Result<impl std::fmt::Debug, Mismatch>) -> (String, Vec<i64>) {
    let parted = parted.expect_err("they do not fit");
    (parted.to_string(), parted.returned)
}

on_every_fleet! {
    async fn prompts_sent_ahead_are_paired_and_an_opening_completes_nothing(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        let numbers = prompted(&mut consumer, &mut prompts).await;
        assert_eq!((numbers.as_slice(), prompts.outstanding()), ([1, 2, 3, 4].as_slice(), 4));
        assert!(matches!(prompts.response(1).await, Ok(None)));
        assert_eq!(setup.counts().await, (0, 3, 0), "nothing was completed by it");
        for (number, expected) in [(2, "one"), (3, "two")] {
            let message = of(prompts.response(number).await.expect("it fits"));
            assert_eq!(text(&message), expected);
            message.complete([Json::from(format!("saw {expected}").as_str())]).await.expect("completed");
        }
        // A continuation between messages.
        assert_eq!(prompts.sent_without_message(), 5);
        of(prompts.response(4).await.expect("it fits")).complete([]).await.expect("nothing to store, and complete");
        assert!(matches!(prompts.response(5).await, Ok(None)));
        prompts.ended().await.expect("all were answered");
        assert_eq!(setup.counts().await, (0, 0, 3));
        assert_eq!(setup.message(ids[1]).await.outputs, [Json::from("saw two")]);
        assert_eq!(setup.message(ids[2]).await.outputs, []);
    }

    /// The response to the second is dropped: the third's is not taken for it, and all that is in flight goes back.
    async fn a_dropped_response_returns_everything_in_flight(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        prompted(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it fits");
        of(prompts.response(2).await.expect("it fits")).complete([]).await.expect("completed");
        let (what, back) = returned(prompts.response(4).await);
        assert_eq!(what, "a response to prompt 4 came, and none to prompt 3; 2 messages were given back");
        assert_eq!(back, ids[1..]);
        assert_eq!(setup.counts().await, (2, 0, 1), "given back when the error is told");
        assert_eq!(setup.message(ids[1]).await.attempts, 0);
        // What comes late is not taken either, nor is anything after.
        assert!(prompts.response(3).await.is_err());
        prompts.sent(receive(&mut consumer).await);
        assert_eq!(returned(prompts.response(5).await).1, [ids[1]]);
    }

    /// The client says something twice.
    async fn an_extra_response_returns_everything_in_flight(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        prompted(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it fits");
        of(prompts.response(2).await.expect("it fits")).complete([]).await.expect("completed");
        let (what, back) = returned(prompts.response(2).await);
        assert_eq!(what, "a response to prompt 2 came, and that is not waited for; 2 messages were given back");
        assert_eq!((back.as_slice(), setup.counts().await), (&ids[1..], (2, 0, 1)));
        // Something that nobody asked, and nothing in flight.
        let mut fresh = Prompts::new();
        assert_eq!(returned(fresh.response(1).await).1, [0; 0]);
    }

    /// A client that echoes no numbers: before its turn has ended nothing is paired.
    async fn without_numbers_a_turn_is_paired_as_a_whole_or_not_at_all(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        prompted(&mut consumer, &mut prompts).await;
        let (what, back) = returned(prompts.turn(vec!["ready", "1", "3"]).await);
        assert_eq!(what, "the turn ended with 3 responses to 4 prompts; 3 messages were given back");
        assert_eq!((back, setup.counts().await), (ids.clone(), (3, 0, 0)));

        let mut prompts = Prompts::new();
        prompted(&mut consumer, &mut prompts).await;
        assert_eq!(returned(prompts.turn(vec!["ready", "1", "2", "2", "3"]).await).1, ids);

        let mut prompts = Prompts::new();
        prompted(&mut consumer, &mut prompts).await;
        let pairs = prompts.turn(vec!["ready", "one", "two", "three"]).await.expect("they fit");
        for (message, response) in pairs.into_iter().skip(1) {
            let message = of(message);
            assert_eq!(text(&message), response);
            message.complete([Json::from(response)]).await.expect("completed");
        }
    }

    /// The client ends with prompts unanswered, or is dropped with the prompts.
    async fn a_client_that_ends_returns_what_it_did_not_answer(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        prompted(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it fits");
        let (what, back) = returned(prompts.ended().await);
        assert_eq!(what, "the client ended with 3 prompts unanswered; 3 messages were given back");
        assert_eq!((back, setup.counts().await), (ids.clone(), (3, 0, 0)));
        let mut prompts = Prompts::new();
        prompts.sent(receive(&mut consumer).await);
        drop(prompts);
        setup.until(ids[0], Status::Pending).await;
    }

    /// One of those to be given back was lost meanwhile: the others go back all the same.
    async fn a_lost_letter_keeps_no_other_from_going_back(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        prompted(&mut consumer, &mut prompts).await;
        let unclaim = fencepost::claim::Unclaim { resource: format!("message/{}", ids[1]), reason: None };
        setup.world.fleet.call(unclaim).await.expect("taken away");
        assert_eq!(returned(prompts.response(9).await).1, ids);
        assert_eq!(setup.counts().await, (3, 0, 0));
        assert_eq!(consumer.progress().borrow().in_flight, 0);
    }
}
