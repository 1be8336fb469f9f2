//! `make bench`: the speed of the engine, each figure beside the same statements written by hand in the same run; and
//! the speed of the server, beside a bare echo.
//! It prints figures and asserts nothing, because machines are noisy. The last table compares some figures with targets.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod baseline;
mod engine;
mod http;
mod load;
mod lock_sharing;
mod mail;
mod poll;
mod processes;
mod seed;
mod server_process;
mod storm;
mod table;
mod wake;

use clap::Parser;
use fencepost::{Durability, Fleet, Options, Result};
use server_process::Served;
use std::{path::Path, time::Duration};
use table::Targets;

/// The allocator of `fence`, for the engine and for the statements by hand alike.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure the engine
#[derive(Debug, Parser)]
struct Args {
    /// Shorter runs and a tenth of the rows
    #[arg(long)]
    quick: bool,
    /// Only this database: sqlite or postgres
    #[arg(long)]
    only: Option<String>,
    /// Only this part: engine, mail, http, poll, wake, share or storm
    #[arg(long)]
    part: Option<String>,
    /// Seconds for each figure
    #[arg(long)]
    seconds: Option<u64>,
    /// Only claim+done by 64 callers on SQLite NORMAL, for a profiler: engine or http
    #[arg(long)]
    profile: Option<String>,
    /// (used by the bench itself) claim and complete on this file until killed or out of time
    #[arg(long, hide = true)]
    child: Option<String>,
    /// (used by the bench itself) serve this until standard input ends
    #[arg(long, hide = true)]
    serve: Option<String>,
}

impl Args {
    fn wants(&self, part: &str, database: &str) -> bool {
        let wants = |only: &Option<String>, this: &str| only.as_deref().is_none_or(|only| only == this);
        wants(&self.part, part) && wants(&self.only, database)
    }
}

const CALLERS: [usize; 4] = [1, 16, 64, 256];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args = Args::parse();
    let span = Duration::from_secs(args.seconds.unwrap_or(if args.quick { 1 } else { 4 }));
    if let Some(url) = &args.child {
        return processes::child(url, span).await;
    }
    if let Some(what) = &args.serve {
        return server_process::serve(what).await;
    }
    if let Some(part) = &args.profile {
        return profile(part, span).await;
    }
    let scale = if args.quick { 10 } else { 1 };
    let mut targets = Targets::default();
    if args.wants("engine", "sqlite") {
        sqlite(span, scale, &mut targets).await?;
    }
    if args.wants("mail", "sqlite") {
        mail::sqlite(span, scale, &mut targets).await?;
    }
    if args.wants("engine", "postgres") {
        postgres(span, scale, &mut targets).await?;
    }
    if args.wants("mail", "postgres") {
        mail::postgres(span, scale, &mut targets).await?;
    }
    http(&args, span, scale, &mut targets).await?;
    wake_ups(&args, &mut targets).await;
    shared_lock(&args, span, &mut targets).await;
    polls(&args, span, scale, &mut targets).await?;
    storms(&args, scale, &mut targets).await?;
    targets.print();
    println!("  memory of this process: {} MiB now, {} MiB at its peak", memory("VmRSS"), memory("VmHWM"));
    Ok(())
}

/// A directory on the disk of the checkout, because `/tmp` may be memory, and ignored by git.
fn scratch() -> tempfile::TempDir {
    std::fs::create_dir_all("target").and_then(|()| tempfile::tempdir_in("target")).expect("a directory")
}

async fn profile(part: &str, span: Duration) -> Result<()> {
    let dir = scratch();
    let path = dir.path().join("fence.db");
    let fleet = open(&path, Durability::Normal).await?;
    seed::sqlite(&path, "work", 800_000);
    if part == "http" {
        drop(fleet);
        http::profile(&path, span).await;
    } else {
        println!("{:.0} claim+done a second", engine::cycles(&fleet, "work", 64, span).await?);
    }
    Ok(())
}

/// The server on both databases, beside one echo.
async fn http(args: &Args, span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    let (sqlite, postgres) = (args.wants("http", "sqlite"), args.wants("http", "postgres"));
    if !sqlite && !postgres {
        return Ok(());
    }
    let comparison = http::Comparison::echo(span).await;
    if sqlite {
        comparison.sqlite(scratch().path(), 800_000 / scale, targets).await;
    }
    if postgres {
        let (url, raw) = fresh_schema("bench_http").await;
        Fleet::open(&url).await?;
        comparison.postgres(&url, &raw, 60_000).await;
        raw.drop_schema().await;
    }
    Ok(())
}

/// How soon a waiting call is woken.
async fn wake_ups(args: &Args, targets: &mut Targets) {
    let rounds = if args.quick { 50 } else { 300 };
    if args.wants("wake", "sqlite") {
        let dir = scratch();
        let url = dir.path().join("wake.db").display().to_string();
        wake::measure("SQLite", &Served::Fleet(url, Durability::Full), rounds, "below 2", targets).await;
    }
    if args.wants("wake", "postgres") {
        let (url, raw) = fresh_schema("bench_wake").await;
        wake::measure("PostgreSQL", &Served::Fleet(url, Durability::Full), rounds, "below 10", targets).await;
        raw.drop_schema().await;
    }
}

/// How two servers share a lock.
async fn shared_lock(args: &Args, span: Duration, targets: &mut Targets) {
    if args.wants("share", "sqlite") {
        let dir = scratch();
        let url = dir.path().join("share.db").display().to_string();
        lock_sharing::measure("SQLite", &Served::Fleet(url, Durability::Normal), span, targets).await;
    }
    if args.wants("share", "postgres") {
        let (url, raw) = fresh_schema("bench_share").await;
        lock_sharing::measure("PostgreSQL", &Served::Fleet(url, Durability::Full), span, targets).await;
        raw.drop_schema().await;
    }
}

/// Polls, and agents that wait in a poll.
async fn polls(args: &Args, span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    if args.wants("poll", "sqlite") {
        let dir = scratch();
        for (durability, name) in [(Durability::Normal, "SQLite NORMAL"), (Durability::Full, "SQLite FULL")] {
            let path = dir.path().join(format!("{name}.db"));
            let what = Served::Fleet(path.display().to_string(), durability);
            let seed = async |count| {
                seed::clear_sqlite(&path);
                seed::sqlite(&path, "work", count);
            };
            poll::measure(name, &what, span, 400_000 / scale, seed, targets).await;
        }
    }
    if args.wants("poll", "postgres") {
        let (url, raw) = fresh_schema("bench_poll").await;
        Fleet::open(&url).await?;
        let seed = async |count| {
            raw.clear().await;
            raw.seed("work", count).await;
        };
        poll::measure("PostgreSQL", &Served::Fleet(url, Durability::Full), span, 60_000, seed, targets).await;
        raw.drop_schema().await;
    }
    Ok(())
}

/// A tick of the scheduler, in a small fleet and in a large one.
async fn storms(args: &Args, scale: i64, targets: &mut Targets) -> Result<()> {
    let channels = 10_000 / scale;
    if args.wants("storm", "sqlite") {
        let dir = scratch();
        let small = open(&dir.path().join("small.db"), Durability::Normal).await?;
        let large = open(&dir.path().join("large.db"), Durability::Normal).await?;
        storm::measure("SQLite NORMAL", &small, &large, channels, targets).await?;
    }
    if args.wants("storm", "postgres") {
        let (small_url, small_raw) = fresh_schema("bench_storm_small").await;
        let (large_url, large_raw) = fresh_schema("bench_storm_large").await;
        let (small, large) = (Fleet::open(&small_url).await?, Fleet::open(&large_url).await?);
        storm::measure("PostgreSQL", &small, &large, channels, targets).await?;
        small_raw.drop_schema().await;
        large_raw.drop_schema().await;
    }
    Ok(())
}

/// An empty schema of the private PostgreSQL, and a plain connection to it.
async fn fresh_schema(schema: &str) -> (String, seed::Postgres) {
    let base = postgres_url();
    let raw = seed::Postgres::connect(&base, schema).await;
    raw.drop_schema().await;
    (format!("{base}?schema={schema}&sslmode=disable"), raw)
}

fn postgres_url() -> String {
    std::env::var("FENCE_TEST_POSTGRES")
        .expect("FENCE_TEST_POSTGRES is set: `make bench` starts a private PostgreSQL")
}

async fn sqlite(span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    let dir = scratch();
    for (durability, name) in [(Durability::Full, "FULL"), (Durability::Normal, "NORMAL")] {
        println!("\nSQLite, synchronous={name}: calls a second");
        let path = dir.path().join(format!("{name}.db"));
        let fleet = open(&path, durability).await?;
        let by_hand = baseline::sqlite(&path, name, span);
        println!(
            "  by hand, one thread, 64 to a commit:   {:>8.0} adds  {:>8.0} claim+done",
            by_hand.0, by_hand.1
        );
        for callers in CALLERS {
            let adds = engine::adds(&fleet, callers, span).await?;
            seed::sqlite(&path, "work", 400_000 / scale);
            let before = fleet.stats();
            let cycles = engine::cycles(&fleet, "work", callers, span).await?;
            let after = fleet.stats();
            let batch =
                (after.batched - before.batched) as f64 / (after.batches - before.batches).max(1) as f64;
            println!(
                "  engine, {callers:>3} callers:                   {adds:>8.0} adds  {cycles:>8.0} claim+done  ({batch:.0} calls a commit)"
            );
            if callers == 64 && durability == Durability::Full {
                targets.push("SQLite FULL, add, 64 callers / by hand", adds / by_hand.0, "-");
            }
            seed::clear_sqlite(&path);
        }
        println!("  memory: {} MiB", memory("VmRSS"));
    }

    let path = dir.path().join("turns.db");
    let fleet = open(&path, Durability::Full).await?;
    targets.push(
        "SQLite FULL, claim+done, 64 callers / by hand, in turns",
        in_turns(&fleet, &path, span).await?,
        "at least 0.6",
    );
    println!("  a claim's future has {} bytes", engine::claim_size(&fleet));
    drop(fleet);

    println!(
        "\nSQLite, claim+done by one caller (NORMAL, so that the disk does not decide): microseconds each"
    );
    let mut first = None;
    for (what, pending, front) in depths(scale) {
        let path = dir.path().join("depth.db");
        let fleet = open(&path, Durability::Normal).await?;
        seed::sqlite(&path, "work", pending);
        seed::sqlite_front(&path, "work", front);
        let cost = engine::cost(&fleet, "work").await?;
        let base = *first.get_or_insert(cost);
        println!("  {what:<44} {cost:>8.1}   {:.2} x", cost / base);
        if pending > 1000 && front == seed::Front::None && pending >= 1_000_000 / scale {
            targets.push("SQLite, claim cost, most pending / 1k pending", cost / base, "at most 1.3");
        }
        drop(fleet);
        remove(&path);
    }

    println!("\nEight processes on one SQLite file, synchronous=FULL: claim+done each");
    let path = dir.path().join("shared.db");
    open(&path, Durability::Full).await?;
    seed::sqlite(&path, "work", 400_000 / scale);
    let counts = processes::race(&path, 8, span);
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let slowest = *counts.iter().min().unwrap_or(&0) as f64;
    println!("  engine: {counts:?}, mean {mean:.0}, slowest {:.2} of the mean", slowest / mean);
    targets.push("SQLite, slowest of 8 processes / mean", slowest / mean, "at least 0.25");
    let counts = processes::race_by_hand(&path, 8, span);
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let slowest = *counts.iter().min().unwrap_or(&0) as f64;
    println!(
        "  by hand, SQLite's busy handler: {counts:?}, mean {mean:.0}, slowest {:.2}",
        slowest / mean.max(1.0)
    );
    Ok(())
}

/// The speed of a disk varies, so the two take turns; the median of five runs of each counts.
async fn in_turns(fleet: &Fleet, path: &Path, span: Duration) -> Result<f64> {
    let (mut engine, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        by_hand.push(baseline::sqlite_cycles(path, "FULL", span / 2));
        seed::sqlite(path, "work", 200_000);
        engine.push(engine::cycles(fleet, "work", 64, span / 2).await?);
        seed::clear_sqlite(path);
    }
    println!("\nSQLite, synchronous=FULL, claim+done a second, in turns");
    println!("  by hand, one thread, 64 to a commit: {by_hand:.0?}");
    println!("  engine,  64 callers:                 {engine:.0?}");
    Ok(table::median(engine) / table::median(by_hand))
}

async fn postgres(span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    let (base, (url, raw)) = (postgres_url(), fresh_schema("bench").await);
    println!("\nPostgreSQL, synchronous_commit=on: calls a second");
    let mut options = Options::default();
    options.connections = 16;
    let fleet = Fleet::open_with(&url, options).await?;
    raw.seed("work", 60_000).await;
    let by_hand = baseline::postgres(&base, "bench", 16, span).await;
    println!(
        "  by hand, 16 connections:               {:>8.0} adds  {:>8.0} claim+done",
        by_hand.0, by_hand.1
    );
    for callers in CALLERS {
        let adds = engine::adds(&fleet, callers, span).await?;
        raw.clear().await;
        raw.seed("work", 60_000).await;
        let cycles = engine::cycles(&fleet, "work", callers, span).await?;
        println!(
            "  engine, {callers:>3} callers on 16 connections: {adds:>8.0} adds  {cycles:>8.0} claim+done"
        );
        if callers == 16 {
            targets.push("PostgreSQL, claim+done, 16 callers / by hand", cycles / by_hand.1, "at least 0.7");
            targets.push("PostgreSQL, add, 16 callers / by hand", adds / by_hand.0, "-");
        }
        raw.clear().await;
    }
    println!("\nPostgreSQL, claim+done by one caller: microseconds each");
    let mut first = None;
    for (what, pending, front) in depths(scale) {
        raw.clear().await;
        raw.seed("work", pending).await;
        raw.front("work", front).await;
        let cost = engine::cost(&fleet, "work").await?;
        let base = *first.get_or_insert(cost);
        println!("  {what:<44} {cost:>8.1}   {:.2} x", cost / base);
        if pending >= 1_000_000 / scale && front == seed::Front::None {
            targets.push("PostgreSQL, claim cost, most pending / 1k pending", cost / base, "at most 1.3");
        }
    }
    raw.drop_schema().await;
    Ok(())
}

/// Lengths of the queue, and the tasks that stand before it.
fn depths(scale: i64) -> Vec<(String, i64, seed::Front)> {
    let million = 1_000_000 / scale;
    vec![
        ("1000 pending".into(), 1000, seed::Front::None),
        (format!("{} pending", million / 10), million / 10, seed::Front::None),
        (format!("{million} pending"), million, seed::Front::None),
        (format!("1000 behind {million} blocked"), 1000, seed::Front::Blocked(million)),
        (format!("1000 behind {million} delayed"), 1000, seed::Front::Delayed(million)),
    ]
}

async fn open(path: &Path, durability: Durability) -> Result<Fleet> {
    let mut options = Options::default();
    options.durability = durability;
    Fleet::open_with(&path.display().to_string(), options).await
}

fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm", "-queue", "-turn", "-wanted"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
}

/// A line of `/proc/self/status`, in MiB.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
