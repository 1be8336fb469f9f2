//! The state that every handler shares.

use crate::{
    access::Access,
    limits::{
        cache::Cache,
        memory::Memory,
        permits::{LimitReached, Permit, Permits},
    },
    settings::Settings,
    telemetry::{Telemetry, metrics::Usage},
};
use fencepost::{Code, Error, Fleet, Result, admin};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// A served fleet and its settings. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub fleet: Fleet,
    pub settings: Settings,
    pub access: Access,
    pub telemetry: Arc<Telemetry>,
    /// Calls that run to their end even if their client hangs up, and the background jobs.
    pub running: TaskTracker,
    pub connections: Permits,
    /// The memory budget for request bodies.
    pub request_memory: Memory,
    /// The memory budget for replies that clients have not read yet.
    pub reply_memory: Memory,
    /// The memory budget for webhooks' bodies.
    pub webhook_memory: Memory,
    about: Cache<admin::about::Facts>,
    waiters: Permits,
    stopping: watch::Sender<bool>,
}

impl App {
    pub fn new(fleet: Fleet, settings: Settings) -> Self {
        Self(Arc::new(Parts {
            fleet,
            access: Access::new(&settings),
            telemetry: Arc::new(Telemetry::new(settings.tracer.clone())),
            running: TaskTracker::new(),
            // At least one body of the largest size always fits.
            request_memory: Memory::new((settings.body_memory / 4 * 3).max(settings.body_size)),
            reply_memory: Memory::new(settings.reply_memory),
            webhook_memory: Memory::new((settings.body_memory / 4).max(settings.hook_size)),
            about: Cache::default(),
            connections: Permits::new(settings.connections, settings.address_connections),
            waiters: Permits::new(settings.waiters, settings.key_waiters),
            stopping: watch::Sender::new(false),
            settings,
        }))
    }

    /// Ends every wait with an error that asks the client to retry.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns once [`Self::stop`] was called.
    pub async fn stopping(&self) {
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// A permit to wait or to follow the log.
    pub fn waiter(&self, caller: &str) -> Result<Permit> {
        self.waiters.acquire(caller.to_owned()).map_err(|reached| {
            let (message, setting) = match reached {
                LimitReached::Total => {
                    let total = self.settings.waiters;
                    (format!("the limit of {total} waiting requests is reached"), "waiters")
                }
                LimitReached::Caller => {
                    let each = self.settings.key_waiters;
                    (format!("{caller} has reached its limit of {each} waiting requests"), "key-waiters")
                }
            };
            Error::new(Code::RateLimited, message)
                .with("retry_after_ms", 1000)
                .hint(format!("retry later, or without waiting; fence serve --{setting} sets the limit"))
        })
    }

    /// The database's facts about itself, at most a second old.
    pub async fn about(&self) -> Result<admin::about::Facts> {
        self.about.get(self.fleet.call(admin::About {})).await
    }

    /// Connections, waiters and memory in use.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.used(),
            waiters: self.waiters.used(),
            body_bytes: self.request_memory.used() + self.webhook_memory.used(),
            reply_bytes: self.reply_memory.used(),
        }
    }
}

/// The answer to a waiting client when the server stops.
pub fn stopping() -> Error {
    Error::unavailable("the server is stopping").hint("retry: nothing was claimed for you")
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}
