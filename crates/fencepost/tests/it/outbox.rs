//! Outboxes: an answer is queued for the source of its message, in the transaction of the answer.

use crate::keys::as_agent_key;
use fencepost::{Code, Result, event, inbox, mail};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};

async fn outbox(world: &World, source: &str) -> Vec<inbox::Outgoing> {
    let list = mail::List { mailbox: Some(format!("outbox/{source}")), ..mail::List::default() };
    let mut sent = Vec::new();
    for message in world.fleet.call(list).await.expect("the outbox").messages {
        let payload = world.message(message.id).await.payload.expect("a payload");
        sent.push(payload.read().expect("an answer"));
    }
    sent
}

async fn receive(world: &World, source: Option<&str>) -> i64 {
    let send = inbox::Send {
        agent: "ann".into(),
        text: "what is up?".into(),
        source: source.map(str::to_owned),
        channel: Some("C1".into()),
        thread: Some("1.2".into()),
        sender: Some("U1".into()),
        ..inbox::Send::default()
    };
    world.fleet.call(send).await.expect("sent").item.id
}

async fn respond(world: &World, message: impl ToString, text: &str) -> Result<inbox::Handled> {
    world.fleet.call(inbox::Respond { message: message.to_string(), text: text.into() }).await
}

on_both! {
    async fn an_answer_is_queued_for_its_source_once(world: World) {
        let id = receive(&world, Some("slack")).await;
        let first = respond(&world, id, "all well").await.unwrap();
        assert_eq!(respond(&world, id, "all well").await.unwrap(), first);
        assert_eq!(code(respond(&world, id, "not well").await), Code::AlreadyFinished);
        let answer = inbox::Outgoing {
            text: "all well".into(),
            message: id,
            agent: "ann".into(),
            channel: Some("C1".into()),
            thread: Some("1.2".into()),
            sender: Some("U1".into()),
            ..inbox::Outgoing::default()
        };
        assert_eq!(outbox(&world, "slack").await, [answer]);

        // The same under a claim.
        let id = receive(&world, Some("slack")).await;
        let token = world.claim_mail("inbox/ann", "r", 1).await.unwrap().remove(0);
        for _ in 0..2 {
            respond(&world, &token, "still well").await.unwrap();
        }
        assert_eq!(code(respond(&world, &token, "no").await), Code::AlreadyFinished);
        let sent = outbox(&world, "slack").await;
        assert_eq!((sent.len(), sent[1].message, sent[1].text.as_str()), (2, id, "still well"));

        // A lost claim answers nothing.
        receive(&world, Some("slack")).await;
        let token = world.claim_mail("inbox/ann", "r", 1).await.unwrap().remove(0);
        world.pass(30);
        assert_eq!(code(respond(&world, &token, "too late").await), Code::LeaseExpired);
        assert_eq!(outbox(&world, "slack").await.len(), 2);
    }

    async fn an_answer_without_a_source_is_only_kept(world: World) {
        let id = receive(&world, None).await;
        assert!(respond(&world, id, "yes").await.unwrap().item.response.is_some());
        let long = receive(&world, Some(&"s".repeat(128))).await;
        assert!(respond(&world, long, "yes").await.is_ok(), "no mailbox has such a name");
        let pushed = world.push("builds", "not an inbox").await;
        let token = world.claim_mail("builds", "r", 1).await.unwrap().remove(0);
        respond(&world, &token, "yes").await.unwrap();
        assert_eq!(world.message(pushed).await.outcome.as_deref(), Some("responded"));
        let read = receive(&world, Some("slack")).await;
        world.fleet.call(inbox::Read { message: read.to_string() }).await.unwrap();
        let mailboxes = world.fleet.call(mail::Stats::default()).await.unwrap().mailboxes;
        assert!(mailboxes.iter().all(|mailbox| !mailbox.name.starts_with("outbox")), "{mailboxes:?}");
    }

    async fn two_answers_at_once_queue_one(world: World) {
        for n in 0..5 {
            let id = receive(&world, Some("slack")).await;
            let answers = [world.fleet.clone(), world.again().await].map(|fleet| {
                tokio::spawn(async move {
                    fleet.call(inbox::Respond { message: id.to_string(), text: "yes".into() }).await
                })
            });
            for answer in answers {
                answer.await.unwrap().unwrap();
            }
            assert_eq!(outbox(&world, "slack").await.len(), n + 1);
        }
    }

    async fn only_answers_get_into_an_outbox(world: World) {
        let refused = refused(world.fleet.call(mail::Push::new("outbox/slack", "forged")).await);
        assert_eq!(refused.code(), Code::Forbidden);
        assert_eq!(refused.message(), "mailbox `outbox/slack` is filled by inbox/respond only");
        let ann = as_agent_key(&world.fleet, "ann").await;
        let id = receive(&world, Some("slack")).await;
        ann.call(inbox::Respond { message: id.to_string(), text: "yes".into() }).await.unwrap();
        assert_eq!(code(ann.call(mail::Claim::next("outbox/slack", "r")).await), Code::Forbidden);
        assert_eq!(world.claim_mail("outbox/slack", "sender", 5).await.unwrap().len(), 1);
        let kinds = world.follow(event::List { kind: Some("message.pushed".into()), ..event::List::default() }).await;
        assert_eq!(kinds.len(), 2);
    }
}
