//! Leases: an expired lease is refused by every verb, whether or not expiry has run.

use crate::open_transactions::hold;
use fencepost::{
    Code, Fleet, ManualClock, Millis, Time, admin, claim, claim::Verdict, event, lock, params, run, task,
};
use fencepost_testing::{
    PATIENCE, World, on_both,
    postgres::{fresh_schema, url as postgres_url},
    world::{START, code, options, refused},
};
use std::time::Duration;

fn start() -> Time {
    START.parse().expect("a time")
}

const HOUR: Duration = Duration::from_secs(3600);

/// Every verb refuses this token with this code.
async fn refused_everywhere(world: &World, token: &str, expected: Code) {
    let fleet = &world.fleet;
    let checkpoint = task::SaveCheckpoint {
        token: token.into(),
        ordinal: 9,
        phase: "late".into(),
        ..task::SaveCheckpoint::default()
    };
    let said = [
        ("claim/renew", code(fleet.call(claim::Renew::new(token)).await)),
        ("task/progress", code(fleet.call(task::Progress::new(token, "late")).await)),
        ("task/checkpoint", code(fleet.call(checkpoint).await)),
        ("task/done", code(fleet.call(done(token, "late")).await)),
        ("task/fail", code(fleet.call(task::Fail::new(token, "late")).await)),
        ("claim/release", code(fleet.call(claim::Release::new(token)).await)),
    ];
    for (verb, code) in said {
        assert_eq!(code, expected, "{verb} {token}");
    }
    let many = task::DoneMany { tasks: vec![completion(token)] };
    assert_eq!(fleet.call(many).await.unwrap().results[0].code(), Some(expected), "task/done_many {token}");
}

fn done(token: &str, output: &str) -> task::Done {
    task::Done { token: token.into(), output: Some(output.into()) }
}

fn completion(token: &str) -> task::done_many::Completion {
    task::done_many::Completion { token: token.into(), output: None }
}

fn renew_run(run: &str, ttl: Option<i64>) -> run::Renew {
    run::Renew { run: run.into(), ttl_ms: ttl.map(Millis::seconds) }
}

/// A claim that finds nothing, but runs expiry.
async fn sweep(world: &World) {
    assert_eq!(code(world.fleet.call(task::Claim::next("nowhere", "sweeper")).await), Code::NotFound);
}

async fn find_run(world: &World, name: &str) -> run::Run {
    let all = run::List { run: None, all: true, limit: Some(1000) };
    let runs = world.fleet.call(all).await.unwrap().runs;
    runs.into_iter().find(|run| run.name == name).expect("the run")
}

/// When the run's lease ends, in seconds after the test began.
async fn lease_end(world: &World, run: &str) -> i64 {
    find_run(world, run).await.expires_at.since(START.parse::<Time>().unwrap()).0 / 1000
}

async fn held_by(fleet: &Fleet, run: &str) -> Vec<String> {
    let list = claim::List { run: Some(run.into()), limit: Some(1000) };
    fleet.call(list).await.unwrap().claims.into_iter().map(|claim| claim.token).collect()
}

on_both! {
    /// Most renewals are not written. After a suspicion every kind of renewal is.
    async fn a_suspected_run_ends_only_if_nobody_renewed_it(world: World) {
        for n in 1..=4 {
            world.add(&format!("t{n}")).await;
        }
        world.claim("auth-1", "a").await.unwrap();
        let doubt = |lease| run::Suspect { run: "a".into(), lease };
        let end = |lease| run::End { run: "a".into(), lease, ..run::End::default() };
        let claimed = find_run(&world, "a").await.lease();
        for heard in ["claim", "renew", "progress"] {
            let doubted = world.fleet.call(doubt(None)).await.unwrap().run;
            assert!(doubted.alive && doubted.ttl_ms == find_run(&world, "a").await.ttl_ms);
            assert_eq!(find_run(&world, "a").await.lease(), doubted.lease());
            world.pass(1);
            match heard {
                "claim" => drop(world.claim("auth-2", "a").await.unwrap()),
                "renew" => drop(world.fleet.call(renew_run("a", None)).await.unwrap()),
                _ => drop(world.fleet.call(task::Progress::new("task/auth-1@1", "half")).await.unwrap()),
            }
            assert_eq!(code(world.fleet.call(end(Some(doubted.lease()))).await), Code::NotReady, "{heard}");
        }
        assert_eq!(code(world.fleet.call(doubt(Some(claimed))).await), Code::NotReady);
        // A keeper whose answer was lost asks again with the lease that it knows.
        let known = find_run(&world, "a").await.lease();
        let doubted = world.fleet.call(doubt(None)).await.unwrap().run.lease();
        assert_ne!(doubted, known);
        for lease in [known, doubted] {
            assert_eq!(world.fleet.call(doubt(Some(lease))).await.unwrap().run.lease(), doubted);
        }
        let ended = world.fleet.call(end(Some(doubted))).await.unwrap().run;
        assert!(!ended.alive);
        // A run of the same name that came back is another run.
        world.claim("auth-3", "a").await.unwrap();
        assert_eq!(code(world.fleet.call(end(Some(doubted))).await), Code::NotReady);
        world.done("task/auth-3@1").await.unwrap();
        assert_eq!(code(world.fleet.call(run::Suspect { run: "nobody".into(), lease: None }).await), Code::LeaseExpired);
    }

    /// Three closed tabs cost no attempt; ten do, because the task may be what closes them. A lapse always counts.
    async fn an_owner_that_is_gone_costs_no_attempt(world: World) {
        world.story("add one max_attempts=2             -> auth-1").await;
        for fence in 1..=10 {
            world.story(&format!("
                claim auth-1 run=tab                   -> task/auth-1@{fence} attempts=1
                end tab owner_gone=true                -> run.alive=false
                guard task/auth-1@{fence}              -> reason=lease_expired
                show auth-1                            -> unassigned attempts=0
            ")).await;
        }
        world.story("
            claim auth-1 run=tab                       -> task/auth-1@11 attempts=1
            end tab owner_gone=true                    -> run.alive=false
            show auth-1                                -> unassigned attempts=1
            claim auth-1 run=tab                       -> task/auth-1@12 attempts=2
            end tab owner_gone=true                    -> run.alive=false
            show auth-1                                -> failed
            add two max_attempts=2                     -> auth-2
            add three offer=bob                        -> auth-3
            claim auth-2 run=tab max_ms=5000           -> task/auth-2@1 attempts=1
            +6s end tab owner_gone=true                -> run.alive=false
            show auth-2                                -> unassigned attempts=1
            claim auth-2 run=tab                       -> task/auth-2@2 attempts=2
            end tab                                    -> run.alive=false
            show auth-2                                -> failed
            claim auth-3 run=bob agent=bob             -> task/auth-3@1 reviewing
            end bob owner_gone=true                    -> run.alive=false
            show auth-3                                -> offered attempts=0
        ").await;
        assert_eq!(world.times("task.unclaimed").await, 11);
    }

    /// If the run lapsed before its keeper ended it, its attempts count.
    async fn an_owner_that_is_gone_after_its_lease_costs_an_attempt(world: World) {
        world.story("
            add one                                    -> auth-1
            claim auth-1 run=tab                       -> task/auth-1@1 attempts=1
            +31s end tab owner_gone=true               -> run.alive=false
            show auth-1                                -> unassigned attempts=1
        ").await;
    }

    /// The mark changes nothing about the claim, and a new incarnation of the run does not have it.
    async fn a_run_that_waits_for_a_person(world: World) {
        let mark = |waiting| world.fleet.call(run::Wait { run: "tab".into(), waiting });
        let listed = async || {
            let list = claim::List { run: Some("tab".into()), limit: None };
            world.fleet.call(list).await.unwrap().claims.remove(0).waiting_at
        };
        world.add("t").await;
        assert_eq!(code(mark(true).await), Code::LeaseExpired, "it has not begun");
        let claim = || task::Claim { ttl_ms: Some(Millis::seconds(30)), ..task::Claim::of("auth-1", "tab") };
        let expires_at = world.fleet.call(claim()).await.unwrap().claim.expires_at;
        let marked = mark(true).await.unwrap().run;
        assert_eq!((marked.waiting_at, marked.expires_at), (Some(start()), expires_at));
        world.pass(5);
        assert_eq!(mark(true).await.unwrap().run.waiting_at, Some(start()), "since the first mark");
        assert_eq!(listed().await, Some(start()));
        assert_eq!(mark(false).await.unwrap().run.waiting_at, None);
        assert_eq!(listed().await, None);
        mark(true).await.unwrap();
        world.pass(31);
        assert_eq!(code(mark(false).await), Code::LeaseExpired);
        world.fleet.call(claim()).await.unwrap();
        assert_eq!(listed().await, None);
        assert_eq!((world.times("run.waiting").await, world.times("run.resumed").await), (2, 1));
    }

    async fn a_lifted_guard_is_in_the_log(world: World) {
        let lift = run::Lift { run: "claude-1".into(), for_ms: None, reason: Some("hotfix".into()) };
        let lifted = world.fleet.call(lift.clone()).await.unwrap();
        assert_eq!(lifted.until, start().plus(Millis::minutes(10)));
        let of_run = event::List { resource: Some("run/claude-1".into()), ..event::List::default() };
        let logged = world.follow(of_run).await.remove(0);
        assert_eq!(logged.kind, "run.lifted");
        assert_eq!(logged.details.unwrap()["reason"], "hotfix");
        let refused = world.fleet.call(run::Lift { for_ms: Some(Millis(-1)), ..lift }).await.unwrap_err();
        assert_eq!(refused.code(), Code::Invalid);
    }

    async fn a_claim_reports_a_longer_lease_that_is_kept(world: World) {
        world.story("
            add one                                    -> auth-1
            add two                                    -> auth-2
            add three                                  -> auth-3
            mail/push m payload=x                      -> id=1
            claim auth-1 run=a ttl_ms=1800000          -> task/auth-1@1 claim.lease_kept_ms=none
            claim auth-2 run=a ttl_ms=5000             -> task/auth-2@1 claim.lease_kept_ms=1800000
            claim auth-2 run=a ttl_ms=5000 resume=true -> task/auth-2@1 claim.lease_kept_ms=1800000
            renew task/auth-2@1 ttl_ms=5000            -> claim.lease_kept_ms=1800000
            renew task/auth-2@1                        -> claim.lease_kept_ms=none
            renew task/auth-2@1 ttl_ms=1800000         -> claim.lease_kept_ms=none
            mail/claim m run=a ttl_ms=5000             -> claims.0.claim.lease_kept_ms=1800000
            lock/claim name=l run=a ttl_ms=5000        -> claim.lease_kept_ms=1800000
            claim auth-3 run=a ttl_ms=3600000          -> task/auth-3@1 claim.lease_kept_ms=none
            renew task/auth-1@1 ttl_ms=1800000         -> claim.lease_kept_ms=3600000
        ").await;
    }

    /// The lease ends earlier now, and a waiter must not sleep past that.
    async fn a_waiter_for_a_lease_is_woken_when_its_run_is_suspected(world: World) {
        world.add("t").await;
        world.claim("auth-1", "a").await.unwrap();
        let waits = task::Claim { wait_ms: Some(Millis::minutes(10)), ..task::Claim::next("auth", "b") };
        let fleet = world.fleet.clone();
        let waiting = tokio::spawn(async move { fleet.call(waits).await });
        while world.fleet.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        let before = find_run(&world, "a").await.expires_at;
        let doubted = world.fleet.call(run::Suspect { run: "a".into(), lease: None }).await.unwrap().run;
        assert!(doubted.expires_at < before);
        let left = doubted.expires_at.since(START.parse::<Time>().unwrap());
        world.clock.advance(Duration::from_millis(u64::try_from(left.0).unwrap()));
        let claimed = tokio::time::timeout(PATIENCE, waiting).await.expect("it is woken");
        assert_eq!(claimed.unwrap().unwrap().claim.token, "task/auth-1@2");
    }

    /// A supervisor counts the lease on its own clock, and must tell its own completion from a loss.
    async fn a_renewal_reports_the_rest_of_the_lease_and_a_refusal_its_end(world: World) {
        let fleet = &world.fleet;
        let left = async |token: &str| fleet.call(claim::Renew::new(token)).await.unwrap().lease_ms;
        let claim = lock::Claim { ttl_ms: Some(Millis::seconds(60)), ..lock::Claim::new("deploy", "a") };
        fleet.call(claim.clone()).await.unwrap();
        assert_eq!(left("lock/deploy@1").await, Millis::seconds(60));
        world.clock.advance(Duration::from_secs(10));
        assert_eq!(left("lock/deploy@1").await, Millis::seconds(50), "a quarter is not yet used");
        world.clock.advance(Duration::from_secs(10));
        assert_eq!(left("lock/deploy@1").await, Millis::seconds(60));
        fleet
            .call(lock::Claim { name: "capped".into(), max_ms: Some(Millis::seconds(30)), ..claim.clone() })
            .await
            .unwrap();
        world.clock.advance(Duration::from_secs(20));
        assert_eq!(left("lock/capped@1").await, Millis::seconds(10));

        let ended_by = async |token: &str| {
            let refused = fleet.call(claim::Renew::new(token)).await.unwrap_err();
            refused.field("ended_by").and_then(|verb| verb.as_str()).unwrap_or("?").to_owned()
        };
        fleet.call(claim::Release::new("lock/deploy@1")).await.unwrap();
        assert_eq!(ended_by("lock/deploy@1").await, "release");
        fleet.call(claim.clone()).await.unwrap();
        fleet.call(claim::Unclaim { resource: "lock/deploy".into(), reason: None }).await.unwrap();
        assert_eq!(ended_by("lock/deploy@2").await, "unclaim");
        assert_eq!(ended_by("lock/deploy@1").await, "?", "only the last ending is remembered");
        for (n, verb) in [(1, "done"), (2, "cancel"), (3, "lapse")] {
            fleet.call(task::Add::new("auth", "a task")).await.unwrap();
            let token = fleet.call(task::Claim::next("auth", "a")).await.unwrap().claim.token;
            match verb {
                "done" => drop(fleet.call(task::Done::new(&token)).await.unwrap()),
                "cancel" => drop(
                    fleet
                        .call(task::Cancel { task: format!("auth-{n}"), reason: None, request: None })
                        .await
                        .unwrap(),
                ),
                _ => drop(fleet.call(run::End { run: "a".into(), ..run::End::default() }).await.unwrap()),
            }
            assert_eq!(ended_by(&token).await, verb);
        }
    }

    async fn a_holder_whose_lease_is_over_is_refused_everywhere(world: World) {
        let id = world.add("first").await;
        let old = world.claim(&id, "a").await.unwrap();
        world.pass(30);

        refused_everywhere(&world, &old, Code::LeaseExpired).await;
        assert_eq!(world.guard(&old).await, Verdict::LeaseExpired);
        assert_eq!(world.show(&id).await.status, task::Status::Unassigned);
        assert_eq!(world.times("task.lapsed").await, 0, "nothing has swept it yet");
        assert_eq!(code(world.fleet.call(renew_run("a", None)).await), Code::LeaseExpired);

        sweep(&world).await;
        assert_eq!(world.show(&id).await.status, task::Status::Unassigned);
        refused_everywhere(&world, &old, Code::LeaseExpired).await;
        assert_eq!(world.guard(&old).await, Verdict::LeaseExpired);
        assert_eq!(code(world.fleet.call(renew_run("a", None)).await), Code::LeaseExpired);

        let new = world.claim(&id, "b").await.unwrap();
        refused_everywhere(&world, &old, Code::LeaseExpired).await;
        assert_eq!(world.guard(&old).await, Verdict::AlreadyClaimed);
        assert_eq!(world.guard(&new).await, Verdict::Ok);

        world.fleet.call(done(&new, "b's")).await.unwrap();
        refused_everywhere(&world, &old, Code::AlreadyFinished).await;
        assert_eq!(world.guard(&old).await, Verdict::AlreadyFinished);
        let task = world.show(&id).await;
        assert_eq!((task.status, task.output.as_deref()), (task::Status::Completed, Some("b's")));
        assert_eq!((task.progress.len(), task.checkpoint), (0, None));
    }

    async fn a_lock_whose_lease_is_over_is_refused(world: World) {
        let claim = |run: &str| lock::Claim { ttl_ms: Some(Millis::seconds(30)), ..lock::Claim::new("deploy", run) };
        let old = world.fleet.call(claim("a")).await.unwrap().claim.token;
        world.pass(30);
        for settled in [false, true] {
            assert_eq!(world.guard(&old).await, Verdict::LeaseExpired, "settled: {settled}");
            assert_eq!(code(world.fleet.call(claim::Renew::new(&old)).await), Code::LeaseExpired);
            assert_eq!(code(world.fleet.call(claim::Release::new(&old)).await), Code::LeaseExpired);
            sweep(&world).await;
        }
        let new = world.fleet.call(claim("b")).await.unwrap().claim.token;
        assert_eq!((old.as_str(), new.as_str()), ("lock/deploy@1", "lock/deploy@2"));
        assert_eq!(code(world.fleet.call(claim::Release::new(&old)).await), Code::LeaseExpired);
        assert_eq!(world.guard(&new).await, Verdict::Ok);
    }

    async fn a_name_that_comes_back_gets_none_of_its_old_claims(world: World) {
        let add = task::Add { max_attempts: Some(100), ..task::Add::new("auth", "much tried") };
        let id = world.fleet.call(add).await.unwrap().task.id;
        let mut tokens = Vec::new();
        for n in 1..=50 {
            tokens.push(world.claim(&id, &format!("run-{n}")).await.unwrap());
            world.pass(30);
        }
        world.add("another").await;
        let back = world.claim("auth-2", "run-40").await.unwrap();
        assert_eq!(tokens[39], "task/auth-1@40");
        refused_everywhere(&world, &tokens[39], Code::LeaseExpired).await;
        assert_eq!(world.guard(&tokens[39]).await, Verdict::LeaseExpired);
        assert_eq!(held_by(&world.fleet, "run-40").await, [back]);
        assert_eq!(world.show(&id).await.attempts, 50);
    }

    async fn at_exactly_its_end_a_lease_is_over(world: World) {
        let id = world.add("first").await;
        let token = world.claim(&id, "a").await.unwrap();
        world.clock.advance(Duration::from_millis(29_999));
        assert_eq!(world.guard(&token).await, Verdict::Ok);
        assert_eq!(code(world.claim(&id, "b").await), Code::AlreadyClaimed);
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
        assert_eq!(held_by(&world.fleet, "a").await, [""; 0]);
        assert!(!find_run(&world, "a").await.alive);
        assert_eq!(code(world.done(&token).await), Code::LeaseExpired);
        world.claim(&id, "b").await.unwrap();
    }

    /// Other nodes need not have seen the time that this node saw before the clock was set back.
    async fn a_clock_set_back_keeps_no_dead_holder_alive(world: World) {
        let id = world.add("first").await;
        let old = world.claim(&id, "a").await.unwrap();
        world.clock.set_back(HOUR);
        world.pass(29);
        assert_eq!(world.guard(&old).await, Verdict::Ok);
        world.pass(1);
        let other = world.again().await;
        assert_eq!(other.call(claim::Guard::new(&old)).await.unwrap().reason, Verdict::LeaseExpired);
        assert_eq!(world.guard(&old).await, Verdict::LeaseExpired);
        assert_eq!(code(other.call(done(&old, "late")).await), Code::LeaseExpired);
        let claim = task::Claim { ttl_ms: Some(Millis::seconds(30)), ..task::Claim::of(&id, "b") };
        let new = other.call(claim).await.unwrap().claim.token;
        world.pass(29);
        assert_eq!(world.guard(&new).await, Verdict::Ok, "b has its whole lease");
        world.pass(1);
        assert_eq!(world.guard(&new).await, Verdict::LeaseExpired);
    }

    async fn a_crash_before_the_first_renewal_is_an_attempt(world: World) {
        let id = world.add("poison").await;
        for attempt in 1..=3 {
            world.claim(&id, &format!("r{attempt}")).await.unwrap();
            assert_eq!(world.show(&id).await.attempts, attempt);
            world.pass(30);
        }
        assert_eq!(code(world.claim(&id, "r4").await), Code::AlreadyFinished);
        sweep(&world).await;
        let task = world.show(&id).await;
        assert_eq!(task.status, task::Status::Failed);
        let reason = task.failure_reason.unwrap();
        assert!(reason.contains("3 attempts") && reason.contains("`r3`"), "{reason}");
        assert_eq!(code(world.claim_next("r4").await), Code::BoardFinished);
    }

    async fn a_release_gives_the_attempt_back(world: World) {
        let id = world.add("first").await;
        for n in 1..=5 {
            let token = world.claim(&id, "a").await.unwrap();
            assert_eq!(token, format!("task/auth-1@{n}"));
            world.fleet.call(claim::Release::new(&token)).await.unwrap();
            assert_eq!(world.show(&id).await.attempts, 0);
        }
    }

    async fn a_poison_task_is_handed_out_alone(world: World) {
        for n in 1..=5 {
            world.add(&format!("task {n}")).await;
        }
        let many = |run: &str| task::ClaimMany {
            count: 5,
            board: Some("auth".into()),
            run: run.into(),
            ttl_ms: Some(Millis::seconds(300)),
            ..task::ClaimMany::default()
        };
        world.claim("auth-3", "crashes").await.unwrap();
        world.pass(30);
        let mut handed = Vec::new();
        for run in ["a", "b", "c"] {
            let claims = world.fleet.call(many(run)).await.unwrap().claims;
            handed.push(claims.into_iter().map(|claimed| claimed.task.id).collect::<Vec<_>>());
        }
        assert_eq!(handed, [vec!["auth-1", "auth-2"], vec!["auth-3"], vec!["auth-4", "auth-5"]]);
    }

    async fn a_cap_ends_a_claim_however_often_it_is_renewed(world: World) {
        let id = world.add("first").await;
        let other = world.add("second").await;
        let capped = task::Claim {
            ttl_ms: Some(Millis::seconds(30)),
            max_ms: Some(Millis::seconds(60)),
            ..task::Claim::of(&id, "a")
        };
        let token = world.fleet.call(capped).await.unwrap().claim.token;
        let uncapped = world.claim(&other, "a").await.unwrap();
        for _ in 0..2 {
            world.pass(20);
            world.fleet.call(claim::Renew::new(&token)).await.unwrap();
        }
        let renewed = world.fleet.call(claim::Renew::new(&token)).await.unwrap().claim;
        assert_eq!(renewed.expires_at.since(START.parse().unwrap()), Millis::seconds(60));
        world.pass(20);
        refused_everywhere(&world, &token, Code::LeaseExpired).await;
        assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
        assert_eq!(held_by(&world.fleet, "a").await, [uncapped.as_str()]);
        sweep(&world).await;
        let task = world.show(&id).await;
        assert_eq!((task.status, task.attempts), (task::Status::Unassigned, 1));
        assert_eq!(world.guard(&uncapped).await, Verdict::Ok, "the run lives on");
        world.claim(&id, "b").await.unwrap();
    }

    async fn a_capped_lock_is_free_when_its_time_is_up(world: World) {
        let capped = lock::Claim { max_ms: Some(Millis::seconds(60)), ..lock::Claim::new("deploy", "a") };
        let token = world.fleet.call(capped).await.unwrap().claim.token;
        world.pass(59);
        assert_eq!(code(world.fleet.call(lock::Claim::new("deploy", "b")).await), Code::AlreadyClaimed);
        world.pass(1);
        assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
        sweep(&world).await;
        assert_eq!(world.times("lock.lapsed").await, 1);
        world.fleet.call(lock::Claim::new("deploy", "b")).await.unwrap();
    }

    async fn ending_a_run_is_final(world: World) {
        let id = world.add("first").await;
        let old = world.claim(&id, "a").await.unwrap();
        let lock = world.fleet.call(lock::Claim::new("deploy", "a")).await.unwrap().claim.token;
        let end = run::End { run: "a".into(), reason: Some("over".into()), ..run::End::default() };
        let ended = world.fleet.call(end.clone()).await.unwrap().run;
        assert!(!ended.alive);
        refused_everywhere(&world, &old, Code::LeaseExpired).await;
        assert_eq!(world.guard(&lock).await, Verdict::LeaseExpired);
        assert_eq!(code(world.fleet.call(renew_run("a", None)).await), Code::LeaseExpired);

        world.pass(1);
        assert_eq!(world.fleet.call(end).await.unwrap().run, ended, "ending twice is safe");
        assert_eq!(world.times("run.ended").await, 1);

        let new = world.claim(&id, "a").await.unwrap();
        assert_eq!(world.guard(&old).await, Verdict::AlreadyClaimed);
        assert_eq!(held_by(&world.fleet, "a").await, [new], "the lock did not come back with the name");
        assert_ne!(find_run(&world, "a").await.opened_at, ended.opened_at);
        let unknown = run::End { run: "nobody".into(), ..run::End::default() };
        assert_eq!(code(world.fleet.call(unknown).await), Code::NotFound);
    }

    /// The reason for `prelude.rs`: the savepoint of a refused op would undo the expiry each time.
    async fn refused_claims_do_not_undo_expiry(world: World) {
        let id = world.add("first").await;
        world.claim(&id, "a").await.unwrap();
        world.pass(30);
        for _ in 0..3 {
            sweep(&world).await;
            assert_eq!(world.show(&id).await.status, task::Status::Unassigned);
        }
        assert_eq!(world.times("run.ended").await, 1);
        assert_eq!(world.times("task.lapsed").await, 1);
    }

    async fn a_dead_runs_claims_go_back_in_bounded_batches(world: World) {
        dead_run_with_600(&world).await;
        world.claim_next("b").await.unwrap();
        let left = not_given_back(&world).await;
        assert!((1..600).contains(&left), "one claim gave back {} at once", 600 - left);

        // The only tasks on this board are the last to be given back.
        world.fleet.call(task::Claim::next("zed", "c")).await.unwrap();
        assert_eq!(not_given_back(&world).await, 0);
        assert_eq!(world.times("run.ended").await, 1);
    }

    async fn a_named_claim_does_not_wait_for_the_batches(world: World) {
        dead_run_with_600(&world).await;
        assert_eq!(world.claim("zed-2", "b").await.unwrap(), "task/zed-2@2");
        assert!(not_given_back(&world).await > 0);
    }

    /// A named claim runs one batch, so that other callers do not wait.
    async fn a_dead_run_does_not_block_an_embedders_transaction(world: World) {
        dead_run_with_600(&world).await;
        let claim = async |board: &'static str| {
            let claim =
                world.fleet.transaction(move |tx| Box::pin(tx.call(task::Claim::next(board, "b")))).await;
            claim.map(|claimed| claimed.claim.token)
        };
        assert_eq!(claim("auth").await.unwrap(), "task/auth-1@2");
        let left = not_given_back(&world).await;
        assert!((300..600).contains(&left), "a transaction gave back {}", 600 - left);
        // The last to be given back are on this board.
        assert_eq!(code(claim("zed").await), Code::NoneReady);
    }
}

/// How many tasks the stored rows show for the dead run.
async fn not_given_back(world: &World) -> i64 {
    let held = "select count(*) as n from run join task on task.run = run.key where run.name = 'dead'";
    world.fleet.transaction(move |tx| Box::pin(tx.query(held, params![]))).await.unwrap()[0].get("n").unwrap()
}

async fn dead_run_with_600(world: &World) {
    for (board, count) in [("auth", 598), ("zed", 2)] {
        let item = task::plan::Item { title: "one of many".into(), ..task::plan::Item::default() };
        let plan = task::Plan { board: Some(board.into()), tasks: vec![item; count], request: None };
        world.fleet.call(plan).await.unwrap();
    }
    let many = task::ClaimMany {
        count: 600,
        run: "dead".into(),
        ttl_ms: Some(Millis::seconds(30)),
        ..task::ClaimMany::default()
    };
    assert_eq!(world.fleet.call(many).await.unwrap().claims.len(), 600);
    world.pass(30);
}

mod renewals {
    use super::*;

    /// A run with a lease of 40 s, so that a quarter is 10 s, and its claims.
    async fn run_of_40(world: &World, tasks: usize) -> Vec<String> {
        for n in 0..tasks {
            world.add(&format!("task {n}")).await;
        }
        let many = task::ClaimMany {
            count: tasks as i64,
            run: "a".into(),
            ttl_ms: Some(Millis::seconds(40)),
            ..task::ClaimMany::default()
        };
        let claims = world.fleet.call(many).await.unwrap().claims;
        claims.into_iter().map(|claimed| claimed.claim.token).collect()
    }

    on_both! {
        async fn every_writing_call_with_a_token_renews_its_run(world: World) {
            let tokens = run_of_40(&world, 7).await;
            let mut end = 40;
            macro_rules! renews {
                ($($op:expr),* $(,)?) => {$(
                    world.pass(10);
                    end += 10;
                    world.fleet.call($op).await.unwrap();
                    assert_eq!(lease_end(&world, "a").await, end, "{}", stringify!($op));
                )*};
            }
            renews![
                claim::Renew::new(&tokens[0]),
                renew_run("a", None),
                task::Progress::new(&tokens[1], "half way"),
                task::SaveCheckpoint {
                    token: tokens[1].clone(),
                    ordinal: 1,
                    phase: "built".into(),
                    ..task::SaveCheckpoint::default()
                },
                task::Done::new(&tokens[2]),
                task::DoneMany { tasks: vec![completion(&tokens[3]), completion(&tokens[4])] },
                task::Fail::new(&tokens[5], "broken"),
                claim::Release::new(&tokens[6]),
                task::Claim::of("auth-7", "a"),
                lock::Claim::new("deploy", "a"),
            ];
        }

        async fn guards_and_reads_do_not_renew(world: World) {
            let tokens = run_of_40(&world, 1).await;
            world.pass(20);
            assert_eq!(world.guard(&tokens[0]).await, Verdict::Ok);
            world.show("auth-1").await;
            world.kinds().await;
            held_by(&world.fleet, "a").await;
            world.fleet.call(task::List::default()).await.unwrap();
            world.fleet.call(task::Ready::default()).await.unwrap();
            assert_eq!(lease_end(&world, "a").await, 40);
        }

        async fn nothing_is_written_before_a_quarter_of_the_lease_is_used(world: World) {
            let tokens = run_of_40(&world, 1).await;
            world.pass(9);
            let renewed = world.fleet.call(claim::Renew::new(&tokens[0])).await.unwrap().claim;
            assert_eq!(renewed.expires_at.since(START.parse().unwrap()), Millis::seconds(40));
            assert_eq!(lease_end(&world, "a").await, 40);
            world.pass(1);
            world.fleet.call(claim::Renew::new(&tokens[0])).await.unwrap();
            assert_eq!(lease_end(&world, "a").await, 50);
        }

        async fn a_refused_call_renews_its_run(world: World) {
            let tokens = run_of_40(&world, 1).await;
            world.pass(10);
            assert_eq!(code(world.claim_next("a").await), Code::NoneReady);
            assert_eq!(lease_end(&world, "a").await, 50);
            world.pass(10);
            assert_eq!(code(world.claim("auth-1", "a").await), Code::AlreadyClaimed);
            assert_eq!(lease_end(&world, "a").await, 60);
            world.pass(10);
            let nameless = task::Progress::new(&tokens[0], "");
            assert_eq!(code(world.fleet.call(nameless).await), Code::Invalid);
            assert_eq!(lease_end(&world, "a").await, 70);
        }

        async fn a_ttl_becomes_longer_and_never_shorter(world: World) {
            let tokens = run_of_40(&world, 1).await;
            world.fleet.call(renew_run("a", Some(44))).await.unwrap();
            assert_eq!(lease_end(&world, "a").await, 44, "a little longer is longer");
            world.fleet.call(renew_run("a", Some(10))).await.unwrap();
            assert_eq!(lease_end(&world, "a").await, 44);
            let longer = claim::Renew { token: tokens[0].clone(), ttl_ms: Some(Millis::seconds(60)) };
            world.fleet.call(longer).await.unwrap();
            assert_eq!(lease_end(&world, "a").await, 60);
            let longest = lock::Claim { ttl_ms: Some(Millis::seconds(90)), ..lock::Claim::new("deploy", "a") };
            let claim = world.fleet.call(longest).await.unwrap().claim;
            assert_eq!(claim.expires_at.since(START.parse().unwrap()), Millis::seconds(90));
            world.pass(30);
            world.claim_next("a").await.unwrap_err();
            assert_eq!(lease_end(&world, "a").await, 120, "the claim's 30 s did not shorten it");
        }

        async fn a_token_of_a_lost_claim_renews_nobody(world: World) {
            let old = run_of_40(&world, 1).await.remove(0);
            world.pass(40);
            let claim = task::Claim { ttl_ms: Some(Millis::seconds(40)), ..task::Claim::of("auth-1", "b") };
            world.fleet.call(claim).await.unwrap();
            world.pass(20);
            let error = refused(world.fleet.call(task::Progress::new(&old, "late")).await);
            assert_eq!(error.field("holder"), Some(&"b".into()));
            assert_eq!(lease_end(&world, "b").await, 80);
            assert!(!find_run(&world, "a").await.alive);
        }
    }
}

/// No node was running when the database's clock was set back: the fleet stores the latest time it has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_databases_clock_set_back_while_no_node_runs_keeps_no_dead_holder_alive() {
    let start: Time = START.parse().unwrap();
    let url = postgres_url(&fresh_schema());
    let node = async |wall: Time| {
        let clock = ManualClock::at(wall);
        (Fleet::open_with(&url, options(&clock)).await.unwrap(), clock)
    };
    let claim =
        |run: &str| lock::Claim { ttl_ms: Some(Millis::seconds(3)), ..lock::Claim::new("deploy", run) };
    let (first, _) = node(start).await;
    first.call(claim("dead")).await.unwrap();
    drop(first);

    let hour = Millis::from(HOUR);
    let (second, clock) = node(Time(start.0 - hour.0)).await;
    assert_eq!(code(second.call(claim("b")).await), Code::AlreadyClaimed);
    clock.advance(Duration::from_secs(3));
    assert_eq!(second.call(claim("b")).await.unwrap().claim.fence, 2);
    // Once more: the next node goes on from this one's time.
    drop(second);
    let (third, clock) = node(Time(start.0 - 2 * hour.0)).await;
    assert_eq!(code(third.call(claim("c")).await), Code::AlreadyClaimed);
    clock.advance(Duration::from_secs(3));
    assert_eq!(third.call(claim("c")).await.unwrap().claim.fence, 3);
    assert!(third.call(admin::Check {}).await.unwrap().ok);
}

/// A call does not write the time if it was just written, and does not wait for the row's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_is_stored_once_a_second_without_waiting() {
    let world = World::postgres().await;
    let stored = async || {
        let sql = "select cast(xmin as text) as version, seen_at from fleet";
        let read = world.fleet.transaction(move |tx| {
            Box::pin(async move {
                let row = tx.query(sql, params![]).await?.remove(0);
                Ok((row.get::<String>("version")?, row.get::<Option<Time>>("seen_at")?))
            })
        });
        read.await.unwrap()
    };
    world.add("first").await;
    let first = stored().await;
    assert_eq!(first.1, Some(START.parse().unwrap()));
    world.clock.advance(Duration::from_millis(999));
    world.add("within the second").await;
    assert_eq!(stored().await, first);

    let busy = hold(&world, "select 1 from fleet for update", "select 1").await;
    world.pass(10);
    world.add("while another has the row").await;
    busy.commit().await.unwrap();
    assert_eq!(stored().await, first);
    world.add("after").await;
    let second = stored().await.1.unwrap();
    assert_eq!(second.since(first.1.unwrap()), Millis(10_999));
}

/// The file stores when it was last written: if the machine restarts with its clock an hour behind, a dead holder does not
/// gain that hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn across_a_reboot_a_dead_holder_lives_no_longer_than_its_ttl() {
    let world = World::sqlite().await;
    let id = world.add("first").await;
    let old = world.claim(&id, "a").await.unwrap();
    world.pass(20);
    world.clock.set_back(HOUR);
    world.clock.reboot();
    let booted = world.reopened().await;
    assert_eq!(code(booted.claim(&id, "b").await), Code::AlreadyClaimed);
    booted.pass(30);
    assert_eq!(booted.guard(&old).await, Verdict::LeaseExpired);
    assert_eq!(code(booted.done(&old).await), Code::LeaseExpired);
    booted.claim(&id, "b").await.unwrap();
    booted.assert_sound().await;
}
