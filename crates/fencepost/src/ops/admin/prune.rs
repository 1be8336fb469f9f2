use crate::{
    caller::Access,
    clock::Millis,
    db::{Row, Stmt, Tx, in_use::InUse, key_set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TTL_MAX, check},
    ops::{
        channel,
        event::prune::{HISTORY, REQUESTS_KEPT},
        mail, route,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BATCH: i64 = 500;
/// Nothing is asked to be kept for longer.
const LONGEST: Millis = Millis(TTL_MAX.0 * 400);

/// Remove what is long finished: ended runs, unused locks, finished tasks that nothing waits for, finished messages as
/// their mailboxes say, posts that all have read, what was delivered from outside, and revoked keys. They age only
/// while the fleet is in use: of a longer time in which nobody called, an hour counts. A bounded number at a time; events
/// have a prune of their own. Boards and mailboxes stay: a board's numbers never come back, and a
/// mailbox is its settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// Remove what ended longer ago than this (30 days unless said, at least the 7 days that keys are kept).
    #[serde(default)]
    pub older_than_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    pub tasks: u64,
    pub messages: u64,
    pub runs: u64,
    pub locks: u64,
    /// Ids of what was delivered from outside.
    pub deliveries: u64,
    #[serde(default)]
    pub posts: u64,
    /// Revoked keys.
    #[serde(default)]
    pub keys: u64,
    /// There is more to remove: ask again.
    pub more: bool,
}

impl Op for Prune {
    const NAME: &'static str = "admin/prune";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = Pruned;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Pruned> {
        let age = self.older_than_ms.unwrap_or(HISTORY);
        check::span("older_than_ms", age, REQUESTS_KEPT, LONGEST)?;
        let in_use = InUse::read(tx).await?;
        let before = in_use.ago(age).0;
        let (tasks, highest_task) = tasks(tx, before).await?;
        let messages = mail::prune::prune(tx, in_use.now(), BATCH).await?;
        let (locks, highest_lock) = locks(tx, before).await?;
        let runs = tx
            .execute(
                "delete from run where key in (
                   select key from run where ended_at is not null and ended_at < ?1 and settled = 1
                   order by ended_at limit ?2 /*pg for update skip locked*/)",
                params![before, BATCH],
            )
            .await?;
        let deliveries = route::prune::prune(tx, before, BATCH).await?;
        let posts = channel::prune::prune(tx, before, BATCH).await?;
        let keys = tx
            .execute(
                "delete from access_key where revoked_at is not null and revoked_at < ?1",
                params![before],
            )
            .await?;
        tx.execute("delete from gap where at < ?1", params![in_use.ago(LONGEST)]).await?;
        // A lock's name can come back, and a task's number by an import; their rows would start anew.
        if let Some(highest) = highest_task.max(highest_lock) {
            tx.execute("update fleet set floor = ?1 where floor < ?1", params![highest]).await?;
        }
        let more = [tasks, messages, locks, runs, deliveries, posts].iter().any(|&n| n >= BATCH as u64);
        Ok(Pruned { tasks, messages, runs, locks, deliveries, posts, keys, more })
    }
}

/// How many, and the highest fence that one of them had. What was not completed is kept for as long as anything
/// counts on it: a finished dependent may be retried, and would wait for nothing. What was finished elsewhere, and
/// is to be told to a lead here, is kept as long from its import on.
async fn tasks(tx: &mut Tx<'_>, before: i64) -> Result<(u64, Option<i64>)> {
    let rows = tx
        .query(
            "select seq from task where finished_at is not null and finished_at < ?1 and (told = 1 or updated_at < ?1)
             and not exists (
               select 1 from edge join task as waiting on waiting.seq = edge.task
               where edge.depends_on = task.seq
               and (waiting.finished_at is null or task.status <> 'completed'))
             order by finished_at limit ?2 /*pg for update skip locked*/",
            params![before, BATCH],
        )
        .await?;
    if rows.is_empty() {
        return Ok((0, None));
    }
    // Looked at again under the lock: until then somebody could still come to wait for one of them.
    let locked = key_set(rows.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?);
    let rows = tx
        .query(
            "select seq, fence from task
             where seq in (select cast(value ->> 'k' as bigint) from json_each(?1))
             and not exists (
               select 1 from edge join task as waiting on waiting.seq = edge.task
               where edge.depends_on = task.seq
               and (waiting.finished_at is null or task.status <> 'completed'))",
            params![locked],
        )
        .await?;
    let keys = key_set(rows.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?);
    let deletes = [
        "delete from edge where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        "delete from edge where depends_on in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        "delete from task_doc where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        "delete from task_tag where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        "delete from note where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        "delete from task where seq in (select cast(value ->> 'k' as bigint) from json_each(?1))",
    ];
    tx.send(deletes.into_iter().map(|sql| Stmt::write(sql, params![keys.clone()])).collect()).await?;
    Ok((rows.len() as u64, highest(&rows)?))
}

async fn locks(tx: &mut Tx<'_>, before: i64) -> Result<(u64, Option<i64>)> {
    let rows = tx
        .execute_returning(
            "delete from lock where run is null and name in (
               select name from lock where run is null and updated_at < ?1 order by updated_at limit ?2
               /*pg for update skip locked*/)
             returning fence",
            params![before, BATCH],
        )
        .await?;
    Ok((rows.len() as u64, highest(&rows)?))
}

fn highest(rows: &[Row]) -> Result<Option<i64>> {
    Ok(rows.iter().map(|row| row.get::<i64>("fence")).collect::<Result<Vec<_>>>()?.into_iter().max())
}
