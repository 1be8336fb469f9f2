use super::{Changed, Phase, Record, load_locked, record::Brief, save};
use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Row, Stmt, Tx, by_keys, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{TaskId, Token},
    lease::{
        Under,
        hold::{check_written, is_repeat, require},
    },
    limits::{OUTPUT_MAX, check},
    log::Event,
    ops::loops::refuse_story,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Complete the task held under a token. The same completion again returns the first reply; a different one
/// is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Done {
    pub token: String,
    /// The result. It is shown to the tasks that depend on this one.
    #[serde(default)]
    pub output: Option<String>,
}

impl Done {
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), output: None }
    }
}

impl Op for Done {
    const NAME: &'static str = "task/done";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let (token, id) = task_token(&self.token)?;
        let output = self.output.as_deref();
        check::optional_text("output", output, OUTPUT_MAX)?;
        let found = load_locked(tx, &id).await?;
        if let Some(task) = &found
            && is_repeat(tx, task.last.as_ref(), &token, "done", &[output])?
        {
            return Ok(Changed { task: task.clone().view(tx.now) });
        }
        let found = held(found, &token, tx)?;
        refuse_story(&found, "done")?;
        let was = found.was();
        let task = complete(found, output, tx.now);
        let mut batch = Batch::new();
        let saved = save(&mut batch, &was, &task, Under::Claim, tx.now);
        batch.add(super::release::ended(&task, &was, "task.completed", None).insert(tx));
        if let Some(output) = output {
            batch.add(Stmt::write(
                "update task_doc set output = ?2 where task = ?1",
                params![task.seq, output],
            ));
        }
        let waiting = batch.add(dependents(&[task.seq]));
        let mut answers = tx.send(batch).await?;
        check_written(answers.affected(saved), &token)?;
        unblock(tx, answers.take(waiting).rows).await?;
        Ok(Changed { task: task.view(tx.now) })
    }
}

/// Parses a token that must be a task's.
pub(crate) fn task_token(token: &str) -> Result<(Token, TaskId)> {
    let token = Token::check(token)?;
    match token.resource.task() {
        Some(id) => Ok((token, id)),
        None => {
            Err(Error::new(Code::Invalid, format!("`{}` is not a task", token.resource))
                .with("field", "token"))
        }
    }
}

/// Checks that the token holds the task.
pub(crate) fn held(found: Option<Record>, token: &Token, tx: &Tx<'_>) -> Result<Record> {
    let state = found.as_ref().map(Record::claim_state);
    let hold = require(state.as_ref(), token, tx.now)?;
    // The prelude checked the run of the first token only; a batch has many.
    tx.caller.may_use(&hold.run, hold.agent.as_deref())?;
    let task = found.ok_or_else(|| Error::internal("a token without a task"))?;
    if matches!(task.phase, Phase::Reviewing(_)) {
        return Err(Error::new(
            Code::NotReady,
            format!("task `{}` is being reviewed, not worked on", task.id),
        )
        .hint(format!("fence accept {0} or fence reject {0} first", task.id)));
    }
    Ok(task)
}

/// The rule of a completion.
pub(super) fn complete(task: Record, output: Option<&str>, now: Time) -> Record {
    let mut task = Record { lapsed: false, failure_reason: None, updated_at: now, ..task };
    task.end_claim("done", &[output], Phase::Completed(now));
    task
}

/// A task that depends on completed ones.
#[derive(Debug)]
struct Dependent {
    task: Brief,
    has_tags: bool,
    waiting_on: i64,
    /// How many of its dependencies were completed now.
    completed: i64,
}

impl Dependent {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            task: Brief::read(row)?,
            has_tags: row.get::<Option<String>>("tags")?.is_some(),
            waiting_on: row.get("waiting_on")?,
            completed: 0,
        })
    }

    fn is_free(&self) -> bool {
        self.waiting_on == self.completed && !self.task.status.is_finished()
    }
}

/// Reads the dependents of these tasks. They are locked in order, so that two completions with the same dependents do
/// not deadlock. The lock is weak, so that a transaction that waits for ours may add edges to them.
pub(crate) fn dependents(tasks: &[i64]) -> Stmt {
    by_keys!(
        read,
        tasks,
        "select task.seq, task.board, task.n, task.status, task.assignee, task.offered_to, task.tags, task.waiting_on
         from edge join task on task.seq = edge.task where edge.depends_on",
        "order by edge.task /*pg for no key update of task*/"
    )
}

/// Lowers the dependents' counts, and updates their tags' copies. A dependent that waits for nothing any
/// more gets an event, which wakes its waiters.
pub(crate) async fn unblock(tx: &mut Tx<'_>, rows: Vec<Row>) -> Result<()> {
    let mut dependents: BTreeMap<i64, Dependent> = BTreeMap::new();
    for row in rows {
        let found = Dependent::read(&row)?;
        dependents.entry(found.task.seq).or_insert(found).completed += 1;
    }
    if dependents.is_empty() {
        return Ok(());
    }
    let count = |(seq, task): (&i64, &Dependent)| serde_json::json!({ "k": seq, "count": task.completed });
    let rows = set(dependents.iter().map(count))?;
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "update task set waiting_on = waiting_on - cast(item.value ->> 'count' as bigint)
         from json_each(?1) as item where task.seq = cast(item.value ->> 'k' as bigint)",
        params![rows],
    ));
    let tagged = dependents.iter().filter(|(_, task)| task.has_tags).map(|(seq, _)| *seq);
    let tagged: Vec<i64> = tagged.collect();
    if !tagged.is_empty() {
        batch.add(save::sync_tags(crate::db::key_set(tagged)));
    }
    let free = dependents.values().filter(|dependent| dependent.is_free());
    let events: Vec<_> = free.map(|dependent| dependent.task.event("task.unblocked")).collect();
    if !events.is_empty() {
        batch.add(Event::insert_many(tx, events)?);
    }
    tx.send(batch).await?;
    Ok(())
}
