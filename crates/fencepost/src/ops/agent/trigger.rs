//! The types of triggers that a poll can return, and how each one is claimed.

use super::{
    Record, Role,
    pool::{self, Pool},
};
use crate::{
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx, by_keys, set},
    error::{Error, Result},
    json::Json,
    lease::run::Holder,
    ops::{
        channel::{self, reader::Mentions},
        claim, inbox,
        mail::{self, Message, claim::Halves},
        spend::{boards, usage::Closed},
        storm::{
            self,
            wakeups::{self, AtCap, Delivered},
        },
        task::{self, Purpose, Task},
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The mailbox of the leads' notices.
pub(crate) const FINISHED: &str = "leads/finished";
const INBOX: i64 = 5;
const NOTICES: i64 = 50;
/// Limit on the batches that one poll skips because leads finished all their tasks themselves.
const BATCHES: usize = 20;

/// Trigger types, in search order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// A task that is offered to the agent, to be accepted or rejected.
    TaskOffered,
    /// A task that is assigned to the agent.
    TaskAssigned,
    /// Messages in its inbox, oldest first.
    InboxMessage,
    /// Posts in which it is mentioned.
    UnreadMentions,
    /// Unread posts of a channel that it is a member of. Only for polls that accept this type by name.
    UnreadWakeup,
    /// For a lead: tasks that others finished.
    TasksFinished,
    /// For a worker: a task from the pool.
    PoolTask,
    /// For a worker that polls with pool mode `notify`: the pool has tasks. Nothing is claimed.
    PoolTasksAvailable,
}

impl Type {
    pub const ORDER: [Type; 7] = [
        Type::TaskOffered,
        Type::TaskAssigned,
        Type::InboxMessage,
        Type::UnreadMentions,
        Type::UnreadWakeup,
        Type::TasksFinished,
        Type::PoolTask,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            Type::TaskOffered => "task_offered",
            Type::TaskAssigned => "task_assigned",
            Type::InboxMessage => "inbox_message",
            Type::UnreadMentions => "unread_mentions",
            Type::UnreadWakeup => "unread_wakeup",
            Type::TasksFinished => "tasks_finished",
            Type::PoolTask => "pool_task",
            Type::PoolTasksAvailable => "pool_tasks_available",
        }
    }
}

/// Work that is already claimed, for one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trigger {
    #[serde(rename = "type")]
    pub kind: Type,
    pub run: String,
    #[serde(default)]
    pub claims: Vec<claim::Claim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<inbox::Item>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Mentions>,
    /// The wake-up, if this is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup: Option<storm::Wakeup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
}

impl Trigger {
    pub(super) fn new(kind: Type, run: &str) -> Self {
        Self {
            kind,
            run: run.into(),
            claims: Vec::new(),
            task: None,
            tasks: Vec::new(),
            messages: Vec::new(),
            channels: Vec::new(),
            wakeup: None,
            count: None,
        }
    }
}

/// Reads since when work of each type has been waiting for this agent, each from the first entry of an index; and how
/// many triggers the agent has.
pub(super) fn waiting_since(agent: &str) -> Stmt {
    Stmt::read(
        "select
               (select offered_at from task where status = 'offered' and parked is null and offered_to = ?1
                order by seq limit 1) as offered,
               (select updated_at from task where ready = 2 and assignee = ?1
                order by priority desc, seq limit 1) as assigned,
               (select created_at from message where ready = 1 and mailbox = ?2
                and not exists (select 1 from mailbox where name = ?2 and paused is not null)
                order by priority desc, id limit 1) as inbox,
               (select since from reader where ready = 1 and agent = ?1 order by since limit 1) as mentions,
               (select created_at from message where ready = 1 and mailbox = ?4
                and not exists (select 1 from mailbox where name = ?4 and paused is not null)
                order by priority desc, id limit 1) as wakeup,
               (select created_at from message where ready = 1 and mailbox = ?3
                and not exists (select 1 from mailbox where name = ?3 and paused is not null)
                order by priority desc, id limit 1) as notice,
               (select finished_at from task where told = 0 and status in ('completed', 'failed')
                and not exists (select 1 from mailbox where name = ?3 and paused is not null)
                order by finished_at limit 1) as untold,
               (select updated_at from task where ready = 1 order by priority desc, seq limit 1) as pool,
               (select count(*) from run where agent = ?1 and ended_at is null
                and trigger_type is not null) as busy",
        params![agent, inbox::mailbox(agent), FINISHED, wakeups::mailbox(agent)],
    )
}

/// The types with waiting work, and since when: from the row of [`waiting_since`], and from the pool's fitting part. Tasks of the
/// closed boards are left out.
pub(super) async fn heads(
    tx: &mut Tx<'_>,
    agent: &Record,
    pool: &Pool,
    found: &Row,
    closed: &Closed,
) -> Result<Vec<(Type, Time)>> {
    let at = |name| found.get::<Option<Time>>(name);
    let (offered, assigned) = match closed.is_empty() {
        true => (at("offered")?, at("assigned")?),
        false => own_of_open(tx, &agent.name, closed).await?,
    };
    let mut heads = vec![
        (Type::TaskOffered, offered),
        (Type::TaskAssigned, assigned),
        (Type::InboxMessage, at("inbox")?),
        (Type::UnreadMentions, at("mentions")?),
        (Type::UnreadWakeup, at("wakeup")?),
    ];
    match agent.role {
        Role::Lead => {
            heads.push((Type::TasksFinished, [at("notice")?, at("untold")?].into_iter().flatten().min()))
        }
        Role::Worker if pool.takes_any(agent) => heads.push((Type::PoolTask, at("pool")?)),
        Role::Worker => {
            heads.push((Type::PoolTask, pool.best(tx, agent).await?.first().map(|head| head.since)))
        }
    }
    Ok(heads.into_iter().filter_map(|(kind, since)| Some((kind, since?))).collect())
}

/// Since when an offer and an assigned task have been waiting, on boards that are not closed. An agent's own tasks are few: they are
/// read one by one.
async fn own_of_open(tx: &mut Tx<'_>, agent: &str, closed: &Closed) -> Result<(Option<Time>, Option<Time>)> {
    let rows = tx
        .query(
            "select
               (select offered_at from task where status = 'offered' and parked is null and offered_to = ?1
                and board not in (select value ->> 'board' from json_each(?2)) order by seq limit 1) as offered,
               (select updated_at from task where ready = 2 and assignee = ?1
                and board not in (select value ->> 'board' from json_each(?2))
                order by priority desc, seq limit 1) as assigned",
            params![agent, boards::names(closed)?],
        )
        .await?;
    let row = rows.first().ok_or_else(|| Error::internal("a search for tasks returned no row"))?;
    Ok((row.get("offered")?, row.get("assigned")?))
}

/// The closed boards that hold work back for this agent, among the types that its poll accepts. `pool`: the poll's limits on the
/// pool, for the closed boards.
pub(super) async fn held_boards(
    tx: &mut Tx<'_>,
    agent: &Record,
    pool: &Pool,
    closed: &Closed,
    accepts: impl Fn(Type) -> bool,
) -> Result<BTreeSet<String>> {
    let own = tx
        .query(
            "select distinct board, 1 as is_offer from task where status = 'offered' and parked is null and offered_to = ?1
               and board in (select value ->> 'board' from json_each(?2))
             union all
             select distinct board, 0 as is_offer from task where ready = 2 and assignee = ?1
               and board in (select value ->> 'board' from json_each(?2))",
            params![&agent.name, boards::names(closed)?],
        )
        .await?;
    let mut held = BTreeSet::new();
    for row in &own {
        let kind = if row.get::<i64>("is_offer")? == 1 { Type::TaskOffered } else { Type::TaskAssigned };
        if accepts(kind) {
            held.insert(row.get("board")?);
        }
    }
    if agent.role == Role::Worker && accepts(Type::PoolTask) {
        held.extend(pool.best(tx, agent).await?.into_iter().filter_map(|head| head.part.board));
    }
    Ok(held)
}

/// The rule. Types whose work has waited for `stale` or longer come first, oldest first; then the others, in search
/// order. After a trigger that jumped the order comes one in order: an old pool must not starve the agent's own work.
pub(super) fn in_order(mut heads: Vec<(Type, Time)>, stale: Millis, jumped: bool, now: Time) -> Vec<Type> {
    let is_stale = |since: Time| !jumped && now.since(since) >= stale;
    heads.sort_by_key(|&(kind, since)| if is_stale(since) { (0, since.0, kind) } else { (1, 0, kind) });
    heads.into_iter().map(|(kind, _)| kind).collect()
}

/// The agent and the run that a trigger is for.
pub(super) struct Recipient<'a> {
    pub agent: &'a Record,
    pub holder: &'a Holder,
    /// The run's key, once the run is open.
    pub entered: Option<i64>,
    pub max: Option<Millis>,
    pub pool: &'a Pool,
    /// Boards at a spend limit: their tasks are left alone.
    pub closed: &'a Closed,
    /// The item that causes the run.
    pub cause: Option<String>,
    /// Mentions that a limit on causes left out.
    pub suppressed: i64,
    /// Wake-ups wait, and too many run.
    pub at_cap: Option<AtCap>,
}

impl Recipient<'_> {
    /// Claims the waiting work of one type. `None` if other polls have taken it.
    pub async fn take(&mut self, tx: &mut Tx<'_>, kind: Type) -> Result<Option<Trigger>> {
        match kind {
            Type::TaskOffered => {
                self.task(tx, kind, offered(&self.agent.name, self.closed)?, Purpose::Review).await
            }
            Type::TaskAssigned => {
                self.task(tx, kind, assigned(&self.agent.name, self.closed)?, Purpose::Work).await
            }
            Type::InboxMessage => self.inbox(tx).await,
            Type::UnreadMentions => self.mentions(tx).await,
            Type::UnreadWakeup => self.wakeup(tx).await,
            Type::TasksFinished => self.finished(tx).await,
            Type::PoolTask | Type::PoolTasksAvailable => self.pool(tx).await,
        }
    }

    fn trigger(&self, kind: Type) -> Trigger {
        Trigger::new(kind, &self.holder.name)
    }

    /// Opens the run, unless it is open.
    pub async fn enter(&mut self, tx: &mut Tx<'_>) -> Result<i64> {
        if self.entered.is_none() {
            let entered = tx.one(self.holder.enter(tx.now)).await?;
            self.entered = Some(self.holder.key(&entered.rows)?);
        }
        self.entered.ok_or_else(|| Error::internal("the run is not open"))
    }

    /// Reads the rows to claim and opens the run, in one round trip. Returns the rows and the run's key.
    async fn pick(&mut self, tx: &mut Tx<'_>, pick: Stmt) -> Result<(Vec<Row>, i64)> {
        let mut batch = Batch::new();
        let entered = self.entered.is_none().then(|| batch.add(self.holder.enter(tx.now)));
        let picked = batch.add(pick);
        let mut answers = tx.send(batch).await?;
        if let Some(entered) = entered {
            self.entered = Some(self.holder.key(&answers.take(entered).rows)?);
        }
        Ok((answers.take(picked).rows, self.enter(tx).await?))
    }

    async fn task(
        &mut self,
        tx: &mut Tx<'_>,
        kind: Type,
        pick: Stmt,
        to: Purpose,
    ) -> Result<Option<Trigger>> {
        let (rows, run_key) = self.pick(tx, pick).await?;
        let found = rows.into_iter().map(task::Record::read).collect::<Result<Vec<_>>>()?;
        if found.is_empty() {
            return Ok(None);
        }
        let found = found.into_iter().map(|task| (task.was(), task, to)).collect();
        let claimed = task::claim::take(tx, found, self.holder, run_key, self.max, Vec::new()).await?;
        let claimed = claimed.into_iter().next().ok_or_else(|| Error::internal("nothing was claimed"))?;
        Ok(Some(Trigger { claims: vec![claimed.claim], task: Some(claimed.task), ..self.trigger(kind) }))
    }

    async fn inbox(&mut self, tx: &mut Tx<'_>) -> Result<Option<Trigger>> {
        let pick = mail::claim::next_of(&inbox::mailbox(&self.agent.name), INBOX);
        let claimed = self.messages(tx, pick).await?;
        if claimed.is_empty() {
            return Ok(None);
        }
        let (claims, messages): (Vec<_>, Vec<Message>) = claimed.into_iter().unzip();
        let messages: Vec<_> = messages.into_iter().map(inbox::Item::of).collect();
        let count = Some(messages.len() as i64);
        Ok(Some(Trigger { claims, messages, count, ..self.trigger(Type::InboxMessage) }))
    }

    async fn messages(&mut self, tx: &mut Tx<'_>, pick: Stmt) -> Result<Vec<(claim::Claim, Message)>> {
        let (rows, run_key) = self.pick(tx, pick).await?;
        let mut found = mail::Record::read_all(rows)?;
        let Some(first) = found.first() else { return Ok(Vec::new()) };
        // Expired messages come back with those of the same batch and no others: one of them may cause the loss.
        match Halves::lost_with(first).filter(|_| first.lapsed > 0) {
            Some(together) => found = mail::Record::read_all(tx.one(together).await?.rows)?,
            None => {
                let lapsed = found.iter().position(|message| message.lapsed > 0);
                found.truncate(lapsed.map_or(found.len(), |lapsed| lapsed.max(1)));
            }
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let found = mail::Record::that_fit(found);
        let halves = Halves::of(&found, run_key);
        let claimed = mail::claim::take(tx, found, self.holder, run_key, self.max, halves).await?;
        Ok(claimed.into_iter().map(|claimed| (claimed.claim, claimed.message)).collect())
    }

    async fn mentions(&mut self, tx: &mut Tx<'_>) -> Result<Option<Trigger>> {
        let run_key = self.enter(tx).await?;
        let claimed = channel::claim_for(tx, &self.agent.name, self.holder, run_key, self.max).await?;
        self.suppressed += claimed.suppressed;
        if claimed.mentions.is_empty() {
            return Ok(None);
        }
        self.cause = claimed.cause;
        let claimed = claimed.mentions;
        let claims = claimed.iter().map(|(hold, reader, _)| hold.claim(&reader.resource())).collect();
        let count = claimed.iter().map(|(_, _, given)| given.mentions.len() as i64).sum();
        let channels = claimed.into_iter().map(|(_, _, given)| given).collect();
        Ok(Some(Trigger { claims, channels, count: Some(count), ..self.trigger(Type::UnreadMentions) }))
    }

    async fn wakeup(&mut self, tx: &mut Tx<'_>) -> Result<Option<Trigger>> {
        let run_key = self.enter(tx).await?;
        match wakeups::claim_for(tx, &self.agent.name, self.holder, run_key, self.max).await? {
            Ok(None) => Ok(None),
            Ok(Some(Delivered { claims, given, wakeup, cause })) => {
                self.cause = Some(cause);
                let (channels, wakeup) = (vec![given], Some(wakeup));
                Ok(Some(Trigger { claims, channels, wakeup, ..self.trigger(Type::UnreadWakeup) }))
            }
            Err(at_cap) => {
                self.at_cap = Some(at_cap);
                Ok(None)
            }
        }
    }

    /// Notices that came back first, then new ones. A notice is created when a lead polls, so that finishing a task
    /// costs no message.
    async fn finished(&mut self, tx: &mut Tx<'_>) -> Result<Option<Trigger>> {
        let mut claimed = self.messages(tx, mail::claim::next_of(FINISHED, NOTICES)).await?;
        // The next poll handles the rest.
        for _ in 0..BATCHES {
            if !claimed.is_empty() {
                break;
            }
            let Some(new) = create_notices(tx, NOTICES).await? else { break };
            // Leads finished all these tasks themselves.
            if new.is_empty() {
                continue;
            }
            let pick = by_keys!(
                read,
                new.as_slice(),
                mail::record::unheld!("where message.id"),
                "order by message.id"
            );
            claimed = self.messages(tx, pick).await?;
        }
        if claimed.is_empty() {
            return Ok(None);
        }
        let tasks = finished_tasks(tx, claimed.iter().map(|(_, message)| message)).await?;
        let count = Some(claimed.len() as i64);
        let claims = claimed.into_iter().map(|(claim, _)| claim).collect();
        Ok(Some(Trigger { claims, tasks, count, ..self.trigger(Type::TasksFinished) }))
    }

    async fn pool(&mut self, tx: &mut Tx<'_>) -> Result<Option<Trigger>> {
        if self.pool.takes_any(self.agent) {
            return self.task(tx, Type::PoolTask, pool::pick_any(), Purpose::Work).await;
        }
        for head in self.pool.best(tx, self.agent).await? {
            let taken = self.task(tx, Type::PoolTask, head.part.pick(), Purpose::Work).await?;
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }
}

/// The current state of the tasks in these notices.
pub(super) async fn finished_tasks<'m>(
    tx: &mut Tx<'_>,
    notices: impl Iterator<Item = &'m Message>,
) -> Result<Vec<Task>> {
    let mut ids = Vec::new();
    for notice in notices {
        let payload = notice.payload.as_ref().map(Json::read::<serde_json::Value>).transpose()?;
        let id = payload.and_then(|payload| payload["task"].as_str().and_then(|id| id.parse().ok()));
        ids.extend(id);
    }
    let found = task::by_ids(tx, ids.iter()).await?;
    let found = ids.iter().filter_map(|id| found.get(id).cloned()).collect::<Vec<_>>();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    task::full(tx, found).await
}

fn offered(agent: &str, closed: &Closed) -> Result<Stmt> {
    if closed.is_empty() {
        return Ok(Stmt::read(
            task::unheld!(
                "from task where task.status = 'offered' and task.parked is null and task.offered_to = ?1
                 order by task.seq limit 1 /*pg for update of task skip locked*/"
            ),
            params![agent],
        ));
    }
    Ok(Stmt::read(
        task::unheld!(
            "from task where task.status = 'offered' and task.parked is null and task.offered_to = ?1
             and task.board not in (select value ->> 'board' from json_each(?2))
             order by task.seq limit 1 /*pg for update of task skip locked*/"
        ),
        params![agent, boards::names(closed)?],
    ))
}

fn assigned(agent: &str, closed: &Closed) -> Result<Stmt> {
    if closed.is_empty() {
        return Ok(Stmt::read(
            task::unheld!(
                "from task where task.ready = 2 and task.assignee = ?1 order by task.priority desc, task.seq limit 1
                 /*pg for update of task skip locked*/"
            ),
            params![agent],
        ));
    }
    Ok(Stmt::read(
        task::unheld!(
            "from task where task.ready = 2 and task.assignee = ?1
             and task.board not in (select value ->> 'board' from json_each(?2))
             order by task.priority desc, task.seq limit 1 /*pg for update of task skip locked*/"
        ),
        params![agent, boards::names(closed)?],
    ))
}

/// Creates notices for finished tasks that have none yet, and returns their ids. Tasks that a lead finished itself get
/// none, unless they failed because its claim expired. `None`: no such task is left.
async fn create_notices(tx: &mut Tx<'_>, count: i64) -> Result<Option<Vec<i64>>> {
    let rows = tx
        .query(
            "select seq, board, n, status, finished_at from task where told = 0 and status in ('completed', 'failed')
             order by finished_at limit ?1 /*pg for update skip locked*/",
            params![count],
        )
        .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let keys = rows.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?;
    let ids = set(rows
        .iter()
        .map(|row| {
            let (board, n, at): (String, i64, i64) =
                (row.get("board")?, row.get("n")?, row.get("finished_at")?);
            Ok(serde_json::json!({ "resource": format!("task/{board}-{n}"), "at": at }))
        })
        .collect::<Result<Vec<_>>>()?)?;
    let mut batch = Batch::new();
    batch.add(by_keys!(write, keys.as_slice(), "update task set told = 1 where seq", ""));
    let own = batch.add(Stmt::read(
        "select event.resource from json_each(?1) as item cross join event
         where event.resource = item.value ->> 'resource' and event.kind in ('task.completed', 'task.failed')
         and event.at = cast(item.value ->> 'at' as bigint)
         and coalesce(event.details, '') not like '%lapsed_:true%'
         and event.agent in (select name from agent where role = 'lead')",
        params![ids],
    ));
    let own = tx.send(batch).await?.take(own).rows;
    let own = own.iter().map(|row| row.get("resource")).collect::<Result<BTreeSet<String>>>()?;
    let mut notices = Vec::new();
    for row in &rows {
        let id = format!("{}-{}", row.get::<String>("board")?, row.get::<i64>("n")?);
        if own.contains(&format!("task/{id}")) {
            continue;
        }
        let status: String = row.get("status")?;
        notices.push(mail::push_many::Item {
            mailbox: FINISHED.into(),
            payload: Some(Json::from(serde_json::json!({ "task": id, "status": status }))),
            kind: Some("finished".into()),
            // A notice stays until a lead has settled it, even if its claims expire often.
            max_attempts: Some(crate::limits::ATTEMPTS_MAX),
            ..Default::default()
        });
    }
    if notices.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let request = tx.opening.request.take();
    let pushed = mail::push_many::push(tx, notices).await?;
    tx.opening.request = request;
    Ok(Some(pushed.messages.into_iter().map(|message| message.id).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order is a promise to users.
    #[test]
    fn the_order_of_triggers() {
        use Type::*;
        let now = Time(1_000_000);
        let ago = |ms| Time(now.0 - ms);
        let stale = Millis(60_000);
        let cases = [
            (vec![(PoolTask, ago(5)), (TaskOffered, ago(1))], vec![TaskOffered, PoolTask]),
            (vec![(TaskOffered, ago(1)), (PoolTask, ago(60_000))], vec![PoolTask, TaskOffered]),
            (
                vec![(TaskOffered, ago(59_999)), (UnreadMentions, ago(70_000)), (InboxMessage, ago(90_000))],
                vec![InboxMessage, UnreadMentions, TaskOffered],
            ),
        ];
        for (heads, expected) in cases {
            assert_eq!(in_order(heads.clone(), stale, false, now), expected, "{heads:?}");
        }
        let heads = vec![(PoolTask, ago(90_000)), (TaskOffered, ago(1))];
        assert_eq!(in_order(heads, stale, true, now), [TaskOffered, PoolTask], "not twice in a row");
        let promised = [
            TaskOffered,
            TaskAssigned,
            InboxMessage,
            UnreadMentions,
            UnreadWakeup,
            TasksFinished,
            PoolTask,
            PoolTasksAvailable,
        ];
        let names = "task_offered task_assigned inbox_message unread_mentions unread_wakeup tasks_finished pool_task \
                     pool_tasks_available";
        assert_eq!(promised.map(Type::as_str).join(" "), names);
        assert_eq!(Type::ORDER[..], promised[..7]);
        // Any two types, whichever has waited longer, as long as neither is stale.
        for (i, &first) in promised.iter().enumerate() {
            assert_eq!(serde_json::json!(first), first.as_str());
            for &second in &promised[i + 1..] {
                for (a, b) in [(1, 59_999), (59_999, 1), (5, 5)] {
                    for heads in [[(first, ago(a)), (second, ago(b))], [(second, ago(b)), (first, ago(a))]] {
                        assert_eq!(in_order(heads.to_vec(), stale, false, now), [first, second], "{heads:?}");
                    }
                }
                let overdue = vec![(first, ago(59_999)), (second, ago(60_000))];
                assert_eq!(in_order(overdue, stale, false, now), [second, first]);
            }
        }
    }
}
