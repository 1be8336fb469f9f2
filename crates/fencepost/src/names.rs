//! What things are called: tasks, resources and tokens, and the limits on what people may type.

use crate::{
    clock::{Millis, Time},
    error::{Code, Error, Result},
};
use std::{fmt, str::FromStr};

pub const TITLE_MAX: usize = 500;
pub const BODY_MAX: usize = 256 * 1024;
pub const OUTPUT_MAX: usize = 1024 * 1024;
pub const PAYLOAD_MAX: usize = 1024 * 1024;
pub const OUTPUTS_MAX: usize = 100;
pub const MAILBOXES_MAX: usize = 100;
pub const TEXT_MAX: usize = 16 * 1024;
pub const NAME_MAX: usize = 128;
pub const TAGS_MAX: usize = 32;
pub const DEPENDENCIES_MAX: usize = 1000;
pub const PLAN_MAX: usize = 10_000;
/// The highest number of a task that an import may bring: its board counts on from there, and needs room to.
pub const NUMBER_MAX: i64 = 1_000_000_000;
pub const CLAIMS_MAX: i64 = 1000;
pub const WAITED_MAX: usize = 1000;
pub const TTL_MIN: Millis = Millis::seconds(1);
pub const TTL_MAX: Millis = Millis::days(30);
/// Whoever wants to wait longer asks again: a connection that is long dead is then noticed.
pub const WAIT_MAX: Millis = Millis::minutes(10);
pub const ATTEMPTS_MAX: i64 = 1000;

/// What the keys begin with that an export makes for items without one.
pub(crate) const EXPORTED: &str = "fencepost:";

/// What an exported item is called: its number and the time it was made at, in milliseconds. Two fleets use the same
/// numbers, but not at the same time.
pub(crate) fn exported_id(number: impl fmt::Display, at: Time) -> String {
    format!("{number}@{}", at.0)
}

/// The number and the time in an [`exported_id`].
pub(crate) fn exported_number(id: &str) -> Option<(i64, Time)> {
    let (number, at) = id.split_once('@')?;
    Some((number.parse().ok()?, Time(at.parse().ok()?)))
}

/// `auth-3`: the third task of board `auth`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    pub board: String,
    pub n: i64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.board, self.n)
    }
}

impl FromStr for TaskId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{}` is not a task id such as `auth-3`", clip(text));
        let (board, n) = text.rsplit_once('-').ok_or_else(malformed)?;
        name_problem(board, PLAIN).map_or(Ok(()), |_| Err(malformed()))?;
        Ok(TaskId { board: board.into(), n: number(n).ok_or_else(malformed)? })
    }
}

impl TaskId {
    pub(crate) fn check(field: &str, text: &str) -> Result<Self> {
        text.parse().map_err(|problem: String| {
            let error = Error::new(Code::Invalid, problem).with("field", field);
            let plain = text.strip_prefix("task/").unwrap_or(text);
            match plain.split('@').next().map(str::parse::<TaskId>) {
                Some(Ok(id)) if plain.contains('@') => {
                    error.hint(format!("that is the token of a claim; its task is {id}"))
                }
                Some(Ok(id)) => error.hint(format!("the task is called {id} here")),
                _ => error,
            }
        })
    }
}

/// What can be claimed. Every claimable noun is one variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resource {
    Task(TaskId),
    Message(i64),
    /// An agent's unread mentions in a channel.
    Mentions {
        agent: String,
        channel: String,
    },
    Lock(String),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Task(id) => write!(f, "task/{id}"),
            Resource::Message(id) => write!(f, "message/{id}"),
            Resource::Mentions { agent, channel } => write!(f, "mentions/{agent}/{channel}"),
            Resource::Lock(name) => write!(f, "lock/{name}"),
        }
    }
}

impl FromStr for Resource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("task", id)) => Ok(Resource::Task(id.parse()?)),
            Some(("message", id)) => match number(id) {
                Some(id) => Ok(Resource::Message(id)),
                None => Err(format!("`{}` is not a message's number", clip(id))),
            },
            Some(("mentions", rest)) => match rest.split_once('/') {
                Some((agent, channel))
                    if name_problem(agent, PLAIN).is_none() && name_problem(channel, PLAIN).is_none() =>
                {
                    Ok(Resource::Mentions { agent: agent.into(), channel: channel.into() })
                }
                _ => Err(format!("`{}` is not `mentions/AGENT/CHANNEL`", clip(text))),
            },
            Some(("lock", name)) => match name_problem(name, PATH) {
                None => Ok(Resource::Lock(name.into())),
                Some(problem) => Err(format!("`{}` is not a lock's name: it {problem}", clip(name))),
            },
            _ => Err(format!("`{}` is not a resource such as `task/auth-3` or `lock/deploy`", clip(text))),
        }
    }
}

/// `task/auth-3@42`: a resource and the fence it was claimed under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    pub resource: Resource,
    pub fence: i64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.resource, self.fence)
    }
}

impl FromStr for Token {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{}` is not a claim token such as `task/auth-3@42`", clip(text));
        let (resource, fence) = text.rsplit_once('@').ok_or_else(malformed)?;
        let resource = resource.parse().map_err(|_| malformed())?;
        Ok(Token { resource, fence: number(fence).ok_or_else(malformed)? })
    }
}

impl Token {
    pub(crate) fn check(text: &str) -> Result<Self> {
        text.parse().map_err(|problem: String| {
            Error::new(Code::Invalid, problem)
                .with("field", "token")
                .hint("copy the token that `fence claim` printed, fence and all")
        })
    }
}

/// To whom a mailbox, a lock or a run's name belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner<'n> {
    /// Any agent may use it.
    Anyone,
    /// This agent's inbox: `inbox/send` fills it, and only this agent takes from it.
    Agent(&'n str),
    /// Only the engine's own ops fill it, and no agent takes it.
    Engine,
}

impl<'n> Owner<'n> {
    pub fn of_mailbox(name: &'n str) -> Self {
        match name.split_once('/') {
            Some(("inbox", agent)) => Owner::Agent(agent),
            Some(("hooks" | "leads" | "wakeups", _)) => Owner::Engine,
            _ => Self::of_name(name),
        }
    }
    /// Of a lock, or a run.
    pub fn of_name(name: &'n str) -> Self {
        if name.starts_with("fence/") { Owner::Engine } else { Owner::Anyone }
    }
}

const PLAIN: &str = "._-";
const PATH: &str = "._-:/";

/// A positive number written the one way: no sign, no leading zero.
fn number(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

/// Someone else's text in our message: short, and on one line.
fn clip(text: &str) -> String {
    let mut short: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        short.push('…');
    }
    short
}

fn name_problem(name: &str, extra: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
    if name.is_empty() {
        Some("is empty".into())
    } else if name.len() > NAME_MAX {
        Some(format!("is longer than {NAME_MAX} characters"))
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Some("does not start with a letter or a digit".into())
    } else {
        name.chars()
            .find(|&c| !allowed(c))
            .map(|c| format!("has a {c:?}: letters, digits and any of `{extra}` are allowed"))
    }
}

/// Checks on the fields of a request. Each names the field that was wrong, and its limit.
pub(crate) mod check {
    use super::*;

    pub fn plain_name(field: &str, name: &str) -> Result<()> {
        name_problem(name, PLAIN).map_or(Ok(()), |problem| Err(Error::invalid(field, problem)))
    }
    pub fn path_name(field: &str, name: &str) -> Result<()> {
        name_problem(name, PATH).map_or(Ok(()), |problem| Err(Error::invalid(field, problem)))
    }
    pub fn text(field: &str, text: &str, max: usize) -> Result<()> {
        if text.len() > max {
            let message = format!("`{field}` has {} bytes; at most {max} are allowed", text.len());
            return Err(Error::new(Code::TooLarge, message).with("field", field).with("max", max));
        }
        // PostgreSQL's text cannot hold it; SQLite's would, and the two must agree.
        if text.contains('\0') { Err(Error::invalid(field, "contains a NUL character")) } else { Ok(()) }
    }
    pub fn optional_text(field: &str, value: Option<&str>, max: usize) -> Result<()> {
        value.map_or(Ok(()), |value| text(field, value, max))
    }
    /// JSON that somebody will read: it is checked here, or else they would claim what they cannot be given.
    pub fn json(field: &str, json: &str, max: usize) -> Result<()> {
        text(field, json, max)?;
        crate::json::readable(json)
            .map_err(|e| Error::invalid(field, format!("is JSON that cannot be read: {e}")))
    }
    pub fn optional_json(field: &str, value: Option<&str>, max: usize) -> Result<()> {
        value.map_or(Ok(()), |value| json(field, value, max))
    }
    pub fn line(field: &str, value: &str, max: usize) -> Result<()> {
        if value.trim().is_empty() {
            return Err(Error::invalid(field, "is empty"));
        }
        text(field, value, max)
    }
    pub fn optional_name(field: &str, name: Option<&str>) -> Result<()> {
        name.map_or(Ok(()), |name| plain_name(field, name))
    }
    pub fn tags(field: &str, tags: &[String]) -> Result<()> {
        if tags.len() > TAGS_MAX {
            return Err(Error::invalid(
                field,
                format!("has {} tags; at most {TAGS_MAX} are allowed", tags.len()),
            ));
        }
        tags.iter().try_for_each(|tag| plain_name(field, tag))
    }
    pub fn range(field: &str, value: i64, low: i64, high: i64) -> Result<()> {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("is {value}; it must be between {low} and {high}")))
    }
    pub fn span(field: &str, value: Millis, low: Millis, high: Millis) -> Result<()> {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("is {} ms; it must be between {low} and {high}", value.0)))
    }
    pub fn lease(field: &str, ttl: Option<Millis>) -> Result<()> {
        ttl.map_or(Ok(()), |ttl| span(field, ttl, TTL_MIN, TTL_MAX))
    }
    pub fn wait(wait: Millis) -> Result<()> {
        span("wait_ms", wait, Millis(0), WAIT_MAX)
    }
    pub fn request(request: Option<&str>) -> Result<()> {
        request.map_or(Ok(()), |id| line("request", id, NAME_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_and_ids() {
        let token: Token = "task/my-board-3@42".parse().unwrap();
        assert_eq!(token.resource, Resource::Task(TaskId { board: "my-board".into(), n: 3 }));
        assert_eq!(token.to_string(), "task/my-board-3@42");
        assert_eq!("lock/deploy/eu@1".parse::<Token>().unwrap().to_string(), "lock/deploy/eu@1");
        for bad in [
            "",
            "@",
            "task",
            "task/",
            "task/a@1",
            "task/a-0@1",
            "task/a-1@",
            "task/a-1@0",
            "task/a-01@1",
            "task/a-1@-1",
            "task/a-1@+1",
            "task/-1@1",
            "lock/@1",
            "lock/a b@1",
            "mail/a@1",
            "task/a-1@1@",
            "task/a-99999999999999999999@1",
            "task/a-1@99999999999999999999",
            "task/a\n-1@1",
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?} was taken for a token");
        }
    }

    #[test]
    fn names_that_belong_to_somebody() {
        use Owner::*;
        for (name, mailbox, other) in [
            ("builds", Anyone, Anyone),
            ("inbox", Anyone, Anyone),
            ("inbox/ann", Agent("ann"), Anyone),
            ("inbox/ann/b", Agent("ann/b"), Anyone),
            ("Inbox/ann", Anyone, Anyone),
            ("session/inbox/ann", Anyone, Anyone),
            ("hooks/unmatched", Engine, Anyone),
            ("leads/finished", Engine, Anyone),
            ("wakeups/ann", Engine, Anyone),
            ("wakeups", Anyone, Anyone),
            ("fence/expiry", Engine, Engine),
            ("fence", Anyone, Anyone),
            ("fencepost/x", Anyone, Anyone),
        ] {
            assert_eq!((Owner::of_mailbox(name), Owner::of_name(name)), (mailbox, other), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_reads_back_the_same(text in "\\PC{0,40}|(task|lock)/[a-z-]{1,8}[0-9]{1,3}@[0-9]{1,5}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }
    }
}
