//! Repeating is safe: the same request, or the same completion, returns the first reply and is done once.

use fencepost::{Code, Fleet, Millis, Op, Result, claim, lock, params, run, task};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};
use serde_json::json;

/// Calls twice in a row: the same reply, and no further event.
async fn twice<O: Op>(world: &World, op: O) -> O::Reply {
    let first = world.fleet.call(op.clone()).await.unwrap_or_else(|e| panic!("{}: {e}", O::NAME));
    let events = world.kinds().await;
    let second = world.again().await.call(op).await.unwrap_or_else(|e| panic!("{} again: {e}", O::NAME));
    assert_eq!(json!(first), json!(second), "{}", O::NAME);
    assert_eq!(world.kinds().await, events, "{}", O::NAME);
    first
}

/// Calls through two fleets at once: both get the same reply.
async fn at_once<O: Op>(fleets: &[Fleet; 2], op: O) -> O::Reply {
    let (first, second) = tokio::join!(fleets[0].call(op.clone()), fleets[1].call(op));
    let (first, second) = (first.expect(O::NAME), second.expect(O::NAME));
    assert_eq!(json!(first), json!(second), "{}", O::NAME);
    first
}

/// A request id.
fn id(name: impl ToString) -> Option<String> {
    Some(name.to_string())
}

fn claim_next(request: &str) -> task::Claim {
    task::Claim { ttl_ms: Some(Millis::seconds(30)), request: id(request), ..task::Claim::next("auth", "a") }
}

fn lock_claim(name: &str, run: &str, request: &str) -> lock::Claim {
    lock::Claim { ttl_ms: Some(Millis::seconds(30)), request: id(request), ..lock::Claim::new(name, run) }
}

fn item(title: &str, key: Option<&str>) -> task::plan::Item {
    task::plan::Item { title: title.into(), key: key.map(str::to_owned), ..task::plan::Item::default() }
}

on_both! {
    async fn the_same_request_twice_in_a_row_is_done_once(world: World) {
        let task = |name: &str| name.to_owned();
        twice(&world, task::Add { request: id("add"), ..task::Add::new("auth", "first") }).await;
        let plan = vec![item("second", None), item("third", None), item("fourth", None)];
        twice(&world, task::Plan { board: Some("auth".into()), tasks: plan, request: id("plan") }).await;
        twice(&world, task::Note { task: task("auth-1"), text: "see wiki".into(), request: id("note") }).await;
        twice(&world, task::Edit {
            task: task("auth-1"), title: Some("better".into()), request: id("edit"), ..task::Edit::default()
        }).await;
        twice(&world, task::Park { task: task("auth-1"), reason: "later".into(), request: id("park") }).await;
        twice(&world, task::Unpark { task: task("auth-1"), request: id("unpark") }).await;
        twice(&world, task::Depend {
            task: task("auth-2"), after: task("auth-1"), request: id("depend")
        }).await;
        twice(&world, task::Undepend {
            task: task("auth-2"), after: task("auth-1"), request: id("undepend"), ..Default::default()
        }).await;
        twice(&world, task::Offer { task: task("auth-1"), to: "codex".into(), request: id("offer") }).await;
        twice(&world, task::Assign { task: task("auth-2"), to: "codex".into(), request: id("assign") }).await;
        twice(&world, task::Cancel { task: task("auth-1"), request: id("cancel"), ..task::Cancel::default() }).await;
        twice(&world, task::Retry { task: task("auth-1"), request: id("retry") }).await;
        world.story("
            add done board=again -> again-1
            claim again-1 run=r -> task/again-1@1
            done task/again-1@1 -> completed
        ").await;
        twice(&world, task::Reopen { task: task("again-1"), request: id("reopen"), ..Default::default() }).await;
        let token = twice(&world, claim_next("claim")).await.claim.token;
        twice(&world, task::Progress { request: id("progress"), ..task::Progress::new(&token, "half way") }).await;
        twice(&world, task::ClaimMany {
            count: 2, run: "many".into(), request: id("many"), ..task::ClaimMany::default()
        }).await;
        twice(&world, lock_claim("deploy", "a", "lock")).await;
        assert_eq!(world.show("auth-1").await.notes.len(), 1);
        let id = token.strip_prefix("task/").and_then(|rest| rest.split('@').next()).unwrap();
        assert_eq!(world.show(id).await.progress.len(), 1);
    }

    async fn the_same_request_at_once_is_done_once(world: World) {
        let fleets = [world.again().await, world.again().await];
        for round in 0..20 {
            let request = |what: &str| id(format!("{what}-{round}"));
            let added = at_once(&fleets, task::Add { request: request("add"), ..task::Add::new("auth", "t") }).await;
            let id = added.task.id;
            let note = task::Note { task: id.clone(), text: "n".into(), request: request("note") };
            at_once(&fleets, note).await;
            let run = format!("r{round}");
            let claim = task::Claim { request: request("claim"), ..task::Claim::next("auth", &run) };
            assert_eq!(at_once(&fleets, claim).await.task.id, id);
            let many = task::ClaimMany {
                count: 3, board: Some("bulk".into()), run: run.clone(), request: request("many"),
                ..task::ClaimMany::default()
            };
            let plan = task::Plan {
                board: Some("bulk".into()), tasks: vec![item("x", None); 3], request: request("plan"),
            };
            at_once(&fleets, plan).await;
            assert_eq!(at_once(&fleets, many).await.claims.len(), 3);
            let deploy = lock::Claim { request: request("lock"), ..lock::Claim::new(format!("l{round}"), &run) };
            at_once(&fleets, deploy).await;
        }
        assert_eq!(world.times("task.added").await, 20 * 4);
        assert_eq!(world.times("task.claimed").await, 20 * 4);
        assert_eq!(world.times("task.noted").await, 20);
        assert_eq!(world.times("lock.claimed").await, 20);
    }

    async fn a_repeated_claim_after_completion_returns_the_first_reply(world: World) {
        world.add("first").await;
        let first = world.fleet.call(claim_next("r")).await.unwrap();
        world.done(&first.claim.token).await.unwrap();
        world.pass(3600);
        let again = world.fleet.call(claim_next("r")).await.unwrap();
        assert_eq!(again.claim.token, first.claim.token);
        assert_eq!(again.task.status, task::Status::Completed);
    }

    async fn a_repeated_claim_after_a_lapse_claims_nothing(world: World) {
        world.add("first").await;
        world.fleet.call(claim_next("r")).await.unwrap();
        world.fleet.call(lock_claim("deploy", "a", "l")).await.unwrap();
        world.pass(30);
        for _ in 0..2 {
            assert_eq!(code(world.fleet.call(claim_next("r")).await), Code::LeaseExpired);
            assert_eq!(code(world.fleet.call(lock_claim("deploy", "a", "l")).await), Code::LeaseExpired);
        }
        world.claim_next("b").await.unwrap();
        world.fleet.call(lock::Claim::new("deploy", "b")).await.unwrap();
        assert_eq!(code(world.fleet.call(claim_next("r")).await), Code::LeaseExpired);
        assert_eq!(code(world.fleet.call(lock_claim("deploy", "a", "l")).await), Code::LeaseExpired);
        assert_eq!(world.times("task.claimed").await, 2);
    }

    async fn a_repeated_add_after_completion_adds_nothing(world: World) {
        let add = task::Add { request: id("r"), ..task::Add::new("auth", "first") };
        world.fleet.call(add.clone()).await.unwrap();
        let token = world.claim_next("a").await.unwrap();
        world.done(&token).await.unwrap();
        world.pass(6 * 86_400);
        let again = world.fleet.call(add).await.unwrap().task;
        assert_eq!((again.id.as_str(), again.status), ("auth-1", task::Status::Completed));
        assert_eq!(code(world.claim_next("a").await), Code::BoardFinished);
    }

    /// Expiry before the claim is not an effect of the request.
    async fn a_first_request_that_runs_expiry_is_no_repeat(world: World) {
        world.add("first").await;
        world.claim_next("dead").await.unwrap();
        world.fleet.call(lock_claim("deploy", "dead", "1")).await.unwrap();
        world.pass(30);
        let first = world.fleet.call(claim_next("2")).await.unwrap();
        assert_eq!(first.claim.token, "task/auth-1@2");
        assert_eq!(world.fleet.call(claim_next("2")).await.unwrap(), first);

        world.pass(30);
        let embedded = world
            .fleet
            .transaction(|tx| Box::pin(async move { tx.call(claim_next("3")).await }))
            .await
            .unwrap();
        assert_eq!(embedded.claim.token, "task/auth-1@3");
        assert_eq!(world.fleet.call(claim_next("3")).await.unwrap().claim, embedded.claim);
    }

    /// So many runs are dead that one batch does not reach this one: the claim itself ends it.
    async fn a_repeated_takeover_of_a_dead_runs_lock_returns_the_first_reply(world: World) {
        for n in 0..70 {
            world.fleet.call(lock_claim(&format!("l{n}"), &format!("dead-{n}"), &format!("{n}"))).await.unwrap();
            world.clock.advance(std::time::Duration::from_millis(1));
        }
        world.pass(30);
        let first = world.fleet.call(lock_claim("l69", "a", "takes")).await.unwrap();
        assert_eq!(first.claim.token, "lock/l69@2");
        assert_eq!(world.fleet.call(lock_claim("l69", "a", "takes")).await.unwrap(), first);
    }

    async fn a_repeated_plan_returns_the_whole_first_reply(world: World) {
        world.fleet.call(task::Add { key: Some("k".into()), ..task::Add::new("auth", "known") }).await.unwrap();
        let tasks = vec![item("new", None), item("known", Some("k")), item("keyed", Some("j")), item("new", None)];
        let plan = task::Plan { board: Some("auth".into()), tasks, request: id("r") };
        let planned = twice(&world, plan).await;
        let ids: Vec<_> = planned.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(ids, ["auth-2", "auth-1", "auth-3", "auth-4"]);
        assert_eq!(planned.existing, ["auth-1"]);
    }

    async fn a_refused_request_may_be_repeated(world: World) {
        assert_eq!(code(world.fleet.call(claim_next("r")).await), Code::NotFound);
        world.add("first").await;
        assert_eq!(world.fleet.call(claim_next("r")).await.unwrap().claim.token, "task/auth-1@1");
    }
}

mod endings {
    use super::*;

    async fn held(world: &World) -> String {
        let id = world.add("first").await;
        world.claim(&id, "a").await.unwrap()
    }

    fn done(token: &str, output: &str) -> task::Done {
        task::Done { token: token.into(), output: Some(output.into()) }
    }

    fn release(token: &str, note: &str) -> claim::Release {
        claim::Release { token: token.into(), note: Some(note.into()) }
    }

    on_both! {
        async fn a_repeated_completion_returns_the_first_reply(world: World) {
            let token = held(&world).await;
            twice(&world, done(&token, "built")).await;
            world.pass(60);
            world.end("a").await;
            twice(&world, done(&token, "built")).await;
            for error in [
                refused(world.fleet.call(done(&token, "built better")).await),
                refused(world.fleet.call(task::Done::new(&token)).await),
                refused(world.fleet.call(task::Fail::new(&token, "no")).await),
                refused(world.fleet.call(claim::Release::new(&token)).await),
            ] {
                assert_eq!(error.code(), Code::AlreadyFinished, "{error}");
            }
            assert_eq!(world.show("auth-1").await.output.as_deref(), Some("built"));
            assert_eq!(world.times("task.completed").await, 1);
        }

        async fn a_repeated_failure_returns_the_first_reply(world: World) {
            let token = held(&world).await;
            let retry = task::Fail { retry: true, ..task::Fail::new(&token, "flaky") };
            twice(&world, retry.clone()).await;
            assert_eq!(code(world.fleet.call(task::Fail::new(&token, "flaky")).await), Code::AlreadyFinished);
            assert_eq!(code(world.done(&token).await), Code::AlreadyFinished);
            world.pass(10);
            let second = world.claim("auth-1", "b").await.unwrap();
            assert_eq!(world.guard(&second).await, claim::Verdict::Ok);
            twice(&world, retry).await;
            assert_eq!(world.guard(&second).await, claim::Verdict::Ok, "a late repeat harms nobody");
        }

        async fn a_repeated_release_returns_the_first_reply(world: World) {
            let token = held(&world).await;
            twice(&world, release(&token, "not mine")).await;
            assert_eq!(code(world.fleet.call(release(&token, "other")).await), Code::AlreadyFinished);
            assert_eq!(code(world.done(&token).await), Code::AlreadyFinished);
            let task = world.show("auth-1").await;
            assert_eq!((task.attempts, task.notes.len()), (0, 1));

            let lock = world.fleet.call(lock::Claim::new("deploy", "a")).await.unwrap().claim.token;
            twice(&world, claim::Release::new(&lock)).await;
        }

        async fn a_late_repeat_is_answered_while_another_holds_it(world: World) {
            let token = held(&world).await;
            world.fleet.call(claim::Release::new(&token)).await.unwrap();
            let second = world.claim("auth-1", "b").await.unwrap();
            world.fleet.call(claim::Release::new(&token)).await.unwrap();
            assert_eq!(world.guard(&second).await, claim::Verdict::Ok);
            world.fleet.call(done(&second, "built")).await.unwrap();
            assert_eq!(code(world.fleet.call(claim::Release::new(&token)).await), Code::AlreadyFinished);
        }

        async fn completions_at_once_are_accepted_once(world: World) {
            let fleets = [world.again().await, world.again().await];
            for round in 0..20 {
                let token = held(&world).await;
                at_once(&fleets, done(&token, "same")).await;
                let token = held(&world).await;
                let (a, b) = tokio::join!(fleets[0].call(done(&token, "a")), fleets[1].call(done(&token, "b")));
                let won = if a.is_ok() { "a" } else { "b" };
                assert!(a.is_ok() != b.is_ok(), "round {round}: {a:?} {b:?}");
                assert_eq!(code(a.and(b)), Code::AlreadyFinished);
                let id = token.trim_start_matches("task/").trim_end_matches("@1");
                assert_eq!(world.show(id).await.output.as_deref(), Some(won));
            }
            assert_eq!(world.times("task.completed").await, 40);
        }

        /// The embedder's own rows must not be written twice.
        async fn in_an_embedders_transaction_a_repeat_is_an_error(world: World) {
            async fn ship<O: Op>(fleet: &Fleet, op: O) -> Result<O::Reply> {
                fleet
                    .transaction(move |tx| {
                        let op = op.clone();
                        Box::pin(async move {
                            tx.execute("insert into parcel(name) values ('one')", params![]).await?;
                            tx.call(op).await
                        })
                    })
                    .await
            }
            async fn parcels(world: &World) -> i64 {
                let count = world.fleet.transaction(|tx| {
                    Box::pin(async move {
                        tx.execute("create table if not exists parcel(name text)", params![]).await?;
                        tx.query("select count(*) as n from parcel", params![]).await?[0].get::<i64>("n")
                    })
                });
                count.await.unwrap()
            }
            assert_eq!(parcels(&world).await, 0);
            let token = held(&world).await;
            assert_eq!(code(ship(&world.fleet, done("task/auth-1@7", "x")).await), Code::NotFound);
            assert_eq!(parcels(&world).await, 0);
            ship(&world.fleet, done(&token, "built")).await.unwrap();
            assert_eq!(parcels(&world).await, 1);
            let again = refused(ship(&world.fleet, done(&token, "built")).await);
            assert_eq!((again.code(), again.field("repeat")), (Code::AlreadyFinished, Some(&true.into())));
            let other = refused(ship(&world.fleet, done(&token, "other")).await);
            assert_eq!((other.code(), other.field("repeat")), (Code::AlreadyFinished, None));
            assert_eq!(parcels(&world).await, 1);

            for op in [release, |token: &str, _: &str| claim::Release::new(token)] {
                let token = held(&world).await;
                world.fleet.call(op(&token, "n")).await.unwrap();
                assert_eq!(refused(ship(&world.fleet, op(&token, "n")).await).field("repeat"), Some(&true.into()));
            }
            let token = held(&world).await;
            world.fleet.call(task::Fail::new(&token, "no")).await.unwrap();
            let again = refused(ship(&world.fleet, task::Fail::new(&token, "no")).await);
            assert_eq!(again.field("repeat"), Some(&true.into()));
            assert_eq!(parcels(&world).await, 1);
        }
    }
}

mod content {
    use super::*;
    use crate::open_transactions::{run_to_commit, start};
    use fencepost::{Access, Clock, key, mail};

    /// The fleet as called with this key.
    async fn with_key(world: &World, name: &str) -> Fleet {
        let secret = world.fleet.call(key::Add::new(name, Access::Admin)).await.unwrap().secret;
        world.fleet.as_key(&world.fleet.key(&secret).await.unwrap().expect("it was just added"))
    }

    fn add(title: &str, request: &str) -> task::Add {
        task::Add { request: id(request), ..task::Add::new("auth", title) }
    }

    fn push(payload: &str, request: &str) -> mail::Push {
        mail::Push { request: id(request), ..mail::Push::new("s", payload) }
    }

    /// Calls; calls with other content under the same id, which is refused with the id's first use; and repeats the first.
    async fn refuses<O: Op, P: Op>(world: &World, first: O, other: P, resource: &str) {
        let answer = json!(world.fleet.call(first.clone()).await.unwrap());
        let events = world.kinds().await;
        let at = json!(Clock::Manual(world.clock.clone()).read());
        world.pass(1);
        let error = world.again().await.call(other).await.err().expect(resource);
        assert_eq!(error.code(), Code::Invalid, "{error}");
        let said =
            ["field", "op", "resource", "at"].map(|name| error.field(name).cloned().unwrap_or_default());
        assert_eq!(json!(said), json!(["request", O::NAME, resource, at]), "{error}");
        assert!(error.message().contains(resource) && error.message().contains(O::NAME), "{error}");
        assert_eq!(world.kinds().await, events, "a refused op wrote something");
        assert_eq!(json!(world.fleet.call(first).await.unwrap()), answer);
    }

    on_both! {
        async fn the_same_id_with_other_content_is_refused(world: World) {
            refuses(&world, add("one", "1"), add("two", "1"), "task/auth-1").await;
            refuses(&world, push("one", "2"), push("two", "2"), "message/1").await;
            refuses(&world, add("one", "3"), push("one", "3"), "task/auth-2").await;
            refuses(&world, push("one", "4"), mail::Push { priority: Some(0), ..push("one", "4") }, "message/2").await;
            let lease = |seconds| lock::Claim { ttl_ms: Some(Millis::seconds(seconds)), ..lock_claim("deploy", "a", "5") };
            refuses(&world, lease(30), lease(31), "lock/deploy").await;
            let item = |title: &str| vec![item("same", None), item(title, None)];
            let plan = |title: &str| task::Plan { board: Some("b".into()), tasks: item(title), request: id("6") };
            refuses(&world, plan("one"), plan("two"), "task/b-1").await;
            let claim = |run: &str| task::Claim { run: run.into(), ..claim_next("7") };
            refuses(&world, claim("a"), claim("b"), "task/auth-1").await;
        }

        /// A repeated call waits for the rest of the time.
        async fn a_repeated_wait_waits_for_the_rest(world: World) {
            world.add("first").await;
            let wait = |ms| task::Claim { wait_ms: Some(Millis(ms)), ..claim_next("1") };
            let first = world.fleet.call(wait(1000)).await.unwrap();
            assert_eq!(world.fleet.call(wait(10)).await.unwrap(), first);
            assert_eq!(world.fleet.call(claim_next("1")).await.unwrap(), first);
        }

        async fn request_ids_of_different_keys_are_separate(world: World) {
            let fleets = [world.fleet.clone(), with_key(&world, "one").await, with_key(&world, "two").await];
            for _twice in 0..2 {
                for (n, fleet) in fleets.iter().enumerate() {
                    let added = fleet.call(add("same", "1")).await.unwrap().task.id;
                    assert_eq!(added, format!("auth-{}", n + 1));
                }
            }
            fleets[1].call(push("one", "2")).await.unwrap();
            fleets[2].call(push("two", "2")).await.unwrap();
            assert_eq!(code(fleets[1].call(push("two", "2")).await), Code::Invalid);
            assert_eq!(world.times("message.pushed").await, 2);
        }

        /// Its claim was given back undelivered, so the request counts as never made.
        async fn the_id_of_an_undelivered_request_is_free(world: World) {
            world.add("first").await;
            let (_, delivery) = world.fleet.deliver(claim_next("1")).await.unwrap();
            assert_eq!(delivery.undelivered().await.unwrap(), 1);
            let other = task::Claim { run: "b".into(), ..claim_next("1") };
            let claimed = world.fleet.call(other.clone()).await.unwrap();
            assert_eq!(world.fleet.call(other).await.unwrap(), claimed);
            assert_eq!(code(world.fleet.call(claim_next("1")).await), Code::Invalid);
        }

        /// An earlier version did not store the digest of the request.
        async fn events_without_a_digest_are_compared_by_content(world: World) {
            world.fleet.call(add("one", "1")).await.unwrap();
            let forget = world.fleet.transaction(|tx| {
                Box::pin(tx.execute("update event set asked = null where request = '1'", params![]))
            });
            assert_eq!(forget.await.unwrap(), 1);
            let keyed = with_key(&world, "one").await;
            for fleet in [&world.fleet, &keyed] {
                assert_eq!(fleet.call(add("two", "1")).await.unwrap().task.title, "one");
                let error = refused(fleet.call(push("one", "1")).await);
                assert!(error.message().contains("`task.added` of `task/auth-1`"), "{error}");
            }
        }
    }

    /// On PostgreSQL a request waits for its own first try, and for no other request.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_of_another_key_are_not_waited_for() {
        let world = World::postgres().await;
        let keyed = with_key(&world, "one").await;
        let on = |board: &str| task::Add { request: id("1"), ..task::Add::new(board, "t") };
        let first = run_to_commit(&world, on("x")).await;
        let other = start(&keyed, on("y"));
        assert!(!first.holds_up(&world, &other).await, "it waits for another key's request");
        other.await.unwrap().unwrap();
        let same = start(&world.fleet, on("x"));
        assert!(first.holds_up(&world, &same).await, "its own first try is not waited for");
        let first = first.commit().await.unwrap();
        assert_eq!(same.await.unwrap().unwrap().task.id, first.task.id);
    }
}

mod other_runs {
    use super::*;

    on_both! {
        async fn another_runs_claim_is_no_reply(world: World) {
            let id = world.add("first").await;
            world.add("second").await;
            let claim = |run: &str| task::Claim { request: Some("1".into()), ..task::Claim::next("auth", run) };
            let token = world.fleet.call(claim("one")).await.unwrap().claim.token;
            let error = world.fleet.call(claim("two")).await.unwrap_err();
            assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&"request".into())));
            assert_eq!(world.fleet.call(claim("one")).await.unwrap().claim.token, token);
            assert_eq!(world.show(&id).await.claim.unwrap().run, "one");
            let lock = |run: &str| lock::Claim { request: Some("2".into()), ..lock::Claim::new("deploy", run) };
            world.fleet.call(lock("one")).await.unwrap();
            assert_eq!(world.fleet.call(lock("two")).await.unwrap_err().code(), Code::Invalid);
            let runs = world.fleet.call(run::List { run: None, all: true, limit: None }).await.unwrap().runs;
            assert!(runs.iter().all(|run| run.name != "two"), "a refused claim opened a run");
        }
    }
}
