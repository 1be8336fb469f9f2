//! Races in real time, in many rounds, between fleets with separate connections. The promises hold whoever wins.

use fencepost::{Code, Error, Fleet, Millis, admin, claim, claim::Verdict, lock, run, task};
use fencepost_testing::{PATIENCE, World, on_both, world::code};
use std::collections::BTreeSet;
use tokio::task::JoinSet;

const ROUNDS: usize = 30;

async fn fleets<const N: usize>(world: &World) -> [Fleet; N] {
    let mut fleets = Vec::new();
    for _ in 0..N {
        fleets.push(world.again().await);
    }
    fleets.try_into().expect("as many as asked for")
}

fn end(run: &str) -> run::End {
    run::End { run: run.into(), ..run::End::default() }
}

fn plan(tasks: Vec<task::plan::Item>) -> task::Plan {
    task::Plan { board: Some("auth".into()), tasks, request: None }
}

fn item() -> task::plan::Item {
    task::plan::Item { title: "one of many".into(), ..task::plan::Item::default() }
}

/// Claims and completes until the board is finished. Returns the claimed tasks.
async fn work(fleet: Fleet, run: String) -> Vec<String> {
    let mut taken = Vec::new();
    loop {
        match fleet.call(task::Claim::next("auth", &run)).await {
            Ok(claimed) => {
                fleet.call(task::Done::new(&claimed.claim.token)).await.expect("the holder completes");
                taken.push(claimed.task.id);
            }
            Err(e) if e.code() == Code::BoardFinished => return taken,
            Err(e) if e.code() == Code::NoneReady => tokio::task::yield_now().await,
            Err(e) => panic!("{e:?}"),
        }
    }
}

/// Ending a run skips items that another call has locked. The next expiry gives these back.
async fn settle(world: &World) {
    world.fleet.call(admin::Expire::default()).await.unwrap();
}

on_both! {
    async fn eight_workers_finish_a_board_and_each_task_is_handed_out_once(world: World) {
        world.fleet.call(plan(vec![item(); 400])).await.unwrap();
        let mut workers = JoinSet::new();
        for (n, fleet) in fleets::<8>(&world).await.into_iter().enumerate() {
            workers.spawn(work(fleet, format!("worker-{n}")));
        }
        let taken: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
        assert_eq!((taken.len(), taken.iter().collect::<BTreeSet<_>>().len()), (400, 400));
        assert_eq!(world.times("task.claimed").await, 400);
        assert_eq!(world.times("task.completed").await, 400);
    }

    async fn a_claim_racing_the_end_of_its_run(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let id = world.add("t").await;
            world.fleet.call(lock::Claim::new(format!("l{round}"), "a")).await.unwrap();
            let (claimed, ended) = tokio::join!(one.call(task::Claim::of(&id, "a")), other.call(end("a")));
            ended.unwrap();
            let token = claimed.expect("in this run or in the next of its name").claim.token;
            world.end("a").await;
            assert_eq!(world.guard(&token).await, Verdict::LeaseExpired, "round {round}");
            assert_eq!(world.show(&id).await.status, task::Status::Unassigned, "round {round}");
        }
    }

    /// In every round the run is new, and in every second one it already exists: it holds a lock.
    async fn a_run_that_takes_one_task_at_a_time(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let run = format!("session-{round}");
            for _ in 0..2 {
                world.add("t").await;
            }
            if round % 2 == 1 {
                world.fleet.call(lock::Claim::new(format!("l{round}"), &run)).await.unwrap();
            }
            let claim = || task::Claim { one_at_a_time: true, ..task::Claim::next("auth", &run) };
            let (a, b) = tokio::join!(one.call(claim()), other.call(claim()));
            let (claimed, refused) = match (a, b) {
                (Ok(claimed), Err(refused)) | (Err(refused), Ok(claimed)) => (claimed, refused),
                both => panic!("round {round}: {both:?}"),
            };
            assert_eq!((refused.code(), refused.field("own")), (Code::AlreadyClaimed, Some(&true.into())), "round {round}");
            assert_eq!(refused.field("token"), Some(&claimed.claim.token.clone().into()), "round {round}");
            // A named one is meant.
            let ready = world.fleet.call(task::Ready::default()).await.unwrap().tasks.remove(0);
            let named = task::Claim { one_at_a_time: true, ..task::Claim::of(&ready.id, &run) };
            let named = world.fleet.call(named).await.unwrap();
            for token in [claimed.claim.token, named.claim.token] {
                world.fleet.call(task::Done::new(&token)).await.unwrap();
            }
            let refused = world.fleet.call(claim()).await.unwrap_err();
            assert_eq!(refused.code(), Code::BoardFinished, "round {round}: it holds nothing more");
        }
    }

    async fn a_renewal_racing_the_end_of_its_run(world: World) {
        let [one, other] = fleets(&world).await;
        let id = world.add("t").await;
        for round in 0..ROUNDS {
            let token = world.claim(&id, "a").await.unwrap();
            world.pass(20);
            let (renewed, ended) = tokio::join!(one.call(claim::Renew::new(&token)), other.call(end("a")));
            ended.unwrap();
            if let Err(e) = renewed {
                assert_eq!(e.code(), Code::LeaseExpired, "round {round}");
            }
            assert_eq!(world.guard(&token).await, Verdict::LeaseExpired, "round {round}");
            settle(&world).await;
            assert_eq!(world.show(&id).await.status, task::Status::Unassigned, "round {round}");
            let reset = world.claim(&id, "b").await.unwrap();
            world.fleet.call(claim::Release::new(reset)).await.unwrap();
            world.fleet.call(task::Cancel { task: id.clone(), ..task::Cancel::default() }).await.unwrap();
            world.fleet.call(task::Retry { task: id.clone(), request: None }).await.unwrap();
        }
    }

    async fn a_completion_racing_the_end_of_its_run(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let id = world.add("t").await;
            let token = world.claim(&id, "a").await.unwrap();
            let (done, ended) = tokio::join!(one.call(task::Done::new(&token)), other.call(end("a")));
            ended.unwrap();
            let expected = match done {
                Ok(_) => task::Status::Completed,
                Err(e) => {
                    assert_eq!(e.code(), Code::LeaseExpired, "round {round}");
                    task::Status::Unassigned
                }
            };
            settle(&world).await;
            assert_eq!(world.show(&id).await.status, expected, "round {round}");
        }
    }

    /// The clock stands exactly at the end of the lease: only the new claim can win.
    async fn a_late_completion_racing_the_next_claim(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let id = world.add("t").await;
            let old = world.claim(&id, "a").await.unwrap();
            world.pass(30);
            let (late, claimed) = tokio::join!(
                one.call(task::Done::new(&old)),
                other.call(task::Claim::of(&id, format!("b{round}"))),
            );
            assert_eq!(code(late), Code::LeaseExpired);
            world.done(&claimed.unwrap().claim.token).await.unwrap();
        }
    }

    async fn a_task_added_after_one_that_is_being_completed(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let id = world.add("a").await;
            let token = world.claim(&id, "a").await.unwrap();
            let add = task::Add { after: vec![id], ..task::Add::new("auth", "c") };
            let (added, done) = tokio::join!(one.call(add), other.call(task::Done::new(&token)));
            done.unwrap();
            let added = added.unwrap().task.id;
            assert_eq!(world.show(&added).await.waiting_on, 0, "round {round}");
        }
    }

    async fn two_edges_that_would_close_a_circle(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let (a, b) = (world.add("a").await, world.add("b").await);
            let (after_a, after_b) = (world.add_after("c", &[&a]).await, world.add_after("d", &[&b]).await);
            let edge =
                |task: &str, after: &str| task::Depend { task: task.into(), after: after.into(), request: None };
            let (first, second) = tokio::join!(one.call(edge(&a, &after_b)), other.call(edge(&b, &after_a)));
            assert!(first.is_ok() != second.is_ok(), "round {round}: {first:?} {second:?}");
            assert_eq!(code(first.and(second)), Code::Invalid);
            let waiting = world.show(&a).await.waiting_on + world.show(&b).await.waiting_on;
            assert_eq!(waiting, 1, "round {round}");
        }
    }

    async fn two_first_claims_of_one_new_name(world: World) {
        let [one, other] = fleets(&world).await;
        for round in 0..ROUNDS {
            let (a, b) = (world.add("a").await, world.add("b").await);
            let run = format!("new-{round}");
            let (first, second) = tokio::join!(
                one.call(task::Claim::of(&a, &run)),
                other.call(task::Claim::of(&b, &run)),
            );
            let tokens = [first.unwrap().claim.token, second.unwrap().claim.token];
            for token in &tokens {
                assert_eq!(world.guard(token).await, Verdict::Ok, "round {round}");
            }
            world.end(&run).await;
            for token in &tokens {
                assert_eq!(world.guard(token).await, Verdict::LeaseExpired, "round {round}");
            }
        }
    }

    async fn sixteen_runs_racing_for_one_lock(world: World) {
        let fleets = fleets::<4>(&world).await;
        for round in 1..=10 {
            let mut racing = JoinSet::new();
            for n in 0..16 {
                let fleet = fleets[n % 4].clone();
                racing.spawn(async move { fleet.call(lock::Claim::new("deploy", format!("r{n}"))).await });
            }
            let (won, lost): (Vec<_>, Vec<_>) = racing.join_all().await.into_iter().partition(Result::is_ok);
            assert_eq!(won.len(), 1, "round {round}");
            for refused in lost {
                assert_eq!(code(refused), Code::AlreadyClaimed);
            }
            let claim = won.into_iter().next().unwrap().unwrap().claim;
            assert_eq!(claim.fence, round);
            world.fleet.call(claim::Release::new(claim.token)).await.unwrap();
        }
    }

    /// As many tasks as claimers, all held by one dead run: each claimer gets one, whichever call runs the expiry.
    async fn claimers_racing_to_end_a_dead_run_each_get_a_task(world: World) {
        let fleets = fleets::<4>(&world).await;
        for round in 0..10 {
            world.fleet.call(plan(vec![item(); 4])).await.unwrap();
            let dead = task::ClaimMany {
                count: 4,
                run: "dead".into(),
                ttl_ms: Some(Millis::seconds(30)),
                ..task::ClaimMany::default()
            };
            assert_eq!(world.fleet.call(dead).await.unwrap().claims.len(), 4);
            world.pass(30);
            let mut racing = JoinSet::new();
            for (n, fleet) in fleets.iter().cloned().enumerate() {
                let claim = task::Claim::next("auth", format!("r{n}"));
                let claim = task::Claim { wait_ms: Some(Millis::minutes(5)), ..claim };
                racing.spawn(async move { tokio::time::timeout(PATIENCE, fleet.call(claim)).await.unwrap() });
            }
            for claimed in racing.join_all().await {
                let token = claimed.unwrap_or_else(|e| panic!("round {round}: {e:?}")).claim.token;
                world.done(&token).await.unwrap();
            }
        }
    }
}

mod storm {
    use super::*;

    /// A call is refused only if another got the item first; deadlocks and lost races are retried silently.
    #[track_caller]
    fn expected(error: &Error) {
        let refusals = [
            Code::NoneReady,
            Code::BoardFinished,
            Code::AlreadyClaimed,
            Code::NotReady,
            Code::LeaseExpired,
            Code::AlreadyFinished,
            Code::NotFound,
            Code::Invalid,
        ];
        assert!(refusals.contains(&error.code()), "{error:?}");
    }

    /// Every op that takes several locks, in a different order for each caller.
    async fn storm(fleet: Fleet, me: usize, rounds: usize) {
        let mut dice = fastrand::Rng::with_seed(me as u64);
        let mut any = |top: usize| format!("auth-{}", 1 + dice.usize(..top));
        let run = |n: usize| format!("run-{}", n % 3);
        for round in 0..rounds {
            let turn = (round + me) % 7;
            let top = 24;
            let refusal = match turn {
                0 | 1 => {
                    let many = task::ClaimMany { count: 4, run: run(me), ..task::ClaimMany::default() };
                    match fleet.call(many).await {
                        Ok(many) => {
                            let tasks = many.claims.into_iter().map(|claimed| task::done_many::Completion {
                                token: claimed.claim.token,
                                output: None,
                            });
                            let (single, rest): (Vec<_>, Vec<_>) =
                                tasks.enumerate().partition(|(i, _)| *i == 0);
                            let single = single.into_iter().next().expect("a claim").1;
                            let rest: Vec<_> = rest.into_iter().map(|(_, completion)| completion).collect();
                            if !rest.is_empty() {
                                fleet
                                    .call(task::DoneMany { tasks: rest })
                                    .await
                                    .expect("each has its own answer");
                            }
                            fleet.call(task::Done::new(single.token)).await.err()
                        }
                        Err(e) => Some(e),
                    }
                }
                2 => fleet
                    .call(task::Depend { task: any(top), after: any(top), ..Default::default() })
                    .await
                    .err(),
                3 => fleet
                    .call(task::Undepend { task: any(top), after: any(top), ..Default::default() })
                    .await
                    .err(),
                4 => {
                    let after = vec![any(top), any(top), any(top)];
                    fleet.call(task::Add { after, ..task::Add::new("auth", "later") }).await.err()
                }
                5 => fleet.call(end(&run(round))).await.err(),
                _ => fleet.call(task::Claim::of(any(top), run(round))).await.err(),
            };
            if let Some(e) = refusal {
                expected(&e);
            }
        }
    }

    on_both! {
        async fn a_storm_of_everything_at_once(world: World) {
            let mut tasks = vec![item(); 24];
            for (n, task) in tasks.iter_mut().enumerate() {
                task.name = Some(format!("t{n}"));
                task.max_attempts = Some(1000);
                if n >= 8 {
                    task.after = vec![format!("t{}", n - 8), format!("t{}", n - 7)];
                }
            }
            world.fleet.call(plan(tasks)).await.unwrap();
            let mut callers = JoinSet::new();
            for (me, fleet) in fleets::<6>(&world).await.into_iter().enumerate() {
                callers.spawn(storm(fleet, me, 70));
            }
            callers.join_all().await;
            world.assert_sound().await;
            for run in ["run-0", "run-1", "run-2"] {
                world.fleet.call(lock::Claim::new(format!("was-{run}"), run)).await.unwrap();
                world.end(run).await;
            }
            let held = world.fleet.call(claim::List::default()).await.unwrap().claims;
            assert_eq!(held, [], "every run has ended");
        }
    }
}
