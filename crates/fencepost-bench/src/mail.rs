//! Mailboxes: pushing, claiming and completing, alone and in batches, beside the same statements by hand.

mod baseline;

use crate::{
    open, remove, scratch, seed,
    table::{Targets, median},
};
use fencepost::{Code, Durability, Fleet, Json, Millis, Options, Result, mail};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const CALLERS: [usize; 4] = [1, 16, 64, 256];
const BATCHES: [usize; 3] = [1, 10, 100];
const SMALL: usize = 200;
const LARGE: usize = 64 * 1024;

pub async fn sqlite(span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    let dir = scratch();
    for (durability, name) in [(Durability::Full, "FULL"), (Durability::Normal, "NORMAL")] {
        println!("\nSQLite, synchronous={name}, mailboxes: messages a second, {SMALL} bytes each");
        let path = dir.path().join(format!("mail-{name}.db"));
        let fleet = open(&path, durability).await?;
        table(&fleet, span / 4).await?;
        println!(
            "  {} KiB each, 16 callers, one at a time: {}",
            LARGE / 1024,
            both(&fleet, 16, 1, LARGE, span / 4).await?
        );
        drop(fleet);
        remove(&path);
    }

    let path = dir.path().join("mail-turns.db");
    let fleet = open(&path, Durability::Full).await?;
    let (mut engine, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        baseline::seed(&path, "hand", 150_000);
        by_hand.push(baseline::cycles(&path, "hand", 100, span / 2));
        baseline::seed(&path, "work", 150_000);
        engine.push(rate(&fleet, 16, span / 2, |fleet, caller| cycle(fleet, "work", caller, 100)).await?);
        baseline::clear(&path);
    }
    println!(
        "\nSQLite, synchronous=FULL, messages claimed and completed a second in batches of 100, in turns"
    );
    println!("  by hand, one thread:   {by_hand:.0?}");
    println!("  engine, 16 callers:    {engine:.0?}");
    targets.push(
        "SQLite FULL, mail claim+done in batches of 100 / by hand",
        median(engine) / median(by_hand),
        "at least 0.6",
    );
    drop(fleet);
    remove(&path);

    println!("\nSQLite (NORMAL), mail claim+done by one caller: microseconds each");
    let mut first = None;
    for pending in [1000, 100_000 / scale, 1_000_000 / scale] {
        let path = dir.path().join("mail-depth.db");
        let fleet = open(&path, Durability::Normal).await?;
        baseline::seed(&path, "work", pending);
        let cost = cost(&fleet).await?;
        let base = *first.get_or_insert(cost);
        println!("  {pending:>8} pending {cost:>8.1}   {:.2} x", cost / base);
        if pending == 1_000_000 / scale {
            targets.push("SQLite, mail claim cost, most pending / 1k pending", cost / base, "at most 1.3");
        }
        drop(fleet);
        remove(&path);
    }
    Ok(())
}

pub async fn postgres(span: Duration, scale: i64, targets: &mut Targets) -> Result<()> {
    let base = std::env::var("FENCE_TEST_POSTGRES")
        .expect("FENCE_TEST_POSTGRES is set: `make bench` starts a private PostgreSQL");
    let raw = seed::Postgres::connect(&base, "bench_mail").await;
    raw.drop_schema().await;
    let mut options = Options::default();
    options.connections = 16;
    let fleet = Fleet::open_with(&format!("{base}?schema=bench_mail&sslmode=disable"), options).await?;
    println!("\nPostgreSQL, mailboxes: messages a second, {SMALL} bytes each");
    table(&fleet, span / 4).await?;
    println!(
        "  {} KiB each, 16 callers, one at a time: {}",
        LARGE / 1024,
        both(&fleet, 16, 1, LARGE, span / 4).await?
    );
    println!("\nPostgreSQL, mail claim+done by one caller: microseconds each");
    let mut first = None;
    for pending in [1000, 100_000 / scale, 1_000_000 / scale] {
        raw.run(&baseline::script("(select generate_series(1, {count}) as i) as c", "work", pending)).await;
        raw.run("vacuum analyze message, message_doc").await;
        let cost = cost(&fleet).await?;
        let base = *first.get_or_insert(cost);
        println!("  {pending:>8} pending {cost:>8.1}   {:.2} x", cost / base);
        if pending == 1_000_000 / scale {
            targets.push(
                "PostgreSQL, mail claim cost, most pending / 1k pending",
                cost / base,
                "at most 1.3",
            );
        }
        raw.run("truncate message, message_doc, message_output, event").await;
    }
    raw.drop_schema().await;
    Ok(())
}

async fn table(fleet: &Fleet, span: Duration) -> Result<()> {
    for callers in CALLERS {
        for batch in BATCHES {
            println!(
                "  {callers:>3} callers, batches of {batch:>3}: {}",
                both(fleet, callers, batch, SMALL, span).await?
            );
        }
    }
    Ok(())
}

/// Pushes for a while, then claims and completes these messages.
async fn both(fleet: &Fleet, callers: usize, batch: usize, size: usize, span: Duration) -> Result<String> {
    let mailbox: &'static str = format!("m{callers}-{batch}-{size}").leak();
    let payload = Json::from("x".repeat(size).as_str());
    let pushed =
        rate(fleet, callers, span, move |fleet, _| push(fleet, mailbox, payload.clone(), batch)).await?;
    let done = rate(fleet, callers, span, move |fleet, caller| cycle(fleet, mailbox, caller, batch)).await?;
    // The rest would disturb no later figure, but it uses disk.
    while fleet
        .call(mail::Take { mailboxes: vec![mailbox.into()], count: Some(1000), ..Default::default() })
        .await
        .is_ok()
    {}
    Ok(format!("{pushed:>8.0} pushed  {done:>8.0} claimed and completed"))
}

async fn push(fleet: Fleet, mailbox: &'static str, payload: Json, batch: usize) -> Result<u64> {
    if batch == 1 {
        return fleet.call(mail::Push::new(mailbox, payload)).await.map(|_| 1);
    }
    let item =
        mail::push_many::Item { mailbox: mailbox.into(), payload: Some(payload), ..Default::default() };
    fleet.call(mail::PushMany { messages: vec![item; batch], request: None }).await.map(|_| batch as u64)
}

/// Claims a batch and completes it; 0 if there was nothing to claim.
async fn cycle(fleet: Fleet, mailbox: &'static str, caller: usize, batch: usize) -> Result<u64> {
    let claim = mail::Claim {
        count: Some(batch as i64),
        ttl_ms: Some(Millis::minutes(30)),
        ..mail::Claim::next(mailbox, format!("bench-{caller}"))
    };
    let claims = match fleet.call(claim).await {
        Ok(claimed) => claimed.claims,
        Err(e) if e.code() == Code::NoneReady => return Ok(0),
        Err(e) => return Err(e),
    };
    let count = claims.len() as u64;
    let mut done = claims.into_iter().map(|claimed| mail::Done::new(claimed.claim.token));
    match (batch, done.next()) {
        (1, Some(done)) => drop(fleet.call(done).await?),
        (_, Some(first)) => {
            let messages = std::iter::once(first).chain(done).collect();
            fleet.call(mail::DoneMany { messages }).await?;
        }
        (_, None) => {}
    }
    Ok(count)
}

/// Messages a second, by this many callers at once.
async fn rate<F>(
    fleet: &Fleet,
    callers: usize,
    span: Duration,
    call: impl Fn(Fleet, usize) -> F + Clone + Send + 'static,
) -> Result<f64>
where
    F: Future<Output = Result<u64>> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (count, call, fleet) = (count.clone(), call.clone(), fleet.clone());
            tokio::spawn(async move {
                while start.elapsed() < span {
                    match call(fleet.clone(), caller).await? {
                        0 => break,
                        some => count.fetch_add(some, Ordering::Relaxed),
                    };
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic")?;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

/// Microseconds for a claim and its completion, by one caller: the median of 700, after 200 to warm up.
async fn cost(fleet: &Fleet) -> Result<f64> {
    let mut costs = Vec::new();
    for _ in 0..900 {
        let start = Instant::now();
        assert_eq!(cycle(fleet.clone(), "work", 0, 1).await?, 1, "the queue ran out");
        costs.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(costs.split_off(200)))
}

/// Opens the file without the engine.
fn file(path: &Path) -> rusqlite::Connection {
    let conn = rusqlite::Connection::open(path).expect("the file");
    conn.busy_timeout(Duration::from_secs(30)).expect("a timeout");
    conn
}
