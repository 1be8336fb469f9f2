//! Who is calling: the key behind a secret, remembered for a moment.

use crate::{Secret, Settings};
use fencepost::{
    Code, Error, Fleet, Result,
    key::{Key, key_needed, unknown_key},
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Keys that are remembered at the same time.
const REMEMBERED: usize = 1000;

type Digest = [u8; 32];

#[derive(Debug)]
pub struct Keys {
    /// So long what the database said is believed.
    trust: Duration,
    // Real time: it decides how often the database is asked.
    known: Mutex<HashMap<Digest, (Instant, Key)>>,
    needed: Mutex<Option<(Instant, bool)>>,
}

impl Keys {
    pub fn new(trust: Duration) -> Self {
        Self { trust, known: Mutex::default(), needed: Mutex::default() }
    }

    /// Whether callers must show a key. Once they must, they always must: that needs no second look.
    pub async fn needed(&self, fleet: &Fleet) -> Result<bool> {
        let believed = *self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        match believed {
            Some((_, true)) => return Ok(true),
            Some((since, false)) if since.elapsed() < self.trust => return Ok(false),
            _ => {}
        }
        let needed = fleet.asks_for_key().await?;
        *self.needed.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), needed));
        Ok(needed)
    }

    /// The key with this secret. It is remembered by a digest, so that how long the search takes tells nothing of it.
    pub async fn find(&self, fleet: &Fleet, secret: &Secret) -> Result<Option<Key>> {
        let digest: Digest = Sha256::digest(secret.bytes()).into();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        if let Some(key) = self.fresh(known) {
            return Ok(Some(key));
        }
        let found = fleet.key(secret.text()).await?;
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

    /// Refused if one who came in a while ago, by what it showed then, would not be let in any more.
    pub async fn check(&self, fleet: &Fleet, shown: Option<&Secret>) -> Result<()> {
        match shown {
            Some(secret) => self.find(fleet, secret).await?.map(drop).ok_or_else(unknown_key),
            None if self.needed(fleet).await? => Err(key_needed()),
            None => Ok(()),
        }
    }

    /// Without a key, only this machine may call: not by another address, and not through a proxy, which is what a
    /// name of its own is for.
    pub async fn check_reach(&self, fleet: &Fleet, settings: &Settings) -> Result<()> {
        let listen = settings.listen;
        let (reached, instead) = match settings.names.first() {
            _ if !listen.ip().is_loopback() => {
                (format!("{listen} can be reached"), "or listen on 127.0.0.1, which needs none")
            }
            Some(name) => (format!("`{name}` can be called"), "or leave out --name: localhost needs none"),
            None => return Ok(()),
        };
        if self.needed(fleet).await? {
            return Ok(());
        }
        let message = format!("{reached} from other machines, and the fleet has no key");
        Err(Error::new(Code::Forbidden, message)
            .hint(format!("fence key add NAME --role admin makes one; {instead}")))
    }

    fn fresh<T>(&self, believed: Option<(Instant, T)>) -> Option<T> {
        believed.filter(|(since, _)| since.elapsed() < self.trust).map(|(_, value)| value)
    }
}
