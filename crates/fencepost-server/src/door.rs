//! Who may come in. A web page that a user of this machine looks at must not reach the server: neither by a name that
//! its owner lets point here (the Host is checked), nor by sending a form (the Origin is).

use crate::{
    App, Secret, Settings,
    answer::{Outcome, Refusal},
    call::AGENT,
    hooks,
    line::clip,
};
use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use fencepost::{
    Code, Error, Result,
    key::{Key, key_needed, unknown_key},
};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// A request that came by no connection is this process's own.
    pub fn of(extensions: &Extensions) -> Self {
        let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        extensions.get().copied().unwrap_or(Self(own))
    }

    /// Whom limits by address count: the address, or of IPv6 its /64 network. Who has one address there has all of them.
    pub fn origin(self) -> String {
        match self.0.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        }
    }
}

/// Whose share it is that a request takes: its key's, or without one that of where it comes from.
pub fn holder(extensions: &Extensions) -> String {
    match extensions.get::<Key>() {
        Some(key) => format!("key `{}`", key.name),
        None => Peer::of(extensions).origin(),
    }
}

#[derive(Debug)]
pub struct Door {
    names: Vec<String>,
    /// We listen on every address of the machine, so that any of them may be the host. A page's owner can make a name
    /// point here, but not an address.
    any_address: bool,
    open_rate: Rate,
    key_rate: Rate,
    stranger_rate: Rate,
}

/// The headers by which it is decided who may come in, and as whom.
const ONCE: [&str; 11] = [
    "host",
    "origin",
    "sec-fetch-site",
    "authorization",
    "content-type",
    AGENT,
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-hub-signature-256",
    "x-github-event",
    "x-github-delivery",
];

/// The headers by which a proxy tells for whom it calls.
const PASSED_ON: [&str; 5] = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];

/// What says nothing about the fleet: anyone may ask.
const PUBLIC: [&str; 4] = ["/healthz", "/readyz", "/docs", "/v1/openapi.json"];

impl Door {
    pub fn new(settings: &Settings) -> Self {
        let listen = settings.listen.ip();
        let mut names = ["localhost", "127.0.0.1", "[::1]"].map(String::from).to_vec();
        names.push(match listen {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        });
        names.extend(settings.names.iter().map(|name| name.to_ascii_lowercase()));
        Self {
            names,
            any_address: listen.is_unspecified(),
            open_rate: Rate::new(settings.open_rate),
            key_rate: Rate::new(settings.key_rate),
            stranger_rate: Rate::new(settings.guess_rate),
        }
    }

    fn check(&self, request: &Request) -> Result<()> {
        let host = host(request)?;
        self.check_host(&host)?;
        check_origin(request.headers(), &host)
    }

    /// Who is calling: someone with a key, or anyone at all if this machine is all there is.
    async fn admit(&self, app: &App, request: &mut Request) -> Result<(), Refusal> {
        check_once(request.headers())?;
        // A provider calls by whatever name leads here. What it signs is its key, and no page can make that.
        if [hooks::SLACK, hooks::GITHUB].contains(&request.uri().path()) {
            return Ok(self.open_rate.take(|| Peer::of(request.extensions()).origin())?);
        }
        self.check(request)?;
        let peer = Peer::of(request.extensions());
        if PUBLIC.contains(&request.uri().path()) {
            return Ok(());
        }
        if app.settings.listen.ip().is_loopback() && !app.keys.needed(&app.fleet).await? {
            check_passed_on(request.headers())?;
            return Ok(self.open_rate.take(|| peer.origin())?);
        }
        let Some(secret) = bearer(request.headers()).and_then(Secret::new) else {
            return Err(unauthorized(key_needed(), "Bearer realm=\"fence\""));
        };
        let Some(key) = app.keys.admit(&app.fleet, &secret, self, peer).await? else {
            return Err(unauthorized(unknown_key(), "Bearer realm=\"fence\", error=\"invalid_token\""));
        };
        self.key_rate.take(|| key.name.clone())?;
        request.extensions_mut().insert(key);
        request.extensions_mut().insert(secret);
        Ok(())
    }

    /// Has one who comes from there guessed too often?
    pub fn may_guess(&self, peer: Peer) -> Result<()> {
        self.stranger_rate.check(|| peer.origin())
    }

    /// A caller was not who they said.
    pub fn guessed(&self, peer: Peer) -> Result<()> {
        self.stranger_rate.take(|| peer.origin())
    }

    fn check_host(&self, host: &Authority) -> Result<()> {
        let name = host.host().to_ascii_lowercase();
        let is_address = || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        if self.names.contains(&name) || (self.any_address && is_address()) {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, format!("this server is not called `{name}`"))
            .hint(format!("fence serve --name {name} lets it be called so")))
    }
}

/// Lets requests in, or tells why not.
pub async fn enter(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    let response = match app.door.admit(&app, &mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    // What an op answers is told where it was called.
    if let Some(Outcome(code)) = response.extensions().get() {
        tracing::info!(target: "fence::request", path = clip(uri.path()), outcome = code.as_str(), "refused");
    }
    response
}

/// Of what decides who may come in, one is looked at. A second could be what another program on the way looks at.
fn check_once(headers: &HeaderMap) -> Result<()> {
    match ONCE.iter().find(|name| headers.get_all(**name).iter().nth(1).is_some()) {
        None => Ok(()),
        Some(name) => Err(Error::new(Code::Invalid, format!("the header `{name}` is there more than once"))
            .hint("send it once; if there is a proxy, see to what it adds")),
    }
}

/// Whom the client means to talk to: a request that names it twice must mean the same.
fn host(request: &Request) -> Result<Authority> {
    let nameless = || Error::new(Code::Invalid, "the request has no header Host, or not a name in it");
    let host = request.headers().get(header::HOST).map(|host| Authority::try_from(host.as_bytes()));
    match (host.transpose().map_err(|_| nameless())?, request.uri().authority()) {
        (Some(host), Some(other)) if host != *other => {
            Err(Error::new(Code::Invalid, "the request's line and its header Host name two servers"))
        }
        (Some(host), _) => Ok(host),
        (None, other) => other.cloned().ok_or_else(nameless),
    }
}

/// Without a key only this machine may call, and a proxy calls for others: it says so of what it passes on.
fn check_passed_on(headers: &HeaderMap) -> Result<()> {
    match PASSED_ON.iter().find(|name| headers.contains_key(**name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("the request came through a proxy (`{name}`), and the fleet has no key");
            Err(Error::new(Code::Forbidden, message).hint("make one first: fence key add NAME --role admin"))
        }
    }
}

/// A browser says from which page a request comes.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<()> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text(header::ORIGIN) {
        let own = origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host.as_str()));
        if !own {
            return Err(foreign(format!("a page of `{origin}`")));
        }
    }
    match text(SITE) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err(foreign("a page of another site".into())),
    }
}

fn foreign(who: String) -> Error {
    Error::new(Code::Forbidden, format!("{who} may not talk to this server"))
        .hint("use the command line, or a program that is no web page")
}

/// So many a second for each, and so many at once. What is kept of each is the moment at which its past requests
/// would have been served one after the other.
#[derive(Debug)]
pub struct Rate {
    each: Option<Duration>,
    start: Instant,
    until: Mutex<HashMap<String, Duration>>,
}

/// Past so many callers, those that are quiet are forgotten.
const CALLERS: usize = 10_000;

impl Rate {
    pub fn new(per_second: u32) -> Self {
        let each = (per_second > 0).then(|| Duration::from_secs(1) / per_second);
        // Real time: it paces callers, and decides nothing in the fleet.
        Self { each, start: Instant::now(), until: Mutex::default() }
    }

    pub fn take(&self, who: impl FnOnce() -> String) -> Result<()> {
        let Some(each) = self.each else { return Ok(()) };
        self.take_at(&who(), each, self.start.elapsed())
    }

    /// Could it take one now?
    pub fn check(&self, who: impl FnOnce() -> String) -> Result<()> {
        let Some(each) = self.each else { return Ok(()) };
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        next(&until, &who(), each, self.start.elapsed()).map(drop)
    }

    fn take_at(&self, who: &str, each: Duration, now: Duration) -> Result<()> {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.len() >= CALLERS {
            until.retain(|_, until| *until > now);
        }
        let due = next(&until, who, each, now)?;
        until.insert(who.to_owned(), due);
        Ok(())
    }
}

/// When the next request of this caller is due, unless that is too far ahead.
fn next(until: &HashMap<String, Duration>, who: &str, each: Duration, now: Duration) -> Result<Duration> {
    let due = until.get(who).copied().unwrap_or_default().max(now) + each;
    let ahead = due - now;
    if ahead > Duration::from_secs(1) {
        let retry = (ahead - Duration::from_secs(1)).as_millis().max(1);
        return Err(Error::new(Code::RateLimited, "too many requests a second")
            .with("retry_after_ms", u64::try_from(retry).unwrap_or(u64::MAX))
            .hint("ask for more at once (claim_many, done_many), or wait instead of asking again"));
    }
    Ok(due)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn unauthorized(error: Error, how: &'static str) -> Refusal {
    Refusal::from(error).header(header::WWW_AUTHENTICATE, HeaderValue::from_static(how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_network_is_one_caller() {
        let origin = |ip: &str| Peer(SocketAddr::new(ip.parse().unwrap(), 1)).origin();
        assert_eq!((origin("10.0.0.1"), origin("::ffff:10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
        assert_eq!(origin("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(origin("2001:db8:1:2:ffff::"), "2001:db8:1:2::/64");
        assert_eq!(origin("2001:db8:1:3::"), "2001:db8:1:3::/64");
    }

    #[test]
    fn a_rate_lets_a_second_s_worth_in_at_once_and_then_one_by_one() {
        let rate = Rate::new(10);
        let each = rate.each.unwrap();
        let take = |who, ms| rate.take_at(who, each, Duration::from_millis(ms));
        assert!((0..10).all(|_| take("a", 0).is_ok()));
        let refused = take("a", 0).unwrap_err();
        assert_eq!((refused.code(), refused.field("retry_after_ms")), (Code::RateLimited, Some(&100.into())));
        assert!(take("b", 0).is_ok(), "everyone has a rate of their own");
        assert!(take("a", 99).is_err());
        assert!(take("a", 100).is_ok() && take("a", 100).is_err());
        assert!((0..10).all(|_| take("a", 5000).is_ok()) && take("a", 5000).is_err());
    }
}
