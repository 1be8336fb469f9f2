//! One command, one file.

mod add;
mod call;
mod claim;
mod done;
mod fail;
mod guard;
mod init;
mod list;
mod ready;
mod release;
mod renew;
mod show;

use crate::context::Context;
use clap::Subcommand;
use fencepost::{Code, Error, Millis, Result, claim::Claim, task::Task};
use std::{fmt::Write, process::ExitCode};

#[derive(Debug, Subcommand)]
pub enum Command {
    Init(init::Init),
    Add(add::Add),
    Ready(ready::Ready),
    Claim(claim::Claim),
    Renew(renew::Renew),
    Done(done::Done),
    Fail(fail::Fail),
    Release(release::Release),
    Show(show::Show),
    List(list::List),
    Guard(guard::Guard),
    Call(call::Call),
}

impl Command {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self {
            Command::Init(command) => command.run(context).await,
            Command::Add(command) => command.run(context).await,
            Command::Ready(command) => command.run(context).await,
            Command::Claim(command) => command.run(context).await,
            Command::Renew(command) => command.run(context).await,
            Command::Done(command) => command.run(context).await,
            Command::Fail(command) => command.run(context).await,
            Command::Release(command) => command.run(context).await,
            Command::Show(command) => command.run(context).await,
            Command::List(command) => command.run(context).await,
            Command::Guard(command) => command.run(context).await,
            Command::Call(command) => command.run(context).await,
        }
    }
}

/// `30s`, `30m`, `2h`.
fn duration(text: &str) -> Result<Millis, String> {
    let malformed = |_| "not a duration such as 30s, 30m or 2h".to_owned();
    let span: jiff::Span = text.parse().map_err(malformed)?;
    let span = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(malformed)?;
    Ok(Millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

/// TEXT as it is, `@file` from a file, `-` from standard input.
fn text(given: String) -> Result<String> {
    let unreadable = |e: std::io::Error| Error::new(Code::Invalid, format!("`{given}` cannot be read: {e}"));
    match given.strip_prefix('@') {
        _ if given == "-" => std::io::read_to_string(std::io::stdin()).map_err(unreadable),
        Some(path) => std::fs::read_to_string(path).map_err(unreadable),
        None => Ok(given),
    }
}

/// One line: `auth-3  in_progress  50  write the parser`.
fn line(task: &Task) -> String {
    let mut line = format!("{:<12} {:<12} {:>3}  {}", task.id, status(task), task.priority, task.title);
    if let Some(claim) = &task.claim {
        let _ = write!(line, "  [run {} until {}]", claim.run, claim.expires_at);
    }
    line
}

/// What a person wants to know first: blocked and parked tasks are not just "unassigned".
fn status(task: &Task) -> &'static str {
    if task.status.is_finished() || task.claim.is_some() {
        task.status.as_str()
    } else if task.waiting_on > 0 {
        "blocked"
    } else if task.parked.is_some() {
        "parked"
    } else {
        task.status.as_str()
    }
}

/// A claim and all that a worker needs.
fn claimed(claim: &Claim, task: &Task) -> String {
    format!("{}\nheld by run {} until {}\n\n{}", claim.token, claim.run, claim.expires_at, page(task))
}

/// A task in full.
fn page(task: &Task) -> String {
    let mut page = format!("{}  {}\n", task.id, task.title);
    let mut say = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = writeln!(page, "{label}: {value}");
        }
    };
    say("status", Some(status(task)));
    say("priority", Some(&task.priority.to_string()));
    say("attempts", Some(&format!("{} of {}", task.attempts, task.max_attempts)));
    say("kind", task.kind.as_deref());
    say("tags", (!task.tags.is_empty()).then(|| task.tags.join(", ")).as_deref());
    say("assignee", task.assignee.as_deref());
    say("offered to", task.offered_to.as_deref());
    say("parked", task.parked.as_deref());
    say(
        "held by",
        task.claim.as_ref().map(|claim| format!("run {} until {}", claim.run, claim.expires_at)).as_deref(),
    );
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
        let _ = write!(page, "\n{body}\n");
    }
    page
}
