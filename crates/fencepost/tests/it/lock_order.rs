//! Calls that write several rows lock them in one order, whatever the order of the request, so that they never deadlock.

use crate::open_transactions::{Open, hold, run_to_rollback, undo};
use fencepost::{Code, Op, Result, mail, params, task};
use fencepost_testing::{World, eventually, on_both, world::code};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};

fn message(key: &str) -> mail::push_many::Item {
    mail::push_many::Item { mailbox: "s".into(), key: Some(key.into()), ..mail::push_many::Item::default() }
}

fn push(keys: &[&str]) -> mail::PushMany {
    mail::PushMany { messages: keys.iter().copied().map(message).collect(), request: None }
}

fn item(key: Option<&str>, after: &[&str]) -> task::plan::Item {
    task::plan::Item {
        title: key.unwrap_or("another").into(),
        key: key.map(str::to_owned),
        after: after.iter().map(ToString::to_string).collect(),
        ..task::plan::Item::default()
    }
}

fn plan(board: &str, tasks: Vec<task::plan::Item>) -> task::Plan {
    task::Plan { board: Some(board.into()), tasks, request: None }
}

fn plan_keys(board: &str, keys: &[&str]) -> task::Plan {
    plan(board, keys.iter().map(|key| item(Some(key), &[])).collect())
}

fn import(board: &str, keys: &[&str]) -> task::Import {
    let item = |(n, key): (usize, &&str)| task::import::Item {
        id: format!("{board}-{}", n + 1),
        title: (*key).into(),
        key: Some((*key).into()),
        ..task::import::Item::default()
    };
    task::Import { tasks: keys.iter().enumerate().map(item).collect(), ..task::Import::default() }
}

/// An op in a transaction that is rolled back at its end. It runs once, unless a deadlock makes it start again.
struct Racer {
    runs: Arc<AtomicU32>,
    task: JoinHandle<Result<()>>,
}

/// Starts it, and returns when it waits for another.
async fn start_and_wait<O: Op>(world: &World, op: O) -> Racer {
    let fleet = world.again().await;
    let runs = Arc::new(AtomicU32::new(0));
    let (tell, mut told) = mpsc::unbounded_channel::<i64>();
    let count = runs.clone();
    let task = tokio::spawn(async move {
        fleet
            .transaction(move |tx| {
                count.fetch_add(1, Ordering::SeqCst);
                let (op, tell) = (op.clone(), tell.clone());
                Box::pin(async move {
                    let pid = tx.query("select pg_backend_pid() as pid", params![]).await?[0].get("pid")?;
                    let _ = tell.send(pid);
                    tx.call(op).await?;
                    undo(tx).await
                })
            })
            .await
    });
    let pid = told.recv().await.expect("it begins");
    eventually("it waits for another", async || {
        let look = world.fleet.transaction(move |tx| {
            Box::pin(async move {
                let sql = "select coalesce(cardinality(pg_blocking_pids(cast(?1 as integer))), 0) as n";
                tx.query(sql, params![pid]).await?[0].get::<i64>("n")
            })
        });
        look.await.expect("a look at the locks") > 0
    })
    .await;
    Racer { runs, task }
}

/// Both wait for the open transaction, or for each other. When that ends both succeed at the first try.
async fn both_get_through<R>(open: Open<R>, racers: [Racer; 2]) {
    let _ = open.commit().await;
    for racer in racers {
        assert_eq!(code(racer.task.await.expect("no panic")), Code::NotFound);
        assert_eq!(racer.runs.load(Ordering::SeqCst), 1, "a deadlock ended it, and it began anew");
    }
}

/// A call that writes `a` first waits at `m`. So would a call that wrote `z` first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_keys_pushed_in_two_orders() {
    let world = World::postgres().await;
    world.fleet.call(push(&["other"])).await.unwrap();
    let open = run_to_rollback(&world, push(&["m"])).await;
    let first = start_and_wait(&world, push(&["a", "m", "z"])).await;
    let second = start_and_wait(&world, push(&["z", "m", "a"])).await;
    both_get_through(open, [first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_keys_planned_in_two_orders() {
    let world = World::postgres().await;
    let open = run_to_rollback(&world, plan_keys("c", &["m"])).await;
    let first = start_and_wait(&world, plan_keys("x", &["a", "m", "z"])).await;
    let second = start_and_wait(&world, plan_keys("y", &["z", "m", "a"])).await;
    both_get_through(open, [first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_keys_imported_in_two_orders() {
    let world = World::postgres().await;
    let open = run_to_rollback(&world, import("c", &["m"])).await;
    let first = start_and_wait(&world, import("x", &["a", "m", "z"])).await;
    let second = start_and_wait(&world, import("y", &["z", "m", "a"])).await;
    both_get_through(open, [first, second]).await;
}

/// The older task depends on the younger one. Completing the younger locks it and then the older; a plan that depends on
/// both locks them by age.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_after_a_task_and_the_one_that_it_waits_for() {
    let world = World::postgres().await;
    let named = task::plan::Item { name: Some("second".into()), ..item(None, &[]) };
    world.fleet.call(plan("auth", vec![item(None, &["second"]), named])).await.unwrap();
    let token = world.claim("auth-2", "a").await.unwrap();
    let open = hold(&world, "select 1 as one from task where n = 2 for update", "select 1 as one").await;
    let done = start_and_wait(&world, task::Done::new(token)).await;
    let planned = start_and_wait(&world, plan("other", vec![item(None, &["auth-1", "auth-2"])])).await;
    both_get_through(open, [done, planned]).await;
}

/// A plan that finds one task by its key, and depends on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_finds_one_task_and_depends_on_another() {
    let world = World::postgres().await;
    world.fleet.call(plan("auth", vec![item(None, &[]), item(Some("k"), &[])])).await.unwrap();
    let tokens = [world.claim("auth-1", "a").await.unwrap(), world.claim("auth-2", "a").await.unwrap()];
    let completion = |token: &String| task::done_many::Completion { token: token.clone(), output: None };
    let open = hold(&world, "select 1 as one from task where n = 1 for update", "select 1 as one").await;
    let done = task::DoneMany { tasks: tokens.iter().map(completion).collect() };
    let done = start_and_wait(&world, done).await;
    let both = vec![item(Some("k"), &[]), item(None, &["auth-1"])];
    let planned = start_and_wait(&world, plan("other", both)).await;
    both_get_through(open, [done, planned]).await;
}

on_both! {
    async fn messages_and_tasks_keep_the_order_in_which_they_were_given(world: World) {
        let keys = ["z", "m", "b", "a", "y"];
        let pushed = world.fleet.call(push(&keys)).await.unwrap().messages;
        assert_eq!(pushed.iter().map(|message| message.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for (message, key) in pushed.iter().zip(keys) {
            assert_eq!(message.idempotency_key.as_deref(), Some(key));
            let stored = world.fleet.call(mail::Show { message: message.id }).await.unwrap().message;
            assert_eq!(stored.idempotency_key.as_deref(), Some(key));
        }
        world.fleet.call(plan_keys("auth", &keys)).await.unwrap();
        for (n, key) in keys.iter().enumerate() {
            let claimed = world.fleet.call(task::Claim::next("auth", "a")).await.unwrap().task;
            assert_eq!((claimed.id, claimed.idempotency_key.as_deref()), (format!("auth-{}", n + 1), Some(*key)));
        }
    }

    async fn eight_callers_push_the_same_keys_in_any_order(world: World) {
        let mut callers = JoinSet::new();
        for n in 0..8 {
            let fleet = world.again().await;
            callers.spawn(async move {
                for round in 0..5 {
                    let mut keys: Vec<String> = (0..6).map(|key| format!("{round}-{key}")).collect();
                    fastrand::Rng::with_seed(n).shuffle(&mut keys);
                    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                    fleet.call(push(&keys)).await.expect("pushed, or there already");
                    fleet.call(plan_keys(&format!("b{n}"), &keys)).await.expect("planned, or there already");
                }
            });
        }
        callers.join_all().await;
        assert_eq!((world.times("message.pushed").await, world.times("task.added").await), (30, 30));
    }
}
