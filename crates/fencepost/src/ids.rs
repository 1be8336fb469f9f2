//! Names: task ids, resources, tokens, and the owner of a name.

use crate::{
    clock::Time,
    error::{Code, Error, Result},
    limits::{PLAIN, name_problem},
};
use std::{fmt, str::FromStr};

/// The prefix of the keys that an export makes for items without one.
pub(crate) const EXPORTED: &str = "fencepost:";

/// The id of an exported item: its number and the time of its creation in milliseconds. Two fleets use the same
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
                Some(Ok(id)) => error.hint(format!("leave out `task/`: the id is {id}")),
                _ => error,
            }
        })
    }
}

/// A thing that can be claimed: the noun and the thing's id under it. `task/auth-3`, `message/812`, `lock/deploy`
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    text: String,
    slash: usize,
}

impl Resource {
    pub(crate) fn new(noun: &str, id: impl fmt::Display) -> Self {
        Self { text: format!("{noun}/{id}"), slash: noun.len() }
    }
    /// `task` of `task/auth-3`
    pub fn noun(&self) -> &str {
        &self.text[..self.slash]
    }
    /// `auth-3` of `task/auth-3`
    pub fn id(&self) -> &str {
        &self.text[self.slash + 1..]
    }
    /// The task's id, if this is a task.
    pub fn task(&self) -> Option<TaskId> {
        self.id().parse().ok().filter(|_| self.noun() == "task")
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parsing does not check that the noun exists and has such ids: the fleet does.
impl FromStr for Resource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.find('/') {
            Some(slash) if slash > 0 && slash + 1 < text.len() => Ok(Self { text: text.into(), slash }),
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
        let malformed = || Token::malformed(text);
        let (resource, fence) = text.rsplit_once('@').ok_or_else(malformed)?;
        let resource = resource.parse().map_err(|_| malformed())?;
        Ok(Token { resource, fence: number(fence).ok_or_else(malformed)? })
    }
}

impl Token {
    pub(crate) fn malformed(text: &str) -> String {
        format!("`{}` is not a claim token such as `task/auth-3@42`", clip(text))
    }
}

/// The owner of a mailbox, of a lock or of a run's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner<'n> {
    /// Any agent may use it.
    Anyone,
    /// This agent's inbox: `inbox/send` fills it, and only this agent takes from it.
    Agent(&'n str),
    /// Reserved for the engine: no agent may fill it, claim it or use its name.
    Engine,
}

impl<'n> Owner<'n> {
    pub fn of_mailbox(name: &'n str) -> Self {
        match name.split_once('/') {
            Some(("inbox", agent)) => Owner::Agent(agent),
            Some(("hooks" | "leads" | "wakeups" | "outbox", _)) => Owner::Engine,
            _ => Self::of_name(name),
        }
    }
    /// The owner of a lock or a run.
    pub fn of_name(name: &'n str) -> Self {
        if name.starts_with("fence/") { Owner::Engine } else { Owner::Anyone }
    }
}

/// The fleet's new floor for fences after a restored backup, when the fences already issued are unknown. It is the
/// time in microseconds: no resource can have had that many claims. It is also far above the last floor, in case
/// the clock was set back.
pub(crate) fn floor_after_restore(floor: i64, now: Time) -> i64 {
    now.0.saturating_mul(1000).max(floor + 1_000_000_000)
}

/// A positive number in its only accepted spelling: no sign, no leading zero.
pub(crate) fn number(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

/// Untrusted text for a message of ours, cut to 60 characters and escaped to one line.
pub(crate) fn clip(text: &str) -> String {
    let mut short: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_a_resource_and_a_fence() {
        let token: Token = "task/my-board-3@42".parse().unwrap();
        assert_eq!((token.resource.noun(), token.resource.id(), token.fence), ("task", "my-board-3", 42));
        assert_eq!(token.resource.task(), Some(TaskId { board: "my-board".into(), n: 3 }));
        assert_eq!(token.resource, Resource::new("task", "my-board-3"));
        for text in ["task/my-board-3@42", "lock/deploy/eu@1"] {
            assert_eq!(text.parse::<Token>().unwrap().to_string(), text);
        }
        for bad in ["", "@", "task", "task/", "/a@1", "task/a-1@", "task/a-1@0", "task/a-1@-1", "task/a-1@+1"]
        {
            assert!(bad.parse::<Token>().is_err(), "{bad:?} was taken for a token");
        }
        assert_eq!("lock/a-3".parse::<Resource>().unwrap().task(), None);
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
            ("outbox/slack", Engine, Anyone),
            ("outbox", Anyone, Anyone),
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
