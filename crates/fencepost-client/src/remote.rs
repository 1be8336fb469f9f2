//! The remote half of a connection: an op is sent to a server, and asked again where asking twice is safe.

use crate::{
    address::Address,
    again::{Tries, Twice},
    http::{Http, Reason, Silence},
};
use bytes::Bytes;
use fencepost::{
    Code, Error, Json, Op, Result, claim,
    op::{self, AnyOp, AnyReply, Entry},
};
use hyper::{
    HeaderMap, StatusCode,
    header::{self, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::OnceCell;
// Real time: a server is awaited. Leases are decided by the fleet's clock.
use tokio::time::Instant;

/// How long one try may take, apart from what it asked to wait. The engine gives up after 30 s by itself.
const LIMIT: Duration = Duration::from_secs(35);
/// For this long something answers neither yes nor no only if it is a server.
const HELD: Duration = Duration::from_millis(500);
/// The agent that acts, for a server that is not told by a key.
const AGENT: HeaderName = HeaderName::from_static("fence-agent");

/// A server and how it is called. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Servers of the same fleet. Where one does not answer, the next is asked.
    addresses: Arc<[Address]>,
    /// Made by the first call.
    http: Arc<OnceCell<Http>>,
    /// Who vouches for https servers, if not those whom the system trusts.
    authority: Option<PathBuf>,
    /// Whose key, and which agent. A key is marked as sensitive, so that no log shows it.
    headers: HeaderMap,
    /// An agent's name that no header can carry.
    nameless: Option<String>,
    seen: Arc<Seen>,
}

/// What was learnt by calling.
#[derive(Debug, Default)]
struct Seen {
    /// How often a server was given up for the next one.
    turns: AtomicUsize,
    answered: AtomicBool,
    twice: Mutex<HashMap<&'static str, Twice>>,
}

/// The fields of a request, each as it was written: a payload's spaces and long numbers are not ours to change.
type Fields = BTreeMap<String, Json>;

/// Reads the body of a reply.
type Decode<'d> = dyn Fn(&[u8]) -> serde_json::Result<AnyReply> + Send + Sync + 'd;

/// A request as it is sent, each time it is.
struct Sending {
    fields: Fields,
    twice: Twice,
    /// Until when it would rather wait, and so how much is left of that when it is sent again.
    wait: Option<(Instant, Duration)>,
}

/// As HTTP has it.
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
            nameless: None,
            seen: Arc::default(),
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
            Error::new(Code::Invalid, "the key has characters in it that no key has")
                .hint("FENCE_KEY is what fence key add printed, and nothing else")
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
        self.addresses.iter().find(|address| !address.is_https() && !address.is_here())
    }

    pub fn as_agent(&self, agent: String) -> Self {
        let mut same = self.clone();
        match HeaderValue::from_str(&agent) {
            Ok(name) => drop(same.headers.insert(AGENT, name)),
            Err(_) => same.nameless = Some(agent),
        }
        same
    }

    pub async fn call(&self, op: Arc<dyn AnyOp>) -> Result<AnyReply> {
        let request = op.to_json()?.read()?;
        self.ask(&op::find(op.name())?, request, &|reply| op.decode_reply(reply)).await
    }

    pub async fn call_by_name(&self, entry: &Entry, request: &str) -> Result<Value> {
        // Checked here, so that an error names the place in the text that was given, and not in the one that is sent.
        entry.decode(request)?;
        let reply = self.ask(entry, op::decode(request)?, &|reply| {
            serde_json::from_slice(reply).map(|reply: Value| Box::new(reply) as AnyReply)
        });
        op::typed(reply.await?)
    }

    /// Until there is an answer, or no more sense in asking.
    async fn ask(&self, entry: &Entry, request: Fields, decode: &Decode<'_>) -> Result<AnyReply> {
        if let Some(agent) = &self.nameless {
            return Err(Error::invalid("agent", format!("`{}` is not a name", agent.escape_debug())));
        }
        let http = self.http().await?;
        let sending = Sending::new(request, self.twice(entry));
        let mut tries = Tries::new(sending.wait.map(|(began, wait)| began + wait));
        let (mut lost, mut held) = (false, false);
        loop {
            let sent = Instant::now();
            let (body, limit) = sending.now(sent)?;
            let turn = self.seen.turns.load(Ordering::Relaxed);
            let server = &self.addresses[turn % self.addresses.len()];
            let failed = match http.post(&server.of(entry.name)?, &self.headers, body, limit).await {
                Ok((status, body)) => match self.read(server, status, &body, decode) {
                    Ok(reply) => return Ok(reply),
                    Err(failed) => match decode(&body) {
                        Err(why) if status.is_success() && self.give_back(&body).await? => {
                            return Err(op::unreadable(&why, true));
                        }
                        _ => failed,
                    },
                },
                Err(Silence::NotSent(reason)) => Failed::NotSent(away(server, &reason)),
                Err(Silence::Lost(reason)) => {
                    // Who held a request that waits was there. What hangs up at once may be anything.
                    held |= sending.wait.is_some() && sent.elapsed() >= HELD;
                    Failed::Lost(away(server, &reason))
                }
                Err(Silence::TooLarge(reason)) => Failed::Strange(strange(server, &reason.to_string())),
            };
            lost |= matches!(failed, Failed::Lost(_) | Failed::Strange(_));
            let known = held || self.seen.answered.load(Ordering::Relaxed);
            if failed.is_the_servers() {
                // Unless another call that failed with it has turned to the next already.
                let _ =
                    self.seen.turns.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            let pause =
                failed.may_be_asked_again(sending.twice).then(|| tries.next(Instant::now(), known)).flatten();
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(sending.given_up(failed, lost)),
            }
        }
    }

    fn read(
        &self,
        server: &Address,
        status: StatusCode,
        body: &[u8],
        decode: &Decode<'_>,
    ) -> Result<AnyReply, Failed> {
        let odd = |what: String| {
            // A proxy that cannot reach the server may do so in a moment; what is no server will not become one.
            let failed = if status.is_server_error() { Failed::Lost } else { Failed::Strange };
            failed(strange(server, &what))
        };
        if status.is_success() {
            let reply = decode(body);
            self.seen.answered.store(reply.is_ok(), Ordering::Relaxed);
            return reply.map_err(|e| odd(format!("answered with something else than fence does: {e}")));
        }
        match serde_json::from_slice::<Refused>(body) {
            Ok(refused) => {
                self.seen.answered.store(true, Ordering::Relaxed);
                Err(Failed::Refused(refused.error))
            }
            Err(_) => Err(odd(format!("answered {status}, and not as fence does"))),
        }
    }

    /// Gives back what an unreadable reply hands over. Says whether it hands over anything.
    async fn give_back(&self, reply: &[u8]) -> Result<bool> {
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

    /// The schema is made once per op.
    fn twice(&self, entry: &Entry) -> Twice {
        let mut known = self.seen.twice.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(entry.name).or_insert_with(|| Twice::of(entry))
    }
}

/// The tokens of a reply's claims, whatever else is in it: `claim`, `claims` and those of a `trigger`.
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

/// Something answered, and not as a fence does.
fn strange(server: &Address, what: &str) -> Error {
    Error::unavailable(format!("{server} {what}")).hint(
        "is it the address of a `fence serve`? something that stands before it may have answered instead",
    )
}

fn away(server: &Address, reason: &Reason) -> Error {
    let hint = reason.hint.unwrap_or("is `fence serve` running there, and is the address right?");
    Error::unavailable(format!("the fleet at {server} does not answer: {reason}")).hint(hint)
}

/// One try that brought no reply.
enum Failed {
    NotSent(Error),
    Lost(Error),
    /// Something answered, and it was no fence.
    Strange(Error),
    /// The server said no.
    Refused(Error),
}

impl Failed {
    fn may_be_asked_again(&self, twice: Twice) -> bool {
        match self {
            Failed::NotSent(_) => true,
            Failed::Lost(_) => twice.is_safe(),
            Failed::Strange(_) => false,
            // `outcome_unknown` is what asking again with the same id is for.
            Failed::Refused(error) => {
                matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown) && twice.is_safe()
            }
        }
    }

    /// Another server may do better.
    fn is_the_servers(&self) -> bool {
        match self {
            Failed::NotSent(_) | Failed::Lost(_) | Failed::Strange(_) => true,
            Failed::Refused(error) => error.code() == Code::Unavailable,
        }
    }

    fn into_error(self) -> Error {
        match self {
            Failed::NotSent(error)
            | Failed::Lost(error)
            | Failed::Strange(error)
            | Failed::Refused(error) => error,
        }
    }
}

impl Sending {
    fn new(mut fields: Fields, twice: Twice) -> Self {
        let named = fields.get("request").is_some_and(|id| id.text() != "null");
        if twice.is_known_by_id() && !named {
            let id = format!("{:032x}", fastrand::u128(..));
            fields.insert("request".into(), id.as_str().into());
        }
        let wait = fields.get("wait_ms").and_then(|wait| wait.read().ok()).map(Duration::from_millis);
        Self { fields, twice, wait: wait.map(|wait| (Instant::now(), wait)) }
    }

    /// What is sent at this moment, and how long that may take.
    fn now(&self, now: Instant) -> Result<(Bytes, Duration)> {
        let bytes = |fields: &Fields| serde_json::to_vec(fields).map(Bytes::from).map_err(Error::internal);
        let Some((began, wait)) = self.wait else { return Ok((bytes(&self.fields)?, LIMIT)) };
        let left = wait.saturating_sub(now - began);
        let mut fields = self.fields.clone();
        fields.insert("wait_ms".into(), Json::of(&left.as_millis())?);
        Ok((bytes(&fields)?, left + LIMIT))
    }

    /// If one of the tries may have been heard, nobody can say whether it was done.
    fn given_up(&self, failed: Failed, lost: bool) -> Error {
        let heard = lost && self.twice.changes_something();
        let error = match failed {
            Failed::NotSent(error) | Failed::Lost(error) | Failed::Strange(error) if heard => {
                let unknown = Error::new(Code::OutcomeUnknown, error.message().to_owned());
                unknown.hint(match self.twice.is_safe() {
                    true => "it may have been done; asking again is safe",
                    false => "it may have been done: look before you ask again",
                })
            }
            failed => failed.into_error(),
        };
        match self.fields.get("request").and_then(|id| id.read::<String>().ok()) {
            Some(request) if error.code() == Code::OutcomeUnknown => error.with("request", request),
            _ => error,
        }
    }
}
