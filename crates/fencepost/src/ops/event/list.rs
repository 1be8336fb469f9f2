use super::Entry;
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    ids::{Resource, TaskId},
    limits::{NAME_MAX, TEXT_MAX, check},
    log::{EPOCH, Position, not_of_this_log},
    ops::task,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Read the log from a position on. Continuing from the end of the last page misses nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Only events after this position. Default: from the oldest.
    #[serde(default)]
    pub since: Option<String>,
    /// Only this many of the latest events (at most 1000), oldest first, instead of a position.
    #[serde(default)]
    pub last: Option<i64>,
    /// Begin at the first event of this time or later, instead of at a position. Continue from the page's `position`.
    #[serde(default)]
    pub from: Option<Time>,
    /// Like `from`, as an age by the fleet's own clock.
    #[serde(default)]
    pub within_ms: Option<Millis>,
    /// Only events of this kind, such as `task.completed`, or of a noun, such as `task`.
    #[serde(default)]
    pub kind: Option<String>,
    /// Only events of this resource, such as `task/auth-3`.
    #[serde(default)]
    pub resource: Option<String>,
    /// Also return the current title of each event's task.
    #[serde(default)]
    pub titles: bool,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
    /// If there is no event to read yet, wait up to this long (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    pub events: Vec<Entry>,
    /// Continue from here: the position of the last event read, even if a filter left it out.
    pub position: String,
    /// More events can be read now.
    pub more: bool,
}

/// A page of the whole log, in the order of its positions.
const PAGE: &str = "
    select ord, id, at, kind, resource, from_state, to_state, run, agent, fence, details from event
    where cast(?5 as text) is null and (/*pg ord,*/ id) > (/*pg ?1,*/ ?2)
    and (cast(?3 as text) is null or kind = ?3 or substr(kind, 1, length(?4)) = ?4)
    /*pg and ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
    order by /*pg ord,*/ id limit ?6";

/// The last page, latest first.
const LAST_PAGE: &str = "
    select ord, id, at, kind, resource, from_state, to_state, run, agent, fence, details from event
    where cast(?5 as text) is null and (/*pg ord,*/ id) > (/*pg ?1,*/ ?2)
    and (cast(?3 as text) is null or kind = ?3 or substr(kind, 1, length(?4)) = ?4)
    /*pg and ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
    order by /*pg ord desc,*/ id desc limit ?6";

/// A page of one resource's events, by their own index: 0.03 ms in a million events, where reading them all takes
/// 120. The sum keeps PostgreSQL from using the index of positions.
const PAGE_OF_RESOURCE: &str = "
    select ord, id, at, kind, resource, from_state, to_state, run, agent, fence, details from event
    where resource = ?5 and (/*pg ord + 0,*/ id) > (/*pg ?1,*/ ?2)
    and (cast(?3 as text) is null or kind = ?3 or substr(kind, 1, length(?4)) = ?4)
    /*pg and ord + 0 < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
    order by /*pg ord,*/ id limit ?6";

/// The last page of one resource's events, latest first.
const LAST_PAGE_OF_RESOURCE: &str = "
    select ord, id, at, kind, resource, from_state, to_state, run, agent, fence, details from event
    where resource = ?5 and (/*pg ord + 0,*/ id) > (/*pg ?1,*/ ?2)
    and (cast(?3 as text) is null or kind = ?3 or substr(kind, 1, length(?4)) = ?4)
    /*pg and ord + 0 < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
    order by /*pg ord desc,*/ id desc limit ?6";

/// The position of a time: the lowest one whose next event is no older. Times rise with positions (where the clock
/// was set back, one of the places is found), so a binary search needs no index of times. In a million events: 0.03
/// ms, where reading them takes 46.
const AT_TIME: &str = "
    with recursive halved(low, high) as (
      select (select id from event order by id limit 1),
        (select id from event order by id desc limit 1) + 1
      union all
      select
        case when (select at from event where id >= low + (high - low) / 2 order by id limit 1) < ?1
          then low + (high - low) / 2 + 1 else low end,
        case when (select at from event where id >= low + (high - low) / 2 order by id limit 1) < ?1
          then high else low + (high - low) / 2 end
      from halved where low < high
    )
    select 0 as ord, low - 1 as id from halved where low >= high";

/// The same by `ord`: 0.1 ms. It takes 20 steps, and at most 48 and one for each doubling of restored epochs,
/// because `ord` has gaps. It searches only events that can be read: later events get higher positions, so a
/// follower misses nothing.
const AT_TIME_ON_POSTGRES: &str = "
    with recursive halved(low, high) as (
      select (select ord from event order by ord, id limit 1),
        (select ord from event where ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
         order by ord desc, id desc limit 1) + 1
      union all
      select
        case when (select at from event where ord >= low + (high - low) / 2 order by ord, id limit 1) < ?1
          then low + (high - low) / 2 + 1 else low end,
        case when (select at from event where ord >= low + (high - low) / 2 order by ord, id limit 1) < ?1
          then high else low + (high - low) / 2 end
      from halved where low < high
    )
    select low as ord, cast(0 as bigint) as id from halved where low >= high";

impl Op for List {
    const NAME: &'static str = "event/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Events;
    erased!();

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: Result<&Events, &Error>) -> bool {
        answer.is_ok_and(|page| page.events.is_empty())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Events> {
        // A deadline alone writes no event.
        tx.notes.try_again_at = None;
        if self.last.is_some() && (self.since.is_some() || self.limit.is_some()) {
            return Err(Error::invalid("last", "cannot be combined: leave out `since` and `limit`"));
        }
        let starts =
            [self.since.is_some(), self.last.is_some(), self.from.is_some(), self.within_ms.is_some()];
        if starts.into_iter().filter(|said| *said).count() > 1 {
            let field = if self.from.is_some() { "from" } else { "within_ms" };
            return Err(Error::invalid(
                field,
                "cannot be combined: give one of `since`, `last`, `from` and `within_ms`",
            ));
        }
        if let Some(span) = self.within_ms {
            check::span("within_ms", span, Millis(0), Millis::days(36_500))?;
        }
        let limit = self.last.or(self.limit).unwrap_or(100);
        check::range(if self.last.is_some() { "last" } else { "limit" }, limit, 1, 1000)?;
        check::optional_text("kind", self.kind.as_deref(), NAME_MAX)?;
        check::optional_text("resource", self.resource.as_deref(), TEXT_MAX)?;
        let epoch = tx.opening.epoch;
        let since = self.since.as_deref().map(|since| Position::read(since, epoch)).transpose()?;
        let time = self.from.or(self.within_ms.map(|span| tx.now.plus(Millis(-span.0))));
        let at_time = match time {
            Some(time) => {
                let find = Stmt::read(AT_TIME, params![time]).on_postgres(AT_TIME_ON_POSTGRES);
                tx.one(find).await?.rows.first().map(position).transpose()?
            }
            None => None,
        };
        let from = since.or(at_time).unwrap_or(Position { ord: -epoch * EPOCH, id: 0 });
        let noun = self.kind.as_deref().filter(|kind| !kind.contains('.')).map(|noun| format!("{noun}."));
        let (page, room) = match (self.last, &self.resource) {
            (None, None) => (PAGE, limit + 1),
            (None, Some(_)) => (PAGE_OF_RESOURCE, limit + 1),
            (Some(last), None) => (LAST_PAGE, last),
            (Some(last), Some(_)) => (LAST_PAGE_OF_RESOURCE, last),
        };
        let filter = (self.kind.as_deref(), self.resource.as_deref());
        let mut batch = Batch::new();
        // Read the end before the events: on PostgreSQL each statement has its own snapshot, and no unread event
        // may lie between the last event and this end.
        let end = batch.add(Stmt::read(
            "select ord, id from event
             /*pg where ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
             order by /*pg ord desc,*/ id desc limit 1",
            params![],
        ));
        let page = batch.add(Stmt::read(page, params![from.ord, from.id, filter.0, noun, filter.1, room]));
        // Read after the events, so that events pruned before they were read are reported, not skipped.
        let pruned = batch.add(Stmt::read(
            "select pruned_xact, pruned_id, epoch,
               /*pg pg_snapshot_xmax(pg_current_snapshot())::text::bigint + */ 0 as newest from fleet",
            params![],
        ));
        let mut answers = tx.send(batch).await?;
        let pruned = answers.take(pruned).rows.remove(0);
        let mut rows = answers.take(page).rows;
        let end = answers.take(end).rows.first().map(position).transpose()?.unwrap_or_default();
        if self.last.is_some() {
            rows.reverse();
        }
        if pruned.get::<i64>("epoch")? != epoch {
            return Err(Error::raced("the fleet was restored while the log was read"));
        }
        if from.ord > pruned.get("newest")? {
            return Err(not_of_this_log());
        }
        let pruned = Position { ord: pruned.get("pruned_xact")?, id: pruned.get("pruned_id")? };
        if since.is_some_and(|since| since < pruned) {
            return Err(Error::new(Code::NotFound, "events after this position have been pruned")
                .with("oldest", pruned.text(epoch))
                .hint("start over from the fleet's present state, then follow from `oldest`"));
        }
        let more = rows.len() as i64 > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let last = rows.last().map(position).transpose()?;
        let position = match last {
            Some(last) if more => last,
            last => from.max(pruned).max(end).max(last.unwrap_or_default()),
        };
        let mut events = rows.iter().map(|row| read(row, epoch)).collect::<Result<Vec<_>>>()?;
        if self.titles {
            add_titles(tx, &mut events).await?;
        }
        Ok(Events { events, position: position.text(epoch), more })
    }
}

fn position(row: &Row) -> Result<Position> {
    Ok(Position { ord: row.get("ord")?, id: row.get("id")? })
}

fn read(row: &Row, epoch: i64) -> Result<Entry> {
    let details: Option<String> = row.get("details")?;
    Ok(Entry {
        position: position(row)?.text(epoch),
        at: row.get("at")?,
        kind: row.get("kind")?,
        resource: row.get("resource")?,
        from: row.get("from_state")?,
        to: row.get("to_state")?,
        run: row.get("run")?,
        agent: row.get("agent")?,
        fence: row.get("fence")?,
        title: None,
        details: details.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)?,
    })
}

/// Adds the titles of the events' tasks, with one statement. A removed task has no title.
async fn add_titles(tx: &mut Tx<'_>, events: &mut [Entry]) -> Result<()> {
    let task = |event: &Entry| event.resource.parse::<Resource>().ok()?.task();
    let ids: HashSet<TaskId> = events.iter().filter_map(task).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let titles = task::titles(tx, ids.iter()).await?;
    for event in events {
        event.title = task(event).and_then(|id| titles.get(&id).cloned());
    }
    Ok(())
}
