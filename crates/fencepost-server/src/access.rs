//! Access: this machine may call without a key, other machines need a key, and web pages of other sites are refused.

mod keys;
mod origin;
pub mod peer;

use crate::{
    http::{path, response::Refusal},
    limits::rate::Rate,
    settings::{Secret, Settings},
};
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
};
use fencepost::{
    Code, Error, Fleet, Result,
    key::{Key, key_needed, unknown_key},
};
use keys::Keys;
use origin::Names;
use peer::Peer;

/// Paths that reveal nothing about the fleet: everybody may read them.
const PUBLIC: [&str; 4] = [path::HEALTH, path::READINESS, path::DOCS, path::OPENAPI];

/// Paths whose callers sign each request instead of showing a key.
const SIGNED: [&str; 2] = [path::SLACK, path::GITHUB];

/// Decides whether a request is accepted.
#[derive(Debug)]
pub struct Access {
    names: Names,
    is_loopback: bool,
    keys: Keys,
    /// Requests of each address where no key is needed.
    address_rate: Rate,
    key_rate: Rate,
    /// Wrong secrets and signatures from each address.
    guess_rate: Rate,
}

impl Access {
    pub fn new(settings: &Settings) -> Self {
        let listen = settings.listen.ip();
        Self {
            names: Names::new(listen, &settings.names),
            is_loopback: listen.is_loopback(),
            keys: Keys::new(settings.key_trust),
            address_rate: Rate::new(settings.open_rate),
            key_rate: Rate::new(settings.key_rate),
            guess_rate: Rate::new(settings.guess_rate),
        }
    }

    /// Refuses the request, or accepts it and adds its [`Key`] and [`Secret`] to its extensions.
    pub async fn admit(&self, fleet: &Fleet, request: &mut Request) -> Result<(), Refusal> {
        origin::check_once(request.headers())?;
        let peer = Peer::of(request.extensions());
        // A provider may use any name that leads here. Its signature replaces a key, and no web page can make one.
        if SIGNED.contains(&request.uri().path()) {
            return Ok(self.address_rate.take(|| peer.network())?);
        }
        self.names.check(request)?;
        if PUBLIC.contains(&request.uri().path()) {
            return Ok(());
        }
        if self.is_loopback && !self.keys.needed(fleet).await? {
            origin::check_direct(request.headers())?;
            return Ok(self.address_rate.take(|| peer.network())?);
        }
        let Some(secret) = bearer(request.headers()).and_then(Secret::new) else {
            return Err(unauthorized(key_needed(), "Bearer realm=\"fence\""));
        };
        let Some(key) = self.find_key(fleet, &secret, peer).await? else {
            return Err(unauthorized(unknown_key(), "Bearer realm=\"fence\", error=\"invalid_token\""));
        };
        self.key_rate.take(|| key.name.clone())?;
        request.extensions_mut().insert(key);
        request.extensions_mut().insert(secret);
        Ok(())
    }

    /// The key with this secret. Guesses lock out no key: the digests of all keys are in memory. Another secret may be that
    /// of a key made since they were read, so it is looked up: few at a time, and none for an address that guessed wrong
    /// too often.
    async fn find_key(&self, fleet: &Fleet, secret: &Secret, peer: Peer) -> Result<Option<Key>> {
        if self.keys.is_known(fleet, secret).await? {
            return self.keys.find(fleet, secret).await;
        }
        let _turn = self.keys.guess().await;
        self.guess_rate.check(|| peer.network())?;
        let found = self.keys.find(fleet, secret).await?;
        if found.is_none() {
            self.wrong_guess(peer)?;
        }
        Ok(found)
    }

    /// Counts a wrong secret or signature. An error if there are too many from this address.
    pub fn wrong_guess(&self, peer: Peer) -> Result<()> {
        self.guess_rate.take(|| peer.network())
    }

    /// Refused if a request that was accepted earlier with this secret would not be accepted now.
    pub async fn check_again(&self, fleet: &Fleet, secret: Option<&Secret>) -> Result<()> {
        match secret {
            Some(secret) => self.keys.find(fleet, secret).await?.map(drop).ok_or_else(unknown_key),
            None if self.keys.needed(fleet).await? => Err(key_needed()),
            None => Ok(()),
        }
    }

    /// Refuses to serve other machines a fleet that has no key. Other machines reach an address that is not loopback, and
    /// through a proxy a server with a name of its own.
    pub async fn check_exposure(&self, fleet: &Fleet, settings: &Settings) -> Result<()> {
        let listen = settings.listen;
        let (reached, instead) = match settings.names.first() {
            _ if !listen.ip().is_loopback() => {
                (format!("{listen} can be reached"), "or listen on 127.0.0.1, which needs none")
            }
            Some(name) => (format!("`{name}` can be called"), "or leave out --name: localhost needs none"),
            None => return Ok(()),
        };
        if self.keys.needed(fleet).await? {
            return Ok(());
        }
        let message = format!("{reached} from other machines, and the fleet has no key");
        Err(Error::new(Code::Forbidden, message)
            .hint(format!("fence key add NAME --role admin makes one; {instead}")))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn unauthorized(error: Error, challenge: &'static str) -> Refusal {
    Refusal::from(error).header(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
}
