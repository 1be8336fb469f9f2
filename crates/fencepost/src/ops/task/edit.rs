use super::{Changed, Record, change};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::{ATTEMPTS_MAX, BODY_MAX, TEXT_MAX, TITLE_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Change the fields of a task, in any state. Fields that are left out stay as they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_when: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Replaces all its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Edit {
    const NAME: &'static str = "task/edit";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","title":"write the parser"}"#;
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        self.check()?;
        let repeat = !tx.opening.repeat.is_empty();
        let fields: Vec<_> = [
            self.title.as_ref().map(|_| "title"),
            self.body.as_ref().map(|_| "body"),
            self.done_when.as_ref().map(|_| "done_when"),
            self.kind.as_ref().map(|_| "kind"),
            self.priority.map(|_| "priority"),
            self.tags.as_ref().map(|_| "tags"),
            self.max_attempts.map(|_| "max_attempts"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if fields.is_empty() {
            return Err(Error::new(Code::Invalid, format!("no change was given for `{}`", self.task))
                .with("field", "task")
                .hint("such as --title TEXT, --body TEXT or -p 90; fence edit --help lists the fields"));
        }
        let mut seq = 0;
        let details = Some(serde_json::json!({ "fields": fields }));
        let mut changed = change(tx, &self.task, "task.edited", details, |task, _| {
            seq = task.seq;
            self.max_attempts.map_or(Ok(()), |max| enough(task, max))
        })
        .await?;
        if !repeat {
            self.write(tx, seq).await?;
            let task = &mut changed.task;
            task.title = self.title.unwrap_or(std::mem::take(&mut task.title));
            task.kind = self.kind.or(task.kind.take());
            task.priority = self.priority.unwrap_or(task.priority);
            task.tags = self.tags.unwrap_or(std::mem::take(&mut task.tags));
            task.max_attempts = self.max_attempts.unwrap_or(task.max_attempts);
        }
        Ok(changed)
    }
}

/// The limit cannot go below the attempts already made, and an unfinished task that is not held needs one more.
fn enough(task: &Record, max_attempts: i64) -> Result<()> {
    let waits = !task.status().is_finished() && task.hold().is_none();
    let least = task.attempts + i64::from(waits);
    if max_attempts >= least {
        return Ok(());
    }
    Err(Error::invalid(
        "max_attempts",
        format!("is {max_attempts}; {} attempts were made, so it must be at least {least}", task.attempts),
    )
    .hint("fence cancel it if it should not be tried again"))
}

impl Edit {
    fn check(&self) -> Result<()> {
        check::request(self.request.as_deref())?;
        if let Some(title) = &self.title {
            check::line("title", title, TITLE_MAX)?;
        }
        check::optional_text("body", self.body.as_deref(), BODY_MAX)?;
        check::optional_text("done_when", self.done_when.as_deref(), TEXT_MAX)?;
        check::optional_name("kind", self.kind.as_deref())?;
        check::range("priority", self.priority.unwrap_or(0), 0, 100)?;
        check::range("max_attempts", self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        self.tags.as_ref().map_or(Ok(()), |tags| check::tags("tags", tags))
    }

    async fn write(&self, tx: &mut Tx<'_>, seq: i64) -> Result<()> {
        let tags = self.tags.as_ref().map(|tags| serde_json::json!(tags).to_string());
        let mut batch = Batch::from([
            Stmt::write(
                "update task set title = coalesce(?2, title), kind = coalesce(?3, kind),
                   priority = coalesce(?4, priority), max_attempts = coalesce(?5, max_attempts),
                   tags = case when cast(?6 as text) is null then tags else nullif(?6, '[]') end
                 where seq = ?1",
                params![
                    seq,
                    self.title.as_deref(),
                    self.kind.as_deref(),
                    self.priority,
                    self.max_attempts,
                    tags
                ],
            ),
            Stmt::write(
                "update task_doc set body = coalesce(?2, body), done_when = coalesce(?3, done_when) where task = ?1",
                params![seq, self.body.as_deref(), self.done_when.as_deref()],
            ),
        ]);
        if let Some(tags) = &self.tags {
            batch.add(Stmt::write("delete from task_tag where task = ?1", params![seq]));
            let rows = set(tags.iter().map(|tag| serde_json::json!({ "tag": tag })))?;
            batch.add(Stmt::write(
                "insert into task_tag(task, tag, board, priority, ready)
                 select task.seq, item.value ->> 'tag', task.board, task.priority, task.ready
                 from json_each(?2) as item join task on task.seq = ?1 where true on conflict do nothing",
                params![seq, rows],
            ));
        } else if self.priority.is_some() {
            batch.add(Stmt::write(
                "update task_tag set priority = ?2 where task = ?1",
                params![seq, self.priority],
            ));
        }
        tx.send(batch).await?;
        Ok(())
    }
}
