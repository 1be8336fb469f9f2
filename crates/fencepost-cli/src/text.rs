//! Tasks and claims as text.

use crate::screen::{Cell, Screen, Table, labelled, line, quoted, state};
use fencepost::{claim::Claim, task::Task};
use std::fmt::Write;

/// A line each: `auth-3  in_progress  50  write the parser`.
pub fn tasks(tasks: &[Task], screen: &Screen) -> String {
    table(tasks, screen).render(screen)
}

fn table(tasks: &[Task], screen: &Screen) -> Table {
    let mut table = Table::new(&["ID", "STATUS", ">PRI", "WHO", "TITLE"]);
    for task in tasks {
        let agent =
            task.assignee.as_ref().or(task.offered_to.as_ref()).filter(|_| !task.status.is_finished());
        let held = match (&task.claim, agent) {
            (Some(claim), _) => Some(format!("{} {}", claim.run, screen.short_until(claim.expires_at))),
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

/// The same, each with when it counts as done, where that was said.
pub fn ready(tasks: &[Task], screen: &Screen) -> String {
    let mut table = table(tasks, screen);
    for (at, task) in tasks.iter().enumerate() {
        if let Some(done_when) = &task.done_when {
            table.note(at, &format!("done when: {done_when}"));
        }
    }
    table.render(screen)
}

/// The same, for one.
pub fn task(task: &Task, screen: &Screen) -> String {
    table(std::slice::from_ref(task), screen).body(screen)
}

/// What is shown is not written down yet.
pub const LAPSED: &str = "its holder's lease is over, and this is what the next claim will find";

/// A claim and all that a worker needs.
pub fn claimed(claim: &Claim, task: &Task, screen: &Screen) -> String {
    let held = format!("held by run {} {}", claim.run, screen.until(claim.expires_at));
    let held = screen.wrap(&held, 0, 4) + &lease_kept(claim, screen);
    format!("{}\n{held}\n\n{}", screen.bold(&claim.token), page(task, screen))
}

/// A line that says so where the lease is not the one that was asked for.
pub fn lease_kept(claim: &Claim, screen: &Screen) -> String {
    claim.lease_kept_ms.map_or(String::new(), |lease| {
        let (lease, run) = (screen.span(lease), &claim.run);
        let why = format!("run {run} has that already, and a lease never becomes shorter");
        format!("\n{}", screen.wrap(&format!("the lease stays {lease}: {why}"), 0, 4))
    })
}

/// What a run holds, where there is little room: `task/auth-3@42, task/auth-4@1`, at most three.
pub fn tokens(all: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A task in full.
pub fn page(task: &Task, screen: &Screen) -> String {
    let title = screen.wrap(&line(&task.title), task.id.len() + 2, 4);
    let mut page = format!("{}  {title}\n", screen.bold(&task.id));
    let shown = task.state().as_str();
    let state = screen.paint(state(shown), shown);
    let _ = writeln!(page, "{} {state}", screen.dim("status:"));
    let mut say = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            let value = screen.wrap(&labelled(value), label.len() + 2, 4);
            let _ = writeln!(page, "{} {value}", screen.dim(&format!("{label}:")));
        }
    };
    say("priority", Some(&task.priority.to_string()));
    say("attempts", Some(&format!("{} of {}", task.attempts, task.max_attempts)));
    say("kind", task.kind.as_deref());
    say("tags", (!task.tags.is_empty()).then(|| task.tags.join(", ")).as_deref());
    say("from", task.origin.as_ref().and_then(from).as_deref());
    say("reopens", task.reopens.as_deref());
    say("reopened as", task.reopened_as.as_deref());
    say("assignee", task.assignee.as_deref());
    say("offered to", task.offered_to.as_deref());
    say("rejected", task.rejection_reason.as_deref());
    say("parked", task.parked.as_deref());
    say("tried again", task.delayed_until.map(|at| screen.when(at)).as_deref());
    let held = |claim: &Claim| format!("run {} {}", claim.run, screen.until(claim.expires_at));
    say("held by", task.claim.as_ref().map(held).as_deref());
    say("lapsed", task.lapsed.then_some(LAPSED));
    say("last failure", task.failure_reason.as_deref());
    say("done when", task.done_when.as_deref());
    say("output", task.output.as_deref());
    if let Some(checkpoint) = &task.checkpoint {
        say("checkpoint", Some(&format!("{} {}", checkpoint.ordinal, checkpoint.phase)));
    }
    for other in &task.after {
        let output = other.output.as_deref().map_or(String::new(), |output| format!(", output: {output}"));
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

/// Where a message that was delegated came from: `slack, kim in ops, thread 12, acme/api`.
fn from(origin: &serde_json::Value) -> Option<String> {
    let said = |field: &str| origin[field].as_str();
    let sender = sender(said("sender"), said("sent_by"));
    let whence = whence(sender.as_deref(), said("channel"), said("thread"));
    let parts = [said("source"), whence.as_deref(), said("repository")];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| line(&parts.join(", ")))
}

/// `bob for kim`: the agent that sent it, by its key or its process, and whom it says that it comes from. The agent stands
/// first, so that no text that it gave can pass for another agent.
pub fn sender(said: Option<&str>, sent_by: Option<&str>) -> Option<String> {
    match (said, sent_by) {
        (Some(said), Some(agent)) if said != agent => Some(format!("{agent} for {said}")),
        (said, agent) => agent.or(said).map(str::to_owned),
    }
}

/// `kim in ops, thread 12`
pub fn whence(sender: Option<&str>, channel: Option<&str>, thread: Option<&str>) -> Option<String> {
    let place = [sender.map(str::to_owned), channel.map(|channel| format!("in {channel}"))];
    let place = place.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let thread = thread.map(|thread| format!("thread {thread}"));
    let parts: Vec<String> = [place].into_iter().filter(|place| !place.is_empty()).chain(thread).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn where_a_task_came_from_is_one_line() {
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
            assert_eq!(from(&origin).as_deref(), says, "{origin}");
        }
    }
}
