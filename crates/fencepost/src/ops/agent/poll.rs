use super::{
    Heard, Record, Role, by_name, extend_presence,
    given::Given,
    not_found,
    pool::Pool,
    trigger::{self, FINISHED, Recipient, Trigger, Type},
};
use crate::{
    caller::{Access, Caller},
    clock::{Millis, Time},
    db::{Answers, Batch, Row, Slot, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::run::Holder,
    limits::{NAME_MAX, TTL_MAX, check},
    log::Event,
    ops::{
        inbox,
        spend::{
            boards,
            rule::{Refusal, frees_first},
            usage::{self, Closed, Usage},
        },
        storm::{
            self,
            wakeups::{self, AtCap},
        },
    },
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Default lease of a trigger's run.
pub const TTL: Millis = Millis::seconds(60);
/// Work that has waited for longer than this comes first.
pub const STALE: Millis = Millis::minutes(10);
/// A poll that waits because too many wake-ups run looks again after this time.
const CAP_AGAIN: Millis = Millis::seconds(5);

/// Get an agent's next trigger: work that is claimed in the same transaction, for a new run. One run has one trigger:
/// polling again with the same run returns the same trigger while the run is alive. The search order is: offers,
/// assigned tasks, the inbox, mentions, wake-ups for unread posts (if `accept` names them), and then notices of finished
/// tasks for a lead, or the pool for a worker. Work that has waited too long comes first.
///
/// While the agent or the fleet is at a spend limit, the poll is refused. Tasks of a board at its limit are left alone; if nothing
/// else waits, the poll is refused, too. Limits are checked before the work is done, so work in flight may exceed them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Poll {
    pub agent: String,
    /// The run that will hold the trigger: a new name.
    pub run: String,
    /// Only these trigger types (default: all but `unread_wakeup`).
    #[serde(default)]
    pub accept: Option<Vec<Type>>,
    /// Use of the pool. Default: `take`.
    #[serde(default)]
    pub pool: PoolMode,
    /// Only pool tasks of this board. The agent's own work (offers, assigned tasks, messages, mentions) is not limited.
    #[serde(default)]
    pub board: Option<String>,
    /// Only pool tasks with this tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// Lease: others may claim this run's items if it is not renewed for this long (default 60 s).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// Limit on the duration of these claims, however often they are renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// Work that has waited for longer than this comes first (default 10 minutes).
    #[serde(default)]
    pub stale_ms: Option<Millis>,
    /// The machine of the run.
    #[serde(default)]
    pub host: Option<String>,
    /// Wait up to this long for a trigger (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
}

/// A worker's use of the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// Claim a task from the pool.
    #[default]
    Take,
    /// Only report that the pool has tasks; every polling worker gets the report.
    Notify,
    /// Ignore the pool.
    Off,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Polled {
    /// The trigger, or null if there is nothing to do.
    pub trigger: Option<Trigger>,
    /// Reason why the agent gets no trigger even if there is work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<String>,
}

impl Polled {
    fn nothing() -> Self {
        Self { trigger: None, held_back: None }
    }
}

impl Op for Poll {
    const NAME: &'static str = "agent/poll";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1","run":"r-1"}"#;
    refuses![Paused, BudgetRefused, LeaseExpired];
    const PEEKS: bool = true;
    type Reply = Polled;
    erased!();

    fn prelude(&self) -> Prelude {
        let prelude = Prelude::claims(&self.run, Some(self.ttl_ms.unwrap_or(TTL)));
        if self.check().is_err() {
            return prelude;
        }
        let (reads, first) = self.opening();
        // The agent is online even if its poll is refused, because it is paused.
        let presence = match self.heard() {
            Heard::Polling => presence_of_poll,
            Heard::TakingWakeups => presence_of_wakeups,
        };
        prelude.reading(reads.into_statements()).keeping(first.agent, presence)
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: Result<&Polled, &Error>) -> bool {
        match answer {
            Ok(polled) => polled.trigger.is_none(),
            // A paused agent is worth waiting for: it may be resumed. A spend limit frees, or somebody raises it.
            Err(error) => matches!(error.code(), Code::Paused | Code::BudgetRefused),
        }
    }

    /// Most polls find nothing. Such a poll writes nothing.
    async fn peek(&self, tx: &mut Tx<'_>) -> Result<Option<Polled>> {
        self.check()?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let due = tx.opening.due.clone();
        let mut batch = Batch::new();
        let first = FirstReads::add(&mut batch, self);
        let FirstRows { agent, found, run, is_limited } = first.take(&mut tx.send(batch).await?, self)?;
        if due.is_due(tx.now) || agent.presence_due_at(self.heard()) <= tx.now || run.is_some() {
            return Ok(None);
        }
        tx.notes.try_again_at = due.at;
        self.refuse_paused(tx, &agent)?;
        let closed = self.refuse_at_limit(tx, &agent, is_limited).await?;
        if let Some(full) = self.full(tx, &agent, &found).await? {
            return Ok(Some(full));
        }
        let pool = self.pool(tx, &closed).await?;
        let heads = self.heads(tx, &agent, &pool, &found, &closed).await?;
        Ok(heads.is_empty().then(Polled::nothing))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Polled> {
        self.check()?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let (_, first) = self.opening();
        let first = first.take(&mut Answers::new(std::mem::take(&mut tx.opening.read)), &self)?;
        if let Some(again) = self.repeated(tx, first.run.as_ref()).await? {
            return Ok(again);
        }
        let is_alive = tx.opening.run.as_ref().is_some_and(|run| run.is_alive(tx.now));
        if !is_alive && let Some(polled) = self.take(tx, first).await? {
            return Ok(polled);
        }
        // The work that was found may have gone to this same run, in a concurrent poll.
        let run = tx.one(self.own_run()).await?.rows.into_iter().next();
        match self.repeated(tx, run.as_ref()).await? {
            Some(again) => Ok(again),
            None if is_alive => Err(self.run_in_use()),
            None => Ok(Polled::nothing()),
        }
    }
}

/// Counts mentions that a limit on causes left out. Counters come last in the lock order.
async fn count_suppressed(tx: &mut Tx<'_>, suppressed: i64) -> Result<()> {
    tx.send(storm::state::count(&BTreeMap::from([("suppressed_cause", suppressed)])).collect())
        .await
        .map(drop)
}

fn presence_of_poll(row: &Row, caller: &Caller, now: Time) -> Result<Option<Stmt>> {
    presence(row, Heard::Polling, caller, now)
}

fn presence_of_wakeups(row: &Row, caller: &Caller, now: Time) -> Result<Option<Stmt>> {
    presence(row, Heard::TakingWakeups, caller, now)
}

/// Extends the presence of an agent's row, if that is due and the caller acts for the agent.
fn presence(row: &Row, poll: Heard, caller: &Caller, now: Time) -> Result<Option<Stmt>> {
    let agent = Record::read(row)?;
    let is_own = caller.acting_as("agent", Some(&agent.name)).is_ok();
    let is_due = agent.left_at.is_none() && agent.presence_due_at(poll) <= now;
    Ok((is_own && is_due).then(|| extend_presence(&agent, poll, now)))
}

/// Slots of a poll's first reads.
#[derive(Debug, Clone, Copy)]
struct FirstReads {
    agent: Slot,
    found: Slot,
    is_limited: Slot,
    run: Slot,
}

impl FirstReads {
    /// The poll's own run is read last, so that it shows work that went to it before the other reads.
    fn add(batch: &mut Batch, poll: &Poll) -> Self {
        Self {
            agent: batch.add(by_name(&poll.agent)),
            found: batch.add(trigger::waiting_since(&poll.agent)),
            is_limited: batch.add(usage::is_limited(Some(&poll.agent))),
            run: batch.add(poll.own_run()),
        }
    }

    fn take(self, answers: &mut Answers, poll: &Poll) -> Result<FirstRows> {
        let agent = answers.take(self.agent).rows.first().map(Record::read).transpose()?;
        let Some(agent) = agent.filter(|agent| agent.left_at.is_none()) else {
            return Err(not_found(&poll.agent));
        };
        let found = answers.take(self.found).rows.into_iter().next();
        let found = found.ok_or_else(|| Error::internal("the first read of a poll returned no row"))?;
        let is_limited = !answers.take(self.is_limited).rows.is_empty();
        Ok(FirstRows { agent, found, is_limited, run: answers.take(self.run).rows.into_iter().next() })
    }
}

/// The rows of a poll's first reads.
struct FirstRows {
    agent: Record,
    /// The row of [`trigger::waiting_since`].
    found: Row,
    /// A spend limit could hold work back.
    is_limited: bool,
    /// The last run of this name.
    run: Option<Row>,
}

impl Poll {
    /// The first statements of the call's transaction.
    fn opening(&self) -> (Batch, FirstReads) {
        let mut batch = Batch::new();
        // Concurrent polls of one agent must not exceed its limit together.
        batch.add(Stmt::lock(
            "select 1 from agent where name = ?1 and max_concurrent is not null for update",
            params![&self.agent],
        ));
        // A pause locks the row exclusively (`for update`): it waits for this poll, or this poll sees it.
        batch.add(Stmt::lock("select 1 from agent where name = ?1 for key share", params![&self.agent]));
        let first = FirstReads::add(&mut batch, self);
        (batch, first)
    }

    fn own_run(&self) -> Stmt {
        Stmt::read(
            "select ended_at, reason, trigger_type, given, agent from run where name = ?1 order by key desc limit 1",
            params![&self.run],
        )
    }

    /// `None`: nothing was taken, and another poll may have taken the work since this poll's run was read.
    async fn take(&self, tx: &mut Tx<'_>, first: FirstRows) -> Result<Option<Polled>> {
        let FirstRows { agent, found, is_limited, .. } = first;
        self.refuse_paused(tx, &agent)?;
        let closed = self.refuse_at_limit(tx, &agent, is_limited).await?;
        if let Some(full) = self.full(tx, &agent, &found).await? {
            return Ok(Some(full));
        }
        let pool = self.pool(tx, &closed).await?;
        let heads = self.heads(tx, &agent, &pool, &found, &closed).await?;
        let in_turn = heads.iter().map(|(kind, _)| *kind).min();
        let mut order = trigger::in_order(heads, self.stale_ms.unwrap_or(STALE), agent.jumped, tx.now);
        // A notice about the pool claims nothing, so it comes after everything that can be claimed.
        if self.pool == PoolMode::Notify && order.contains(&Type::PoolTask) {
            order.retain(|kind| *kind != Type::PoolTask);
            if order.is_empty() {
                return self.notify(tx, &agent, &pool).await.map(Some);
            }
        }
        if order.is_empty() {
            // A part of the pool is searched after the run was read, so then the run must be read again.
            return Ok((agent.role == Role::Lead || pool.takes_any(&agent)).then(Polled::nothing));
        }
        let holder = Holder::of(tx, &self.run, Some(&self.agent), Some(self.ttl_ms.unwrap_or(TTL)))?;
        let mut to = Recipient {
            agent: &agent,
            holder: &holder,
            entered: None,
            max: self.max_ms,
            pool: &pool,
            closed: &closed,
            cause: None,
            suppressed: 0,
            at_cap: None,
        };
        for kind in order {
            if let Some(trigger) = to.take(tx, kind).await? {
                let run_key = to.enter(tx).await?;
                self.store_trigger(tx, run_key, &trigger, to.cause.as_deref()).await?;
                let jumped = Some(kind) != in_turn;
                if jumped != agent.jumped {
                    let sql = "update agent set jumped = ?2 where name = ?1";
                    tx.execute(sql, params![&self.agent, i64::from(jumped)]).await?;
                }
                count_suppressed(tx, to.suppressed).await?;
                return Ok(Some(Polled { trigger: Some(trigger), held_back: None }));
            }
        }
        // Other polls took everything. The run opened here is empty, so delete it.
        if let Some(run_key) = to.entered {
            tx.execute("delete from run where key = ?1 and trigger_type is null", params![run_key]).await?;
        }
        count_suppressed(tx, to.suppressed).await?;
        if let Some(at_cap) = to.at_cap {
            return Ok(Some(self.at_cap(tx, &at_cap)));
        }
        Ok(None)
    }

    /// The reply while wake-ups wait and too many run. No event announces that another agent's run ended, so a waiting poll looks
    /// again by itself.
    fn at_cap(&self, tx: &mut Tx<'_>, at_cap: &AtCap) -> Polled {
        let agents = Some(self.agent.as_str());
        let topics = [Topic::agent(&self.agent), Topic::ended(agents), Topic::dead(agents)];
        tx.notes.subscriptions.push(Subscription::new(("at cap", &self.run), topics));
        let again = tx.now.plus(CAP_AGAIN);
        tx.notes.own_deadline = Some(tx.notes.own_deadline.map_or(again, |at| at.min(again)));
        let whose = if at_cap.of_agent { "the agent" } else { "the fleet" };
        let held_back = format!("{whose} runs as many wake-ups as it may; fence storm shows the caps");
        Polled { trigger: None, held_back: Some(held_back) }
    }

    fn check(&self) -> Result<()> {
        check::plain_name("agent", &self.agent)?;
        crate::lease::run::check_name(&self.run)?;
        check::optional_name("board", self.board.as_deref())?;
        check::optional_name("tag", self.tag.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::span("stale_ms", self.stale_ms.unwrap_or(STALE), Millis(0), TTL_MAX)?;
        check::optional_text("host", self.host.as_deref(), NAME_MAX)
    }

    /// Settling a trigger ends its run with everything that it holds. So a run with other work cannot take a trigger.
    fn run_in_use(&self) -> Error {
        Error::invalid("run", format!("`{}` already exists, for other work", self.run))
            .hint("every trigger needs its own run: poll with a new run name")
    }

    /// The part of the pool that this poll may take from.
    async fn pool(&self, tx: &mut Tx<'_>, closed: &Closed) -> Result<Pool> {
        let places = match &self.board {
            _ if self.pool == PoolMode::Off => Vec::new(),
            Some(board) if closed.contains_key(board) => Vec::new(),
            None if !closed.is_empty() && self.accepts(Type::PoolTask) => {
                let open = boards::open(tx, closed, self.tag.as_deref()).await?;
                open.into_iter().map(Some).collect()
            }
            board => vec![board.clone()],
        };
        Ok(Pool { places, tag: self.tag.clone() })
    }

    /// The part of the pool that spend limits hold back from this poll.
    fn held_pool(&self, closed: &Closed) -> Pool {
        let is_wanted = |board: &&String| self.board.as_ref().is_none_or(|wanted| wanted == *board);
        let places = match self.pool {
            PoolMode::Off => Vec::new(),
            PoolMode::Take | PoolMode::Notify => closed.keys().filter(is_wanted).cloned().map(Some).collect(),
        };
        Pool { places, tag: self.tag.clone() }
    }

    fn heard(&self) -> Heard {
        if self.accepts(Type::UnreadWakeup) { Heard::TakingWakeups } else { Heard::Polling }
    }

    fn accepts(&self, kind: Type) -> bool {
        let is = |wanted: &Type| {
            *wanted == kind || (*wanted == Type::PoolTasksAvailable && kind == Type::PoolTask)
        };
        match &self.accept {
            Some(accept) => accept.iter().any(is),
            // Pollers that do not know wake-ups see nothing new.
            None => kind != Type::UnreadWakeup,
        }
    }

    /// The types with work that this poll may take. Refuses if spend limits hold back all the work that waits.
    async fn heads(
        &self,
        tx: &mut Tx<'_>,
        agent: &Record,
        pool: &Pool,
        found: &Row,
        closed: &Closed,
    ) -> Result<Vec<(Type, Time)>> {
        self.subscribe(tx, agent);
        let mut heads = trigger::heads(tx, agent, pool, found, closed).await?;
        heads.retain(|(kind, _)| self.accepts(*kind));
        if heads.is_empty() && !closed.is_empty() {
            let held = self.held_pool(closed);
            let held = trigger::held_boards(tx, agent, &held, closed, |kind| self.accepts(kind)).await?;
            if let Some(refusal) = frees_first(held.iter().filter_map(|board| closed.get(board)).cloned()) {
                return Err(self.at_limit(tx, agent, &refusal));
            }
        }
        Ok(heads)
    }

    /// Notes the events that could change an empty reply: events for this agent only, and events for all similar
    /// agents, of which one is woken. A poll must not subscribe to work that it would not take: it would be woken
    /// instead of a poll that would.
    fn subscribe(&self, tx: &mut Tx<'_>, agent: &Record) {
        let mut own = vec![Topic::agent(&self.agent), Topic::mail(&inbox::mailbox(&self.agent))];
        if self.accepts(Type::UnreadWakeup) {
            own.push(Topic::mail(&wakeups::mailbox(&self.agent)));
        }
        // Everything that decides which work it may take. If that changes, a woken poll has a new subscription, and the
        // waiters of the old one are woken, too.
        let abilities = (agent.role, &agent.capabilities, agent.max_concurrent);
        tx.notes.subscriptions = vec![Subscription::new(("poll", &self.agent, &self.accept, abilities), own)];
        tx.notes.own_deadline = Some(agent.presence_due_at(self.heard()));
        match agent.role {
            Role::Lead if self.accepts(Type::TasksFinished) => tx
                .notes
                .subscriptions
                .push(Subscription::new("finished", [Topic::tasks(), Topic::mail(FINISHED)])),
            Role::Worker if self.accepts(Type::PoolTask) => match self.pool {
                PoolMode::Take => {
                    let fits = ("pool", &agent.capabilities, &self.board, &self.tag);
                    tx.notes.subscriptions.push(Subscription::new(fits, [Topic::pool()]));
                }
                PoolMode::Notify => {
                    tx.notes
                        .subscriptions
                        .push(Subscription::new(("pool notice", &self.run), [Topic::pool()]));
                }
                PoolMode::Off => {}
            },
            _ => {}
        }
    }

    /// Refuses while the agent is paused. A poll that waits sleeps until the agent is resumed or the pause ends.
    fn refuse_paused(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<()> {
        let Some(pause) = agent.paused(tx.now) else { return Ok(()) };
        // One subscription per run, so that every poll is woken: they may accept different work.
        tx.notes.subscriptions = vec![Subscription::new(("paused", &self.run), [Topic::agent(&self.agent)])];
        let presence = agent.presence_due_at(self.heard());
        tx.notes.own_deadline = Some(pause.until.map_or(presence, |until| until.min(presence)));
        Err(pause.refusal(&agent.name, tx.now))
    }

    /// Refuses while the agent or the fleet is at a spend limit. Returns the boards at a limit. The limits are checked here and
    /// not locked: polls that run at the same moment may exceed a limit of runs by one each.
    async fn refuse_at_limit(&self, tx: &mut Tx<'_>, agent: &Record, is_limited: bool) -> Result<Closed> {
        if !is_limited {
            return Ok(Closed::new());
        }
        let usage = Usage::of(tx, Some(&agent.name)).await?;
        match usage.refused(tx.now) {
            Some(refusal) => {
                // One subscription per run: a raised limit wakes every poll, and no other event helps.
                tx.notes.subscriptions = vec![Subscription::new(("spend", &self.run), [])];
                Err(self.at_limit(tx, agent, &refusal))
            }
            None => Ok(usage.closed(tx.now)),
        }
    }

    /// A poll that waits sleeps until the limit frees, or until somebody raises it.
    fn at_limit(&self, tx: &mut Tx<'_>, agent: &Record, refusal: &Refusal) -> Error {
        let presence = agent.presence_due_at(self.heard());
        tx.notes.own_deadline = Some(refusal.until.map_or(presence, |until| until.min(presence)));
        refusal.error(tx.now)
    }

    /// The reply for an agent at its limit of triggers: no trigger until one of its runs ends.
    async fn full(&self, tx: &mut Tx<'_>, agent: &Record, found: &Row) -> Result<Option<Polled>> {
        let Some(max) = agent.max_concurrent else { return Ok(None) };
        if found.get::<i64>("busy")? < max {
            return Ok(None);
        }
        // Runs whose lease has expired may not be ended yet. They do not count.
        let sql = "select name, count(*) over () as busy from run where agent = ?1 and ended_at is null
                   and expires_at > ?2 and trigger_type is not null order by key limit 5";
        let runs = tx.query(sql, params![&agent.name, tx.now]).await?;
        let busy = runs.first().map_or(Ok(0), |row| row.get::<i64>("busy"))?;
        if busy < max {
            return Ok(None);
        }
        let agents = Some(self.agent.as_str());
        let topics = [Topic::agent(&self.agent), Topic::ended(agents), Topic::dead(agents)];
        // One subscription per run, so that a free place wakes every waiting poll: they may accept different work.
        tx.notes.subscriptions = vec![Subscription::new(("full", &self.run), topics)];
        tx.notes.own_deadline = Some(agent.presence_due_at(self.heard()));
        let runs = runs.iter().map(|row| row.get("name")).collect::<Result<Vec<String>>>()?.join(", ");
        let held_back = format!(
            "agent `{}` has {busy} triggers and its limit is {max}: {runs}; fence settle ends one",
            agent.name
        );
        Ok(Some(Polled { trigger: None, held_back: Some(held_back) }))
    }

    async fn notify(&self, tx: &mut Tx<'_>, agent: &Record, pool: &Pool) -> Result<Polled> {
        let count = pool.available(tx, agent).await?;
        let trigger = Trigger { count: Some(count), ..Trigger::new(Type::PoolTasksAvailable, &self.run) };
        Ok(Polled { trigger: Some(trigger), held_back: None })
    }

    /// Stores the trigger with its run. A run never gets another one.
    async fn store_trigger(
        &self,
        tx: &mut Tx<'_>,
        run_key: i64,
        trigger: &Trigger,
        cause: Option<&str>,
    ) -> Result<()> {
        let given = Given::of(trigger).text()?;
        let event = Event {
            run: Some(self.run.clone()),
            agent: Some(self.agent.clone()),
            topic: Some(Topic::Nobody),
            details: Some(serde_json::json!({ "trigger": trigger.kind.as_str() })),
            ..Event::new("run.triggered", format!("run/{}", self.run))
        };
        let update = Stmt::write(
            "update run set trigger_type = ?2, given = ?3, host = ?4 where key = ?1 and trigger_type is null",
            params![run_key, trigger.kind.as_str(), given, self.host.as_deref()],
        );
        let mut batch = Batch::new();
        let updated = batch.add(update);
        batch.add(event.insert(tx));
        batch.add(self.triggered(tx, run_key, trigger, cause));
        if tx.send(batch).await?.affected(updated) == 0 {
            return Err(Error::raced(format!("run `{}` got a trigger at this moment", self.run)));
        }
        Ok(())
    }

    /// Inserts the row of the trigger: its run continues the chain of causes of the item that triggered it.
    fn triggered(&self, tx: &Tx<'_>, run_key: i64, trigger: &Trigger, cause: Option<&str>) -> Stmt {
        let task =
            trigger.task.as_ref().or_else(|| trigger.tasks.first()).map(|task| format!("task/{}", task.id));
        let first = trigger.claims.first().map(|claim| claim.resource.clone());
        let cause = cause.map(str::to_owned).or(task).or(first);
        let board = trigger.task.as_ref().map(|task| task.board.clone());
        let depth = i64::from(matches!(trigger.kind, Type::UnreadMentions | Type::UnreadWakeup));
        Stmt::write(
            "insert into triggered(run, name, agent, kind, board, at, cause, root, depth)
             select cast(?1 as bigint), cast(?2 as text), cast(?3 as text), cast(?4 as text), cast(?5 as text), cast(?6 as bigint),
               cast(?7 as text), coalesce((select root from caused where item = ?7), cast(?7 as text)),
               coalesce((select depth from caused where item = ?7), 0) + ?8",
            params![run_key, &self.run, &self.agent, trigger.kind.as_str(), board, tx.now, cause, depth],
        )
    }

    /// A repeated poll, such as after a lost reply: the same trigger, or a refusal if the run has ended.
    async fn repeated(&self, tx: &mut Tx<'_>, run: Option<&Row>) -> Result<Option<Polled>> {
        let Some(row) = run else { return Ok(None) };
        let Some(kind) = row.get::<Option<String>>("trigger_type")? else { return Ok(None) };
        let over = |reason| {
            Err(Error::new(Code::LeaseExpired, format!("run `{}` had a trigger and {reason}", self.run))
                .with("run", &self.run)
                .hint("a run takes one trigger: poll with a new run"))
        };
        if row.get::<Option<Time>>("ended_at")?.is_some() {
            // The trigger was not delivered and was released: this counts as a first poll.
            if row.get::<Option<String>>("reason")?.as_deref() == Some(crate::lease::delivery::UNDELIVERED) {
                return Ok(None);
            }
            return over("has ended");
        }
        if row.get::<Option<String>>("agent")?.as_deref() != Some(&self.agent) {
            return Err(Error::invalid("run", format!("`{}` belongs to another agent", self.run)));
        }
        let kind: Type = serde_json::from_value(serde_json::json!(kind)).map_err(Error::internal)?;
        let given = Given::read(row.get("given")?)?;
        let trigger = given.again(tx, kind, &self.run).await?;
        if trigger.claims.is_empty() {
            return over("holds nothing of it any more");
        }
        Ok(Some(Polled { trigger: Some(trigger), held_back: None }))
    }
}
