//! Stories: each line is a verb, its arguments and the expected reply.
//!
//! ```text
//! add one offer=bob                 -> auth-1 offered
//! claim auth-1 run=b agent=bob      -> task/auth-1@1 reviewing
//! +30s claim auth-1 run=e agent=eve -> refused not_ready
//! show auth-1                       -> offered reviews=1
//! ```
//!
//! `+30s` moves the clock first. A verb with a slash is the full name of an op, as in `mail/push`. Every verb goes through
//! the registry as JSON, as an interface would call it.

use crate::World;
use fencepost::{Error, Fleet, op};
use serde_json::{Map, Value, json};

/// A fleet, or a connection to one.
pub trait Target {
    /// Calls an op by its name.
    fn ask(&self, name: &str, request: &Value) -> impl Future<Output = Result<Value, Error>>;
}

impl Target for Fleet {
    async fn ask(&self, name: &str, request: &Value) -> Result<Value, Error> {
        op::find(name)?.call(self, &request.to_string()).await
    }
}

impl World {
    /// Runs a story on the fleet.
    pub async fn story(&self, text: &str) {
        self.story_through(&self.fleet, text).await;
    }

    /// Runs a story through a connection.
    pub async fn story_through(&self, target: &impl Target, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (asked, expected) = line.split_once("->").unwrap_or_else(|| panic!("no arrow in: {line}"));
            let answer = self.ask(target, asked.trim()).await;
            check(line, expected.trim(), &answer);
        }
    }

    /// Runs one line, without its arrow.
    async fn ask(&self, target: &impl Target, asked: &str) -> Result<Value, Error> {
        let mut words = asked.split_whitespace().peekable();
        if let Some(seconds) = words.next_if(|word| word.starts_with('+')) {
            self.pass(seconds.trim_matches(['+', 's']).parse().expect("+31s"));
        }
        let verb = words.next().expect("a verb");
        let (name, first) = match verb {
            "agent/join" | "agent/poll" | "agent/leave" | "agent/recall" | "agent/pause" | "agent/resume"
            | "inbox/send" | "inbox/list" | "channel/unread" | "route/add" => (verb.into(), "agent"),
            "route/deliver" => (verb.into(), "text"),
            "route/again" => (verb.into(), "message"),
            "route/remove" => (verb.into(), "route"),
            "channel/create" | "channel/post" | "channel/read" | "channel/join" | "channel/leave" => {
                (verb.into(), "channel")
            }
            "inbox/read" | "inbox/respond" | "inbox/delegate" => (verb.into(), "message"),
            "run/settle" => (verb.into(), "run"),
            "mail/push" | "mail/configure" | "mail/pause" | "mail/resume" => (verb.into(), "mailbox"),
            "mail/claim" | "mail/take" => (verb.into(), "mailboxes"),
            "mail/done" | "mail/fail" | "mail/checkpoint" => (verb.into(), "token"),
            "mail/release" => (verb.into(), "tokens"),
            "mail/redrive" | "mail/discard" => (verb.into(), "messages"),
            _ if verb.contains('/') => (verb.into(), verb.split_once('/').map_or("", |(_, noun)| noun)),
            "add" => ("task/add".into(), "title"),
            "release" | "renew" | "guard" => (format!("claim/{verb}"), "token"),
            "unclaim" => ("claim/unclaim".into(), "resource"),
            "end" => ("run/end".into(), "run"),
            "done" | "fail" | "progress" | "checkpoint" => (format!("task/{verb}"), "token"),
            _ => (format!("task/{verb}"), "task"),
        };
        let mut request = Map::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((first, word));
            request.insert(key.into(), argument(verb, key, value));
        }
        let named = request.contains_key("task");
        if matches!(verb, "add" | "ready") || (verb == "claim" && !named) {
            request.entry("board").or_insert("auth".into());
        }
        if verb == "claim" {
            request.entry("ttl_ms").or_insert(30_000.into());
        }
        target.ask(&name, &Value::Object(request)).await
    }

    /// Calls an op by its name.
    pub async fn call(&self, name: &str, request: &Value) -> Result<Value, Error> {
        self.fleet.ask(name, request).await
    }
}

/// The value of an argument as JSON.
fn argument(verb: &str, key: &str, value: &str) -> Value {
    match (key, value.parse::<i64>()) {
        ("messages", _) => value.split(',').map(|id| id.parse::<i64>().expect("a number")).collect(),
        ("tags" | "capabilities" | "accept" | "mentions" | "mailboxes" | "tokens" | "outputs", _) => {
            value.split(',').collect()
        }
        ("payload" | "text" | "body", _) => value.into(),
        ("message", _) if verb.starts_with("inbox/") => value.into(),
        ("after", _) if verb == "add" => value.split(',').collect(),
        (_, Ok(number)) => number.into(),
        _ if value == "true" || value == "false" => (value == "true").into(),
        _ => value.into(),
    }
}

/// Compares the reply with the words after the arrow: a token, an id, a status, or a field by its name.
fn check(line: &str, expected: &str, answer: &Result<Value, Error>) {
    let (expected, of) = match (expected.strip_prefix("refused "), answer) {
        (None, Ok(reply)) => (expected.to_owned(), reply.clone()),
        (Some(expected), Err(error)) => (format!("code={expected}"), json!(error)),
        (None, Err(error)) => panic!("{line}\nwas refused: {error:?}"),
        (Some(_), Ok(reply)) => panic!("{line}\nwas not refused: {reply:#}"),
    };
    for word in expected.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or_else(|| match word {
            _ if word.contains('@') => ("claim.token", word),
            _ if word.contains('-') => ("id", word),
            _ => ("status", word),
        });
        let pointer = format!("/{}", key.replace('.', "/"));
        let found = [&of, &of["trigger"], &of["task"], &of["message"], &of["mailbox"], &of["item"]]
            .into_iter()
            .find_map(|of| of.pointer(&pointer));
        assert_eq!(plain(found), value, "`{key}` in: {line}\n{of:#}");
    }
}

/// A value as a story writes it. Tasks are shown by their ids, reasons by their kind.
fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".into(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) if list.is_empty() => "none".into(),
        Some(Value::Array(list)) => list.iter().map(|item| plain(Some(item))).collect::<Vec<_>>().join(","),
        Some(Value::Object(of)) if of.contains_key("token") => plain(of.get("token")),
        Some(Value::Object(of)) if of.contains_key("mentions") && of.contains_key("to") => {
            format!("{}:{}-{}", plain(of.get("channel")), plain(of.get("from")), plain(of.get("to")))
        }
        Some(Value::Object(of)) if of.contains_key("n") => plain(of.get("n")),
        Some(Value::Object(of)) if of.contains_key("message") && of.contains_key("claim") => {
            plain(of["claim"].get("token"))
        }
        Some(Value::Object(of)) if of.contains_key("id") => plain(of.get("id")),
        Some(Value::Object(of)) if of.contains_key("what") => plain(of.get("what")),
        Some(other) => other.to_string(),
    }
}
