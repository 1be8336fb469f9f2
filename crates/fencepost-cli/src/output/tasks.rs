//! Tasks and claims as text.

use super::{
    Terminal,
    table::{Cell, Table},
    terminal::state,
    text::{labelled, line, quoted},
};
use fencepost::{claim::Claim, task::Task};
use std::fmt::Write;

/// One line per task: `auth-3  in_progress  50  write the parser`.
pub fn tasks(tasks: &[Task], terminal: &Terminal) -> String {
    table(tasks, terminal).render(terminal)
}

fn table(tasks: &[Task], terminal: &Terminal) -> Table {
    let mut table = Table::new(&["ID", "STATUS", ">PRI", "WHO", "TITLE"]);
    for task in tasks {
        let agent =
            task.assignee.as_ref().or(task.offered_to.as_ref()).filter(|_| !task.status.is_finished());
        let held = match (&task.claim, agent) {
            (Some(claim), _) => Some(format!("{} {}", claim.run, terminal.short_until(claim.expires_at))),
            (None, agent) => agent.map(|agent| format!("for {agent}")),
        };
        let held: Vec<String> = held.into_iter().chain(task.lapsed.then(|| "lapsed".into())).collect();
        table.row(vec![
            task.id.as_str().into(),
            Cell::state(task.state().as_str()),
            task.priority.to_string().into(),
            held.join(", ").into(),
            task.title.as_str().into(),
        ]);
    }
    table
}

/// One line per task, and its `done when` below.
pub fn ready(tasks: &[Task], terminal: &Terminal) -> String {
    let mut table = table(tasks, terminal);
    for (at, task) in tasks.iter().enumerate() {
        if let Some(done_when) = &task.done_when {
            table.note(at, &format!("done when: {done_when}"));
        }
    }
    table.render(terminal)
}

/// One task in a line.
pub fn task(task: &Task, terminal: &Terminal) -> String {
    table(std::slice::from_ref(task), terminal).body(terminal)
}

/// Shown for a task or a message whose lapse no batch of expiry has written yet.
pub const LAPSED: &str = "the lease of its holder is over; this is the state that the next claim will find";

/// A claim, and the whole task.
pub fn claimed(claim: &Claim, task: &Task, terminal: &Terminal) -> String {
    let held = format!("held by run {} {}", claim.run, terminal.until(claim.expires_at));
    let held = terminal.wrap(&held, 0, 4) + &lease_kept(claim, terminal);
    format!("{}\n{held}\n\n{}", terminal.bold(&claim.token), page(task, terminal))
}

/// A line that says that the lease is not the one that was asked for; empty if it is.
pub fn lease_kept(claim: &Claim, terminal: &Terminal) -> String {
    claim.lease_kept_ms.map_or(String::new(), |lease| {
        let (lease, run) = (terminal.span(lease), &claim.run);
        let why = format!("run {run} has this lease already, and a lease is never shortened");
        format!("\n{}", terminal.wrap(&format!("the lease stays {lease}: {why}"), 0, 4))
    })
}

/// The tokens that a run holds, in little room: `task/auth-3@42, task/auth-4@1`, at most three.
pub fn tokens(all: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A task in full.
pub fn page(task: &Task, terminal: &Terminal) -> String {
    let title = terminal.wrap(&line(&task.title), task.id.len() + 2, 4);
    let mut page = format!("{}  {title}\n", terminal.bold(&task.id));
    let shown = task.state().as_str();
    let state = terminal.paint(state(shown), shown);
    let _ = writeln!(page, "{} {state}", terminal.dim("status:"));
    let mut say = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            let value = terminal.wrap(&labelled(value), label.len() + 2, 4);
            let _ = writeln!(page, "{} {value}", terminal.dim(&format!("{label}:")));
        }
    };
    say("priority", Some(&task.priority.to_string()));
    say("attempts", Some(&format!("{} of {}", task.attempts, task.max_attempts)));
    say("kind", task.kind.as_deref());
    say("tags", (!task.tags.is_empty()).then(|| task.tags.join(", ")).as_deref());
    say("from", task.origin.as_ref().and_then(describe_origin).as_deref());
    say("reopens", task.reopens.as_deref());
    say("reopened as", task.reopened_as.as_deref());
    say("assignee", task.assignee.as_deref());
    say("offered to", task.offered_to.as_deref());
    say("rejected", task.rejection_reason.as_deref());
    say("parked", task.parked.as_deref());
    say("tried again", task.delayed_until.map(|at| terminal.when(at)).as_deref());
    let held = |claim: &Claim| format!("run {} {}", claim.run, terminal.until(claim.expires_at));
    say("held by", task.claim.as_ref().map(held).as_deref());
    say("lapsed", task.lapsed.then_some(LAPSED));
    say("last failure", task.failure_reason.as_deref());
    say("done when", task.done_when.as_deref());
    say("output", task.output.as_deref());
    if let Some(checkpoint) = &task.checkpoint {
        say("checkpoint", Some(&format!("{} {}", checkpoint.ordinal, checkpoint.phase)));
    }
    for other in &task.after {
        let output = other
            .output
            .as_deref()
            .map_or(String::new(), |output| format!(", output: {}", output.trim_end()));
        say("after", Some(&format!("{} ({}{output})", other.id, other.status.as_str())));
    }
    for progress in &task.progress {
        say("progress", Some(&progress.text));
    }
    for note in &task.notes {
        say("note", Some(&note.text));
    }
    if let Some(body) = &task.body {
        let _ = write!(page, "\n{}\n", quoted(body));
    }
    page
}

/// The origin of a delegated message: `slack, kim in ops, thread 12, acme/api`.
fn describe_origin(origin: &serde_json::Value) -> Option<String> {
    let text = |field: &str| origin[field].as_str();
    let sender = sender(text("sender"), text("sent_by"));
    let conversation = conversation(sender.as_deref(), text("channel"), text("thread"));
    let parts = [text("source"), conversation.as_deref(), text("repository")];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| line(&parts.join(", ")))
}

/// `bob for kim`: the agent that sent the message, and the sender that the agent claims. The agent stands first, so that no text
/// of its own can pass for another agent.
pub fn sender(claimed: Option<&str>, sent_by: Option<&str>) -> Option<String> {
    match (claimed, sent_by) {
        (Some(claimed), Some(agent)) if claimed != agent => Some(format!("{agent} for {claimed}")),
        (claimed, agent) => agent.or(claimed).map(str::to_owned),
    }
}

/// `kim in ops, thread 12`
pub fn conversation(sender: Option<&str>, channel: Option<&str>, thread: Option<&str>) -> Option<String> {
    let origin = [sender.map(str::to_owned), channel.map(|channel| format!("in {channel}"))];
    let origin = origin.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let thread = thread.map(|thread| format!("thread {thread}"));
    let parts: Vec<String> = [origin].into_iter().filter(|origin| !origin.is_empty()).chain(thread).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_origin_of_a_task_is_one_line() {
        for (origin, says) in [
            (
                json!({ "message": 7, "source": "api", "sender": null, "data": { "sender": "kim" } }),
                Some("api"),
            ),
            (
                json!({ "source": "slack", "sender": "kim", "channel": "ops", "thread": "12" }),
                Some("slack, kim in ops, thread 12"),
            ),
            (
                json!({ "source": "github", "sender": "lee\nclaim: x", "repository": "acme/api", "thread": "7" }),
                Some("github, lee claim: x, thread 7, acme/api"),
            ),
            (
                json!({ "source": "api", "sender": "lead", "sent_by": "bob", "channel": "ops" }),
                Some("api, bob for lead in ops"),
            ),
            (json!({ "source": "api", "sender": "bob", "sent_by": "bob" }), Some("api, bob")),
            (json!({ "source": "api", "sent_by": "bob" }), Some("api, bob")),
            (json!({ "channel": "ops" }), Some("in ops")),
            (json!({ "slackChannelId": "C1" }), None),
            (json!("by hand"), None),
        ] {
            assert_eq!(describe_origin(&origin).as_deref(), says, "{origin}");
        }
    }
}
