//! The keys of the fleet, cached for a moment.

use crate::settings::Secret;
use fencepost::{Fleet, Result, key::Key, sync::lock};
use sha2::{Digest as _, Sha256};
use std::{collections::HashMap, sync::Mutex, time::Duration};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Keys in the cache.
const CACHED: usize = 1000;

/// Secrets unknown to the cache that are looked up at the same time.
const GUESSES: usize = 4;

type Digest = [u8; 32];

#[derive(Debug)]
pub struct Keys {
    /// How long an answer of the database is reused.
    trust: Duration,
    // Real time: it decides how often the database is asked.
    cached: Mutex<HashMap<Digest, (Instant, Key)>>,
    needed: Mutex<Option<(Instant, bool)>>,
    guesses: Semaphore,
}

impl Keys {
    pub fn new(trust: Duration) -> Self {
        Self { trust, cached: Mutex::default(), needed: Mutex::default(), guesses: Semaphore::new(GUESSES) }
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

    /// Waits until one more unknown secret may be looked up.
    pub async fn guess(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.guesses.acquire().await.ok()
    }

    pub fn is_known(&self, secret: &Secret) -> bool {
        self.cached(secret).is_some()
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
