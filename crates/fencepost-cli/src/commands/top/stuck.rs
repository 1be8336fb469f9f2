//! Stuck work and the reason: work that goes on only if somebody does something. Pure.

use crate::view::fleet::Stuck;
use fencepost::{
    agent::list::Agents,
    board::show::Shown,
    mail::stats::Box as Mailbox,
    run::Run,
    task::{State, Status, Task},
};
use std::collections::{HashMap, HashSet};

/// The replies that say what is stuck.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'f> {
    pub agents: &'f Agents,
    /// The failed tasks of all boards.
    pub failed: &'f [Task],
    /// The boards with blocked tasks, and their dependencies.
    pub boards: &'f [Shown],
    pub runs: &'f [Run],
    pub mailboxes: &'f [Mailbox],
}

pub fn find(facts: &Facts<'_>) -> Vec<Stuck> {
    let mut failed: Vec<&Task> = facts.failed.iter().collect();
    failed.sort_by_key(|task| std::cmp::Reverse(task.finished_at));
    let failed = failed.into_iter().map(of_failed);
    let stranded = facts.agents.agents.iter().filter(|agent| !agent.stranded.is_empty()).map(|agent| Stuck {
        kind: "stranded".into(),
        what: agent.stranded.clone(),
        title: None,
        why: format!("only for agent {}, which is offline", agent.name),
        next: Some(format!("fence agent recall {}", agent.name)),
    });
    let unknown = facts.agents.unknown.iter().map(|unknown| Stuck {
        kind: "stranded".into(),
        what: unknown.tasks.clone(),
        title: None,
        why: format!("only for agent {}, which has not joined", unknown.agent),
        next: Some(format!("fence agent join {}", unknown.agent)),
    });
    let lapsed = facts.runs.iter().filter(|run| run.lapsed).map(|run| {
        let of = run.agent.as_ref().map_or(String::new(), |agent| format!(" of agent {agent}"));
        Stuck {
            kind: "lapsed".into(),
            what: vec![format!("run/{}", run.name)],
            title: None,
            why: format!("the lease{of} is over; its work comes back with the next claim or poll"),
            next: None,
        }
    });
    let mailboxes = facts.mailboxes.iter().flat_map(of_mailbox);
    failed.chain(blocked(facts)).chain(stranded).chain(unknown).chain(lapsed).chain(mailboxes).collect()
}

fn of_failed(task: &Task) -> Stuck {
    let reason = task.failure_reason.as_deref().unwrap_or("no reason was given");
    let why = match task.attempts >= task.max_attempts {
        true => format!("{reason} (attempt {} of {})", task.attempts, task.max_attempts),
        false => reason.to_owned(),
    };
    Stuck {
        kind: "failed".into(),
        what: vec![task.id.clone()],
        title: Some(task.title.clone()),
        why,
        next: Some(format!("fence retry {}", task.id)),
    }
}

fn of_mailbox(mailbox: &Mailbox) -> Vec<Stuck> {
    let stuck = |kind: &str, why: String, verb: &str| Stuck {
        kind: kind.into(),
        what: vec![mailbox.name.clone()],
        title: None,
        why,
        next: Some(format!("fence mail {verb} {}", mailbox.name)),
    };
    let paused =
        mailbox.paused.as_ref().map(|reason| stuck("paused", format!("mailbox: {reason}"), "resume"));
    let failed = (mailbox.failed > 0)
        .then(|| stuck("failed", format!("{} messages of this mailbox failed", mailbox.failed), "list"));
    paused.into_iter().chain(failed).collect()
}

/// Blocked tasks that wait, perhaps behind others, for a task that failed or was cancelled.
fn blocked(facts: &Facts<'_>) -> Vec<Stuck> {
    let graph = Graph::of(facts);
    let all = facts.boards.iter().flat_map(|board| &board.tasks);
    let all = all.filter(|task| task.state() == State::Blocked);
    let stuck = all.filter_map(|task| {
        let cause = graph.cause(&task.id)?;
        let (why, next) = match cause.is_direct {
            true => ("waits for", format!("fence retry {}", cause.task)),
            false => ("is behind", format!("fence why {}", task.id)),
        };
        Some(Stuck {
            kind: "blocked".into(),
            what: vec![task.id.clone()],
            title: Some(task.title.clone()),
            why: format!("{why} {}, which {}", cause.task, cause.how),
            next: Some(next),
        })
    });
    stuck.collect()
}

/// The tasks of some boards, by their names, and their dependencies.
struct Graph<'f> {
    status: HashMap<&'f str, Status>,
    after: HashMap<&'f str, Vec<&'f str>>,
}

/// The task because of which another one is blocked.
struct Cause<'f> {
    task: &'f str,
    how: &'static str,
    is_direct: bool,
}

impl<'f> Graph<'f> {
    fn of(facts: &Facts<'f>) -> Self {
        let tasks = facts.boards.iter().flat_map(|board| &board.tasks).chain(facts.failed);
        let status = tasks.map(|task| (task.id.as_str(), task.status)).collect();
        let mut after = HashMap::<&str, Vec<&str>>::new();
        for edge in facts.boards.iter().flat_map(|board| &board.edges) {
            after.entry(&edge.task).or_default().push(&edge.after);
        }
        Self { status, after }
    }

    /// The nearest task before this one that failed or was cancelled.
    fn cause(&self, task: &'f str) -> Option<Cause<'f>> {
        let mut seen = HashSet::from([task]);
        let mut layer = vec![task];
        let mut is_direct = true;
        while !layer.is_empty() {
            let next = layer.iter().filter_map(|id| self.after.get(id)).flatten().copied();
            layer = next.filter(|id| seen.insert(id)).collect();
            let found = layer.iter().find_map(|id| Some((*id, self.bad_end(id)?)));
            if let Some((task, how)) = found {
                return Some(Cause { task, how, is_direct });
            }
            is_direct = false;
        }
        None
    }

    fn bad_end(&self, id: &str) -> Option<&'static str> {
        match self.status.get(id)? {
            Status::Failed => Some("failed"),
            Status::Cancelled => Some("was cancelled"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::Time;
    use serde_json::json;

    /// Replies as a server sends them.
    fn reply<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
        serde_json::from_value(json).expect("a reply")
    }

    #[test]
    fn only_work_behind_a_bad_end_is_stuck() {
        let task = |n: i64, status: Status, waiting_on: i64| Task {
            id: format!("a-{n}"),
            board: "a".into(),
            status,
            waiting_on,
            ..Task::default()
        };
        let used_up = Task {
            failure_reason: Some("no".into()),
            attempts: 3,
            finished_at: Some(Time(5)),
            ..task(1, Status::Failed, 0)
        };
        // 3 waits for 2 and for 6, 2 waits for 1; 5 waits for 4; 7 waits for 6, which somebody works on.
        let tasks = [
            used_up.clone(),
            task(2, Status::Unassigned, 1),
            task(3, Status::Unassigned, 1),
            task(4, Status::Cancelled, 0),
            task(5, Status::Pending, 1),
            task(6, Status::InProgress, 0),
            task(7, Status::Unassigned, 1),
        ];
        let edge =
            |task: i64, after: i64| json!({ "task": format!("a-{task}"), "after": format!("a-{after}") });
        let board: Shown = reply(json!({
            "board": { "name": "a", "created_at": Time(0), "tasks": {}, "ready": 0 },
            "tasks": tasks, "edges": [edge(2, 1), edge(3, 2), edge(3, 6), edge(5, 4), edge(7, 6)], "more": false,
        }));
        let run = |name: &str, lapsed: bool| {
            json!({ "name": name, "agent": "bob", "alive": false, "ttl_ms": 1, "opened_at": Time(0), "expires_at": Time(1),
                    "lapsed": lapsed })
        };
        let runs: [Run; 2] = reply(json!([run("ended", false), run("gone", true)]));
        let agents = reply(json!({ "agents": [] }));
        let newer = Task { finished_at: Some(Time(9)), ..task(9, Status::Failed, 0) };
        let facts = Facts {
            agents: &agents,
            failed: &[used_up, newer],
            boards: &[board],
            runs: &runs,
            mailboxes: &[],
        };
        let found: Vec<String> = find(&facts)
            .iter()
            .map(|stuck| format!("{} {}: {}", stuck.kind, stuck.what.join(" "), stuck.why))
            .collect();
        assert_eq!(
            found,
            [
                "failed a-9: no reason was given",
                "failed a-1: no (attempt 3 of 3)",
                "blocked a-2: waits for a-1, which failed",
                "blocked a-3: is behind a-1, which failed",
                "blocked a-5: waits for a-4, which was cancelled",
                "lapsed run/gone: the lease of agent bob is over; its work comes back with the next claim or poll",
            ]
        );
    }
}
