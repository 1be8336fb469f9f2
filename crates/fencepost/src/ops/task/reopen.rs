use super::{
    Status,
    add::Added,
    full, load, not_found, note,
    plan::{Item, insert},
};
use crate::{
    caller::Access,
    db::{Batch, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::TaskId,
    limits::{TEXT_MAX, check},
    log::Event,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The key of a reopening task is this prefix and the id of the reopened one. So a task is reopened once,
/// and each of the two finds the other by an existing index.
const KEY: &str = "reopen:";

/// Do a completed task again: a new task with the same text, which depends on the completed one and names it. The
/// completed task does not change. A task is reopened once: repeating the call returns the same new task.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reopen {
    pub task: String,
    /// The work that is still missing. The holder of the new task reads it.
    #[serde(default)]
    pub reason: Option<String>,
    /// Assign the new task to this agent.
    #[serde(default)]
    pub to: Option<String>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Reopen {
    const NAME: &'static str = "task/reopen";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    refuses![NotReady, AlreadyFinished];
    type Reply = Added;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Added> {
        check::request(self.request.as_deref())?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let id = TaskId::check("task", &self.task)?;
        let found = load(tx, &id).await?.ok_or_else(|| not_found(&id))?;
        refuse_unless_completed(&id, found.status())?;
        let repeat = tx.opening.is_repeat("task.added", None)?;
        let done = full(tx, vec![found]).await?.remove(0);
        let item = Item {
            title: done.title,
            body: done.body,
            done_when: done.done_when,
            kind: done.kind,
            priority: Some(done.priority),
            tags: done.tags,
            source: done.source,
            origin: done.origin,
            to: self.to,
            // The holder of the new task is shown the first result.
            after: vec![id.to_string()],
            max_attempts: Some(done.max_attempts),
            key: Some(key(&id)),
            ..Item::default()
        };
        let mut planned = insert(tx, &id.board, vec![item]).await?;
        let mut task = planned.tasks.pop().ok_or_else(|| Error::internal("the task was not added"))?;
        let existing = !planned.existing.is_empty();
        if existing && task.status == Status::Completed {
            let message = format!("task `{id}` was reopened as `{}`, which is completed", task.id);
            return Err(Error::new(Code::AlreadyFinished, message)
                .with("task", &task.id)
                .hint(format!("fence reopen {}", task.id)));
        }
        if !existing && !repeat {
            let event =
                Event { topic: Some(Topic::Nobody), ..Event::new("task.reopened", format!("task/{id}")) };
            let event = event.details(json!({ "as": task.id })).because(self.reason.as_deref());
            let mut batch = Batch::from([event.insert(tx)]);
            if let Some(reason) = &self.reason {
                let new = TaskId::check("task", &task.id)?;
                let new = load(tx, &new).await?.ok_or_else(|| not_found(&new))?;
                batch.add(note::insert(tx, new.seq, "note", None, reason));
                task.notes.push(super::NoteView {
                    at: tx.now,
                    agent: tx.caller.agent.clone(),
                    text: reason.clone(),
                });
            }
            tx.send(batch).await?;
        }
        Ok(Added { task, existing })
    }
}

fn refuse_unless_completed(id: &TaskId, status: Status) -> Result<()> {
    let (code, why, hint) = match status {
        Status::Completed => return Ok(()),
        Status::Failed | Status::Cancelled => {
            (Code::AlreadyFinished, "was not completed", format!("fence retry {id} brings it back"))
        }
        _ => (Code::NotReady, "is not finished", format!("fence show {id} shows its state")),
    };
    let message =
        format!("task `{id}` {why}: it is {}, and only completed tasks are reopened", status.as_str());
    Err(Error::new(code, message).hint(hint))
}

/// The key of the task that reopens this one.
pub(super) fn key(id: &TaskId) -> String {
    format!("{KEY}{id}")
}

/// The id of the task that this key reopens.
pub(super) fn reopened(key: Option<&str>) -> Option<String> {
    let id = key?.strip_prefix(KEY)?;
    id.parse::<TaskId>().ok().map(|id| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_names_the_task() {
        let id = TaskId { board: "auth".into(), n: 3 };
        assert_eq!(reopened(Some(&key(&id))).as_deref(), Some("auth-3"));
        for key in [None, Some("auth-3"), Some("reopen:"), Some("reopen:nothing")] {
            assert_eq!(reopened(key), None, "{key:?}");
        }
    }

    #[test]
    fn only_what_is_completed_is_reopened() {
        let id = TaskId { board: "auth".into(), n: 3 };
        for status in Status::ALL {
            let refusal = refuse_unless_completed(&id, status).err().map(|error| error.code());
            let wanted = match status {
                Status::Completed => None,
                Status::Failed | Status::Cancelled => Some(Code::AlreadyFinished),
                _ => Some(Code::NotReady),
            };
            assert_eq!(refusal, wanted, "{status:?}");
        }
    }
}
