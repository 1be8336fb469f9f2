//! Checks of the headers that say which server a request is for and which web page or proxy sent it.
//!
//! A web page open in a browser on this machine must not reach the server. Its owner can point a name at this machine,
//! so the Host must be ours. It can also send a form across sites, so the Origin must be ours.

use crate::http::{AGENT, RUN, response::Refusal};
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, StatusCode, header, uri::Authority},
};
use fencepost::{Code, Error, Result};
use std::net::IpAddr;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Headers that decide whether a request is accepted and who its caller is.
const ONCE: [&str; 12] = [
    "host",
    "origin",
    "sec-fetch-site",
    "authorization",
    "content-type",
    AGENT,
    RUN,
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-hub-signature-256",
    "x-github-event",
    "x-github-delivery",
];

/// Headers by which a proxy names the client that it calls for.
const PROXY: [&str; 9] = [
    "cf-connecting-ip",
    "forwarded",
    "true-client-ip",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// The names that this server answers to.
#[derive(Debug)]
pub struct Names {
    names: Vec<String>,
    /// The server listens on every address of the machine, so any address may be the Host. A page's owner can point a
    /// name at this machine, but not an address.
    any_address: bool,
}

impl Names {
    pub fn new(listen: IpAddr, more: &[String]) -> Self {
        let mut names = ["localhost", "127.0.0.1", "[::1]"].map(String::from).to_vec();
        names.push(match listen {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        });
        names.extend(more.iter().map(|name| name.to_ascii_lowercase()));
        Self { names, any_address: listen.is_unspecified() }
    }

    /// Refuses a Host or an Origin that is not this server. A foreign Host gets 421, "misdirected request".
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        let host = host(request)?;
        self.check_host(&host).map_err(|e| Refusal::new(StatusCode::MISDIRECTED_REQUEST, e))?;
        Ok(check_origin(request.headers(), &host)?)
    }

    fn check_host(&self, host: &Authority) -> Result<()> {
        let unknown = |name: &str| {
            Error::new(Code::Forbidden, format!("this server does not answer to the name `{name}`"))
        };
        let Some(name) = name(host).map(str::to_ascii_lowercase) else {
            return Err(unknown(host.as_str()).hint("send only the name or the address, and the port"));
        };
        let is_address = || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        if self.names.contains(&name) || (self.any_address && is_address()) {
            return Ok(());
        }
        Err(unknown(&name).hint(format!("fence serve --name {name} adds the name")))
    }
}

/// The name or the address in a Host, which is `NAME` or `NAME:PORT`. `None` for more than that: [`Authority`] also takes
/// `evil.example@NAME`, `[::1]evil.example` and `NAME:evil.example`, and a program in between may read another name there.
fn name(host: &Authority) -> Option<&str> {
    let rest = host.as_str().strip_prefix(host.host())?;
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then(|| host.host())
}

/// Refuses a repeated header. This server reads one value; a program in between may read the other.
pub fn check_once(headers: &HeaderMap) -> Result<()> {
    match ONCE.iter().find(|name| headers.get_all(**name).iter().nth(1).is_some()) {
        None => Ok(()),
        Some(name) => Err(Error::new(Code::Invalid, format!("the header `{name}` is sent more than once"))
            .hint("send it once; if there is a proxy, check which headers it adds")),
    }
}

/// Refuses requests that a proxy passed on. Without a key only this machine may call, and a proxy calls for other machines.
pub fn check_direct(headers: &HeaderMap) -> Result<()> {
    match PROXY.iter().find(|name| headers.contains_key(**name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("the request came through a proxy (`{name}`), and the fleet has no key");
            Err(Error::new(Code::Forbidden, message).hint("make one first: fence key add NAME --role admin"))
        }
    }
}

/// The server that the client means. The request line and the header Host may both name it, and must agree.
fn host(request: &Request) -> Result<Authority> {
    let invalid = || Error::new(Code::Invalid, "the request has no valid Host header");
    let host = request.headers().get(header::HOST).map(|host| Authority::try_from(host.as_bytes()));
    match (host.transpose().map_err(|_| invalid())?, request.uri().authority()) {
        (Some(host), Some(other)) if host != *other => {
            Err(Error::new(Code::Invalid, "the request line and the Host header name different servers"))
        }
        (Some(host), _) => Ok(host),
        (None, other) => other.cloned().ok_or_else(invalid),
    }
}

/// Refuses requests of other sites' pages. A browser names the page that sends a request.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<()> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text(header::ORIGIN) {
        let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let own = from.is_some_and(|from| from.eq_ignore_ascii_case(host.as_str()));
        if !own {
            return Err(other_site(format!("a web page of `{origin}`")));
        }
    }
    match text(SITE) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err(other_site("a web page of another site".into())),
    }
}

fn other_site(page: String) -> Error {
    Error::new(Code::Forbidden, format!("{page} may not call this server"))
        .hint("use the command line, or a program outside the browser")
}
