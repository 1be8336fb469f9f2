//! Inbox messages as text.

use crate::output::{
    Terminal,
    table::{Cell, Table},
    tasks::{conversation, sender},
    text::{json, line, quoted},
};
use fencepost::inbox::{Content, Item};
use std::fmt::Write;

/// One line per message: `7  unread  slack  kim in ops  the site is down`.
pub fn items(items: &[Item], terminal: &Terminal) -> String {
    let mut table = Table::new(&["ID", "STATUS", "SOURCE", "FROM", "TEXT"]);
    for item in items {
        let content = item.content.as_ref();
        table.row(vec![
            item.id.to_string().into(),
            Cell::state(item.status.as_str()),
            content.map_or("", |content| &content.source).into(),
            content.and_then(from).unwrap_or_default().into(),
            about(item, terminal).into(),
        ]);
    }
    table.render(terminal)
}

/// One message in a line.
pub fn item(item: &Item, terminal: &Terminal) -> String {
    items(std::slice::from_ref(item), terminal)
}

fn from(content: &Content) -> Option<String> {
    let sender = sender(content.sender.as_deref(), content.sent_by.as_deref());
    conversation(sender.as_deref(), content.channel.as_deref(), content.thread.as_deref())
}

/// The text and the response: `the site is down -> it is up again`. Then the holder, or the failure and the time of the retry.
fn about(item: &Item, terminal: &Terminal) -> String {
    let text = item.content.as_ref().map(|content| content.text.trim_end().to_owned());
    let texts: Vec<String> = text.into_iter().chain(item.response.as_ref().map(response)).collect();
    let held =
        item.claim.as_ref().map(|claim| format!("{} {}", claim.run, terminal.short_until(claim.expires_at)));
    let retry = item.retry_at.map(|at| format!("again {}", terminal.when(at)));
    let failed: Vec<String> = item.failure_reason.iter().cloned().chain(retry).collect();
    let state = held.or((!failed.is_empty()).then(|| failed.join(", ")));
    texts.join(" -> ") + &state.map(|state| format!("  ({state})")).unwrap_or_default()
}

/// A response as it was written, or the task that the message was delegated to.
fn response(response: &serde_json::Value) -> String {
    match (response.as_str(), response["task"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(task)) => format!("see {task}"),
        (None, None) => json(response),
    }
}

/// A message in full.
pub fn page(item: &Item, terminal: &Terminal) -> String {
    let mut page = terminal.bold(&format!("message {}", item.id)) + "\n";
    let Some(content) = &item.content else { return page };
    let mut say = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            let value = terminal.wrap(&line(value), label.len() + 2, 4);
            let _ = writeln!(page, "{} {value}", terminal.dim(&format!("{label}:")));
        }
    };
    say("source", Some(&content.source));
    say("channel", content.channel.as_deref());
    say("thread", content.thread.as_deref());
    say("repository", content.repository.as_deref());
    say("from", content.sender.as_deref());
    say("sent by", content.sent_by.as_deref());
    say("because of", content.matched.as_deref());
    // A provider's whole event would be longer than the message.
    let more = content.data.as_ref().map(|data| format!("{} bytes of JSON (--json)", data.to_string().len()));
    say("more", more.as_deref());
    say("attempts", (item.attempts > 1).then(|| item.attempts.to_string()).as_deref());
    say("last failure", item.failure_reason.as_deref());
    let _ = write!(page, "\n{}\n", quoted(&content.text));
    page
}
