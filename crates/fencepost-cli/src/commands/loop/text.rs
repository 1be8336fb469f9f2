//! Loops and stories as text.

use crate::output::{
    Terminal,
    table::{Cell, Table},
    text::quoted,
};
use fencepost::{
    Millis,
    loops::{Brief, LoopStatus, StepView, StoryView, Summary},
};

/// `auth-v1  active  2 of 5 passed, 1 skipped; 6 attempts, 12m`
pub fn head(brief: &Brief, terminal: &Terminal) -> String {
    let project = brief.project.as_ref().map_or(String::new(), |project| format!("  {project}"));
    let reason = brief.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("{}{project}  {}{reason}\n{}", brief.id, brief.status.as_str(), summary(&brief.summary, terminal))
}

pub fn summary(summary: &Summary, terminal: &Terminal) -> String {
    let skipped = summary.skipped + summary.dependency_skipped;
    let mut parts = vec![format!("{} of {} passed", summary.passed, summary.stories)];
    let mut add = |count: i64, what: &str| {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    };
    add(skipped, "skipped");
    add(summary.claimed, "claimed");
    add(summary.open, "open");
    add(summary.attempts, "attempts");
    parts.push(terminal.span(Millis(summary.time_ms.0 / 1000 * 1000)));
    parts.extend(
        summary.cost.iter().map(|(name, sum)| format!("{name} {}", (sum * 10_000.0).round() / 10_000.0)),
    );
    parts.join(", ")
}

/// One line per story; what is wrong with it below.
pub fn stories(stories: &[StoryView], terminal: &Terminal) -> String {
    let mut table = Table::new(&["STORY", "STATUS", "TASK", ">TRIES", "WHO", "TITLE"]);
    for story in stories {
        let who = story
            .claim
            .as_ref()
            .map(|claim| format!("{} {}", claim.run, terminal.short_until(claim.expires_at)));
        table.row(vec![
            story.id.as_str().into(),
            Cell::state_as(colour(story), story.status.as_str().to_owned()),
            story.task.as_deref().unwrap_or("-").into(),
            story.attempts.to_string().into(),
            who.unwrap_or_default().into(),
            story.title.as_str().into(),
        ]);
    }
    for (at, story) in stories.iter().enumerate() {
        if let Some(feedback) = story.feedback.as_ref().filter(|_| story.status.as_str() != "passed") {
            table.note(at, &format!("feedback: {feedback}"));
        }
    }
    table.render(terminal)
}

/// The state of a task whose colour fits.
fn colour(story: &StoryView) -> &'static str {
    match story.status.as_str() {
        "passed" => "completed",
        "claimed" => "in_progress",
        "skipped" => "failed",
        "dependency_skipped" => "cancelled",
        "blocked" => "blocked",
        _ => "unassigned",
    }
}

/// A loop with its stories.
pub fn whole(brief: &Brief, all: &[StoryView], terminal: &Terminal) -> String {
    match all.is_empty() {
        true => head(brief, terminal),
        false => format!("{}\n\n{}", head(brief, terminal), stories(all, terminal)),
    }
}

/// One line per loop.
pub fn list(loops: &[Brief], terminal: &Terminal) -> String {
    let mut table =
        Table::new(&["LOOP", "STATUS", ">PASSED", ">SKIPPED", ">STORIES", "STARTED", "PROJECT"]).headed();
    for one in loops {
        let state = match one.status {
            LoopStatus::Active => "in_progress",
            LoopStatus::Finished => "completed",
            LoopStatus::Cancelled => "cancelled",
        };
        table.row(vec![
            one.id.as_str().into(),
            Cell::state_as(state, one.status.as_str().to_owned()),
            one.summary.passed.to_string().into(),
            (one.summary.skipped + one.summary.dependency_skipped).to_string().into(),
            one.summary.stories.to_string().into(),
            terminal.when(one.started_at).into(),
            one.project.as_deref().unwrap_or("").into(),
        ]);
    }
    table.render(terminal)
}

/// The finished steps of a story.
pub fn steps(steps: &[StepView], terminal: &Terminal) -> String {
    let mut table = Table::new(&["STEP", ">ROUND", "AT", "COMMIT", "RUN"]).headed();
    for step in steps {
        table.row(vec![
            step.name.as_str().into(),
            step.round.to_string().into(),
            terminal.when(step.at).into(),
            step.commit.as_deref().map_or("-", |commit| commit.get(..12).unwrap_or(commit)).into(),
            format!("{}@{}", step.run, step.fence).into(),
        ]);
    }
    table.render(terminal)
}

/// A story for the one who works on it.
pub fn story(story: &StoryView) -> String {
    let mut text = format!("{}  {}", story.id, story.title);
    if let Some(description) = &story.description {
        text += &format!("\n{}", quoted(description));
    }
    for criterion in &story.acceptance_criteria {
        text += &format!("\n  - {}", quoted(criterion).trim_start());
    }
    if let Some(feedback) = &story.feedback {
        text += &format!("\nfeedback of the last verdict:\n{}", quoted(feedback));
    }
    text
}
