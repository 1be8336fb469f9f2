use super::{Changed, Record, Status, Under, load_locked, save};
use crate::{
    before::Before,
    claim::{Last, require},
    error::{Code, Error, Result},
    names::{OUTPUT_MAX, Resource, TaskId, Token, check},
    op::{Access, Op},
    params,
    tx::{Answer, Place, Stmt, Tx},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Complete the task held under a token. The same completion again is the first answer; a different one is
/// refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Done {
    pub token: String,
    /// What came of it. Tasks that depend on this one are handed it.
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
    type Reply = Changed;

    fn before(&self) -> Before {
        Before::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let (token, id) = task_token(&self.token)?;
        let output = self.output.as_deref();
        check::optional_text("output", output, OUTPUT_MAX)?;
        let found = load_locked(tx, &id).await?;
        if let Some(task) = &found
            && is_repeat(tx, task, &Last::new(token.fence, "done", &[output]))?
        {
            return Ok(Changed { task: task.view(tx.now) });
        }
        let found = held(found, &token, tx)?;
        let task = complete(&found, output, tx);
        let mut statements = save(&found, &task, Under::Claim, tx.now);
        statements.push(super::release::ended(&task, &found, "task.completed", None).insert(tx));
        if let Some(output) = output {
            statements.push(Stmt::new(
                "update task_doc set output = ?2 where task = ?1",
                params![task.seq, output],
            ));
        }
        statements.push(unblock([task.seq]));
        let mut answers = written(tx.pipeline(statements).await?, &token)?;
        tags_of_unblocked(tx, answers.pop()).await?;
        Ok(Changed { task: task.view(tx.now) })
    }
}

/// A token of a task.
pub(super) fn task_token(token: &str) -> Result<(Token, TaskId)> {
    let token = Token::check(token)?;
    match &token.resource {
        Resource::Task(id) => Ok((token.clone(), id.clone())),
        other => Err(Error::new(Code::Invalid, format!("`{other}` is not a task")).with("field", "token")),
    }
}

/// Was the claim ended before, in just this way? Then the first answer stands. In an embedder's transaction
/// that is an error, so that what it wrote beside it is not written twice.
pub(super) fn is_repeat(tx: &Tx<'_>, task: &Record, asked: &Last) -> Result<bool> {
    let Some(last) = task.last.as_ref().filter(|last| last.fence == asked.fence) else { return Ok(false) };
    if last != asked {
        let ends = ["done", "fail", "release"];
        if !ends.contains(&last.verb.as_str()) {
            return Ok(false);
        }
        return Err(Error::new(
            Code::AlreadyFinished,
            format!(
                "claim `{}@{}` has ended already, by `{}` and not in this way",
                task.resource(),
                last.fence,
                last.verb
            ),
        )
        .with("fence", last.fence)
        .hint("the first answer stands"));
    }
    if tx.place == Place::Embedded {
        return Err(Error::new(
            Code::AlreadyFinished,
            format!("`{}@{}` was accepted before", task.resource(), last.fence),
        )
        .with("repeat", true)
        .with("fence", last.fence)
        .hint("roll back: what this transaction wrote was committed the first time"));
    }
    Ok(true)
}

/// The task, if the token holds it.
pub(super) fn held(found: Option<Record>, token: &Token, tx: &Tx<'_>) -> Result<Record> {
    let look = found.as_ref().map(Record::look);
    require(look.as_ref(), token, tx.now)?;
    let task = found.ok_or_else(|| Error::internal("a token without a task"))?;
    if task.status == Status::Reviewing {
        return Err(Error::new(
            Code::NotReady,
            format!("task `{}` is being reviewed, not worked on", task.id),
        )
        .hint("accept or reject it first"));
    }
    Ok(task)
}

/// The rule.
pub(super) fn complete(task: &Record, output: Option<&str>, tx: &Tx<'_>) -> Record {
    let mut task = Record {
        status: Status::Completed,
        lapsed: false,
        failure_reason: None,
        updated_at: tx.now,
        finished_at: Some(tx.now),
        ..task.clone()
    };
    task.end_claim("done", &[output]);
    task
}

/// The write itself checked the claim: no row, no effect, a refusal.
pub(super) fn written(answers: Vec<Answer>, token: &Token) -> Result<Vec<Answer>> {
    if answers[0].affected == 1 {
        return Ok(answers);
    }
    Err(Error::new(Code::LeaseExpired, format!("claim `{token}` ended at this moment"))
        .with("fence", token.fence)
        .hint("stop work on it; what you did is not lost, but it is not accepted"))
}

/// Whoever waits for these tasks waits for fewer. Rows are locked in order, so that two completions with the
/// same dependents do not wait for each other.
pub(super) fn unblock(tasks: impl IntoIterator<Item = i64>) -> Stmt {
    Stmt::new(
        "update task set waiting_on = waiting_on - (
           select count(*) from edge
           where edge.task = task.seq
           and edge.depends_on in (select cast(value ->> 'k' as bigint) from json_each(?1)))
         where seq in (
           select dependent.seq from task as dependent
           where dependent.seq in (
             select edge.task from edge
             where edge.depends_on in (select cast(value ->> 'k' as bigint) from json_each(?1)))
           order by dependent.seq /*pg for update*/)
         returning seq, tags, waiting_on",
        params![crate::tx::key_set(tasks)],
    )
}

/// Tags keep their own copy of what is ready.
pub(super) async fn tags_of_unblocked(tx: &mut Tx<'_>, unblocked: Option<Answer>) -> Result<()> {
    let mut tagged = Vec::new();
    for row in unblocked.unwrap_or_default().rows {
        if row.get::<i64>("waiting_on")? == 0 && row.get::<Option<String>>("tags")?.is_some() {
            tagged.push(row.get("seq")?);
        }
    }
    if !tagged.is_empty() {
        tx.one(super::record::sync_tags(crate::tx::key_set(tagged))).await?;
    }
    Ok(())
}
