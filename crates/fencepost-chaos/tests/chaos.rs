//! The scenarios, and a short schedule with a fixed seed, on each database; `make chaos` runs longer. Waits are not limited,
//! because the machine may be busy.

use fencepost_chaos::{Database, Options, play_scenarios, run_schedule};
use std::{path::Path, time::Duration};

fn options(scratch: &str, seed: u64) -> Options {
    Options {
        fence: env!("CARGO_BIN_EXE_chaos-fence").into(),
        scratch: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{scratch}")),
        seed,
        span: Duration::from_secs(8),
        bound: None,
        leave_out: Vec::new(),
    }
}

async fn every_scenario_ends_as_promised(on: Database, scratch: &str) {
    let report = play_scenarios(on, &options(scratch, 0)).await.expect("they are played");
    assert!(report.is_clean(), "{report}");
    assert!(report.scenarios.len() > 5, "{:?}", report.scenarios);
}

async fn nothing_is_violated(on: Database, scratch: &str, seed: u64) {
    let report = run_schedule(on, &options(scratch, seed)).await.expect("it runs");
    assert!(report.is_clean(), "{report}");
    let some = |count: &str| report.counts.get(count).is_some_and(|count| *count > 0);
    assert!(some("claims") && some("completions") && some("probes"), "nothing happened: {report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_sqlite() {
    every_scenario_ends_as_promised(Database::Sqlite, "scenarios-sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_postgres() {
    every_scenario_ends_as_promised(Database::Postgres, "scenarios-postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_sqlite() {
    nothing_is_violated(Database::Sqlite, "sqlite", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_postgres() {
    nothing_is_violated(Database::Postgres, "postgres", 2).await;
}
