use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Row, Stmt, Tx, in_use::InUse, key_set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TTL_MAX, check},
    ops::{
        channel,
        event::prune::{HISTORY, REQUESTS_KEPT},
        mail, route, storm,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BATCH: i64 = 500;
/// The longest retention time that a setting can have.
const LONGEST: Millis = Millis(TTL_MAX.0 * 400);

/// Remove old data: ended runs, unused locks, finished tasks that no task depends on, finished messages past their
/// mailbox's retention, posts that every reader has read, causes, triggers, ids of outside deliveries, and revoked keys. Data ages only
/// while the fleet is in use: an idle period counts as one hour at most. One call removes a bounded number. Events have
/// their own prune. Boards, loops and mailboxes stay: a board keeps its numbers from being used again, a loop keeps its id, and a
/// mailbox keeps its settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// Remove data that ended longer ago than this (default 30 days, at least the 7 days that request ids are kept).
    #[serde(default)]
    pub older_than_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    pub tasks: u64,
    pub messages: u64,
    pub runs: u64,
    pub locks: u64,
    /// Ids of outside deliveries.
    pub deliveries: u64,
    #[serde(default)]
    pub posts: u64,
    /// Revoked keys.
    #[serde(default)]
    pub keys: u64,
    /// There is more to remove: repeat the call.
    pub more: bool,
}

impl Op for Prune {
    const NAME: &'static str = "admin/prune";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would also remove what became old enough meanwhile.
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
        storm::prune::prune(tx, Time(before), BATCH).await?;
        tx.execute("delete from gap where at < ?1", params![in_use.ago(LONGEST)]).await?;
        // A lock's name can be used again, and so can an imported task's number. Their new rows must get higher fences.
        if let Some(highest) = highest_task.max(highest_lock) {
            tx.execute("update fleet set floor = ?1 where floor < ?1", params![highest]).await?;
        }
        let more = [tasks, messages, locks, runs, deliveries, posts].iter().any(|&n| n >= BATCH as u64);
        Ok(Pruned { tasks, messages, runs, locks, deliveries, posts, keys, more })
    }
}

/// Removes tasks. Returns how many, and their highest fence. A task that was not completed is kept while another task
/// depends on it: a finished dependent may be retried, and would then no longer wait. The stories of a loop stay until the loop
/// has ended for as long. An imported finished task that a
/// lead has no notice of yet ages from its import on.
async fn tasks(tx: &mut Tx<'_>, before: i64) -> Result<(u64, Option<i64>)> {
    let rows = tx
        .query(
            "select seq from task where finished_at is not null and finished_at < ?1 and (told = 1 or updated_at < ?1)
             and not exists (
               select 1 from story join loop on loop.id = story.loop
               where story.task = task.seq and (loop.ended_at is null or loop.ended_at >= ?1))
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
    // Read again under the lock: until then another call could add a dependency on one of them.
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
        "delete from story_step where exists (select 1 from story where story.loop = story_step.loop
           and story.id = story_step.story
           and story.task in (select cast(value ->> 'k' as bigint) from json_each(?1)))",
        "delete from story where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
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
