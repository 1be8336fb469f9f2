use super::{
    Record, Role, by_name,
    given::Given,
    hear, not_found,
    pool::{self, Pool},
    trigger::{self, FINISHED, For, Trigger, Type},
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Answers, Batch, Row, Slot, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::{hold::write_logged, run::Holder},
    limits::{NAME_MAX, TTL_MAX, check},
    log::Event,
    ops::inbox,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lease of a trigger's run: whoever runs it renews it.
pub const TTL: Millis = Millis::seconds(60);
/// What has waited for longer than this goes before everything else.
pub const STALE: Millis = Millis::minutes(10);

/// Ask for an agent's next trigger: work that is claimed, in the same transaction, for a run of its own. One run takes one
/// trigger: asking again with it gives the same, as long as it lives. Looked for in this order: offers, assigned tasks,
/// its inbox, mentions, and then for a lead what others finished, for a worker the pool; what has waited for too long
/// goes first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Poll {
    pub agent: String,
    /// The run that will hold it: a name that is new.
    pub run: String,
    /// Only these kinds.
    #[serde(default)]
    pub accept: Option<Vec<Type>>,
    /// What becomes of the pool (`take` unless said).
    #[serde(default)]
    pub pool: PoolMode,
    /// From the pool only what has this tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// How long the run may go unheard before what it was given goes to others (60 s unless said).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// The longest that these claims may last, however often they are renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// What has waited for longer than this goes first (10 minutes unless said).
    #[serde(default)]
    pub stale_ms: Option<Millis>,
    /// Where the run is.
    #[serde(default)]
    pub host: Option<String>,
    /// If there is nothing yet, wait for it this long before saying so (10 minutes at most; ask again to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
}

/// What a worker's poll does with the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// Takes a task from it.
    #[default]
    Take,
    /// Only says that there is something in it; every worker is told.
    Notify,
    /// Leaves it alone.
    Off,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Polled {
    /// Nothing, if there is nothing to do.
    pub trigger: Option<Trigger>,
    /// Why the agent gets nothing although there may be something.
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
    refuses![LeaseExpired];
    const PEEKS: bool = true;
    type Reply = Polled;
    erased!();

    fn prelude(&self) -> Prelude {
        let is_sound = self.check().is_ok();
        let reads = if is_sound { self.opening().0 } else { Batch::new() };
        Prelude::claims(&self.run, Some(self.ttl_ms.unwrap_or(TTL))).reading(reads.into_statements())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: Result<&Polled, &Error>) -> bool {
        answer.is_ok_and(|polled| polled.trigger.is_none())
    }

    /// An empty poll writes nothing: most polls are.
    async fn peek(&self, tx: &mut Tx<'_>) -> Result<Option<Polled>> {
        self.check()?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let due = tx.opening.due.clone();
        let mut batch = Batch::new();
        let first = FirstReads::add(&mut batch, self);
        let Looked { agent, found, run } = first.take(&mut tx.send(batch).await?, self)?;
        if due.is_due(tx.now) || agent.to_be_heard_at() <= tx.now || run.is_some() {
            return Ok(None);
        }
        tx.notes.try_again_at = due.at;
        if let Some(full) = self.full(tx, &agent, &found).await? {
            return Ok(Some(full));
        }
        let heads = self.heads(tx, &agent, &found).await?;
        Ok(heads.is_empty().then(Polled::nothing))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Polled> {
        self.check()?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let (_, first) = self.opening();
        let looked = first.take(&mut Answers::new(std::mem::take(&mut tx.opening.read)), &self)?;
        if let Some(again) = self.given_before(tx, looked.run.as_ref()).await? {
            return Ok(again);
        }
        let is_there = tx.opening.run.as_ref().is_some_and(|run| run.is_alive(tx.now));
        if !is_there && let Some(polled) = self.take(tx, looked).await? {
            return Ok(polled);
        }
        // What is not there any more may have gone to this very run, asked for elsewhere at the same time.
        let run = tx.one(self.own_run()).await?.rows.into_iter().next();
        match self.given_before(tx, run.as_ref()).await? {
            Some(again) => Ok(again),
            None if is_there => Err(self.is_not_of_its_own()),
            None => Ok(Polled::nothing()),
        }
    }
}

/// The statements that a poll reads first.
#[derive(Debug, Clone, Copy)]
struct FirstReads {
    agent: Slot,
    found: Slot,
    run: Slot,
}

impl FirstReads {
    /// Its own run comes last: what went to it before anything else was looked at is seen there.
    fn add(batch: &mut Batch, poll: &Poll) -> Self {
        Self {
            agent: batch.add(by_name(&poll.agent)),
            found: batch.add(trigger::looks(&poll.agent)),
            run: batch.add(poll.own_run()),
        }
    }

    fn take(self, answers: &mut Answers, poll: &Poll) -> Result<Looked> {
        let agent = answers.take(self.agent).rows.first().map(Record::read).transpose()?;
        let Some(agent) = agent.filter(|agent| agent.left_at.is_none()) else {
            return Err(not_found(&poll.agent));
        };
        let found = answers.take(self.found).rows.into_iter().next();
        let found = found.ok_or_else(|| Error::internal("nothing was looked at"))?;
        Ok(Looked { agent, found, run: answers.take(self.run).rows.into_iter().next() })
    }
}

/// What a poll looks at first.
struct Looked {
    agent: Record,
    /// What waits for it.
    found: Row,
    /// The last run of this name.
    run: Option<Row>,
}

impl Poll {
    /// The call opens with these.
    fn opening(&self) -> (Batch, FirstReads) {
        let mut batch = Batch::new();
        // Two polls of one agent must not both find room for one more.
        batch.add(Stmt::lock(
            "select 1 from agent where name = ?1 and max_concurrent is not null for update",
            params![&self.agent],
        ));
        let first = FirstReads::add(&mut batch, self);
        (batch, first)
    }

    fn own_run(&self) -> Stmt {
        Stmt::read(
            "select ended_at, reason, trigger_type, given, agent from run where name = ?1 order by key desc limit 1",
            params![&self.run],
        )
    }

    /// `None`: nothing, and something that was there may have gone elsewhere since the run was looked at.
    async fn take(&self, tx: &mut Tx<'_>, looked: Looked) -> Result<Option<Polled>> {
        let Looked { mut agent, found, .. } = looked;
        if agent.to_be_heard_at() <= tx.now {
            hear(tx, &mut agent).await?;
        }
        if let Some(full) = self.full(tx, &agent, &found).await? {
            return Ok(Some(full));
        }
        let heads = self.heads(tx, &agent, &found).await?;
        let in_turn = heads.iter().map(|(kind, _)| *kind).min();
        let mut order = trigger::in_order(heads, self.stale_ms.unwrap_or(STALE), agent.jumped, tx.now);
        // To be told of the pool takes nothing from it, so it comes after all that can be taken.
        if self.pool == PoolMode::Notify && order.contains(&Type::PoolTask) {
            order.retain(|kind| *kind != Type::PoolTask);
            if order.is_empty() {
                return self.notify(tx).await.map(Some);
            }
        }
        let pool = self.pool();
        if order.is_empty() {
            // What fits only some was looked for later.
            return Ok((agent.role == Role::Lead || pool.is_whole(&agent)).then(Polled::nothing));
        }
        let holder = Holder::of(tx, &self.run, Some(&self.agent), Some(self.ttl_ms.unwrap_or(TTL)))?;
        let mut to = For { agent: &agent, holder: &holder, entered: None, max: self.max_ms, pool: &pool };
        for kind in order {
            if let Some(trigger) = to.take(tx, kind).await? {
                let run_key = to.enter(tx).await?;
                self.remember(tx, run_key, &trigger).await?;
                let jumped = Some(kind) != in_turn;
                if jumped != agent.jumped {
                    let sql = "update agent set jumped = ?2 where name = ?1";
                    tx.execute(sql, params![&self.agent, i64::from(jumped)]).await?;
                }
                return Ok(Some(Polled { trigger: Some(trigger), held_back: None }));
            }
        }
        // Others were quicker. The run was opened here, for nothing: it has nothing to be looked after.
        if let Some(run_key) = to.entered {
            tx.execute("delete from run where key = ?1 and trigger_type is null", params![run_key]).await?;
        }
        Ok(None)
    }

    fn check(&self) -> Result<()> {
        check::plain_name("agent", &self.agent)?;
        crate::lease::run::check_name(&self.run)?;
        check::optional_name("tag", self.tag.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::span("stale_ms", self.stale_ms.unwrap_or(STALE), Millis(0), TTL_MAX)?;
        check::optional_text("host", self.host.as_deref(), NAME_MAX)
    }

    /// A trigger's run ends when that is settled, with all it holds. So it is not one that is there for something else.
    fn is_not_of_its_own(&self) -> Error {
        Error::invalid("run", format!("`{}` is there already, for something else", self.run))
            .hint("a trigger has a run of its own: poll with a name that is new")
    }

    fn pool(&self) -> Pool {
        Pool { tag: self.tag.clone(), off: self.pool == PoolMode::Off }
    }

    fn accepts(&self, kind: Type) -> bool {
        let is = |wanted: &Type| {
            *wanted == kind || (*wanted == Type::PoolTasksAvailable && kind == Type::PoolTask)
        };
        self.accept.as_ref().is_none_or(|accept| accept.iter().any(is))
    }

    async fn heads(&self, tx: &mut Tx<'_>, agent: &Record, found: &Row) -> Result<Vec<(Type, Time)>> {
        self.wish(tx, agent);
        let mut heads = trigger::heads(tx, agent, &self.pool(), found).await?;
        heads.retain(|(kind, _)| self.accepts(*kind));
        Ok(heads)
    }

    /// What could make another answer of it: what is only for this agent; and what all like it wait for, of whom one is
    /// woken. Whoever would not take it must not wish for it: it would be woken in the place of one who would.
    fn wish(&self, tx: &mut Tx<'_>, agent: &Record) {
        let own = [Topic::agent(&self.agent), Topic::mail(&inbox::mailbox(&self.agent))];
        // All that decides what it may take: whoever finds that changed no longer wishes for the same, and the others
        // who did are woken to find it, too.
        let may = (agent.role, &agent.capabilities, agent.max_concurrent);
        tx.notes.subscriptions = vec![Subscription::new(("poll", &self.agent, &self.accept, may), own)];
        tx.notes.own_deadline = Some(agent.to_be_heard_at());
        match agent.role {
            Role::Lead if self.accepts(Type::TasksFinished) => tx
                .notes
                .subscriptions
                .push(Subscription::new("finished", [Topic::tasks(), Topic::mail(FINISHED)])),
            Role::Worker if self.accepts(Type::PoolTask) => match self.pool {
                PoolMode::Take => {
                    tx.notes
                        .subscriptions
                        .push(Subscription::new(("pool", &agent.capabilities, &self.tag), [Topic::pool()]));
                }
                PoolMode::Notify => {
                    tx.notes
                        .subscriptions
                        .push(Subscription::new(("told of the pool", &self.run), [Topic::pool()]));
                }
                PoolMode::Off => {}
            },
            _ => {}
        }
    }

    /// An agent that has as many triggers as it may have gets no more, until a run of its ends.
    async fn full(&self, tx: &mut Tx<'_>, agent: &Record, found: &Row) -> Result<Option<Polled>> {
        let Some(max) = agent.max_concurrent else { return Ok(None) };
        if found.get::<i64>("busy")? < max {
            return Ok(None);
        }
        // Those that have lapsed may not have been ended yet: they do not count.
        let sql = "select name, count(*) over () as busy from run where agent = ?1 and ended_at is null
                   and expires_at > ?2 and trigger_type is not null order by key limit 5";
        let runs = tx.query(sql, params![&agent.name, tx.now]).await?;
        let busy = runs.first().map_or(Ok(0), |row| row.get::<i64>("busy"))?;
        if busy < max {
            return Ok(None);
        }
        let agents = Some(self.agent.as_str());
        let topics = [Topic::agent(&self.agent), Topic::ended(agents), Topic::dead(agents)];
        // Each for itself: when there is room again, they are no longer alike.
        tx.notes.subscriptions = vec![Subscription::new(("full", &self.run), topics)];
        tx.notes.own_deadline = Some(agent.to_be_heard_at());
        let runs = runs.iter().map(|row| row.get("name")).collect::<Result<Vec<String>>>()?.join(", ");
        let held_back = format!(
            "agent `{}` has {busy} of the {max} triggers that it may have: {runs}; fence settle ends one",
            agent.name
        );
        Ok(Some(Polled { trigger: None, held_back: Some(held_back) }))
    }

    async fn notify(&self, tx: &mut Tx<'_>) -> Result<Polled> {
        let count = pool::available(tx).await?;
        let trigger = Trigger { count: Some(count), ..Trigger::new(Type::PoolTasksAvailable, &self.run) };
        Ok(Polled { trigger: Some(trigger), held_back: None })
    }

    /// The run has its trigger, for ever.
    async fn remember(&self, tx: &mut Tx<'_>, run_key: i64, trigger: &Trigger) -> Result<()> {
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
        let event = event.insert(tx);
        if write_logged(tx, update, event).await? == 0 {
            return Err(Error::raced(format!("run `{}` was given something at this moment", self.run)));
        }
        Ok(())
    }

    /// A lost answer, asked for again: the same trigger, or that its run has ended.
    async fn given_before(&self, tx: &mut Tx<'_>, run: Option<&Row>) -> Result<Option<Polled>> {
        let Some(row) = run else { return Ok(None) };
        let Some(kind) = row.get::<Option<String>>("trigger_type")? else { return Ok(None) };
        let over = |what| {
            Err(Error::new(Code::LeaseExpired, format!("run `{}` was given a trigger, and {what}", self.run))
                .with("run", &self.run)
                .hint("a run takes one trigger: poll with a new run"))
        };
        if row.get::<Option<Time>>("ended_at")?.is_some() {
            // What it was given never arrived, and went back: it is as if nobody had asked.
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
            return over("nothing of it is left to do");
        }
        Ok(Some(Polled { trigger: Some(trigger), held_back: None }))
    }
}
