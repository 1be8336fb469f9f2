use super::{
    Lock, Record, Task, Was,
    done::{complete, dependents, held, task_token, unblock},
    load_set, save_set,
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{TaskId, Token},
    lease::{
        Under,
        hold::{is_repeat, refuse_embedded_repeat},
    },
    limits::{CLAIMS_MAX, OUTPUT_MAX, check},
    log::Event,
    ops::loops::refuse_story,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Complete many tasks at once. Each task is accepted or refused on its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoneMany {
    pub tasks: Vec<Completion>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DidMany {
    /// In the order of the request.
    pub results: Vec<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The refusal, as `task/done` would return it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<serde_json::Value>,
}

impl Op for DoneMany {
    const NAME: &'static str = "task/done_many";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"tasks":[{"token":"task/auth-3@1"}]}"#;
    refuses![AlreadyFinished];
    type Reply = DidMany;
    erased!();

    /// Tasks completed together were claimed by one run: the prelude takes it from the first token.
    fn prelude(&self) -> Prelude {
        self.tasks.first().map_or_else(Prelude::nothing, |first| Prelude::holds(&first.token))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<DidMany> {
        check::range("tasks", self.tasks.len() as i64, 1, CLAIMS_MAX)?;
        let mut wanted = Vec::with_capacity(self.tasks.len());
        for (i, completion) in self.tasks.iter().enumerate() {
            check::optional_text("output", completion.output.as_deref(), OUTPUT_MAX)?;
            let (token, id) = task_token(&completion.token)?;
            if wanted.iter().any(|(_, other): &(Token, TaskId)| *other == id) {
                return Err(Error::invalid("tasks", format!("names `{id}` twice, again at {i}")));
            }
            wanted.push((token, id));
        }
        let mut found = load_set(tx, wanted.iter().map(|(_, id)| id), Lock::ToWrite).await?;
        let mut results = Vec::with_capacity(wanted.len());
        let mut changes = Vec::new();
        for (completion, (token, id)) in self.tasks.iter().zip(&wanted) {
            let decided = decide(tx, found.remove(id), token, completion.output.as_deref());
            let (task, error) = match decided {
                Ok((was, after)) => {
                    let view = after.clone().view(tx.now);
                    if was.phase.hold().is_some() {
                        changes.push((was, after));
                    }
                    (Some(view), None)
                }
                Err(e) => {
                    refuse_embedded_repeat(tx, std::iter::once(&e))?;
                    (None, Some(serde_json::json!(e)))
                }
            };
            results.push(Outcome { token: completion.token.clone(), task, error });
        }
        if !changes.is_empty() {
            write(tx, &changes, &self.tasks, &wanted).await?;
        }
        Ok(DidMany { results })
    }
}

/// The task before and after. Both are the same if it was already completed with the same output.
fn decide(tx: &Tx<'_>, found: Option<Record>, token: &Token, output: Option<&str>) -> Result<(Was, Record)> {
    if let Some(task) = &found
        && is_repeat(tx, task.last.as_ref(), token, "done", &[output])?
    {
        return Ok((task.was(), task.clone()));
    }
    let task = held(found, token, tx)?;
    refuse_story(&task, "done")?;
    Ok((task.was(), complete(task, output, tx.now)))
}

/// One write checks the claims of all tasks. If a run ended meanwhile, the whole op starts over.
async fn write(
    tx: &mut Tx<'_>,
    changes: &[(Was, Record)],
    asked: &[Completion],
    wanted: &[(Token, TaskId)],
) -> Result<()> {
    if save_set(tx, changes, Under::Claim).await?.len() < changes.len() {
        return Err(Error::raced("a run ended at this moment"));
    }
    let seq: HashMap<&TaskId, i64> = changes.iter().map(|(_, after)| (&after.id, after.seq)).collect();
    let outputs = asked.iter().zip(wanted).filter_map(|(completion, (_, id))| {
        Some(serde_json::json!({ "task": seq.get(id)?, "output": completion.output.as_ref()? }))
    });
    let events = changes
        .iter()
        .map(|(was, after)| super::release::ended(after, was, "task.completed", None))
        .collect();
    let mut batch = Batch::new();
    batch.add(Event::insert_many(tx, events)?);
    batch.add(Stmt::write(
        "update task_doc set output = item.value ->> 'output' from json_each(?1) as item
         where task_doc.task = cast(item.value ->> 'task' as bigint)",
        params![set(outputs)?],
    ));
    let waiting = batch.add(dependents(&changes.iter().map(|(_, after)| after.seq).collect::<Vec<_>>()));
    let waiting = tx.send(batch).await?.take(waiting).rows;
    unblock(tx, waiting).await
}

/// A refusal, as JSON.
impl Outcome {
    pub fn code(&self) -> Option<Code> {
        self.error.as_ref().and_then(|error| serde_json::from_value(error.get("code")?.clone()).ok())
    }
}
