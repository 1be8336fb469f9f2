//! A task is claimed: a named one, or the best that is ready. `task/claim_many` and `agent/poll` (`ops/agent/trigger.rs`) claim by the
//! same `take`.

use super::{
    Phase, Purpose, Record, Task, Was, add_locked, full, full_after, not_found, save, save_set, unheld,
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Delivered, Row, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{Resource, TaskId, Token},
    lease::delivery::redeliver,
    lease::{Hold, Under, hold::next_fence, run::Holder},
    limits::check,
    log::Event,
    ops::{
        claim,
        spend::{
            boards,
            rule::{Refusal, frees_first},
            usage::{self, Closed, Usage},
        },
    },
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Claim a task for a run: a named one, or the best that is ready. Ready order: the agent's own pending
/// tasks first, then priority, then age. The reply carries everything a worker needs.
///
/// At a spend limit of the fleet, of the run's agent or of the board the claim is refused; without a board, tasks of boards at their
/// limit are skipped. A claim by hand is checked, and does not itself count as a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Claim this task and no other.
    #[serde(default)]
    pub task: Option<String>,
    /// Only from this board.
    #[serde(default)]
    pub board: Option<String>,
    /// Only with this tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// The run that will hold the task. It is opened if it does not exist.
    pub run: String,
    /// The agent that the run belongs to. Required for tasks that are assigned or offered.
    #[serde(default)]
    pub agent: Option<String>,
    /// Lease: others may claim this run's items if it is not renewed for this long (default 30 min).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// The longest that this claim may last, even if it is renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// If this run already holds the named task, return its token again instead of refusing.
    #[serde(default)]
    pub resume: bool,
    /// If no task is ready, or the named task cannot be claimed yet, wait up to this long (at most 10
    /// minutes; repeat the call to wait longer). Each attempt renews the run, waiting does not: renew a run
    /// that holds other items meanwhile, or its lease expires.
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Without a named task: refuse if the run already holds one. For a session that several agents may share without knowing
    /// of each other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_at_a_time: bool,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Claim {
    /// Claims the best ready task of a board.
    pub fn next(board: impl Into<String>, run: impl Into<String>) -> Self {
        Self { board: Some(board.into()), run: run.into(), ..Self::default() }
    }
    /// Claims one named task.
    pub fn of(task: impl Into<String>, run: impl Into<String>) -> Self {
        Self { task: Some(task.into()), run: run.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    pub claim: claim::Claim,
    pub task: Task,
}

impl Op for Claim {
    const NAME: &'static str = "task/claim";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"run":"r-1","board":"auth"}"#;
    refuses![
        NoneReady,
        BoardFinished,
        AlreadyClaimed,
        NotReady,
        LeaseExpired,
        AlreadyFinished,
        Cancelled,
        BudgetRefused
    ];
    type Reply = Claimed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, self.ttl_ms).once(self.request.as_deref())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claimed> {
        let id = self.task.as_deref().map(|task| TaskId::check("task", task)).transpose()?;
        if id.is_some() && (self.board.is_some() || self.tag.is_some()) {
            return Err(Error::invalid("task", "names one task: leave out `board` and `tag`"));
        }
        let wanted = Wanted {
            board: self.board,
            tag: self.tag,
            run: self.run,
            agent: self.agent,
            ttl: self.ttl_ms,
            max: self.max_ms,
            one_at_a_time: self.one_at_a_time,
        };
        check::request(self.request.as_deref())?;
        let mut claimed = match id {
            Some(id) => wanted.named(tx, &id, self.resume).await?,
            None => wanted.best(tx, 1).await?,
        };
        claimed.pop().ok_or_else(|| Error::internal("nothing was claimed"))
    }
}

/// The filters and the lease of a claim.
#[derive(Debug)]
pub(super) struct Wanted {
    pub board: Option<String>,
    pub tag: Option<String>,
    pub run: String,
    pub agent: Option<String>,
    pub ttl: Option<Millis>,
    pub max: Option<Millis>,
    /// Only if the run holds no task yet.
    pub one_at_a_time: bool,
}

impl Wanted {
    fn check(&self) -> Result<()> {
        crate::lease::run::check_name(&self.run)?;
        check::optional_name("board", self.board.as_deref())?;
        check::optional_name("tag", self.tag.as_deref())?;
        check::optional_name("agent", self.agent.as_deref())?;
        check::lease("ttl_ms", self.ttl)?;
        check::lease("max_ms", self.max)
    }

    /// Claims the named task, if this run may.
    async fn named(self, tx: &mut Tx<'_>, id: &TaskId, resume: bool) -> Result<Vec<Claimed>> {
        self.check()?;
        if tx.opening.is_repeat_by(Some(&self.run), "task.claimed", Some(&Resource::new("task", id)))? {
            return repeated(tx).await;
        }
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), self.ttl)?;
        let mut batch = Batch::new();
        let entered = batch.add(holder.enter(tx.now));
        let is_limited = batch.add(usage::is_limited(holder.agent.as_deref()));
        let found = add_locked(&mut batch, id);
        let mut answers = tx.send(batch).await?;
        let is_limited = !answers.take(is_limited).rows.is_empty();
        let run_key = holder.key(&answers.take(entered).rows)?;
        let found = answers.take(found).rows.into_iter().next().map(Record::read).transpose()?;
        let found = found.ok_or_else(|| not_found(id))?;
        tx.notes.subscriptions =
            vec![Subscription::new((id, &holder.agent), topics(holder.agent.as_deref()))];
        let own = found.hold().filter(|hold| hold.is_alive(tx.now) && hold.run_key == run_key);
        if let Some(hold) = own {
            if !resume {
                return Err(found
                    .held_by(hold, true)
                    .hint(format!("fence claim {id} --resume gives its token again")));
            }
            let claim = claim::Claim { lease_kept_ms: holder.lease_kept(), ..hold.claim(&found.resource()) };
            // The caller may have the token already: count this as a delivery, but as one that is not taken back.
            redeliver(tx, &super::claimable::REDELIVERY, &[(found.seq, hold.token(&found.resource()))])
                .await?;
            let task = full(tx, vec![found]).await?.remove(0);
            return Ok(vec![Claimed { claim, task }]);
        }
        let mut events = Vec::new();
        let mut free = found.clone();
        if found.is_lost(tx.now) {
            events.push(super::lapse::lapse(&mut free, tx.now));
        }
        let purpose = takeable(&free, holder.agent.as_deref())?;
        if is_limited {
            self.refuse_at_limit(tx, &holder, Some(&id.board)).await?;
        }
        take(tx, vec![(found.was(), free, purpose)], &holder, run_key, self.max, events).await
    }

    /// Claims the best ready tasks. A task whose last claim lapsed is claimed alone, so that a poison task
    /// does not cost others an attempt.
    pub async fn best(self, tx: &mut Tx<'_>, count: i64) -> Result<Vec<Claimed>> {
        self.check()?;
        if tx.opening.is_repeat_by(Some(&self.run), "task.claimed", None)? {
            return repeated(tx).await;
        }
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), self.ttl)?;
        let mut found = Vec::new();
        let mut run_key = None;
        let mut closed = Closed::new();
        // Search the agent's own tasks first, and the pool only if there are none: locking a row of each
        // would hide one of them from other claims.
        let agent = holder.agent.clone();
        for mine in [agent.as_deref().map(Some), Some(None)].into_iter().flatten() {
            let mut batch = Batch::new();
            let exclusive = holder.exclusive().filter(|_| self.one_at_a_time && run_key.is_none());
            let held = exclusive.map(|(key, lock)| {
                batch.add(lock);
                batch.add(Stmt::read(HELD_BY, params![key, tx.now]))
            });
            let first = run_key.is_none().then(|| {
                let is_limited = usage::is_limited(agent.as_deref());
                (batch.add(holder.enter(tx.now)), batch.add(is_limited))
            });
            let picked = batch.add(self.pick(mine, count));
            let mut answers = tx.send(batch).await?;
            if let Some(held) = held.and_then(|held| answers.take(held).rows.into_iter().next()) {
                return Err(holds_another(&self.run, &held)?);
            }
            found = answers.take(picked).rows.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
            if let Some((entered, is_limited)) = first {
                run_key = Some(holder.key(&answers.take(entered).rows)?);
                if !answers.take(is_limited).rows.is_empty() {
                    closed = self.refuse_at_limit(tx, &holder, self.board.as_deref()).await?;
                }
            }
            if !closed.is_empty() {
                found = self.pick_open(tx, agent.as_deref(), count, &closed).await?;
                break;
            }
            if !found.is_empty() {
                break;
            }
        }
        if let Some(lapsed) = found.iter().position(|task| task.lapsed) {
            found.truncate(lapsed.max(1));
        }
        match run_key {
            Some(run_key) if !found.is_empty() => {
                let found = found.into_iter().map(|task| (task.was(), task, Purpose::Work)).collect();
                take(tx, found, &holder, run_key, self.max, Vec::new()).await
            }
            _ => {
                let wanted = ("task", &self.board, &self.tag, &agent);
                tx.notes.subscriptions = vec![Subscription::new(wanted, topics(agent.as_deref()))];
                if let Some(refusal) = self.held(tx, agent.as_deref(), &closed).await? {
                    return Err(at_limit(tx, &refusal));
                }
                Err(self.nothing(tx).await?)
            }
        }
    }

    /// Refuses while the fleet, the run's agent or this board is at a spend limit. Returns the boards at a limit, if no board is named.
    /// The limits are checked and not locked: work in flight, also of calls at the same moment, may exceed them.
    async fn refuse_at_limit(&self, tx: &mut Tx<'_>, holder: &Holder, board: Option<&str>) -> Result<Closed> {
        let usage = Usage::of(tx, holder.agent.as_deref()).await?;
        let mut closed = usage.closed(tx.now);
        let of_board = board.and_then(|board| closed.remove(board));
        if let Some(refusal) = usage.refused(tx.now).or(of_board) {
            // One subscription per run: a raised limit wakes every claim, and no other event helps.
            tx.notes.subscriptions = vec![Subscription::new(("spend", &self.run), [])];
            return Err(at_limit(tx, &refusal));
        }
        Ok(if board.is_some() { Closed::new() } else { closed })
    }

    /// The best ready tasks of boards that are not closed: the agent's own, else those of the board with the best task, and of
    /// the next boards while there is room.
    async fn pick_open(
        &self,
        tx: &mut Tx<'_>,
        agent: Option<&str>,
        count: i64,
        closed: &Closed,
    ) -> Result<Vec<Record>> {
        let tag = self.tag.as_deref();
        let mut found = match agent {
            Some(agent) => tx.one(pick_own(agent, tag, count, closed, false)?).await?.rows,
            None => Vec::new(),
        };
        if found.is_empty() {
            for board in boards::open(tx, closed, tag).await? {
                let left = count - found.len() as i64;
                if left == 0 {
                    break;
                }
                found.extend(tx.one(pick_pool(Some(&board), tag, left)).await?.rows);
            }
        }
        found.into_iter().map(Record::read).collect()
    }

    /// The refusal, if spend limits hold back tasks that this claim could take.
    async fn held(&self, tx: &mut Tx<'_>, agent: Option<&str>, closed: &Closed) -> Result<Option<Refusal>> {
        if closed.is_empty() {
            return Ok(None);
        }
        let tag = self.tag.as_deref();
        let mut held = boards::held(tx, closed, tag).await?;
        if let Some(agent) = agent {
            let own = tx.one(pick_own(agent, tag, 1, closed, true)?).await?.rows;
            held.extend(own.iter().map(|row| row.get("board")).collect::<Result<Vec<String>>>()?);
        }
        Ok(frees_first(held.iter().filter_map(|board| closed.get(board)).cloned()))
    }

    /// Reads the first entries of an index that holds only ready tasks: from a million it costs the same as
    /// from a thousand. `mine`: only tasks assigned to this agent.
    ///
    /// A board is given as a range and comes first in the order. So only the index that begins with the board has that
    /// order, and PostgreSQL must use it. With another index it would scan all tasks of other boards.
    fn pick(&self, mine: Option<&str>, count: i64) -> Stmt {
        let (board, tag) = (self.board.as_deref(), self.tag.as_deref());
        match (mine, board, tag) {
            (None, board, tag) => pick_pool(board, tag, count),
            (Some(agent), None, None) => Stmt::read(
                unheld!(
                    "from task where task.ready = 2 and task.assignee = ?2
                     order by task.priority desc, task.seq limit ?1 /*pg for update of task skip locked*/"
                ),
                params![count, agent],
            ),
            (Some(agent), Some(board), None) => pick_assigned(agent, board, count),
            // One agent's own pending tasks are few: their tags are checked one by one.
            (Some(agent), board, Some(tag)) => Stmt::read(
                unheld!(
                    "from task where task.ready = 2 and task.assignee = ?2
                     and (cast(?3 as text) is null or task.board = ?3)
                     and exists (select 1 from task_tag where task_tag.task = task.seq and task_tag.tag = ?4)
                     order by task.priority desc, task.seq limit ?1 /*pg for update of task skip locked*/"
                ),
                params![count, agent, board, tag],
            ),
        }
    }

    /// The reason for an empty claim, with counts. Counting stops at a thousand: it must not cost more than a claim.
    async fn nothing(&self, tx: &mut Tx<'_>) -> Result<Error> {
        if let Some(board) = &self.board {
            crate::ops::board::require(tx, board).await?;
        }
        let rows = match &self.board {
            Some(board) => tx.query(COUNTS_OF_BOARD, params![board]).await?,
            None => tx.query(COUNTS, params![]).await?,
        };
        let count = |name| rows[0].get::<i64>(name);
        let (claimed, blocked, failed) = (count("claimed")?, count("waiting")?, count("failed")?);
        let place = self.board.as_ref().map_or("the fleet".into(), |board| format!("board `{board}`"));
        let error = if claimed + blocked == 0 && self.tag.is_none() {
            Error::new(Code::BoardFinished, format!("everything on {place} is finished")).hint(match failed {
                0 => "fence add plans more",
                _ => "some tasks failed: fence list --status failed",
            })
        } else {
            let tag = self.tag.as_ref().map_or(String::new(), |tag| format!(" with tag `{tag}`"));
            // No task is claimed or delayed, and no transaction is claiming one: nothing becomes ready
            // until a person acts.
            let stuck = claimed == 0 && (count("coming")? == 0 || self.tag.is_some());
            let nobody = if stuck { ", and nobody is at work" } else { "" };
            let counts = format!("{claimed} claimed, {blocked} waiting, {failed} failed");
            Error::new(Code::NoneReady, format!("nothing{tag} is ready on {place}{nobody}: {counts}"))
                .with("stuck", stuck)
                .hint(match (stuck, failed) {
                    (false, _) => "fence claim --wait 1m waits for something to take",
                    (true, 0) => {
                        "fence list shows the parked, blocked and assigned tasks; fence why TASK explains one"
                    }
                    (true, _) => {
                        "fence list --status failed; fence retry or fence dep rm unblocks their dependents"
                    }
                })
        };
        Ok(error.with("claimed", claimed).with("blocked", blocked).with("failed", failed))
    }
}

/// The best ready tasks of the pool.
fn pick_pool(board: Option<&str>, tag: Option<&str>, count: i64) -> Stmt {
    match (board, tag) {
        (None, None) => Stmt::read(
            unheld!(
                "from task where task.ready = 1
                 order by task.priority desc, task.seq limit ?1 /*pg for update of task skip locked*/"
            ),
            params![count],
        ),
        (Some(board), None) => Stmt::read(
            unheld!(
                "from task where task.ready = 1 and task.board between ?2 and ?2
                 order by task.board, task.priority desc, task.seq limit ?1
                 /*pg for update of task skip locked*/"
            ),
            params![count, board],
        ),
        // The tag's own index has the same order. SQLite keeps the order of a cross join.
        (None, Some(tag)) => Stmt::read(
            unheld!(
                "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                 and task_tag.ready = 1 and task_tag.tag = ?2
                 order by task_tag.priority desc, task_tag.task limit ?1
                 /*pg for update of task skip locked*/"
            ),
            params![count, tag],
        ),
        (Some(board), Some(tag)) => Stmt::read(
            unheld!(
                "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                 and task_tag.ready = 1 and task_tag.tag = ?2 and task_tag.board between ?3 and ?3
                 order by task_tag.board, task_tag.priority desc, task_tag.task limit ?1
                 /*pg for update of task skip locked*/"
            ),
            params![count, tag, board],
        ),
    }
}

/// The best ready tasks that are assigned to this agent, on closed boards or on the others. They are few: boards and tags are
/// checked one by one.
fn pick_own(agent: &str, tag: Option<&str>, count: i64, closed: &Closed, on_closed: bool) -> Result<Stmt> {
    Ok(Stmt::read(
        unheld!(
            "from task where task.ready = 2 and task.assignee = ?2
             and (cast(?3 as text) is null
               or exists (select 1 from task_tag where task_tag.task = task.seq and task_tag.tag = ?3))
             and (task.board in (select value ->> 'board' from json_each(?4))) = (cast(?5 as bigint) = 1)
             order by task.priority desc, task.seq limit ?1 /*pg for update of task skip locked*/"
        ),
        params![count, agent, tag, boards::names(closed)?, i64::from(on_closed)],
    ))
}

/// A claim that waits sleeps until the limit frees, or until somebody raises it.
fn at_limit(tx: &mut Tx<'_>, refusal: &Refusal) -> Error {
    tx.notes.own_deadline = refusal.until;
    refusal.error(tx.now)
}

/// The best ready tasks of a board that are assigned to this agent.
pub(crate) fn pick_assigned(agent: &str, board: &str, count: i64) -> Stmt {
    Stmt::read(
        unheld!(
            "from task where task.ready = 2 and task.assignee = ?2 and task.board between ?3 and ?3
             order by task.board, task.priority desc, task.seq limit ?1
             /*pg for update of task skip locked*/"
        ),
        params![count, agent, board],
    )
}

/// The counts of an empty claim. `coming`: a task is delayed, or another transaction is claiming one.
const COUNTS: &str = "
    select (select count(*) from (select 1 from task where run is not null limit 1000) as t) as claimed,
      (select count(*) from (
        select 1 from task where ready = 0 and run is null and finished_at is null limit 1000) as t)
      + (select count(*) from (select 1 from task where ready = 1 limit 1000) as t)
      + (select count(*) from (select 1 from task where ready = 2 limit 1000) as t) as waiting,
      (select count(*) from (select 1 from task where status = 'failed' limit 1000) as t) as failed,
      (select count(*) from (select 1 from task where delayed_until is not null limit 1) as t)
      + (select count(*) from (select 1 from task where ready = 1 limit 1) as t) as coming";

/// The same counts for one board.
const COUNTS_OF_BOARD: &str = "
    select (select count(*) from (select 1 from task where run is not null and board = ?1 limit 1000) as t) as claimed,
      (select count(*) from (
        select 1 from task where ready = 0 and run is null and finished_at is null and board = ?1 limit 1000) as t)
      + (select count(*) from (select 1 from task where ready = 1 and board = ?1 limit 1000) as t)
      + (select count(*) from (select 1 from task where ready = 2 and board = ?1 limit 1000) as t) as waiting,
      (select count(*) from (select 1 from task where status = 'failed' and board = ?1 limit 1000) as t) as failed,
      (select count(*) from (select 1 from task where delayed_until is not null and board = ?1 limit 1) as t)
      + (select count(*) from (select 1 from task where ready = 1 and board = ?1 limit 1) as t) as coming";

/// Writes claims, for `task/claim` and for a poll. Each entry of `found` is a task: its row as it was found, its record without a
/// dead claim, and the purpose of the new claim. The update checks the fence of the found row and the life of the run (`save.rs`).
/// If it writes no row, another run was faster, or this one ended.
pub(crate) async fn take(
    tx: &mut Tx<'_>,
    found: Vec<(Was, Record, Purpose)>,
    holder: &Holder,
    run_key: i64,
    max: Option<Millis>,
    mut events: Vec<Event>,
) -> Result<Vec<Claimed>> {
    let mut changes = Vec::with_capacity(found.len());
    for (was, free, purpose) in found {
        let fence = next_fence(tx, was.fence);
        let hold = holder.hold(run_key, fence, max, tx.now);
        let from = free.status();
        let taken = claimed(free, purpose, hold, tx.now);
        events.push(taken.event("task.claimed", from));
        let token = Token { resource: taken.resource(), fence };
        tx.notes.delivered.push(Delivered { token, delivery: taken.delivery });
        changes.push((was, taken));
    }
    let events = Event::insert_many(tx, events)?;
    let mut batch = Batch::new();
    let mut written = 0;
    let mut saved = None;
    match changes.as_slice() {
        [(was, after)] => saved = Some(save(&mut batch, was, after, Under::NewClaim, tx.now)),
        many => written = save_set(tx, many, Under::NewClaim).await?.len() as u64,
    }
    batch.add(events);
    let wanted = changes.len() as u64;
    let taken = changes.into_iter().map(|(_, after)| after).collect();
    let (answers, views) = full_after(tx, batch, taken).await?;
    if saved.map_or(written, |saved| answers.affected(saved)) < wanted {
        return Err(Error::raced(format!("run `{}` ended at this moment", holder.name)));
    }
    Ok(views.into_iter().filter_map(|task| Some(Claimed { claim: task.claim.clone()?, task })).collect())
}

/// A task that a run holds.
const HELD_BY: &str =
    "select board, n, fence from task where run = ?1 and (until_at is null or until_at > ?2) limit 1";

/// The refusal of a second task for a run that takes one at a time.
fn holds_another(run: &str, held: &Row) -> Result<Error> {
    let id = format!("{}-{}", held.get::<String>("board")?, held.get::<i64>("n")?);
    let token = format!("task/{id}@{}", held.get::<i64>("fence")?);
    Ok(Error::new(Code::AlreadyClaimed, format!("run `{run}` already holds `{token}`"))
        .with("own", true)
        .with("token", token)
        .hint("finish it first, or name a task: fence claim ID. Subagents use --run NAME"))
}

/// The rule of a claim.
pub(super) fn claimed(task: Record, purpose: Purpose, hold: Hold, now: Time) -> Record {
    // A review is not an attempt at the work.
    let attempts = task.attempts + i64::from(purpose == Purpose::Work);
    let fence = hold.fence;
    Record { phase: Phase::claimed(purpose, hold), fence, attempts, updated_at: now, ..task }
}

/// The topics of events that could make a task free for this agent.
fn topics(agent: Option<&str>) -> Vec<Topic> {
    [Topic::tasks(), Topic::pool()].into_iter().chain(agent.map(Topic::agent)).collect()
}

/// The purpose for which this agent can claim a task, or the refusal.
fn takeable(task: &Record, agent: Option<&str>) -> Result<Purpose> {
    let refused = |message: String| {
        Err(Error::new(Code::NotReady, message).hint(format!("fence why {} says more", task.id)))
    };
    task.unfinished()?;
    if let Some(hold) = task.hold() {
        return Err(task.held_by(hold, false).hint("fence ready lists what you can take instead"));
    }
    if let Some(reason) = &task.parked {
        return refused(format!("task `{}` is parked: {reason}", task.id));
    }
    match task.phase {
        Phase::Offered if task.offered_to.as_deref() == agent => return Ok(Purpose::Review),
        Phase::Offered => {
            let to = task.offered_to.as_deref().unwrap_or_default();
            return refused(format!("task `{}` is offered to agent `{to}`", task.id));
        }
        Phase::Pending if task.assignee.as_deref() != agent => {
            let to = task.assignee.as_deref().unwrap_or_default();
            return refused(format!("task `{}` is assigned to agent `{to}`", task.id));
        }
        _ => {}
    }
    if task.waiting_on > 0 {
        return refused(format!("task `{}` waits for {} unfinished tasks", task.id, task.waiting_on));
    }
    if let Some(until) = task.delayed_until {
        let was = if task.was_given_back() {
            "was given back and can be claimed"
        } else {
            "failed and is tried again"
        };
        return refused(format!("task `{}` {was} after {until}", task.id));
    }
    Ok(Purpose::Work)
}

/// The reply to a repeated request: its claims, if they are still held or were completed since.
async fn repeated(tx: &mut Tx<'_>) -> Result<Vec<Claimed>> {
    let over = || {
        Error::new(Code::LeaseExpired, "the tasks that this request claimed are no longer held")
            .hint("claim again with a new request id")
    };
    let repeats: Vec<_> =
        tx.opening.repeat.iter().filter(|did| did.kind == "task.claimed").cloned().collect();
    let (mut claimed, mut handed) = (Vec::new(), Vec::new());
    for did in repeats {
        let id: TaskId = did.resource.trim_start_matches("task/").parse().map_err(Error::internal)?;
        let task = super::load(tx, &id).await?.ok_or_else(over)?;
        let fence = did.fence.unwrap_or_default();
        let held = task.hold().filter(|hold| hold.fence == fence && hold.is_alive(tx.now));
        let completed = matches!(task.phase, Phase::Completed(_)) && task.fence == fence;
        let claim = match held {
            Some(hold) => {
                handed.push((task.seq, hold.token(&task.resource())));
                hold.claim(&task.resource())
            }
            None if completed => over_claim(&task, did.run.unwrap_or_default(), fence, did.at),
            None => return Err(over().with("fence", fence)),
        };
        let task = full(tx, vec![task]).await?.remove(0);
        claimed.push(Claimed { claim, task });
    }
    if claimed.is_empty() {
        return Err(over());
    }
    if !handed.is_empty() {
        tx.notes.delivered = redeliver(tx, &super::claimable::REDELIVERY, &handed).await?;
    }
    Ok(claimed)
}

fn over_claim(task: &Record, run: String, fence: i64, at: Time) -> claim::Claim {
    let hold = Hold {
        run_key: 0,
        run,
        agent: None,
        run_expires_at: task.phase.finished_at().unwrap_or(at),
        run_ended_at: None,
        fence,
        claimed_at: at,
        until: None,
        lease_kept: None,
    };
    hold.claim(&task.resource())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_can_be_claimed_or_is_refused_with_a_code() {
        let (ann, now) = (Some("ann"), Time(5));
        let held = || Phase::InProgress(Hold::sample("r", 1, Time(10)));
        let task = Record::sample;
        let offered = || Record { offered_to: Some("ann".into()), ..task(Phase::Offered) };
        let assigned = || Record { assignee: Some("ann".into()), ..task(Phase::Pending) };
        let cases = [
            (task(Phase::Unassigned), None, Ok(Purpose::Work)),
            (task(Phase::Unassigned), ann, Ok(Purpose::Work)),
            (Record { waiting_on: 1, ..task(Phase::Unassigned) }, None, Err(Code::NotReady)),
            (Record { parked: Some("later".into()), ..task(Phase::Unassigned) }, None, Err(Code::NotReady)),
            (Record { delayed_until: Some(now), ..task(Phase::Unassigned) }, None, Err(Code::NotReady)),
            (offered(), ann, Ok(Purpose::Review)),
            // A review decides about a task before it can be begun.
            (Record { waiting_on: 1, ..offered() }, ann, Ok(Purpose::Review)),
            (Record { parked: Some("later".into()), ..offered() }, ann, Err(Code::NotReady)),
            (offered(), Some("bob"), Err(Code::NotReady)),
            (offered(), None, Err(Code::NotReady)),
            (assigned(), ann, Ok(Purpose::Work)),
            (assigned(), Some("bob"), Err(Code::NotReady)),
            (assigned(), None, Err(Code::NotReady)),
            (Record { waiting_on: 1, ..assigned() }, ann, Err(Code::NotReady)),
            (task(held()), ann, Err(Code::AlreadyClaimed)),
            (task(Phase::Completed(now)), ann, Err(Code::AlreadyFinished)),
            (task(Phase::Failed(now)), ann, Err(Code::AlreadyFinished)),
            (task(Phase::Cancelled(now)), ann, Err(Code::Cancelled)),
        ];
        for (task, agent, expected) in cases {
            let answer = takeable(&task, agent).map_err(|error| error.code());
            assert_eq!(answer, expected, "{agent:?} claims {task:?}");
        }
    }
}
