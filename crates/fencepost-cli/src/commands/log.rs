mod child;

use crate::{
    context::Context,
    output::{
        Terminal,
        events::{self, verb},
        terminal::state,
        text::{cut, line, quoted},
    },
    run_files::RunFiles,
};
use clap::Args;
use fencepost::{
    Code, Millis, Result, Time,
    event::{self, Entry},
    run::{self, Run},
    task::{self, Task},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write, process::ExitCode};

/// The most runs whose ends are read: those of the last attempts.
const RUNS_READ: usize = 20;
/// The most lines of an attempt's output that are shown, and the most columns of each.
const LINES: usize = 10;
const COLUMNS: usize = 400;

/// Show the history of a task: each attempt, and how it ended; or the output of a run that `fence work` started
///
/// Events are shown below the attempt during which they happened, and events without a holder between the attempts. Below them are
/// the exit of the attempt's process, and the last lines of its output if the task was not completed (`fence settle`). The history
/// comes from the fleet's log. `fence prune` removes old events; then the beginning is missing, and a line says so.
///
/// Of a run of `fence work` it shows what its process printed: the last 8 to 16 MiB, on the machine of the worker.
///
/// Examples:
///   fence log auth-3
///   fence log auth-3 --json
///   fence log bob-7f3a9c01b2d4 --follow
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "history")]
pub struct Log {
    /// The task, such as auth-3, or the run, such as bob-7f3a9c01b2d4
    #[arg(value_name = "ID|RUN")]
    id: String,
    /// Print what the run's process prints until it ends
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct History {
    task: String,
    /// The task as it is now; `None` if it was removed and only its events are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Task>,
    /// Older events were removed.
    pruned: bool,
    parts: Vec<Part>,
}

/// An attempt, or a time without a holder.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<Attempt>,
    events: Vec<Entry>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Attempt {
    fence: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// `None` if the event of the claim was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_at: Option<Time>,
    /// `None` while the attempt lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<Millis>,
    /// The event that ended it: `completed`, `released`, `lapsed`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<String>,
    /// Its lease is over, and expiry has not written that yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lapsed: bool,
    /// The exit of its process, as its settlement reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit: Option<String>,
    /// The last lines of its output, if the task was not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

impl Log {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let name = self.id.strip_prefix("run/").unwrap_or(&self.id);
        if let Some(files) = RunFiles::find(name) {
            return child::print(&files, name, self.follow, context).await;
        }
        let Ok(id) = super::task_of(&self.id);
        let shown = context.call(task::Show { task: id.clone() }).await;
        let shown = match shown {
            Err(error) if matches!(error.code(), Code::NotFound | Code::Invalid) => {
                let elsewhere = child::elsewhere(name, context).await?;
                Err(elsewhere.unwrap_or(error))
            }
            shown => shown,
        };
        let events = read(context, &id).await?;
        let now = match shown {
            Ok(shown) => Some(shown.task),
            Err(error) if error.code() == Code::NotFound && !events.is_empty() => None,
            Err(error) => return Err(error),
        };
        let pruned = events.first().is_none_or(|first| !begins(first));
        let mut parts = parts(events);
        let last = parts.last_mut().and_then(|part| part.attempt.as_mut());
        if let (Some(last), Some(true)) = (last, now.as_ref().map(|task| task.lapsed)) {
            last.lapsed = last.ended_at.is_none();
        }
        add_ends(context, &mut parts).await?;
        let history = History { task: id, pruned, parts, now };
        context.print(&history, |history| page(history, &context.terminal))
    }
}

/// All events of the task, page by page.
async fn read(context: &Context, task: &str) -> Result<Vec<Entry>> {
    let (mut events, mut since) = (Vec::new(), None);
    loop {
        let resource = Some(format!("task/{task}"));
        let page = event::List { since, resource, limit: Some(1000), ..event::List::default() };
        let page = context.call(page).await?;
        events.extend(page.events);
        if !page.more {
            return Ok(events);
        }
        since = Some(page.position);
    }
}

/// Adds the ends of the attempts' runs. A shell's run may have made several attempts, and is read once.
async fn add_ends(context: &Context, parts: &mut [Part]) -> Result<()> {
    let mut runs = BTreeMap::<String, Vec<Run>>::new();
    let ended =
        parts.iter_mut().rev().filter_map(|part| part.attempt.as_mut()).filter(|a| a.ended_at.is_some());
    for attempt in ended {
        let Some(name) = attempt.run.clone() else { continue };
        if !runs.contains_key(&name) {
            if runs.len() == RUNS_READ {
                break;
            }
            let list = run::List { run: Some(name.clone()), all: true, limit: None };
            let found = context.call(list).await?.runs;
            runs.insert(name.clone(), found);
        }
        if let Some(run) = runs[&name].iter().find(|run| attempt.was_in(run)) {
            attempt.exit.clone_from(&run.exit);
            attempt.output = run.output.as_deref().map(last_lines);
        }
    }
    Ok(())
}

fn last_lines(output: &str) -> String {
    let lines: Vec<String> =
        output.trim_end().lines().rev().take(LINES).map(|line| cut(line, COLUMNS)).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn begins(first: &Entry) -> bool {
    matches!(first.kind.as_str(), "task.added" | "task.imported")
}

/// Does the event end a claim? It leads from a state in which the task is held to one in which it is not.
fn ends(event: &Entry) -> bool {
    let held = |state: &Option<String>| matches!(state.as_deref(), Some("in_progress" | "reviewing"));
    held(&event.from) && !held(&event.to)
}

/// The events by attempt. An event belongs to the attempt during which it happened, whoever caused it.
fn parts(events: Vec<Entry>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for event in events {
        let open = parts.last().and_then(|part| part.attempt.as_ref()).filter(|last| last.ended_at.is_none());
        let claims = event.kind == "task.claimed";
        let other = event.fence.is_some_and(|fence| open.is_none_or(|open| open.fence != fence));
        if claims || (other && ends(&event)) {
            parts.push(Part { attempt: Some(Attempt::of(&event, claims)), events: Vec::new() });
        } else if open.is_none() && parts.last().is_none_or(|part| part.attempt.is_some()) {
            parts.push(Part { attempt: None, events: Vec::new() });
        }
        let Some(part) = parts.last_mut() else { continue };
        if let Some(attempt) = part.attempt.as_mut().filter(|_| ends(&event)) {
            attempt.end(&event);
        }
        part.events.push(event);
    }
    parts
}

impl Attempt {
    fn of(event: &Entry, claims: bool) -> Self {
        Self {
            fence: event.fence.unwrap_or_default(),
            run: event.run.clone(),
            agent: event.agent.clone().filter(|_| claims),
            claimed_at: claims.then_some(event.at),
            ended_at: None,
            held_ms: None,
            ended_by: None,
            lapsed: false,
            exit: None,
            output: None,
        }
    }

    /// Was it an attempt of this run? Its name may stand for several runs, one after the other.
    fn was_in(&self, run: &Run) -> bool {
        let end = self.ended_at.unwrap_or(Time(i64::MAX));
        run.opened_at <= self.claimed_at.unwrap_or(end) && run.ended_at.is_none_or(|ended| ended >= end)
    }

    fn end(&mut self, event: &Entry) {
        self.ended_at = Some(event.at);
        self.held_ms = self.claimed_at.map(|from| event.at.since(from));
        self.ended_by = Some(verb(event).to_owned());
    }
}

fn page(history: &History, terminal: &Terminal) -> String {
    let title = history.now.as_ref().map_or("", |task| &task.title);
    let status = history.now.as_ref().map_or("removed", |task| task.state().as_str());
    let top = format!(
        "{}  {}  {}",
        terminal.bold(&history.task),
        terminal.paint(state(status), status),
        line(title)
    );
    let mut page = terminal.wrap(&top, 0, 4) + "\n";
    if history.pruned {
        page += "the beginning is missing: fence prune removed it\n";
    }
    for part in &history.parts {
        let indent = match &part.attempt {
            Some(attempt) => {
                let head = terminal.wrap(&head(attempt, terminal), 0, 4);
                let _ = writeln!(page, "\n{}", terminal.bold(&head));
                "  "
            }
            None => {
                page.push('\n');
                ""
            }
        };
        for event in &part.events {
            let when = terminal.dim(&terminal.when(event.at));
            let text = format!("{indent}{when}  {}", describe(event, part.attempt.as_ref()));
            let _ = writeln!(page, "{}", terminal.wrap(&text, 0, indent.len() + 4));
        }
        if let Some(exit) = part.attempt.as_ref().and_then(|attempt| attempt.exit.as_deref()) {
            let _ = writeln!(page, "  exit {}", line(exit));
        }
        if let Some(output) = part.attempt.as_ref().and_then(|attempt| attempt.output.as_deref()) {
            let _ = writeln!(page, "  the end of its output:\n{}", quoted(output));
        }
    }
    page
}

/// `attempt @2 by run me (agent kim): completed after 12m`
fn head(attempt: &Attempt, terminal: &Terminal) -> String {
    let run = attempt.run.as_deref().map_or(String::new(), |run| format!(" by run {}", line(run)));
    let agent = attempt.agent.as_deref().map_or(String::new(), |agent| format!(" (agent {})", line(agent)));
    let end = match (&attempt.ended_by, attempt.held_ms, attempt.claimed_at) {
        (Some(word), Some(held), _) => format!("{word} after {}", terminal.span(held)),
        (Some(word), None, _) => word.clone(),
        (None, ..) if attempt.lapsed => "lapsed: its lease is over".into(),
        (None, _, Some(since)) => format!("under way since {}", terminal.when(since)),
        (None, ..) => "under way".into(),
    };
    format!("attempt @{}{run}{agent}: {end}", attempt.fence)
}

/// The verb, the actor and the details of an event: `noted by kim, text: see the wiki`.
fn describe(event: &Entry, attempt: Option<&Attempt>) -> String {
    let mut verb = events::word(event);
    let holder = attempt.and_then(|attempt| attempt.agent.as_deref());
    if let Some(agent) = event.agent.as_deref().filter(|agent| Some(*agent) != holder) {
        verb += &format!(" by {}", line(agent));
    }
    [verb]
        .into_iter()
        .chain(events::states(event))
        .chain(events::details(event))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `10 claimed unassigned>in_progress @1`
    fn event(text: &str) -> Entry {
        let words: Vec<&str> = text.split(' ').collect();
        let (from, to) = words[2].split_once('>').unwrap_or_default();
        let state = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Entry {
            position: String::new(),
            at: Time(words[0].parse().unwrap()),
            kind: format!("task.{}", words[1]),
            resource: "task/a-1".into(),
            from: state(from),
            to: state(to),
            run: words.get(3).map(|_| "r".to_owned()),
            agent: None,
            fence: words.get(3).map(|fence| fence.trim_start_matches('@').parse().unwrap()),
            title: None,
            details: None,
        }
    }

    fn shown(events: &[&str]) -> Vec<String> {
        let parts = parts(events.iter().map(|text| event(text)).collect());
        let part = |part: &Part| {
            let kinds = part.events.iter().map(verb).collect::<Vec<_>>().join(" ");
            match &part.attempt {
                None => kinds,
                Some(a) => format!(
                    "@{} {} {}: {kinds}",
                    a.fence,
                    a.ended_by.as_deref().unwrap_or("-"),
                    a.held_ms.map_or("-".into(), |held| held.0.to_string())
                ),
            }
        };
        parts.iter().map(part).collect()
    }

    #[test]
    fn events_are_below_their_attempt() {
        let history = [
            "1 added >unassigned",
            "2 noted unassigned>unassigned",
            "10 claimed unassigned>in_progress @1",
            "11 noted in_progress>in_progress",
            "15 released in_progress>unassigned @1",
            "16 edited unassigned>unassigned",
            "20 claimed unassigned>in_progress @2",
            "50 lapsed in_progress>unassigned @2",
            "60 claimed unassigned>in_progress @3",
        ];
        let wanted = [
            "added noted",
            "@1 released 5: claimed noted released",
            "edited",
            "@2 lapsed 30: claimed lapsed",
            "@3 - -: claimed",
        ];
        assert_eq!(shown(&history), wanted);
        // The event of the claim was pruned, but its end is known.
        assert_eq!(shown(&["15 released in_progress>unassigned @4"]), ["@4 released -: released"]);
        assert_eq!(
            shown(&["15 progress in_progress>in_progress @4", "16 completed in_progress>completed @4"]),
            ["progress", "@4 completed -: completed"]
        );
        assert!(shown(&[]).is_empty());
    }
}
