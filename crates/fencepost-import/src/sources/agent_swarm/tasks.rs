//! Tasks, and the translation of agent-swarm's eleven states.

use super::{
    agents::{Agents, names},
    file::TASKS,
    row::{Remark, Remarks, TableRow},
};
use crate::{
    batch::tasks::break_cycles,
    fit::fit,
    names::{plain, slug},
    report::Omission,
    sqlite::Row,
};
use fencepost::task::import::{Item, State};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The tasks of the file, translated, and the row that each came from.
#[derive(Debug, Default)]
pub struct Tasks {
    pub items: Vec<Item>,
    pub rows: Vec<String>,
    at: HashMap<String, usize>,
}

/// The numbers of the board's tasks, by their keys.
pub type Numbers = HashMap<String, i64>;

pub fn key(id: &str) -> String {
    format!("agent-swarm:{id}")
}

impl Tasks {
    pub fn of(
        rows: Vec<Row>,
        agents: &Agents,
        board: &str,
        numbers: &Numbers,
        remarks: &mut Remarks,
    ) -> Self {
        report_unknown_columns(&rows, remarks);
        let mut free = Free::of(rows.len(), numbers);
        let (mut tasks, mut waits) = (Self::default(), Vec::new());
        for (rank, row) in (1..).zip(rows) {
            let id = plain(row.get("id"));
            let mut row = TableRow::new(TASKS, id.clone(), row, remarks);
            if id.is_empty() || tasks.at.contains_key(&id) {
                row.skip("its id is missing or repeated");
                continue;
            }
            let n = numbers.get(&key(&id)).copied().unwrap_or_else(|| free.take(rank));
            row.new_name = format!("{board}-{n}");
            let on = row.list("dependsOn");
            let mut item = task(&mut row, agents);
            (item.id, item.key) = (row.new_name.clone(), Some(key(&id)));
            if !tasks.fits(&mut item, &mut row) {
                continue;
            }
            waits.push(on);
            tasks.at.insert(id.clone(), tasks.items.len());
            tasks.items.push(item);
            tasks.rows.push(id);
        }
        tasks.depend(waits, remarks);
        tasks
    }

    fn fits(&self, item: &mut Item, row: &mut TableRow<'_>) -> bool {
        let mut cut: Vec<Omission> = Vec::new();
        let fits = fit(item, &column, &mut cut);
        let last = if fits { None } else { cut.pop() };
        cut.into_iter().for_each(|left| row.left(left.what));
        if let Some(why) = last {
            row.skip(why.what.trim_start_matches("is left out: "));
        }
        fits
    }

    fn depend(&mut self, waits: Vec<Vec<String>>, remarks: &mut Remarks) {
        let mut left = |row: &str, id: &str, what: String| {
            remarks.left.push(Remark { row: format!("{TASKS}/{row}"), what: format!("{id}: {what}") });
        };
        for (i, on) in waits.into_iter().enumerate() {
            for id in on {
                match self.at.get(&id) {
                    Some(&other) => {
                        let other = self.items[other].id.clone();
                        self.items[i].after.push(other);
                    }
                    None => left(
                        &self.rows[i],
                        &self.items[i].id,
                        format!("waited for `{id}`, which does not exist; the dependency is dropped"),
                    ),
                }
            }
        }
        for (item, what) in break_cycles(&mut self.items) {
            left(&self.rows[item], &self.items[item].id, what);
        }
        for (i, item) in self.items.iter_mut().enumerate() {
            let mut cut = Vec::new();
            fit(item, &column, &mut cut);
            cut.into_iter().for_each(|cut: Omission| left(&self.rows[i], &cut.task, cut.what));
        }
        let over = |state: State| matches!(state, State::Failed | State::Cancelled);
        let dead: HashSet<&str> =
            self.items.iter().filter(|item| over(item.status)).map(|item| item.id.as_str()).collect();
        let stuck: Vec<&str> = self
            .items
            .iter()
            .filter(|item| item.status == State::Unassigned)
            .filter(|item| item.after.iter().any(|on| dead.contains(on.as_str())))
            .map(|item| item.id.as_str())
            .collect();
        if !stuck.is_empty() {
            remarks.notes.push(format!(
                "these depend on failed or cancelled tasks, and stay blocked until fence retry or fence dep rm: {}",
                stuck.join(", ")
            ));
        }
    }

    /// The item of a row.
    pub fn item(&self, row: &str) -> Option<&Item> {
        self.at.get(row).map(|&i| &self.items[i])
    }

    /// The rows and their items, by the ids under which they were sent.
    pub fn by_id(&self) -> HashMap<&str, (&String, &Item)> {
        self.items.iter().zip(&self.rows).map(|(item, row)| (item.id.as_str(), (row, item))).collect()
    }
}

/// Numbers that no task of the board has. A new task gets its rank in the file if that is free: a second import then gives it
/// the same number, even if the task was pruned in between.
struct Free {
    taken: HashSet<i64>,
    next: i64,
}

impl Free {
    fn of(rows: usize, numbers: &Numbers) -> Self {
        let taken: HashSet<i64> = numbers.values().copied().collect();
        let next = taken.iter().copied().max().unwrap_or(0).max(rows as i64) + 1;
        Self { taken, next }
    }

    fn take(&mut self, rank: i64) -> i64 {
        if self.taken.insert(rank) {
            return rank;
        }
        self.next += 1;
        self.next - 1
    }
}

fn task(row: &mut TableRow<'_>, agents: &Agents) -> Item {
    let text = row.take("task").unwrap_or_default();
    let title = row.take("title").unwrap_or_else(|| headline(&text));
    let mut item = Item {
        body: (title != text.trim()).then_some(text).filter(|text| !text.trim().is_empty()),
        title,
        kind: kind(row),
        priority: priority(row),
        tags: names(row, "tags"),
        source: row.take("source"),
        creator: agents.take(row, "creatorAgentId", "nobody is named as its creator"),
        created_at: row.time("createdAt"),
        accepted_at: row.time("acceptedAt"),
        rejection_reason: row.take("rejectionReason"),
        progress: row.take("progress").into_iter().map(Into::into).collect(),
        ..Item::default()
    };
    state(row, agents, &mut item);
    item.origin = Some(Value::Object(
        std::mem::take(&mut row.columns).into_iter().filter(|(_, value)| *value != "[]").collect(),
    ));
    item
}

/// The first line, cut if it is too long for a title.
fn headline(text: &str) -> String {
    const LONG: usize = 120;
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(LONG) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into(),
    }
}

fn state(row: &mut TableRow<'_>, agents: &Agents, item: &mut Item) {
    let status = row.take("status").unwrap_or("pending".into());
    let agent = agents.take(row, "agentId", "the task is unassigned");
    let offered = agents.take(row, "offeredTo", "the task is unassigned");
    let notified = row.columns.get("notifiedAt").is_some();
    let by =
        |who: &Option<String>| who.as_ref().map(|who| format!(" in the hands of {who}")).unwrap_or_default();
    let held = |row: &mut TableRow<'_>, item: &mut Item, who: &Option<String>, now: &str| {
        item.owner.clone_from(who);
        item.notes.push(
            format!("was {status}{} in agent-swarm when it was imported; nobody holds it", by(who)).into(),
        );
        row.changed(format!("was {status}{}: it is {now}", by(who)));
    };
    match status.as_str() {
        "unassigned" => {}
        "backlog" => (item.to, item.parked) = (agent, Some("in the backlog".into())),
        "paused" => (item.to, item.parked) = (agent, Some("paused".into())),
        "pending" => item.to = agent,
        "offered" => item.offer = offered,
        "reviewing" => {
            held(row, item, &offered, if offered.is_some() { "offered again" } else { "unassigned" });
            item.offer = offered;
        }
        "in_progress" => {
            held(row, item, &agent, if agent.is_some() { "assigned again" } else { "unassigned" });
            item.to = agent;
        }
        "completed" | "failed" => {
            let reason = row.take("failureReason");
            item.finished_at = row.time("finishedAt");
            if status == "completed" {
                (item.status, item.output) = (State::Completed, row.take("output"));
            } else {
                (item.status, item.failure_reason) = (State::Failed, reason);
            }
            // agent-swarm does not notify a lead of tasks that a lead finished.
            item.notify = !notified && !agent.as_deref().is_some_and(|agent| agents.is_lead(agent));
            item.to = agent;
        }
        "cancelled" | "superseded" => {
            (item.status, item.finished_at) = (State::Cancelled, row.time("finishedAt"));
            item.to = agent;
            if status == "superseded" {
                item.notes.push("was superseded in agent-swarm".into());
                row.changed("was superseded: it is cancelled");
            }
        }
        _ => {
            (item.to, item.parked) = (agent, Some(format!("its status was `{status}`")));
            row.left(format!("status `{status}` is unknown; the task is parked"));
        }
    }
    if item.offer.is_some() {
        item.offered_at = row.time("offeredAt");
    }
}

fn kind(row: &mut TableRow<'_>) -> Option<String> {
    let kind = row.take("taskType")?;
    let name = slug(&kind, 128);
    if name != kind {
        row.left(match name.as_str() {
            "" => format!("taskType `{kind}` is not a valid name; it is left out"),
            _ => format!("taskType `{kind}` is now {name}"),
        });
    }
    Some(name).filter(|name| !name.is_empty())
}

/// Both systems count from 0 to 100, the higher first.
fn priority(row: &mut TableRow<'_>) -> Option<i64> {
    let given = row.take("priority")?;
    match given.parse::<f64>() {
        Ok(number) if (0.0..=100.0).contains(&number) => Some(number as i64),
        Ok(number) => {
            let near = number.clamp(0.0, 100.0) as i64;
            row.left(format!("priority {given} is now {near}"));
            Some(near)
        }
        Err(_) => {
            row.left(format!("priority `{given}` is not a number; it is 50"));
            None
        }
    }
}

/// The column that a field of an item came from.
fn column(field: &str) -> &str {
    match field {
        "body" => "task",
        "failure_reason" => "failureReason",
        "rejection_reason" => "rejectionReason",
        other => other,
    }
}

/// Columns that the importer does not know stay in each task's `origin`.
fn report_unknown_columns(rows: &[Row], remarks: &mut Remarks) {
    let unknown = |name: &&String| !COLUMNS.contains(&name.as_str());
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.keys().filter(unknown)).collect();
    if !names.is_empty() {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        remarks.notes.push(format!("unknown columns are kept in each task's `origin`: {}", names.join(", ")));
    }
}

/// The columns of version 1.135. An item keeps those without a field of their own in its `origin`.
#[rustfmt::skip]
const COLUMNS: &[&str] = &[
    "id", "agentId", "creatorAgentId", "task", "status", "source", "taskType", "tags", "priority", "dependsOn",
    "offeredTo", "offeredAt", "acceptedAt", "rejectionReason", "slackChannelId", "slackThreadTs", "slackUserId",
    "mentionMessageId", "mentionChannelId", "vcsProvider", "vcsRepo", "vcsEventType", "vcsNumber", "vcsCommentId",
    "vcsAuthor", "vcsUrl", "parentTaskId", "claudeSessionId", "agentmailInboxId", "agentmailMessageId",
    "agentmailThreadId", "model", "scheduleId", "workflowRunId", "workflowRunStepId", "createdAt", "lastUpdatedAt",
    "finishedAt", "failureReason", "output", "progress", "notifiedAt", "dir", "outputSchema", "compactionCount",
    "peakContextPercent", "peakContextTokens", "contextWindowSize", "was_paused", "credentialKeySuffix",
    "credentialKeyType", "requestedByUserId", "vcsInstallationId", "vcsNodeId", "slackReplySent", "swarmVersion",
    "contextKey", "provider", "providerMeta", "followUpConfig", "created_by", "updated_by", "harnessVariant",
    "harnessVariantMeta", "modelTier", "slackProgressMessageTs", "slackTreeRootMessageTs", "effort",
    "routingAffinity", "key", "title", "slackTriggerMessageTs", "requestedByUserIdInherited",
];
