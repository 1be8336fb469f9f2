//! Prompts and responses: matched by number, never shifted by one.

use crate::{
    consumer::{receive, text},
    on_every_fleet,
};
use fencepost::{Json, mail::Status};
use fencepost_client::consumer::{Consumer, Message, Mismatch, Prompts};

/// Sends an opening prompt without a message, and prompts about three messages.
async fn send_prompts(consumer: &mut Consumer, prompts: &mut Prompts) -> Vec<u64> {
    let mut numbers = vec![prompts.sent_without_message()];
    for _ in 0..3 {
        numbers.push(prompts.sent(receive(consumer).await));
    }
    numbers
}

fn some(message: Option<Message>) -> Message {
    message.expect("a prompt about a message")
}

fn mismatch(result: Result<impl std::fmt::Debug, Mismatch>) -> (String, Vec<i64>) {
    let mismatch = result.expect_err("they do not match");
    (mismatch.to_string(), mismatch.returned)
}

on_every_fleet! {
    async fn responses_match_their_prompts_and_an_opening_completes_nothing(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        let numbers = send_prompts(&mut consumer, &mut prompts).await;
        assert_eq!((numbers.as_slice(), prompts.outstanding()), ([1, 2, 3, 4].as_slice(), 4));
        assert!(matches!(prompts.response(1).await, Ok(None)));
        assert_eq!(setup.counts().await, (0, 3, 0), "the opening completed nothing");
        for (number, expected) in [(2, "one"), (3, "two")] {
            let message = some(prompts.response(number).await.expect("it matches"));
            assert_eq!(text(&message), expected);
            message.complete([Json::from(format!("saw {expected}").as_str())]).await.expect("completed");
        }
        // A prompt without a message, between others.
        assert_eq!(prompts.sent_without_message(), 5);
        some(prompts.response(4).await.expect("it matches")).complete([]).await.expect("nothing to store, and complete");
        assert!(matches!(prompts.response(5).await, Ok(None)));
        prompts.ended().await.expect("all were answered");
        assert_eq!(setup.counts().await, (0, 0, 3));
        assert_eq!(setup.message(ids[1]).await.outputs, [Json::from("saw two")]);
        assert_eq!(setup.message(ids[2]).await.outputs, []);
    }

    /// The client drops the response to the second prompt. The third response does not count as the second.
    async fn a_missing_response_returns_everything_in_flight(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        send_prompts(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it matches");
        some(prompts.response(2).await.expect("it matches")).complete([]).await.expect("completed");
        let (what, back) = mismatch(prompts.response(4).await);
        assert_eq!(what, "a response to prompt 4 came, and none to prompt 3; 2 messages were given back");
        assert_eq!(back, ids[1..]);
        assert_eq!(setup.counts().await, (2, 0, 1), "given back before the error is returned");
        assert_eq!(setup.message(ids[1]).await.attempts, 0);
        // A late response is refused, and so is everything after it.
        assert!(prompts.response(3).await.is_err());
        prompts.sent(receive(&mut consumer).await);
        assert_eq!(mismatch(prompts.response(5).await).1, [ids[1]]);
    }

    /// The client sends a response twice.
    async fn an_extra_response_returns_everything_in_flight(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        send_prompts(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it matches");
        some(prompts.response(2).await.expect("it matches")).complete([]).await.expect("completed");
        let (what, back) = mismatch(prompts.response(2).await);
        assert_eq!(what, "a response to prompt 2 came, and that prompt is not outstanding; 2 messages were given back");
        assert_eq!((back.as_slice(), setup.counts().await), (&ids[1..], (2, 0, 1)));
        // A response without a prompt, and nothing in flight.
        let mut fresh = Prompts::new();
        assert_eq!(mismatch(fresh.response(1).await).1, [0; 0]);
    }

    /// For a client that echoes no numbers, nothing is matched before its turn has ended.
    async fn without_numbers_a_turn_is_matched_as_a_whole_or_not_at_all(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        send_prompts(&mut consumer, &mut prompts).await;
        let (what, back) = mismatch(prompts.turn(vec!["ready", "1", "3"]).await);
        assert_eq!(what, "the turn ended with 3 responses to 4 prompts; 3 messages were given back");
        assert_eq!((back, setup.counts().await), (ids.clone(), (3, 0, 0)));

        let mut prompts = Prompts::new();
        send_prompts(&mut consumer, &mut prompts).await;
        assert_eq!(mismatch(prompts.turn(vec!["ready", "1", "2", "2", "3"]).await).1, ids);

        let mut prompts = Prompts::new();
        send_prompts(&mut consumer, &mut prompts).await;
        let pairs = prompts.turn(vec!["ready", "one", "two", "three"]).await.expect("they match");
        for (message, response) in pairs.into_iter().skip(1) {
            let message = some(message);
            assert_eq!(text(&message), response);
            message.complete([Json::from(response)]).await.expect("completed");
        }
    }

    /// The client ends with prompts unanswered, or the prompts are dropped.
    async fn unanswered_prompts_return_their_messages(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        send_prompts(&mut consumer, &mut prompts).await;
        prompts.response(1).await.expect("it matches");
        let (what, back) = mismatch(prompts.ended().await);
        assert_eq!(what, "the client ended with 3 prompts unanswered; 3 messages were given back");
        assert_eq!((back, setup.counts().await), (ids.clone(), (3, 0, 0)));
        let mut prompts = Prompts::new();
        prompts.sent(receive(&mut consumer).await);
        drop(prompts);
        setup.until(ids[0], Status::Pending).await;
    }

    /// One of the messages was lost meanwhile.
    async fn a_lost_message_keeps_no_other_from_being_given_back(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (mut consumer, mut prompts) = (setup.prefetch(3), Prompts::new());
        send_prompts(&mut consumer, &mut prompts).await;
        let unclaim = fencepost::claim::Unclaim { resource: format!("message/{}", ids[1]), reason: None };
        setup.world.fleet.call(unclaim).await.expect("taken away");
        assert_eq!(mismatch(prompts.response(9).await).1, ids);
        assert_eq!(setup.counts().await, (3, 0, 0));
        assert_eq!(consumer.progress().borrow().in_flight, 0);
    }
}
