//! A claim whose reply does not arrive is given back, unless the caller has repeated the request.

use fencepost::{Code, Fleet, Millis, claim::Verdict, lock, mail, op, task};
use fencepost_testing::{World, eventually, on_both, world::code};
use std::time::Duration;

fn next(run: &str, request: &str) -> task::Claim {
    task::Claim { request: Some(request.into()), ..task::Claim::next("auth", run) }
}

fn deploy(request: &str) -> lock::Claim {
    lock::Claim { request: Some(request.into()), ..lock::Claim::new("deploy", "a") }
}

async fn claims_of(fleet: &Fleet) -> usize {
    fleet.call(fencepost::claim::List::default()).await.unwrap().claims.len()
}

on_both! {
    /// An earlier version stored such JSON.
    async fn the_claims_of_an_unreadable_reply_go_back(world: World) {
        for json in [r#""\ud83d""#.to_owned(), "1e999".into(), "[".repeat(1000) + &"]".repeat(1000)] {
            world.push("s", "fine").await;
            let store = world.fleet.transaction(move |tx| {
                let json = json.clone();
                Box::pin(async move { tx.execute("update message_doc set payload = ?1 where payload is not null", fencepost::params![json]).await })
            });
            store.await.unwrap();
            let claim = r#"{"mailboxes": ["s"], "run": "a"}"#;
            let error = op::find("mail/claim").unwrap().call(&world.fleet, claim).await.expect_err("unreadable");
            assert!(error.message().contains("cannot be read"), "{error}");
            assert_eq!(claims_of(&world.fleet).await, 0);
            // A typed caller gets the payload as bytes, without parsing it.
            let token = world.claim_mail("s", "b", 1).await.unwrap().remove(0);
            let message = world.fleet.call(mail::Done::new(token)).await.unwrap().message;
            assert_eq!(message.attempts, 1, "the lost claim was no attempt");
        }
        assert_eq!(world.times("message.undelivered").await, 3);
    }

    async fn an_undelivered_claim_goes_back_without_an_attempt(world: World) {
        world.add("first").await;
        let (lost, delivery) = world.fleet.deliver(next("a", "r1")).await.unwrap();
        assert!(!delivery.is_empty());
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        let task = world.show("auth-1").await;
        assert_eq!((task.status.as_str(), task.attempts), ("unassigned", 0));
        assert_eq!(world.guard(&lost.claim.token).await, Verdict::LeaseExpired);
        assert_eq!(world.times("task.undelivered").await, 1);

        // The request had no effect, so it starts over, and its new claim differs from the lost one.
        let (again, delivery) = world.fleet.deliver(next("a", "r1")).await.unwrap();
        delivery.delivered();
        assert_eq!(again.claim.token, "task/auth-1@2");
        assert_eq!(world.show("auth-1").await.attempts, 1);
        let repeat = world.fleet.call(next("a", "r1")).await.unwrap();
        assert_eq!(repeat.claim.token, again.claim.token);
    }

    async fn a_repeated_request_is_a_new_delivery(world: World) {
        world.add("first").await;
        let other = world.again().await;
        let (first, lost) = world.fleet.deliver(next("a", "r1")).await.unwrap();
        let (second, delivery) = other.deliver(next("a", "r1")).await.unwrap();
        assert_eq!(first.claim.token, second.claim.token);
        assert_eq!(lost.undelivered().await.unwrap(), 0, "it was handed over since");
        assert_eq!(world.guard(&second.claim.token).await, Verdict::Ok);
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        assert_eq!(world.guard(&second.claim.token).await, Verdict::LeaseExpired);

        let (first, lost) = world.fleet.deliver(deploy("r2")).await.unwrap();
        let (second, delivery) = other.deliver(deploy("r2")).await.unwrap();
        assert_eq!(first.claim.token, second.claim.token);
        assert_eq!(lost.undelivered().await.unwrap(), 0, "it was handed over since");
        assert_eq!(world.guard(&second.claim.token).await, Verdict::Ok);
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        assert_eq!(world.guard(&second.claim.token).await, Verdict::LeaseExpired);
        assert_eq!(world.times("lock.undelivered").await, 1);
        let (anew, delivery) = other.deliver(deploy("r2")).await.unwrap();
        delivery.delivered();
        assert_eq!(anew.claim.token, "lock/deploy@2");
    }

    /// A caller that resumes may have been working all the time: a lost reply must not take its claim.
    async fn a_claim_that_was_delivered_again_is_kept(world: World) {
        world.add("first").await;
        let (claimed, lost) = world.fleet.deliver(next("a", "r1")).await.unwrap();
        let resume = task::Claim { resume: true, ..task::Claim::of("auth-1", "a") };
        let (_, resumed) = world.fleet.deliver(resume).await.unwrap();
        assert!(resumed.is_empty());
        assert_eq!(lost.undelivered().await.unwrap(), 0);
        assert_eq!(world.guard(&claimed.claim.token).await, Verdict::Ok);

        let (claimed, lost) = world.fleet.deliver(deploy("r2")).await.unwrap();
        let resume = lock::Claim { resume: true, ..lock::Claim::new("deploy", "a") };
        let (_, resumed) = world.fleet.deliver(resume).await.unwrap();
        assert!(resumed.is_empty());
        assert_eq!(lost.undelivered().await.unwrap(), 0);
        assert_eq!(world.guard(&claimed.claim.token).await, Verdict::Ok);
    }

    async fn undelivered_claims_of_a_batch_go_back(world: World) {
        for title in ["one", "two", "three"] {
            world.add(title).await;
        }
        let many = task::ClaimMany {
            count: 3, run: "a".into(), request: Some("r".into()), ..task::ClaimMany::default()
        };
        let (claimed, delivery) = world.fleet.deliver(many.clone()).await.unwrap();
        world.done(&claimed.claims[1].claim.token).await.unwrap();
        assert_eq!(delivery.undelivered().await.unwrap(), 2);
        let statuses = [world.show("auth-1").await, world.show("auth-2").await, world.show("auth-3").await];
        assert_eq!(statuses.map(|task| task.status.as_str()), ["unassigned", "completed", "unassigned"]);
        assert_eq!(claims_of(&world.fleet).await, 0);
        // The finished task is still the reply to this request.
        let repeat = world.fleet.call(many).await.unwrap();
        assert_eq!(repeat.claims.iter().map(|claimed| claimed.task.id.as_str()).collect::<Vec<_>>(), ["auth-2"]);
    }

    async fn undelivered_reviews_and_claims_after_a_lapse_go_back(world: World) {
        let offer = task::Add { offer: Some("bob".into()), ..task::Add::new("auth", "one") };
        world.fleet.call(offer).await.unwrap();
        let review = task::Claim { agent: Some("bob".into()), ..task::Claim::of("auth-1", "a") };
        let (_, delivery) = world.fleet.deliver(review).await.unwrap();
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        assert_eq!(world.show("auth-1").await.status.as_str(), "offered");

        // A dead run's task, claimed by name and not delivered: the lapse that the request caused is no reply either.
        world.add("two").await;
        world.claim("auth-2", "dead").await.unwrap();
        world.pass(31);
        let take = task::Claim { request: Some("r".into()), ..task::Claim::of("auth-2", "b") };
        let (_, delivery) = world.fleet.deliver(take.clone()).await.unwrap();
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        assert_eq!(world.show("auth-2").await.attempts, 1, "the dead run's");
        assert_eq!(world.fleet.call(take).await.unwrap().claim.token, "task/auth-2@3");
    }

    /// A claim that changed since its delivery is left alone.
    async fn a_claim_that_changed_since_is_left_alone(world: World) {
        world.add("first").await;
        let (claimed, lost) = world.fleet.deliver(next("a", "r1")).await.unwrap();
        world.fleet.call(fencepost::claim::Release::new(&claimed.claim.token)).await.unwrap();
        let other = world.claim_next("b").await.unwrap();
        assert_eq!(lost.undelivered().await.unwrap(), 0);
        assert_eq!(world.guard(&other).await, Verdict::Ok);
        let (_, lost) = world.fleet.deliver(deploy("r2")).await.unwrap();
        world.pass(31 * 60);
        assert_eq!(lost.undelivered().await.unwrap(), 0);
        assert_eq!(code(world.fleet.call(deploy("r2")).await), Code::LeaseExpired);
    }

    /// Callers hang up at every moment of a claim, in real time: they keep nothing.
    async fn hanging_up_while_the_claim_is_committed(world: World) {
        world.add("first").await;
        let claim = op::find("task/claim").unwrap();
        let mut rounds = 0;
        while world.times("task.undelivered").await < 5 {
            rounds += 1;
            assert!(rounds < 2000, "nobody hung up while a claim was made");
            let request = format!(r#"{{"board":"auth","run":"r{rounds}","request":"q{rounds}"}}"#);
            let patience = Duration::from_micros(50 * (rounds % 100));
            let hung_up = tokio::time::timeout(patience, claim.serve(&world.fleet, request.as_bytes())).await;
            // It was too slow to hang up, so its reply is dropped instead.
            drop(hung_up);
            eventually("nothing stays with who hung up", async || claims_of(&world.fleet).await == 0).await;
        }
        // The last of them may not have committed yet.
        eventually("every claim went back", async || {
            let task = world.show("auth-1").await;
            (task.status.as_str(), task.attempts) == ("unassigned", 0)
                && world.times("task.undelivered").await == world.times("task.claimed").await
        })
        .await;
    }

    async fn hanging_up_while_waiting(world: World) {
        world.claim(&world.add("held").await, "holder").await.unwrap();
        let wait = task::Claim { wait_ms: Some(Millis::minutes(5)), ..next("a", "r1") };
        let waiting = tokio::spawn({
            let fleet = world.fleet.clone();
            async move { fleet.deliver(wait).await }
        });
        eventually("it waits", async || world.fleet.stats().waiting == 1).await;
        waiting.abort();
        eventually("it has hung up", async || world.fleet.stats().waiting == 0).await;
        world.add("second").await;
        assert_eq!(world.times("task.claimed").await, 1);
        assert_eq!(world.show("auth-2").await.status.as_str(), "unassigned");
    }
}
