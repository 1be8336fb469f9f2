use super::{Changed, Lock, Record, Status, lapse, load_set, not_found, save};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::TaskId,
    lease::Under,
    limits::check,
    ops::loops::refuse_story,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Make a task wait for another. Cycles are refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Depend {
    pub task: String,
    /// The task that must be completed first.
    pub after: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Depend {
    const NAME: &'static str = "task/depend";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","after":"auth-2"}"#;
    refuses![NotReady, AlreadyClaimed, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::request(self.request.as_deref())?;
        let (found, other) = both(tx, "depend", &self.task, &self.after).await?;
        if tx.opening.is_repeat("task.depends", Some(&found.resource()))? {
            return Ok(Changed { task: found.view(tx.now) });
        }
        let mut task = found.clone();
        let mut batch = Batch::new();
        if task.is_lost(tx.now) {
            let lapsed = lapse::lapse(&mut task, tx.now).insert(tx);
            save(&mut batch, &found.was(), &task, Under::NoClaim, tx.now);
            batch.add(lapsed);
        }
        task.unfinished()?;
        task.unheld()?;
        refuse_cycle(tx, &task, &other).await?;
        let waits = i64::from(other.status() != Status::Completed);
        let details = serde_json::json!({ "after": other.id.to_string() });
        let event = task.event("task.depends", task.status()).details(details).insert(tx);
        let insert = Stmt::write(
            "insert into edge(task, depends_on) values (?1, ?2) on conflict do nothing",
            params![task.seq, other.seq],
        );
        if tx.one(insert).await?.affected == 0 {
            tx.send(batch).await?;
            return Ok(Changed { task: task.view(tx.now) });
        }
        let task = Record { waiting_on: task.waiting_on + waits, updated_at: tx.now, ..task };
        recount(&mut batch, &task, event);
        tx.send(batch).await?;
        Ok(Changed { task: task.view(tx.now) })
    }
}

/// The lock that all changes of edges take. It is the first one in the order of locks.
pub(crate) fn lock_edges() -> Stmt {
    Stmt::lock("select 1 from gate where name = 'edges' for update", params![])
}

/// Loads both ends of an edge, under the lock that all changes of edges take. The dependency is locked
/// before its dependent.
pub(super) async fn both(tx: &mut Tx<'_>, verb: &str, task: &str, after: &str) -> Result<(Record, Record)> {
    let (id, other) = (TaskId::check("task", task)?, TaskId::check("after", after)?);
    tx.one(lock_edges()).await?;
    let mut others = load_set(tx, [&other].into_iter(), Lock::ToDependOn).await?;
    let task = super::load_locked(tx, &id).await?.ok_or_else(|| not_found(&id))?;
    let other = others.remove(&other).ok_or_else(|| not_found(&other))?;
    // A story that waited for a task outside of its loop could keep the loop from ending.
    refuse_story(&task, verb)?;
    Ok((task, other))
}

/// Updates the count of unfinished dependencies, and the tags' copies of it.
pub(super) fn recount(batch: &mut Batch, task: &Record, event: Stmt) {
    batch.add(Stmt::write(
        "update task set waiting_on = ?2, updated_at = ?3 where seq = ?1",
        params![task.seq, task.waiting_on, task.updated_at],
    ));
    batch.add(save::sync_tags(crate::db::key_set([task.seq])));
    batch.add(event);
}

/// Refuses if `other` already waits for `task`, directly or through others.
async fn refuse_cycle(tx: &mut Tx<'_>, task: &Record, other: &Record) -> Result<()> {
    let rows = tx
        .query(
            "with recursive before(seq) as (
               select cast(?1 as bigint)
               union
               select edge.depends_on from edge join before on edge.task = before.seq
             )
             select seq from before where seq = ?2",
            params![other.seq, task.seq],
        )
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    let message = match task.seq == other.seq {
        true => format!("`{}` cannot wait for itself", task.id),
        false => format!("`{0}` already waits for `{1}`, so `{1}` cannot wait for `{0}`", other.id, task.id),
    };
    Err(Error::new(Code::Invalid, message).with("field", "after").hint("tasks in a cycle could never start"))
}
