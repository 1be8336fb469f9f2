//! The keys of the fleet, cached for a moment.

use crate::{limits::cache::Cache, settings::Secret};
use fencepost::{
    Fleet, Result,
    key::{self, Key},
    sync::lock,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Keys in the cache.
const CACHED: usize = 1000;

/// Digests of live keys in memory. So many take 10 MB, and 0.1 s to read from SQLite, 0.2 s from
/// PostgreSQL (debug build).
const LIVE: i64 = 100_000;

/// Secrets of no live key that are looked up at the same time.
const GUESSES: usize = 4;

type Digest = [u8; 32];

#[derive(Debug)]
pub struct Keys {
    /// How long an answer of the database is reused.
    trust: Duration,
    // Real time: it decides how often the database is asked.
    cached: Mutex<HashMap<Digest, (Instant, Key)>>,
    /// Digests as the database stores them.
    live: Cache<Arc<HashSet<String>>>,
    needed: Mutex<Option<(Instant, bool)>>,
    guesses: Semaphore,
}

impl Keys {
    pub fn new(trust: Duration) -> Self {
        Self {
            trust,
            cached: Mutex::default(),
            live: Cache::default(),
            needed: Mutex::default(),
            guesses: Semaphore::new(GUESSES),
        }
    }

    /// Whether callers must show a key. A fleet that once needed a key always needs one, so a yes is cached for good.
    pub async fn needed(&self, fleet: &Fleet) -> Result<bool> {
        let cached = *lock(&self.needed);
        match cached {
            Some((_, true)) => return Ok(true),
            Some((since, false)) if since.elapsed() < self.trust => return Ok(false),
            _ => {}
        }
        let needed = fleet.requires_key().await?;
        *lock(&self.needed) = Some((Instant::now(), needed));
        Ok(needed)
    }

    /// Whether this is the secret of a key that was live a second ago at most, or that was found before. Callers cost
    /// the database one read a second together, however many secrets they try.
    pub async fn is_known(&self, fleet: &Fleet, secret: &Secret) -> Result<bool> {
        if self.cached(secret).is_some() {
            return Ok(true);
        }
        let read = async { Ok(Arc::new(fleet.live_keys(LIVE).await?.into_iter().collect())) };
        let live: Arc<HashSet<_>> = self.live.get(read).await?;
        Ok(live.contains(&key::digest(secret.text())))
    }

    /// Waits until one more unknown secret may be looked up.
    pub async fn guess(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.guesses.acquire().await.ok()
    }

    /// Found by the secret's digest, so that the time of the search reveals nothing about the secret.
    fn cached(&self, secret: &Secret) -> Option<(Instant, Key)> {
        let cached = lock(&self.cached);
        cached.get(&digest(secret)).cloned()
    }

    /// The key with this secret.
    pub async fn find(&self, fleet: &Fleet, secret: &Secret) -> Result<Option<Key>> {
        if let Some((_, key)) = self.cached(secret).filter(|(since, _)| since.elapsed() < self.trust) {
            return Ok(Some(key));
        }
        let found = fleet.key(secret.text()).await?;
        let mut cached = lock(&self.cached);
        if cached.len() >= CACHED {
            cached.clear();
        }
        match &found {
            Some(key) => drop(cached.insert(digest(secret), (Instant::now(), key.clone()))),
            None => drop(cached.remove(&digest(secret))),
        }
        Ok(found)
    }
}

fn digest(secret: &Secret) -> Digest {
    Sha256::digest(secret.bytes()).into()
}
