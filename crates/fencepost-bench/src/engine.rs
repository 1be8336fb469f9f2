//! The engine, through its ordinary calls.

use fencepost::{Code, Fleet, Millis, Result, task};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Adds a second, by this many callers at once.
pub async fn adds(fleet: &Fleet, callers: usize, span: Duration) -> Result<f64> {
    let fleet = fleet.clone();
    rate(callers, span, move |_| {
        let fleet = fleet.clone();
        async move { fleet.call(task::Add::new("added", "a task")).await.map(|_| true) }
    })
    .await
}

/// Claims with their completions a second.
pub async fn cycles(fleet: &Fleet, board: &'static str, callers: usize, span: Duration) -> Result<f64> {
    let fleet = fleet.clone();
    rate(callers, span, move |caller| {
        let fleet = fleet.clone();
        async move { cycle(&fleet, board, &format!("bench-{caller}")).await }
    })
    .await
}

/// Bytes of a claim's future, which every caller moves.
pub fn claim_size(fleet: &Fleet) -> usize {
    size_of_val(&fleet.call(task::Claim::next("board", "run")))
}

/// One claim and its completion; `false` if there was nothing to claim.
pub async fn cycle(fleet: &Fleet, board: &str, run: &str) -> Result<bool> {
    let claim = task::Claim { ttl_ms: Some(Millis::minutes(30)), ..task::Claim::next(board, run) };
    match fleet.call(claim).await {
        Ok(claimed) => fleet.call(task::Done::new(&claimed.claim.token)).await.map(|_| true),
        Err(e) if matches!(e.code(), Code::NoneReady | Code::BoardFinished) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Microseconds for a claim and its completion, by one caller: the median of 700, after 200 to warm up.
pub async fn cost(fleet: &Fleet, board: &str) -> Result<f64> {
    let mut costs = Vec::new();
    for _ in 0..900 {
        let start = Instant::now();
        assert!(cycle(fleet, board, "warm").await?, "the queue ran out");
        costs.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let measured = &mut costs[200..];
    measured.sort_by(f64::total_cmp);
    Ok(measured[measured.len() / 2])
}

async fn rate<F>(
    callers: usize,
    span: Duration,
    call: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<f64>
where
    F: Future<Output = Result<bool>> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (done, call) = (done.clone(), call.clone());
            tokio::spawn(async move {
                while start.elapsed() < span && call(caller).await? {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic")?;
    }
    let elapsed = start.elapsed();
    if elapsed < span * 9 / 10 {
        println!("  (the queue ran out after {elapsed:.1?}: the figure is of that time)");
    }
    Ok(done.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64())
}
