//! Every claimable noun keeps the same promises, on both databases. One more noun, which exists only here, shows that
//! to be claimable takes one file, one line in `ops.rs` and a migration.

pub(crate) mod parcel;

use super::{admin, agent, channel, claim, lock, mail, nouns, once, run, task, testing::TestFleet};
use crate::{
    clock::{ManualClock, Millis},
    db::BoxFuture,
    engine::{
        delivery::Delivery,
        fleet::Fleet,
        op::{AnyOp, Op},
    },
    error::{Code, Result},
    lease::Verdict,
    params,
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

const TTL: Millis = Millis::seconds(30);

/// Creates one item of a noun, and claims it.
struct Sample {
    noun: &'static str,
    make: fn(&Fleet) -> BoxFuture<'_, Result<()>>,
    claim: fn(&str) -> Arc<dyn AnyOp>,
}

const SAMPLES: &[Sample] = &[
    Sample {
        noun: "task",
        make: |fleet| Box::pin(async move { fleet.call(task::Add::new("b", "a task")).await.map(drop) }),
        claim: |run| task::Claim { ttl_ms: Some(TTL), ..task::Claim::next("b", run) }.erase(),
    },
    Sample {
        noun: "message",
        make: |fleet| Box::pin(async move { fleet.call(mail::Push::new("box", "hello")).await.map(drop) }),
        claim: |run| {
            let (mailboxes, ttl_ms) = (vec!["box".into()], Some(TTL));
            mail::Claim { mailboxes, ttl_ms, run: run.into(), ..mail::Claim::default() }.erase()
        },
    },
    Sample {
        noun: "mentions",
        make: |fleet| {
            Box::pin(async move {
                fleet.call(agent::Join { agent: "ann".into(), ..agent::Join::default() }).await?;
                fleet
                    .call(channel::Create { channel: "general".into(), ..channel::Create::default() })
                    .await?;
                let (channel, body) = ("general".into(), "@ann look".into());
                fleet.call(channel::Post { channel, body, ..channel::Post::default() }).await.map(drop)
            })
        },
        claim: |run| {
            let (agent, run, ttl_ms) = ("ann".into(), run.into(), Some(TTL));
            agent::Poll { agent, run, ttl_ms, ..agent::Poll::default() }.erase()
        },
    },
    Sample {
        noun: "lock",
        make: |_| Box::pin(async { Ok(()) }),
        claim: |run| lock::Claim { ttl_ms: Some(TTL), ..lock::Claim::new("deploy", run) }.erase(),
    },
    Sample {
        noun: "once",
        make: |_| Box::pin(async { Ok(()) }),
        claim: |run| {
            // Without `retry_in_doubt` an effect whose claim was lost is refused.
            let begin = once::Begin::new("mail-1", "./send", run);
            once::Begin { ttl_ms: Some(TTL), retry_in_doubt: true, ..begin }.erase()
        },
    },
    Sample {
        noun: "parcel",
        make: |fleet| {
            let insert = fleet.transaction(|tx| {
                Box::pin(async move { tx.execute("insert into parcel(name) values ('p')", params![]).await })
            });
            Box::pin(async move { insert.await.map(drop) })
        },
        claim: |run| {
            let (name, run, ttl_ms) = ("p".into(), run.into(), Some(TTL));
            parcel::Claim { name, run, ttl_ms, max_ms: None }.erase()
        },
    },
];

/// A separate fleet with one item to claim.
struct World {
    fleet: Fleet,
    clock: ManualClock,
    sample: &'static Sample,
    _dir: Option<tempfile::TempDir>,
}

/// The first token in a reply.
fn token(reply: &Value) -> Option<String> {
    match reply {
        Value::Object(fields) => match fields.get("token") {
            Some(Value::String(token)) => Some(token.clone()),
            _ => fields.values().find_map(token),
        },
        Value::Array(list) => list.iter().find_map(token),
        _ => None,
    }
}

impl World {
    async fn new(sample: &'static Sample, on_postgres: bool) -> Self {
        let TestFleet { fleet, clock, dir } = TestFleet::open(on_postgres).await;
        (sample.make)(&fleet).await.expect("the item is created");
        Self { fleet, clock, sample, _dir: dir }
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// A token and its delivery, if the item can be claimed now.
    async fn take(&self, run: &str) -> Option<(String, Delivery)> {
        let op = (self.sample.claim)(run);
        let (reply, delivery) = match self.fleet.deliver_any(op.clone()).await {
            Ok(answer) => answer,
            Err(e) if e.is_not_yet() => return None,
            Err(e) => panic!("{}: {e}", self.sample.noun),
        };
        let reply = serde_json::from_slice(&op.encode_reply(&reply).expect("a reply")).expect("JSON");
        token(&reply).map(|token| (token, delivery))
    }

    async fn claim(&self, run: &str) -> Option<String> {
        let (token, delivery) = self.take(run).await?;
        delivery.delivered();
        assert!(token.starts_with(&format!("{}/", self.sample.noun)), "{token}");
        Some(token)
    }

    async fn verdict(&self, token: &str) -> Verdict {
        self.fleet.call(claim::Guard::new(token)).await.expect("an answer").reason
    }

    /// Every verb under a claim refuses this token.
    async fn is_refused_everywhere(&self, token: &str) {
        let renewed = self.fleet.call(claim::Renew::new(token)).await.expect_err("a refusal");
        assert_eq!(renewed.code(), Code::LeaseExpired, "{token}: {renewed}");
        let released = self.fleet.call(claim::Release::new(token)).await.expect_err("a refusal");
        assert_eq!(released.code(), Code::LeaseExpired, "{token}: {released}");
        assert_ne!(self.verdict(token).await, Verdict::Ok);
    }

    async fn kinds(&self) -> Vec<String> {
        let read = self.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx.query("select kind from event order by id", params![]).await?;
                rows.iter().map(|row| row.get("kind")).collect::<Result<Vec<String>>>()
            })
        });
        read.await.expect("the log")
    }

    async fn is_sound(&self) {
        let report = self.fleet.call(admin::Check {}).await.expect("a report");
        assert!(report.ok, "{}: {:#?}", self.sample.noun, report.violations);
    }
}

fn fence(token: &str) -> i64 {
    token.rsplit_once('@').and_then(|(_, fence)| fence.parse().ok()).expect("a fence")
}

/// Defines a test for each database, over all nouns.
macro_rules! for_every_noun {
    ($($(#[$doc:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {
        $($(#[$doc])* async fn $name($world: World) $body)*
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                for sample in super::SAMPLES {
                    super::$name(super::World::new(sample, false).await).await;
                }
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                for sample in super::SAMPLES {
                    super::$name(super::World::new(sample, true).await).await;
                }
            })*
        }
    };
}

#[test]
fn every_claimable_noun_has_a_sample() {
    let samples: Vec<&str> = SAMPLES.iter().map(|sample| sample.noun).collect();
    let listed: Vec<&str> = nouns().iter().map(|noun| noun.noun()).collect();
    assert_eq!(samples, listed);
}

for_every_noun! {
    async fn one_run_has_it_and_the_lists_show_it(world: World) {
        let token = world.claim("a").await.expect("a claim");
        assert_eq!(world.claim("b").await, None);
        assert_eq!(world.verdict(&token).await, Verdict::Ok);
        let claims = world.fleet.call(claim::List::default()).await.unwrap().claims;
        assert_eq!(claims.iter().map(|claim| &claim.token).collect::<Vec<_>>(), [&token]);
        let runs = world.fleet.call(run::List::default()).await.unwrap().runs;
        let holder = runs.iter().find(|run| run.name == "a").expect("the run");
        assert_eq!((holder.holds, &holder.claims), (1, &vec![token]));
        world.is_sound().await;
    }

    async fn a_renewed_lease_goes_on_and_one_that_is_not_ends(world: World) {
        let first = world.claim("a").await.expect("a claim");
        world.pass(20);
        world.fleet.call(claim::Renew::new(&first)).await.expect("renewed");
        world.pass(20);
        assert_eq!(world.verdict(&first).await, Verdict::Ok);
        let due = world.fleet.call(admin::Due {}).await.unwrap();
        assert!(!due.due && due.next_at.is_some());
        world.pass(10);
        assert!(world.fleet.call(admin::Due {}).await.unwrap().due);
        assert_eq!(world.verdict(&first).await, Verdict::LeaseExpired);
        world.is_refused_everywhere(&first).await;
        let second = world.claim("b").await.expect("it came back");
        assert!(fence(&second) > fence(&first), "{first} {second}");
        world.is_refused_everywhere(&first).await;
        assert!(world.kinds().await.contains(&format!("{}.lapsed", world.sample.noun)));
        world.is_sound().await;
    }

    async fn a_release_frees_it_and_may_be_repeated(world: World) {
        let first = world.claim("a").await.expect("a claim");
        let released = world.fleet.call(claim::Release::new(&first)).await.expect("released");
        assert_eq!(world.fleet.call(claim::Release::new(&first)).await.expect("the first reply"), released);
        let second = world.claim("b").await.expect("it is free");
        assert!(fence(&second) > fence(&first), "{first} {second}");
        assert_eq!(world.verdict(&first).await, Verdict::AlreadyClaimed);
        world.is_sound().await;
    }

    async fn the_end_of_its_run_gives_it_back(world: World) {
        let first = world.claim("a").await.expect("a claim");
        world.fleet.call(run::End { run: "a".into(), ..run::End::default() }).await.expect("ended");
        world.is_refused_everywhere(&first).await;
        assert!(world.claim("b").await.is_some());
        world.is_sound().await;
    }

    async fn an_operator_takes_it_away(world: World) {
        let first = world.claim("a").await.expect("a claim");
        let resource = first.split('@').next().expect("a resource").to_owned();
        let unclaim = claim::Unclaim { resource, reason: Some("stuck".into()) };
        let unclaimed = world.fleet.call(unclaim.clone()).await.expect("unclaimed");
        assert_eq!(unclaimed.held_by.as_deref(), Some("a"));
        assert_eq!(world.fleet.call(unclaim).await.expect("nobody has it").held_by, None);
        world.is_refused_everywhere(&first).await;
        assert!(world.claim("b").await.is_some());
        world.is_sound().await;
    }

    async fn an_undelivered_claim_goes_back_and_the_next_is_not_taken_with_it(world: World) {
        let (first, delivery) = world.take("a").await.expect("a claim");
        assert_eq!(delivery.undelivered().await.expect("given back"), 1);
        world.is_refused_everywhere(&first).await;
        assert!(world.kinds().await.contains(&format!("{}.undelivered", world.sample.noun)));
        let (second, delivery) = world.take("b").await.expect("it is free");
        world.fleet.call(run::End { run: "b".into(), ..run::End::default() }).await.expect("ended");
        let third = world.claim("c").await.expect("it came back");
        assert_eq!(delivery.undelivered().await.expect("nothing to give back"), 0);
        assert_eq!(world.verdict(&third).await, Verdict::Ok, "after {second}");
        world.is_sound().await;
    }

    /// A claim of a run that does not exist, and one under a fence that was never reached.
    async fn a_broken_promise_is_found(world: World) {
        let token = world.claim("a").await.expect("a claim");
        let table = nouns().find(world.sample.noun).expect("the noun").table();
        let broken: &str = format!("update {} set run = 999999, fence = 0 where run is not null", table.name).leak();
        let breaks = world.fleet.transaction(move |tx| Box::pin(async move { tx.execute(broken, params![]).await }));
        assert_eq!(breaks.await.expect("broken"), 1);
        let report = world.fleet.call(admin::Check {}).await.expect("a report");
        let resource = token.split('@').next().expect("a resource");
        for promise in [
            "every claim's run exists",
            "every claimed item has a fence",
            "no claim has a fence above its item's",
        ] {
            let found = |violation: &&admin::check::Violation| {
                violation.promise == promise && violation.resource == resource
            };
            assert!(report.violations.iter().find(found).is_some(), "{promise}: {:#?}", report.violations);
        }
    }
}
