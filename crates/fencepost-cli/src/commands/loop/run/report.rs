//! What a chain tells: a line for each step, or a JSON object per line with `--json`.

use super::super::text;
use crate::{
    context::Context,
    output::{streams, terminal::rough, text::line},
};
use fencepost::{
    Millis,
    loops::{Brief, next::Reason},
};
use serde_json::{Value, json};

pub struct Report<'c> {
    context: &'c Context,
    id: String,
}

impl<'c> Report<'c> {
    pub fn new(context: &'c Context, id: &str) -> Self {
        Self { context, id: id.to_owned() }
    }

    /// One event of a story: what was done, how it ended, and more about it.
    pub fn story(&self, story: &str, step: &str, status: &str, more: Value) {
        let mut event = json!({ "loop": self.id, "story": story, "step": step, "status": status });
        let mut words = vec![format!("{story}  {step}: {status}")];
        for (name, value) in more.as_object().into_iter().flatten() {
            event[name.as_str()] = value.clone();
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("took_ms", Value::Number(took)) => words.push(rough(Millis(took.as_i64().unwrap_or(0)))),
                ("commit", Value::String(commit)) => {
                    words.push(format!("commit {}", commit.get(..12).unwrap_or(commit)))
                }
                // The last line of a command's output says most.
                (_, Value::String(text)) => words.push(line(text.lines().next_back().unwrap_or_default())),
                (name, other) => words.push(format!("{name} {other}")),
            }
        }
        self.tell(&event, &words.join("  "));
    }

    pub fn started(&self, started: bool) {
        let words = if started { "started" } else { "it was started before" };
        self.tell(&json!({ "loop": self.id, "started": started }), &format!("loop {}: {words}", self.id));
    }

    /// The chain gets no story.
    pub fn nothing(&self, reason: Reason, message: &str) {
        let event = json!({ "loop": self.id, "step": "plan", "status": reason.as_str(), "message": message });
        self.tell(&event, &format!("plan: {}: {}", reason.as_str(), line(message)));
    }

    pub fn waiting(&self, reason: Option<Reason>, message: &str) {
        if let Some(reason) = reason {
            self.nothing(reason, &format!("{message}; waiting"));
        }
    }

    pub fn finished(&self, brief: &Brief) {
        let event = json!({ "loop": self.id, "step": "end", "status": brief.status.as_str(), "summary": brief.summary });
        let summary = text::summary(&brief.summary, &self.context.terminal);
        self.tell(&event, &format!("loop {} is {}: {summary}", self.id, brief.status.as_str()));
    }

    /// Something about the loop as a whole.
    pub fn note(&self, step: &str, status: &str, message: &str) {
        let event = json!({ "loop": self.id, "step": step, "status": status, "message": message });
        self.tell(&event, &format!("{step}: {status}: {}", line(message)));
    }

    fn tell(&self, event: &Value, words: &str) {
        // A reader that is gone does not stop the work.
        let _ = match self.context.json() {
            true => streams::print_json(&event.to_string()),
            false => streams::print(words),
        };
    }
}
