//! The remote half of a connection: sends an op to a server, and retries where repeating is safe.

mod attempt;

use crate::{
    address::Address,
    http::{Http, HttpError},
    retry::Attempts,
};
use attempt::{Failure, Fields, Outgoing, no_answer, other_program};
use fencepost::{
    Code, Error, Op, Result, claim,
    op::{self, AnyOp, AnyReply, Entry},
};
use hyper::{
    HeaderMap, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::OnceCell;
// Real time: it is spent waiting for a server. The fleet's clock decides leases.
use tokio::time::Instant;

/// Only a fleet's server holds a waiting request this long without an answer.
const HELD: Duration = Duration::from_millis(500);
/// Names the acting agent, for a server that does not know it from the key.
const AGENT: HeaderName = HeaderName::from_static("fence-agent");
/// Names the run from within which the caller calls, as the cause of new items.
const RUN: HeaderName = HeaderName::from_static("fence-run");

/// A server, and how to call it. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Servers of the same fleet. When one does not answer, the next is tried.
    addresses: Arc<[Address]>,
    /// Created by the first call.
    http: Arc<OnceCell<Http>>,
    /// The certificate authorities to trust for https; `None` trusts those of the system.
    authority: Option<PathBuf>,
    /// The key and the agent. The key is marked as sensitive, so that no log shows it.
    headers: HeaderMap,
    /// An agent's name that no header can carry.
    invalid_agent: Option<String>,
    /// A call without an answer is an error at once.
    fails_at_once: bool,
    known: Arc<Known>,
}

/// Facts learned from earlier calls.
#[derive(Debug, Default)]
struct Known {
    /// How often a call moved on to the next server.
    failovers: AtomicUsize,
    /// The last response came from a fleet's server.
    answered: AtomicBool,
}

/// Reads the body of a reply.
type Decode<'d> = dyn Fn(&[u8]) -> serde_json::Result<AnyReply> + Send + Sync + 'd;

/// An error as HTTP carries it.
#[derive(Deserialize)]
struct Refused {
    error: Error,
}

impl Remote {
    pub fn open(url: &str) -> Result<Self> {
        let addresses: Arc<[_]> = Address::parse_all(url)?.into();
        Ok(Self {
            addresses,
            http: Arc::default(),
            authority: None,
            headers: HeaderMap::new(),
            invalid_agent: None,
            fails_at_once: false,
            known: Arc::default(),
        })
    }

    pub fn with_authority(mut self, file: PathBuf) -> Self {
        (self.authority, self.http) = (Some(file), Arc::default());
        self
    }

    async fn http(&self) -> Result<&Http> {
        let https = self.addresses.iter().any(Address::is_https);
        self.http.get_or_try_init(async || Http::new(https, self.authority.as_deref())).await
    }

    pub fn with_key(mut self, key: &str) -> Result<Self> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
            Error::new(Code::Invalid, "the key has characters that no key can have")
                .hint("set FENCE_KEY to exactly what fence key add printed")
        })?;
        bearer.set_sensitive(true);
        self.headers.insert(header::AUTHORIZATION, bearer);
        if let Some(server) = self.exposes_its_key() {
            tracing::warn!("the key is sent to {server} without encryption: use https://");
        }
        Ok(self)
    }

    pub fn exposes_its_key(&self) -> Option<&Address> {
        self.headers.contains_key(header::AUTHORIZATION).then_some(())?;
        self.addresses.iter().find(|address| !address.is_https() && !address.is_loopback())
    }

    pub fn as_agent(&self, agent: String) -> Self {
        let mut same = self.clone();
        match HeaderValue::from_str(&agent) {
            Ok(name) => drop(same.headers.insert(AGENT, name)),
            Err(_) => same.invalid_agent = Some(agent),
        }
        same
    }

    /// A name that no header can carry is left out: it is the name of no run.
    pub fn in_run(&self, run: &str) -> Self {
        let mut same = self.clone();
        if let Ok(name) = HeaderValue::from_str(run) {
            same.headers.insert(RUN, name);
        }
        same
    }

    pub fn without_retries(&self) -> Self {
        Self { fails_at_once: true, ..self.clone() }
    }

    pub async fn call(&self, op: Arc<dyn AnyOp>) -> Result<AnyReply> {
        let request = op.to_json()?.read()?;
        self.send(&op::find(op.name())?, request, &|reply| op.decode_reply(reply)).await
    }

    pub async fn call_by_name(&self, entry: &Entry, request: &str) -> Result<Value> {
        // Checked here, so that an error names the position in the caller's text and not in the text that is sent.
        entry.decode(request)?;
        let reply = self.send(entry, op::decode(request)?, &|reply| {
            serde_json::from_slice(reply).map(|reply: Value| Box::new(reply) as AnyReply)
        });
        op::typed(reply.await?)
    }

    /// Sends a request, and repeats it until there is an answer or no attempt is left.
    async fn send(&self, entry: &Entry, request: Fields, decode: &Decode<'_>) -> Result<AnyReply> {
        if let Some(agent) = &self.invalid_agent {
            return Err(Error::invalid("agent", format!("`{}` is not a name", agent.escape_debug())));
        }
        let http = self.http().await?;
        let request = Outgoing::new(request, entry.on_retry);
        let mut attempts = Attempts::new(request.waits_until());
        let (mut lost, mut held) = (false, false);
        loop {
            let sent = Instant::now();
            let (body, limit) = request.at(sent)?;
            let failovers = self.known.failovers.load(Ordering::Relaxed);
            let server = &self.addresses[failovers % self.addresses.len()];
            let failure = match http.post(&server.of_op(entry.name)?, &self.headers, body, limit).await {
                Ok((status, body)) => match self.read(server, status, &body, decode) {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => match decode(&body) {
                        Err(why) if status.is_success() && self.release_claims_in(&body).await? => {
                            return Err(op::unreadable(&why, true));
                        }
                        _ => failure,
                    },
                },
                Err(HttpError::NotSent(reason)) => Failure::NotSent(no_answer(server, &reason)),
                Err(HttpError::Lost(reason)) => {
                    // A program that hangs up at once may be anything; one that held a waiting request is a server.
                    held |= request.waits_until().is_some() && sent.elapsed() >= HELD;
                    Failure::Lost(no_answer(server, &reason))
                }
                Err(HttpError::TooLarge(reason)) => {
                    Failure::OtherProgram(other_program(server, &reason.to_string()))
                }
            };
            lost |= matches!(failure, Failure::Lost(_) | Failure::OtherProgram(_));
            let known = held || self.known.answered.load(Ordering::Relaxed);
            if failure.is_of_the_server() {
                // A concurrent call that failed with it may have moved on already.
                let _ = self.known.failovers.compare_exchange(
                    failovers,
                    failovers + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            let may_repeat = !self.fails_at_once && failure.may_repeat(request.on_retry);
            match may_repeat.then(|| attempts.next(Instant::now(), known)).flatten() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(request.give_up(failure, lost)),
            }
        }
    }

    fn read(
        &self,
        server: &Address,
        status: StatusCode,
        body: &[u8],
        decode: &Decode<'_>,
    ) -> Result<AnyReply, Failure> {
        let unexpected = |what: String| {
            // A proxy that cannot reach the server may reach it in a moment. Any other program never becomes a server.
            let failure = if status.is_server_error() { Failure::Lost } else { Failure::OtherProgram };
            failure(other_program(server, &what))
        };
        if status.is_success() {
            let reply = decode(body);
            self.known.answered.store(reply.is_ok(), Ordering::Relaxed);
            return reply
                .map_err(|e| unexpected(format!("answered with something that is no reply of fence: {e}")));
        }
        match serde_json::from_slice::<Refused>(body) {
            Ok(refused) => {
                self.known.answered.store(true, Ordering::Relaxed);
                Err(Failure::Refused(refused.error))
            }
            Err(_) => Err(unexpected(format!("answered {status} with something that is no reply of fence"))),
        }
    }

    /// Releases the claims of a reply that cannot be read. Returns whether it has any.
    async fn release_claims_in(&self, reply: &[u8]) -> Result<bool> {
        let mut tokens = Vec::new();
        if let Ok(reply) = serde_json::from_slice(reply) {
            tokens_in(reply, &mut tokens);
        }
        for token in &tokens {
            let release = claim::Release::new(token).erase();
            Box::pin(self.call(release)).await?;
        }
        Ok(!tokens.is_empty())
    }
}

/// The tokens of a reply's claims, whatever else the reply has: `claim`, `claims` and those of a `trigger`.
fn tokens_in(reply: &RawValue, tokens: &mut Vec<String>) {
    if let Ok(list) = serde_json::from_str::<Vec<&RawValue>>(reply.get()) {
        return list.into_iter().for_each(|item| tokens_in(item, tokens));
    }
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(reply.get()) else { return };
    tokens.extend(fields.get("token").and_then(|token| serde_json::from_str::<String>(token.get()).ok()));
    for name in ["trigger", "claims", "claim"] {
        if let Some(inner) = fields.get(name) {
            tokens_in(inner, tokens);
        }
    }
}
