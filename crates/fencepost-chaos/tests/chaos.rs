//! A short run with a fixed seed on each database; `make chaos` runs longer. Waits are not limited, because the machine may be busy.

use fencepost_chaos::{Database, Options, run};
use std::{path::Path, time::Duration};

fn options(seed: u64) -> Options {
    Options {
        fence: env!("CARGO_BIN_EXE_chaos-fence").into(),
        scratch: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{seed}")),
        seed,
        span: Duration::from_secs(8),
        bound: None,
        leave_out: Vec::new(),
    }
}

async fn nothing_is_violated(on: Database, seed: u64) {
    let report = run(on, &options(seed)).await.expect("it runs");
    assert!(report.is_clean(), "{report}");
    let some = |count: &str| report.counts.get(count).is_some_and(|count| *count > 0);
    assert!(some("claims") && some("completions") && some("probes"), "nothing happened: {report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_sqlite() {
    nothing_is_violated(Database::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_on_postgres() {
    nothing_is_violated(Database::Postgres, 2).await;
}
