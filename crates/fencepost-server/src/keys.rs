//! Who is calling: the key behind a secret, remembered for a moment.

use fencepost::{
    Error, Fleet, Result,
    key::{self, Key},
};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Keys that are remembered at the same time.
const REMEMBERED: usize = 1000;

type Secret = [u8; 32];

#[derive(Debug)]
pub struct Keys {
    /// So long what the database said is believed.
    trust: Duration,
    // Real time: it decides how often the database is asked.
    known: Mutex<HashMap<Secret, (Instant, Key)>>,
    any: Mutex<Option<(Instant, bool)>>,
}

impl Keys {
    pub fn new(trust: Duration) -> Self {
        Self { trust, known: Mutex::default(), any: Mutex::default() }
    }

    /// Is there a key at all?
    pub async fn exist(&self, fleet: &Fleet) -> Result<bool> {
        if let Some(any) = self.fresh(*self.any.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(any);
        }
        let any = !fleet.call(key::List { limit: Some(1), ..key::List::default() }).await?.keys.is_empty();
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), any));
        Ok(any)
    }

    /// The key with this secret. It is remembered by a digest, so that how long the search takes tells nothing of it.
    pub async fn find(&self, fleet: &Fleet, secret: &str) -> Result<Option<Key>> {
        let digest: Secret = Sha256::digest(secret).into();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        if let Some(key) = self.fresh(known) {
            return Ok(Some(key));
        }
        let found = fleet.key(secret).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        match &found {
            Some(key) => drop(known.insert(digest, (Instant::now(), key.clone()))),
            None => drop(known.remove(&digest)),
        }
        Ok(found)
    }

    /// Without a key, only this machine may call.
    pub async fn check_address(&self, fleet: &Fleet, listen: std::net::SocketAddr) -> Result<()> {
        if listen.ip().is_loopback() || self.exist(fleet).await? {
            return Ok(());
        }
        let message = format!("{listen} can be reached from other machines, and the fleet has no key");
        Err(Error::new(fencepost::Code::Forbidden, message)
            .hint("fence key add NAME --role admin makes one; or listen on 127.0.0.1, which needs none"))
    }

    fn fresh<T>(&self, believed: Option<(Instant, T)>) -> Option<T> {
        believed.filter(|(since, _)| since.elapsed() < self.trust).map(|(_, value)| value)
    }
}
