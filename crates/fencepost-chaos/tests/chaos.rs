//! The scenarios, and a short schedule with a fixed seed, on each database; `make chaos` runs longer. Waits are not limited,
//! because the machine may be busy.

use fencepost_chaos::{Database, Options, play_scenarios, run_schedule, scenario_names};
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

/// Plays one part of the scenarios. The parts run beside each other, because the longest scenarios mostly wait.
async fn scenarios_end_as_promised(on: Database, part: usize, parts: usize) {
    let ours = |(n, name): (usize, &'static str)| (n % parts == part).then_some(name);
    let ours: Vec<_> = scenario_names(on).enumerate().filter_map(ours).collect();
    let others = scenario_names(on).filter(|name| !ours.contains(name)).map(str::to_owned).collect();
    let options = Options { leave_out: others, ..options(&format!("scenarios-{on}-{part}"), 0) };
    let report = play_scenarios(on, &options).await.expect("they are played");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.scenarios, ours);
}

async fn nothing_is_violated(on: Database, scratch: &str, seed: u64) {
    let report = run_schedule(on, &options(scratch, seed)).await.expect("it runs");
    assert!(report.is_clean(), "{report}");
    let some = |count: &str| report.counts.get(count).is_some_and(|count| *count > 0);
    assert!(some("claims") && some("completions") && some("probes"), "nothing happened: {report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_sqlite() {
    scenarios_end_as_promised(Database::Sqlite, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_postgres_part_1() {
    scenarios_end_as_promised(Database::Postgres, 0, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_postgres_part_2() {
    scenarios_end_as_promised(Database::Postgres, 1, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_on_postgres_part_3() {
    scenarios_end_as_promised(Database::Postgres, 2, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_sqlite() {
    nothing_is_violated(Database::Sqlite, "sqlite", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_postgres() {
    nothing_is_violated(Database::Postgres, "postgres", 2).await;
}
