//! Background jobs: expiring the claims of dead runs, waking agents for unread posts, and pruning.
//!
//! With several servers on one database, one of them expires or prunes at a time: it holds the job's lock, claimed with the
//! ordinary ops and only while there is work. `storm/tick` needs no lock here, because the engine lets one caller
//! schedule at a time. A fleet with nothing to do has no trace of its servers. Metrics need no job, because they are
//! read on each scrape.

use crate::app::App;
use fencepost::{Code, Error, Millis, Result, admin, claim, event, lock, run, storm};
use std::time::Duration;
use tokio::time::sleep;

/// The lease of a job's lock: another server takes over this long after one died at work.
const LEASE: Millis = Millis::minutes(1);

/// Batches of expiry in one round. Rows that another transaction has locked stay due, and are left to the next round.
const BATCHES: usize = 100;

/// Ticks of the scheduler in one round. The next round continues.
const TICKS: usize = 100;

/// Runs the jobs until the server stops.
pub async fn run(app: App) {
    tokio::join!(
        repeat(&app, "expiry", app.settings.tick, expire),
        repeat(&app, "storm", app.settings.tick, schedule),
        repeat(&app, "prune", app.settings.prune_every, prune)
    );
}

async fn repeat(app: &App, job: &str, every: Duration, work: impl AsyncFn(&App) -> Result<()>) {
    loop {
        // Real time sets the pace; the fleet's clock decides what is due. The random part keeps servers out of step.
        let pause = every.mul_f64(0.9 + fastrand::f64() / 5.0);
        tokio::select! {
            () = sleep(pause) => {}
            () = app.stopping() => return,
        }
        if let Err(error) = work(app).await {
            tracing::warn!(job, code = error.code().as_str(), "{}", error.message());
        }
    }
}

/// Claims expire dead runs, too. This job does it for a fleet in which nobody claims.
async fn expire(app: &App) -> Result<()> {
    if !app.fleet.call(admin::Due {}).await?.due {
        return Ok(());
    }
    let Some(lock) = JobLock::claim(app, "expiry").await? else { return Ok(()) };
    let done = async {
        for _ in 0..BATCHES {
            if !app.fleet.call(admin::Expire {}).await?.due {
                break;
            }
            lock.renew(app).await?;
        }
        Ok(())
    };
    let done = done.await;
    lock.release(app).await?;
    done
}

/// Schedules wake-ups for unread posts.
async fn schedule(app: &App) -> Result<()> {
    if !app.fleet.call(storm::Due {}).await?.due {
        return Ok(());
    }
    for _ in 0..TICKS {
        let ticked = app.fleet.call(storm::Tick {}).await?;
        if ticked.elsewhere {
            break;
        }
        log_tick(&ticked);
        if !ticked.more {
            break;
        }
    }
    Ok(())
}

fn log_tick(ticked: &storm::tick::Ticked) {
    tracing::info!(
        target: "fence::storm",
        scheduled = ticked.scheduled,
        pending_jobs = ticked.pending_jobs,
        suppressed_budget = ticked.suppressed_budget,
        suppressed_breaker = ticked.suppressed_breaker,
        suppressed_cause = ticked.suppressed_cause,
        breaker_open = ticked.breaker_open,
        reclaimed = ticked.reclaimed,
        "tick"
    );
    if ticked.breaker_opened {
        let pending = ticked.pending_jobs;
        tracing::warn!(target: "fence::storm", "the breaker opened: {pending} wake-ups are pending or running");
    }
    for alarm in &ticked.alarms {
        tracing::warn!(target: "fence::storm", "alarm: {alarm}");
    }
}

async fn prune(app: &App) -> Result<()> {
    let Some(history) = app.settings.history else { return Ok(()) };
    let older_than_ms = Some(Millis(i64::try_from(history.as_millis()).unwrap_or(i64::MAX)));
    let Some(lock) = JobLock::claim(app, "prune").await? else { return Ok(()) };
    let done = async {
        while app.fleet.call(admin::Prune { older_than_ms }).await?.more {
            lock.renew(app).await?;
        }
        while app.fleet.call(event::Prune { older_than_ms }).await?.more {
            lock.renew(app).await?;
        }
        Ok(())
    };
    let done = done.await;
    lock.release(app).await?;
    done
}

/// The lock of a job, held by this server.
struct JobLock {
    run: String,
    token: String,
}

impl JobLock {
    /// `None` if another server holds it.
    async fn claim(app: &App, job: &str) -> Result<Option<Self>> {
        let run = format!("fence/serve-{:016x}", fastrand::u64(..));
        let claim = lock::Claim { ttl_ms: Some(LEASE), ..lock::Claim::new(format!("fence/{job}"), &run) };
        match app.fleet.call(claim).await {
            Ok(claimed) => Ok(Some(Self { run, token: claimed.claim.token })),
            Err(error) if error.code() == Code::AlreadyClaimed => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews the lease. An error if the lock is lost: another server then continues the job.
    async fn renew(&self, app: &App) -> Result<()> {
        app.fleet.call(claim::Renew::new(&self.token)).await.map(drop)
    }

    /// Ends the run, which releases the lock and leaves nothing that could become due.
    async fn release(self, app: &App) -> Result<()> {
        let end = run::End { run: self.run, ..run::End::default() };
        app.fleet.call(end).await.map(drop).or_else(|error: Error| match error.code() {
            Code::NotFound | Code::LeaseExpired => Ok(()),
            _ => Err(error),
        })
    }
}
