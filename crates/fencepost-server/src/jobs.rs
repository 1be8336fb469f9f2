//! What is done without anyone asking: giving back what the dead held, and pruning.
//!
//! With several servers on one database, each job is done by one of them at a time: by whoever holds its lock, taken
//! through the ordinary ops and only while there is something to do. A fleet with nothing to do has no trace of it.
//! (What is measured is read when it is asked for, so there is no job for it.)

use crate::app::App;
use fencepost::{Code, Error, Millis, Result, admin, claim, event, lock, run};
use std::time::Duration;
use tokio::time::sleep;

/// A server that dies at work is waited for no longer than this.
const LEASE: Millis = Millis::minutes(1);

/// At most so many at one go: what another transaction has in hand is due still, and left for the next.
const BATCHES: usize = 100;

/// Works until the server stops.
pub async fn run(app: App) {
    tokio::join!(
        repeat(&app, "expiry", app.settings.tick, expire),
        repeat(&app, "prune", app.settings.prune_every, prune)
    );
}

async fn repeat(app: &App, job: &str, every: Duration, work: impl AsyncFn(&App) -> Result<()>) {
    loop {
        // Real time paces it; what is due is for the fleet's own clock to say. Not in step with other servers.
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

/// Claims would do it, too; but a fleet in which nobody asks must come to rest as well.
async fn expire(app: &App) -> Result<()> {
    if !app.fleet.call(admin::Due {}).await?.due {
        return Ok(());
    }
    let Some(place) = Place::take(app, "expiry").await? else { return Ok(()) };
    let done = async {
        for _ in 0..BATCHES {
            if !app.fleet.call(admin::Settle {}).await?.due {
                break;
            }
            place.keep(app).await?;
        }
        Ok(())
    };
    let done = done.await;
    place.leave(app).await?;
    done
}

async fn prune(app: &App) -> Result<()> {
    let Some(history) = app.settings.history else { return Ok(()) };
    let older_than_ms = Some(Millis(i64::try_from(history.as_millis()).unwrap_or(i64::MAX)));
    let Some(place) = Place::take(app, "prune").await? else { return Ok(()) };
    let done = async {
        while app.fleet.call(admin::Prune { older_than_ms }).await?.more {
            place.keep(app).await?;
        }
        while app.fleet.call(event::Prune { older_than_ms }).await?.more {
            place.keep(app).await?;
        }
        Ok(())
    };
    let done = done.await;
    place.leave(app).await?;
    done
}

/// A job that is ours alone for now.
struct Place {
    run: String,
    token: String,
}

impl Place {
    /// `None` if another server is at it.
    async fn take(app: &App, job: &str) -> Result<Option<Self>> {
        let run = format!("fence/serve-{:016x}", fastrand::u64(..));
        let claim = lock::Claim { ttl_ms: Some(LEASE), ..lock::Claim::new(format!("fence/{job}"), &run) };
        match app.fleet.call(claim).await {
            Ok(claimed) => Ok(Some(Self { run, token: claimed.claim.token })),
            Err(error) if error.code() == Code::AlreadyClaimed => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Still ours? If not, another server goes on with it.
    async fn keep(&self, app: &App) -> Result<()> {
        app.fleet.call(claim::Renew::new(&self.token)).await.map(drop)
    }

    /// Ending the run gives back the lock, and leaves nothing that could become due.
    async fn leave(self, app: &App) -> Result<()> {
        let end = run::End { run: self.run, ..run::End::default() };
        app.fleet.call(end).await.map(drop).or_else(|error: Error| match error.code() {
            Code::NotFound | Code::LeaseExpired => Ok(()),
            _ => Err(error),
        })
    }
}
