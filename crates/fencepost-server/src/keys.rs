//! Who is calling: the key behind a secret, remembered for a moment.

use crate::{
    Secret, Settings,
    door::{Door, Peer},
};
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
use tokio::{sync::Semaphore, time::Instant};

/// Keys that are remembered at the same time.
const REMEMBERED: usize = 1000;

/// Secrets that were never right here, and are looked up at the same time.
const GUESSES: usize = 4;

type Digest = [u8; 32];

#[derive(Debug)]
pub struct Keys {
    /// So long what the database said is believed.
    trust: Duration,
    // Real time: it decides how often the database is asked.
    known: Mutex<HashMap<Digest, (Instant, Key)>>,
    needed: Mutex<Option<(Instant, bool)>>,
    guesses: Semaphore,
}

impl Keys {
    pub fn new(trust: Duration) -> Self {
        Self { trust, known: Mutex::default(), needed: Mutex::default(), guesses: Semaphore::new(GUESSES) }
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

    /// The key with this secret, for one who comes from there. A secret that was never right here is a guess until the
    /// database says otherwise: few are looked up at a time, and none of one who guessed too often.
    pub async fn admit(
        &self,
        fleet: &Fleet,
        secret: &Secret,
        door: &Door,
        peer: Peer,
    ) -> Result<Option<Key>> {
        if self.known(secret).is_some() {
            return self.find(fleet, secret).await;
        }
        // It is never closed.
        let _turn = self.guesses.acquire().await;
        door.may_guess(peer)?;
        let found = self.find(fleet, secret).await?;
        if found.is_none() {
            door.guessed(peer)?;
        }
        Ok(found)
    }

    /// What is remembered of a secret, by its digest: how long the search takes tells nothing of it.
    fn known(&self, secret: &Secret) -> Option<(Instant, Key)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&digest(secret)).cloned()
    }

    /// The key with this secret.
    pub async fn find(&self, fleet: &Fleet, secret: &Secret) -> Result<Option<Key>> {
        if let Some(key) = self.fresh(self.known(secret)) {
            return Ok(Some(key));
        }
        let found = fleet.key(secret.text()).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        match &found {
            Some(key) => drop(known.insert(digest(secret), (Instant::now(), key.clone()))),
            None => drop(known.remove(&digest(secret))),
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

fn digest(secret: &Secret) -> Digest {
    Sha256::digest(secret.bytes()).into()
}
