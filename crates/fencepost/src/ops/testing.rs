//! Helpers for the tests beside the ops.

use crate::{
    clock::{Clock, ManualClock, Time},
    db::{BoxFuture, Tx, Value, options::Options},
    engine::fleet::Fleet,
    error::Result,
    lease::claimable::leak,
    params,
};
use fencepost_testing::{PATIENCE, postgres};
use std::time::Duration;

/// A new fleet whose clock the test moves.
#[derive(Debug)]
pub(crate) struct TestFleet {
    pub fleet: Fleet,
    pub clock: ManualClock,
    pub dir: Option<tempfile::TempDir>,
}

impl TestFleet {
    pub async fn open(on_postgres: bool) -> Self {
        let dir = (!on_postgres).then(|| tempfile::tempdir().expect("a directory"));
        let url = match &dir {
            Some(dir) => dir.path().join("fence.db").display().to_string(),
            None => postgres::url(&postgres::fresh_schema()),
        };
        let clock = ManualClock::at("2026-01-01T12:00:00Z".parse::<Time>().expect("a time"));
        let options = Options {
            clock: Clock::Manual(clock.clone()),
            call_limit: 2 * PATIENCE,
            idle_limit: 2 * PATIENCE,
            ..Options::default()
        };
        let fleet = Fleet::open_with(&url, options).await.expect("the fleet opens");
        Self { fleet, clock, dir }
    }
}

type Work = for<'t, 'd> fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<()>>;

/// Runs two transactions on each database. A second passes between them, so that a time that the second one forgets to
/// write shows.
pub(crate) async fn on_both(prepare: Work, test: Work) {
    for on_postgres in [false, true] {
        let world = TestFleet::open(on_postgres).await;
        world.fleet.transaction(prepare).await.expect("prepared");
        world.clock.advance(Duration::from_secs(1));
        world.fleet.transaction(test).await.expect("tested");
    }
}

/// The rows of a table, column by column.
pub(crate) async fn rows(tx: &mut Tx<'_>, columns: &str, table: &str) -> Result<Vec<Vec<Value>>> {
    let rows = tx.query(leak(format!("select {columns} from {table} order by 1")), params![]).await?;
    Ok(rows.iter().map(|row| row.values().to_vec()).collect())
}

/// Begins a write that [`undo`] takes back.
pub(crate) async fn try_write(tx: &mut Tx<'_>) -> Result<()> {
    tx.execute("savepoint tried", params![]).await.map(drop)
}

pub(crate) async fn undo(tx: &mut Tx<'_>) -> Result<()> {
    tx.execute("rollback to savepoint tried", params![]).await.map(drop)
}
