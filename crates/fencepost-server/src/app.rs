//! What every handler has.

use crate::{
    Settings,
    door::Door,
    keys::Keys,
    metrics::Metrics,
    places::{Full, Place, Places},
    recent::Recent,
    room::Room,
};
use fencepost::{Code, Error, Fleet, Result, admin};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// A fleet that is served, and the settings it is served with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub fleet: Fleet,
    pub settings: Settings,
    pub door: Door,
    pub keys: Keys,
    pub metrics: Metrics,
    /// What was begun, and runs to its end whether or not a client still wants the answer.
    pub begun: TaskTracker,
    pub connections: Places,
    /// Memory for bodies of requests.
    pub bodies: Room,
    /// Memory for replies, until they are read.
    pub replies: Room,
    /// Memory for what providers send.
    pub hook_bodies: Room,
    about: Recent<admin::about::Facts>,
    waiters: Places,
    stopping: watch::Sender<bool>,
}

impl App {
    pub fn new(fleet: Fleet, settings: Settings) -> Self {
        Self(Arc::new(Parts {
            fleet,
            door: Door::new(&settings),
            keys: Keys::new(settings.key_trust),
            metrics: Metrics::default(),
            begun: TaskTracker::new(),
            // A body of the largest size always fits, if it is the only one.
            bodies: Room::new((settings.body_memory / 4 * 3).max(settings.body_size)),
            replies: Room::new(settings.reply_memory),
            hook_bodies: Room::new((settings.body_memory / 4).max(settings.hook_size)),
            about: Recent::default(),
            connections: Places::new(settings.connections, settings.address_connections),
            waiters: Places::new(settings.waiters, settings.key_waiters),
            stopping: watch::Sender::new(false),
            settings,
        }))
    }

    /// From here on nobody waits: those who do are asked to come back.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when the server is told to stop.
    pub async fn stopping(&self) {
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// A place among those who wait, or follow the log. It is given back when it is dropped.
    pub fn waiter(&self, who: &str) -> Result<Place> {
        self.waiters.take(who.to_owned()).map_err(|full| {
            let (message, setting) = match full {
                Full::All => (
                    format!("{} requests are waiting already, which is the most", self.settings.waiters),
                    "waiters",
                ),
                Full::Share => {
                    let each = self.settings.key_waiters;
                    (
                        format!("{each} requests of {who} are waiting already, which is its share"),
                        "key-waiters",
                    )
                }
            };
            Error::new(Code::RateLimited, message).with("retry_after_ms", 1000).hint(format!(
                "ask again later, or without waiting; fence serve --{setting} says how many may"
            ))
        })
    }

    /// What the database said of itself a moment ago.
    pub async fn about(&self) -> Result<admin::about::Facts> {
        self.about.get(self.fleet.call(admin::About {})).await
    }

    /// Bytes of bodies that are in memory.
    pub fn buffered(&self) -> usize {
        self.bodies.taken() + self.hook_bodies.taken()
    }

    /// How many are connected.
    pub fn connected(&self) -> usize {
        self.connections.taken()
    }

    /// How many wait, or follow the log.
    pub fn waiting(&self) -> usize {
        self.waiters.taken()
    }
}

/// What one who waits is told when the server stops.
pub fn stopping() -> Error {
    Error::unavailable("the server is stopping").hint("ask again: nothing was taken for you")
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}
