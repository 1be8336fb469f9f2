//! Messages and mailboxes as text.

use super::content;
use crate::output::{
    Terminal,
    table::{Cell, Table},
    tasks::{LAPSED, lease_kept},
    terminal::state,
    text::{self, line, quoted},
};
use fencepost::{
    claim::Claim,
    mail::{Message, Status, stats::Box as Mailbox},
};
use std::fmt::Write;

/// One line per message: `7  pending  session/42  tool_use  0/3`.
pub fn messages(messages: &[Message], terminal: &Terminal) -> String {
    table(messages, terminal).render(terminal)
}

fn table(messages: &[Message], terminal: &Terminal) -> Table {
    let mut table = Table::new(&["ID", "STATUS", "MAILBOX", "TYPE", ">TRIES", "MORE"]);
    for message in messages {
        table.row(vec![
            message.id.to_string().into(),
            Cell::state(message.state().as_str()),
            message.mailbox.as_str().into(),
            message.kind.as_deref().unwrap_or_default().into(),
            format!("{}/{}", message.attempts, message.max_attempts).into(),
            more(message, terminal).into(),
        ]);
    }
    table
}

/// One message in a line.
pub fn message(message: &Message, terminal: &Terminal) -> String {
    table(std::slice::from_ref(message), terminal).body(terminal)
}

/// The holder, the time of the next attempt, or the outcome.
fn more(message: &Message, terminal: &Terminal) -> String {
    let reason = message.failure_reason.as_deref();
    match message.status {
        Status::Processing => message.claim.as_ref().map(|claim| held(claim, terminal)).unwrap_or_default(),
        Status::Processed => message.outcome.clone().unwrap_or_default(),
        Status::Pending => match (reason, message.delayed_until.map(|at| terminal.when(at))) {
            (Some(reason), Some(retry)) => format!("{reason} (again {retry})"),
            (None, Some(first)) => format!("not before {first}"),
            (reason, None) => reason.unwrap_or_default().to_owned(),
        },
        Status::Failed | Status::Held => {
            [message.outcome.as_deref(), reason].into_iter().flatten().collect::<Vec<_>>().join(": ")
        }
    }
}

fn held(claim: &Claim, terminal: &Terminal) -> String {
    format!("{} {}", claim.run, terminal.short_until(claim.expires_at))
}

/// A claim, and the whole message.
pub fn claimed(claim: &Claim, message: &Message, terminal: &Terminal) -> String {
    let held = format!("held by run {} {}", claim.run, terminal.until(claim.expires_at));
    let held = terminal.wrap(&held, 0, 4) + &lease_kept(claim, terminal);
    format!("{}\n{held}\n\n{}", terminal.bold(&claim.token), page(message, terminal))
}

/// A message in full.
pub fn page(message: &Message, terminal: &Terminal) -> String {
    let mut page = format!("{}  {}\n", terminal.bold(&format!("message {}", message.id)), message.mailbox);
    let shown = message.state().as_str();
    let state = terminal.paint(state(shown), shown);
    let _ = writeln!(page, "{} {state}", terminal.dim("status:"));
    let mut say = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            let value = terminal.wrap(&line(value), label.len() + 2, 4);
            let _ = writeln!(page, "{} {value}", terminal.dim(&format!("{label}:")));
        }
    };
    say("outcome", message.outcome.as_deref());
    say("type", message.kind.as_deref());
    say("attempts", Some(&format!("{} of {}", message.attempts, message.max_attempts)));
    say("lane", message.lane.as_deref());
    say("key", message.idempotency_key.as_deref());
    for (name, value) in &message.headers {
        say(name, Some(value));
    }
    say("pushed", Some(&terminal.when(message.created_at)));
    say("not before", message.delayed_until.map(|at| terminal.when(at)).as_deref());
    say("held by", message.claim.as_ref().map(|claim| held(claim, terminal)).as_deref());
    say("lapsed", message.lapsed.then_some(LAPSED));
    say("finished", message.finished_at.map(|at| terminal.when(at)).as_deref());
    say("last failure", message.failure_reason.as_deref());
    if let Some(checkpoint) = &message.checkpoint {
        let data = checkpoint.data.as_ref().map(|data| format!(" {}", text::json(data))).unwrap_or_default();
        say("checkpoint", Some(&format!("{} {}{data}", checkpoint.ordinal, checkpoint.phase)));
    }
    for output in &message.outputs {
        say("output", Some(&content::shown(output)));
    }
    if let Some(payload) = &message.payload {
        let _ = write!(page, "\n{}\n", quoted(&content::shown(payload)));
    }
    page
}

/// `1 message`, `2 messages`.
pub fn how_many(count: usize) -> String {
    format!("{count} message{}", if count == 1 { "" } else { "s" })
}

/// The next commands for a message that failed or is held.
pub fn advice(message: &Message) -> Option<String> {
    let id = message.id;
    match message.status {
        Status::Failed => Some(format!("fence mail redrive {id} tries it again, with all its attempts")),
        Status::Held => {
            Some(format!("fence mail redrive {id} tries it again, fence mail discard {id} gives it up"))
        }
        _ => None,
    }
}

/// One line per mailbox.
pub fn mailboxes(mailboxes: &[Mailbox], terminal: &Terminal) -> String {
    let mut table = Table::new(&[
        "MAILBOX",
        ">READY",
        ">WAITING",
        ">PROCESSING",
        ">HELD",
        ">FAILED",
        ">PROCESSED",
        "OLDEST",
        "",
    ])
    .headed();
    for mailbox in mailboxes {
        let paused = mailbox.paused.as_ref().map(|reason| format!("paused: {reason}"));
        table.row(vec![
            mailbox.name.as_str().into(),
            mailbox.ready.to_string().into(),
            mailbox.waiting.to_string().into(),
            mailbox.processing.to_string().into(),
            mailbox.held.to_string().into(),
            mailbox.failed.to_string().into(),
            mailbox.processed.to_string().into(),
            mailbox.oldest_at.map(|at| terminal.when(at)).unwrap_or_default().into(),
            paused.unwrap_or_default().into(),
        ]);
    }
    table.render(terminal)
}

/// One mailbox, with its settings.
pub fn mailbox(mailbox: &Mailbox, terminal: &Terminal) -> String {
    let mut page = mailboxes(std::slice::from_ref(mailbox), terminal);
    let settings = &mailbox.settings;
    let order = if settings.strict { "one at a time of each lane" } else { "several at a time" };
    let count = settings.retain_count.map_or(String::new(), |count| format!(", the last {count}"));
    for (label, value) in [
        ("order", order.to_owned()),
        ("lease", settings.ttl_ms.to_string()),
        ("attempts", settings.max_attempts.to_string()),
        ("backoff", format!("{}, doubled with each failure", settings.backoff_ms)),
        ("holder lost", settings.replay.as_str().to_owned()),
        ("kept", format!("{}{count}", settings.retain_ms)),
    ] {
        let value = terminal.wrap(&value, label.len() + 2, 4);
        let _ = write!(page, "\n{} {value}", terminal.dim(&format!("{label}:")));
    }
    page
}
