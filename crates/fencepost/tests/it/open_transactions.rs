//! Transactions on PostgreSQL that stop before their COMMIT, so that a test can run other calls meanwhile.

use fencepost::{BoxFuture, Fleet, Op, Result, Tx, params, task};
use fencepost_testing::{PATIENCE, World};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};

/// Runs the first op up to its commit, then the second. Commits the first when the second waits for it or has ended.
pub async fn meet<A: Op, B: Op>(world: &World, first: A, second: B) -> (Result<A::Reply>, Result<B::Reply>) {
    let first = run_to_commit(world, first).await;
    let second = start(&world.fleet, second);
    first.holds_up(world, &second).await;
    (first.commit().await, second.await.expect("no panic"))
}

/// An open transaction.
pub struct Open<R> {
    pid: i64,
    commit: Arc<Semaphore>,
    task: JoinHandle<Result<R>>,
}

/// Runs an op on its own connection, and stops before its COMMIT.
pub async fn run_to_commit<O: Op>(world: &World, op: O) -> Open<O::Reply> {
    open(world, move |tx| Box::pin(tx.call(op.clone())), |_| Box::pin(async { Ok(()) })).await
}

/// The same, but ends with a ROLLBACK.
pub async fn run_to_rollback<O: Op>(world: &World, op: O) -> Open<O::Reply> {
    open(world, move |tx| Box::pin(tx.call(op.clone())), |tx| Box::pin(undo(tx))).await
}

/// Makes the transaction fail at its end, with `not_found`.
pub async fn undo(tx: &mut Tx<'_>) -> Result<()> {
    tx.call(task::Show { task: "none-1".into() }).await.map(drop)
}

/// Runs a statement on its own connection and stops. The second statement runs just before its COMMIT.
pub async fn hold(world: &World, first: &'static str, last: &'static str) -> Open<u64> {
    open(
        world,
        move |tx| Box::pin(tx.execute(first, params![])),
        move |tx| Box::pin(async move { tx.execute(last, params![]).await.map(drop) }),
    )
    .await
}

/// Runs one step in a transaction and stops. Runs another step just before its COMMIT.
pub async fn open<R: Send + 'static>(
    world: &World,
    first: impl for<'t> Fn(&'t mut Tx<'_>) -> BoxFuture<'t, Result<R>> + Clone + Send + Sync + 'static,
    last: impl for<'t> Fn(&'t mut Tx<'_>) -> BoxFuture<'t, Result<()>> + Clone + Send + Sync + 'static,
) -> Open<R> {
    assert!(world.is_postgres(), "on SQLite nothing is uncommitted while another writes");
    let fleet = world.again().await;
    let (ready, mut at_commit) = mpsc::channel(1);
    let commit = Arc::new(Semaphore::new(0));
    let gate = commit.clone();
    let task = tokio::spawn(async move {
        fleet
            .transaction(move |tx| {
                let (first, last) = (first.clone(), last.clone());
                let (ready, gate) = (ready.clone(), gate.clone());
                Box::pin(async move {
                    let reply = first(tx).await?;
                    let pid = tx.query("select pg_backend_pid() as pid", params![]).await?[0].get("pid")?;
                    let _ = ready.send(pid).await;
                    let _ = gate.acquire().await;
                    last(tx).await?;
                    Ok(reply)
                })
            })
            .await
    });
    let pid = at_commit.recv().await.expect("it runs to its COMMIT");
    Open { pid, commit, task }
}

/// Calls an op in the background.
pub fn start<O: Op>(fleet: &Fleet, op: O) -> JoinHandle<Result<O::Reply>> {
    let fleet = fleet.clone();
    tokio::spawn(async move { fleet.call(op).await })
}

impl<R> Open<R> {
    /// Waits until the other call waits for a lock of this transaction, or has ended. Returns whether it waits.
    pub async fn holds_up<T>(&self, world: &World, other: &JoinHandle<Result<T>>) -> bool {
        let pid = self.pid;
        let look = async {
            loop {
                let waiting = world.fleet.transaction(move |tx| {
                    Box::pin(async move {
                        let sql = "select count(*) as n from pg_locks where not granted
                                   and cast(?1 as bigint) = any(pg_blocking_pids(pid))";
                        tx.query(sql, params![pid]).await?[0].get::<i64>("n")
                    })
                });
                if waiting.await.expect("a look at the locks") > 0 {
                    return true;
                }
                if other.is_finished() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("the other call waits or ends")
    }

    pub async fn commit(self) -> Result<R> {
        self.commit.add_permits(1);
        self.task.await.expect("no panic")
    }
}
