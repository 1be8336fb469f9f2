//! What happens, for the one who watches: a line per event, or JSON.

use crate::{
    context::Context,
    output::{streams, terminal::rough, text::line},
};
use fencepost::{Error, Millis, agent::Trigger, agent::list::Agent, run, run::settle::Outcome};
use serde_json::json;
use std::cell::RefCell;

pub struct Report {
    json: bool,
    /// The pause that was last told, so that a poll that is repeated every ten minutes does not tell it again.
    paused: RefCell<String>,
}

impl Report {
    pub fn new(context: &Context) -> Self {
        Self { json: context.json(), paused: RefCell::default() }
    }

    fn say(&self, text: &str, json: serde_json::Value) {
        // Nobody may read it any more, and the work goes on.
        let _ = match self.json {
            true => streams::print_json(&json.to_string()),
            false => streams::print(text),
        };
    }

    pub fn joined(&self, agent: &Agent) {
        let paused = String::new();
        self.say(
            &format!("{}: joined as {}{paused}", agent.name, agent.role.as_str()),
            json!({ "event": "joined", "agent": agent.name, "role": agent.role }),
        );
    }

    pub fn left_behind(&self, agent: &str, run: &run::Run) {
        self.say(
            &format!(
                "{agent}: an earlier worker died; run {} is ended, and its work is given back",
                run.name
            ),
            json!({ "event": "cleaned_up", "agent": agent, "run": run.name }),
        );
    }

    pub fn paused(&self, agent: &str, error: &Error) {
        if self.paused.replace(error.message().into()) != error.message() {
            self.say(
                &format!("{agent}: {}", line(error.message())),
                json!({ "event": "paused", "agent": agent, "message": error.message() }),
            );
        }
    }

    pub fn started(&self, agent: &str, trigger: &Trigger, what: &str, group: i32) {
        self.paused.take();
        self.say(
            &format!(
                "{agent}: {} {}  run {}, process {group}",
                trigger.kind.as_str(),
                line(what),
                trigger.run
            ),
            json!({
                "event": "started", "agent": agent, "run": trigger.run, "trigger": trigger.kind, "what": what,
                "process": group,
            }),
        );
    }

    pub fn ended(&self, agent: &str, run: &str, ended: &Ended<'_>) {
        let took = rough(ended.took);
        let reason = ended.reason.map_or(String::new(), |reason| format!(": {}", line(reason)));
        let kept = ended.kept.map_or(String::new(), |path| format!("; its work tree is kept: {path}"));
        let usd = ended.usd.map_or(String::new(), |usd| format!(", ${usd:.2}"));
        self.say(
            &format!("{agent}: {} {} after {took}{usd}{reason}{kept}", line(ended.what), ended.word()),
            json!({
                "event": "ended", "agent": agent, "run": run, "what": ended.what, "outcome": ended.word(),
                "reason": ended.reason, "took_ms": ended.took, "usd": ended.usd, "kept": ended.kept,
            }),
        );
    }
}

/// The end of a child.
pub struct Ended<'e> {
    pub what: &'e str,
    pub outcome: Outcome,
    /// Claims were lost, so the work is not accepted.
    pub lost: bool,
    pub reason: Option<&'e str>,
    pub took: Millis,
    pub usd: Option<f64>,
    /// The directory of a work tree that was not removed.
    pub kept: Option<&'e str>,
}

impl Ended<'_> {
    fn word(&self) -> &'static str {
        match self.outcome {
            _ if self.lost => "lost",
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Released => "given back",
        }
    }
}
