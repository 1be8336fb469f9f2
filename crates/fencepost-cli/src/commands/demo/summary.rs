//! The summary of the demo, computed from the event log.

use super::director::{BOARD, Seen};
use crate::commands::demo_agent;
use fencepost::{Millis, Result, admin, event};
use fencepost_client::Connection;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Tasks, messages and mentions together.
    pub items: usize,
    pub tasks: usize,
    /// Messages of the inbox, and notices to the lead about finished tasks.
    pub messages: usize,
    /// Agents that were mentioned in a channel.
    pub mentions: usize,
    /// Offers that were accepted or rejected.
    pub offers: usize,
    /// Triggers, each with a run of its own.
    pub runs: usize,
    /// Processes that were started for them, as each of them wrote.
    pub processes: usize,
    /// Runs that died, and whose work came back.
    pub crashes: usize,
    /// The answer to the write of the process that was frozen past its lease.
    pub late_write: String,
    /// Items that were finished more than once, or not at all.
    pub not_once: Vec<String>,
    /// Promises that `fence doctor` checks.
    pub promises: usize,
    /// Broken promises; empty if the demo succeeded.
    pub problems: Vec<String>,
    pub took_ms: Millis,
}

/// Reads the whole log, and compares it with what was seen.
pub async fn read(fleet: &Connection, seen: &Seen, stage: &Path) -> Result<Summary> {
    let (problems, late_write) = (seen.problems.clone(), seen.late.clone());
    let mut summary = Summary { problems, late_write, ..Summary::default() };
    let mut triggered: BTreeSet<String> = BTreeSet::new();
    let mut finished: BTreeMap<String, usize> = BTreeMap::new();
    let mut completed_under: BTreeMap<String, i64> = BTreeMap::new();
    let mut died: BTreeSet<String> = BTreeSet::new();
    let mut since = None;
    loop {
        let page = fleet.call(event::List { since, limit: Some(1000), ..Default::default() }).await?;
        for event in &page.events {
            let resource = event.resource.clone();
            let mut count = |by: usize| *finished.entry(resource.clone()).or_default() += by;
            match event.kind.as_str() {
                "task.added" | "message.pushed" | "mentions.posted" => count(0),
                "task.completed" => {
                    count(1);
                    completed_under.insert(resource.clone(), event.fence.unwrap_or_default());
                }
                "message.completed" | "mentions.read" => count(1),
                "task.accepted" | "task.rejected" => summary.offers += 1,
                "run.triggered" => triggered.extend(event.run.clone()),
                kind if kind.ends_with(".lapsed") => died.extend(event.run.clone()),
                _ => {}
            }
        }
        if !page.more {
            break;
        }
        since = Some(page.position);
    }
    let of = |noun: &str| finished.keys().filter(|resource| resource.starts_with(noun)).count();
    (summary.tasks, summary.messages, summary.mentions) =
        (of(&format!("task/{BOARD}-")), of("message/"), of("mentions/"));
    (summary.items, summary.crashes) = (finished.len(), died.len());
    let processes = demo_agent::processes(stage);
    (summary.runs, summary.processes) = (triggered.len(), processes.values().sum());
    for (run, count) in processes {
        if count > 1 || !triggered.contains(&run) {
            summary.problems.push(format!("run `{run}` has one trigger at most, and {count} processes"));
        }
    }
    summary.not_once =
        finished.iter().filter(|(_, n)| **n != 1).map(|(item, n)| format!("{item} ({n} times)")).collect();
    let report = fleet.call(admin::Check {}).await?;
    summary.promises = report.checked;
    summary.judge(seen, &died, &completed_under);
    summary.problems.extend(report.violations.iter().map(|violation| format!("{violation:?}")));
    Ok(summary)
}

impl Summary {
    /// Checks the promises that the demo shows.
    fn judge(&mut self, seen: &Seen, died: &BTreeSet<String>, completed_under: &BTreeMap<String, i64>) {
        let mut problem = |text: String| self.problems.push(text);
        if !self.not_once.is_empty() {
            problem(format!("not finished exactly once: {}", self.not_once.join(", ")));
        }
        for scene in [&seen.killed, &seen.frozen] {
            if !died.contains(&scene.run) {
                problem(format!("the work of run `{}` did not come back by its lease", scene.run));
            }
        }
        // If the other agent was quick, the task is finished already.
        let refused = ["lease_expired", "already_finished"].contains(&seen.late.as_str());
        if !refused {
            problem(format!("the late write was not refused: {}", seen.late));
        }
        for scene in [&seen.killed, &seen.frozen] {
            let (resource, fence) = scene.token.split_once('@').unwrap_or_default();
            if completed_under.get(resource).is_none_or(|under| under.to_string() == fence) {
                problem(format!("`{resource}` was not completed under a later claim than `{}`", scene.token));
            }
        }
    }

    pub fn page(&self, kept: Option<&str>) -> String {
        let took = self.took_ms.0 as f64 / 1000.0;
        let mut page = match self.problems.as_slice() {
            [] => format!("every item was finished exactly once, in {took:.1} s\n\n"),
            problems => format!("the demo FAILED after {took:.1} s: {}\n\n", problems.join("; ")),
        };
        let items = format!(
            "{} ({} tasks, {} messages and notices, {} mentions), {} offer",
            self.items, self.tasks, self.messages, self.mentions, self.offers
        );
        let crashes = format!("{} (one worker killed with -9, one frozen past its lease)", self.crashes);
        for (name, value) in [
            ("items", items),
            ("processes started", format!("{}, for {} triggers", self.processes, self.runs)),
            ("crashes survived", crashes),
            ("late write answered", self.late_write.clone()),
            ("finished twice or never", self.not_once.len().to_string()),
            ("promises checked", format!("{}, as fence doctor does", self.promises)),
        ] {
            page += &format!("{name:<24} {value}\n");
        }
        if let Some(directory) = kept {
            page += &format!(
                "\nlook at it: export FENCE_DB={directory}/fence.db XDG_STATE_HOME={directory}/state\n  \
                 fence events; fence board show {BOARD}; fence runs --all; fence log RUN; fence doctor"
            );
        }
        page
    }
}
