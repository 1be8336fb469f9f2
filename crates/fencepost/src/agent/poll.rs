use super::{
    Record, Role, hear, load, not_found,
    trigger::{self, FINISHED, For, Pool, Trigger, Type},
};
use crate::{
    before::{Before, Due},
    channel,
    claim::deliver,
    clock::{Millis, Time},
    error::{Code, Error, Result},
    event::{Event, Topic},
    inbox, mail,
    names::{NAME_MAX, Resource, TTL_MAX, Token, check},
    op::{Access, Op},
    params,
    run::{self, Holder},
    task,
    tx::{Stmt, Tx},
    wait::Wish,
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
    const PEEKS: bool = true;
    type Reply = Polled;

    fn before(&self) -> Before {
        Before::claims(&self.run, Some(self.ttl_ms.unwrap_or(TTL)))
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: &Result<Polled>) -> bool {
        answer.as_ref().is_ok_and(|polled| polled.trigger.is_none())
    }

    /// An empty poll writes nothing: most polls are.
    async fn peek(&self, tx: &mut Tx<'_>) -> Result<Option<Polled>> {
        self.check()?;
        let due = Due::read(&tx.one(Due::statement()).await?)?;
        let known =
            tx.query("select 1 as there from run where name = ?1 limit 1", params![&self.run]).await?;
        let Some(agent) = load(tx, &self.agent).await?.filter(|agent| agent.left_at.is_none()) else {
            return Err(not_found(&self.agent));
        };
        if due.is_due(tx.now) || !known.is_empty() || agent.to_be_heard_at() <= tx.now {
            return Ok(None);
        }
        tx.again_at = due.at;
        if let Some(full) = self.full(tx, &agent).await? {
            return Ok(Some(full));
        }
        self.wish(tx, &agent);
        let heads = self.heads(tx, &agent).await?;
        Ok(heads.is_empty().then(Polled::nothing))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Polled> {
        self.check()?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        if let Some(again) = self.given_before(tx).await? {
            return Ok(again);
        }
        // Two polls of one agent must not both find room for one more.
        let lock = Stmt::lock(
            "select 1 from agent where name = ?1 and max_concurrent is not null for update",
            params![&self.agent],
        );
        tx.one(lock).await?;
        let Some(mut agent) = load(tx, &self.agent).await?.filter(|agent| agent.left_at.is_none()) else {
            return Err(not_found(&self.agent));
        };
        if agent.to_be_heard_at() <= tx.now {
            hear(tx, &mut agent).await?;
        }
        if let Some(full) = self.full(tx, &agent).await? {
            return Ok(full);
        }
        self.wish(tx, &agent);
        let heads = self.heads(tx, &agent).await?;
        let order = trigger::in_order(heads, self.stale_ms.unwrap_or(STALE), tx.now);
        if order.first() == Some(&Type::PoolTask) && self.pool == PoolMode::Notify {
            return self.notify(tx).await;
        }
        if order.is_empty() {
            return Ok(Polled::nothing());
        }
        let holder = Holder::of(tx, &self.run, Some(&self.agent), Some(self.ttl_ms.unwrap_or(TTL)))?;
        let entered = tx.one(holder.enter(tx.now)).await?;
        let run_key = holder.key(&entered.rows)?;
        let pool = self.pool();
        let to = For { agent: &agent, holder: &holder, run_key, max: self.max_ms, pool: &pool };
        for kind in order {
            if kind == Type::PoolTask && self.pool == PoolMode::Notify {
                continue;
            }
            if let Some(trigger) = to.take(tx, kind).await? {
                self.remember(tx, run_key, &trigger).await?;
                return Ok(Polled { trigger: Some(trigger), held_back: None });
            }
        }
        // Others were quicker. The run was opened for nothing, and is not: it has nothing to be looked after.
        tx.execute("delete from run where key = ?1 and trigger_type is null", params![run_key]).await?;
        Ok(Polled::nothing())
    }
}

impl Poll {
    fn check(&self) -> Result<()> {
        check::plain_name("agent", &self.agent)?;
        run::check_name(&self.run)?;
        check::optional_name("tag", self.tag.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::span("stale_ms", self.stale_ms.unwrap_or(STALE), Millis(0), TTL_MAX)?;
        check::optional_text("host", self.host.as_deref(), NAME_MAX)
    }

    fn pool(&self) -> Pool {
        Pool { tag: self.tag.clone(), off: self.pool == PoolMode::Off }
    }

    fn accepts(&self, kind: Type) -> bool {
        self.accept.as_ref().is_none_or(|accept| accept.contains(&kind))
    }

    async fn heads(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<Vec<(Type, Time)>> {
        let mut heads = trigger::heads(tx, agent, &self.pool()).await?;
        heads.retain(|(kind, _)| self.accepts(*kind));
        Ok(heads)
    }

    /// What could make another answer of it: what is only for this agent; and what all like it wait for, of whom one is
    /// woken. Whoever would not take it must not wish for it: it would be woken in the place of one who would.
    fn wish(&self, tx: &mut Tx<'_>, agent: &Record) {
        let own = [Topic::agent(&self.agent), Topic::mail(&inbox::mailbox(&self.agent))];
        tx.wishes = vec![Wish::new(("poll", &self.agent, &self.accept), own)];
        tx.own_again_at = Some(agent.to_be_heard_at());
        match agent.role {
            Role::Lead if self.accepts(Type::TasksFinished) => {
                tx.wishes.push(Wish::new("finished", [Topic::tasks(), Topic::mail(FINISHED)]))
            }
            Role::Worker if self.accepts(Type::PoolTask) => match self.pool {
                PoolMode::Take => {
                    tx.wishes.push(Wish::new(("pool", &agent.capabilities, &self.tag), [Topic::pool()]));
                }
                PoolMode::Notify => {
                    tx.wishes.push(Wish::new(("told of the pool", &self.run), [Topic::pool()]));
                }
                PoolMode::Off => {}
            },
            _ => {}
        }
    }

    /// An agent that has as many triggers as it may have gets no more, until a run of its ends.
    async fn full(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<Option<Polled>> {
        let Some(max) = agent.max_concurrent else { return Ok(None) };
        let rows = tx
            .query(
                "select count(*) as n from run where agent = ?1 and ended_at is null and expires_at > ?2
                 and trigger_type is not null",
                params![&agent.name, tx.now],
            )
            .await?;
        let busy: i64 = rows[0].get("n")?;
        if busy < max {
            return Ok(None);
        }
        let topics = [Topic::agent(&self.agent), Topic::ended(Some(&self.agent))];
        // Each for itself: when there is room again, they are no longer alike.
        tx.wishes = vec![Wish::new(("full", &self.run), topics)];
        tx.own_again_at = Some(agent.to_be_heard_at());
        let held_back = format!("agent `{}` has {busy} triggers already, and may have {max}", agent.name);
        Ok(Some(Polled { trigger: None, held_back: Some(held_back) }))
    }

    async fn notify(&self, tx: &mut Tx<'_>) -> Result<Polled> {
        let count = trigger::available(tx).await?;
        let trigger = Trigger {
            kind: Type::PoolTasksAvailable,
            run: self.run.clone(),
            claims: Vec::new(),
            task: None,
            tasks: Vec::new(),
            messages: Vec::new(),
            channels: Vec::new(),
            count: Some(count),
        };
        Ok(Polled { trigger: Some(trigger), held_back: None })
    }

    /// The run has its trigger, for ever.
    async fn remember(&self, tx: &mut Tx<'_>, run_key: i64, trigger: &Trigger) -> Result<()> {
        let given = Given { claims: trigger.claims.iter().map(|claim| claim.token.clone()).collect() };
        let given = serde_json::to_string(&given).map_err(Error::internal)?;
        let event = Event {
            run: Some(self.run.clone()),
            agent: Some(self.agent.clone()),
            topic: Some(Topic::Nobody),
            details: Some(serde_json::json!({ "trigger": trigger.kind.as_str() })),
            ..Event::new("run.triggered", format!("run/{}", self.run))
        };
        let update = Stmt::new(
            "update run set trigger_type = ?2, given = ?3, host = ?4 where key = ?1 and trigger_type is null",
            params![run_key, trigger.kind.as_str(), given, self.host.as_deref()],
        );
        let statements = vec![update, event.insert(tx)];
        if tx.pipeline(statements).await?[0].affected == 0 {
            return Err(Error::again(format!("run `{}` was given something at this moment", self.run)));
        }
        Ok(())
    }

    /// A lost answer, asked for again: the same trigger, or that its run has ended.
    async fn given_before(&self, tx: &mut Tx<'_>) -> Result<Option<Polled>> {
        let rows = tx
            .query(
                "select key, ended_at, trigger_type, given, agent from run where name = ?1 order by key desc limit 1",
                params![&self.run],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(kind) = row.get::<Option<String>>("trigger_type")? else { return Ok(None) };
        if row.get::<Option<Time>>("ended_at")?.is_some() {
            let message = format!("run `{}` was given a trigger, and has ended", self.run);
            return Err(Error::new(Code::LeaseExpired, message)
                .with("run", &self.run)
                .hint("a run takes one trigger: poll with a new run"));
        }
        if row.get::<Option<String>>("agent")?.as_deref() != Some(&self.agent) {
            return Err(Error::invalid("run", format!("`{}` belongs to another agent", self.run)));
        }
        let kind: Type = serde_json::from_value(serde_json::json!(kind)).map_err(Error::internal)?;
        let given: Given = serde_json::from_str(&row.get::<String>("given")?).map_err(Error::internal)?;
        Ok(Some(Polled { trigger: Some(given.again(tx, kind, &self.run).await?), held_back: None }))
    }
}

/// What a run was given, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Given {
    pub claims: Vec<String>,
}

impl Given {
    pub fn tokens(&self) -> Result<Vec<Token>> {
        self.claims.iter().map(|token| Token::check(token)).collect()
    }

    /// As far as it is still held.
    async fn again(&self, tx: &mut Tx<'_>, kind: Type, run: &str) -> Result<Trigger> {
        let mut trigger = Trigger {
            kind,
            run: run.into(),
            claims: Vec::new(),
            task: None,
            tasks: Vec::new(),
            messages: Vec::new(),
            channels: Vec::new(),
            count: None,
        };
        let (mut notices, mut readers) = (Vec::new(), Vec::new());
        let (mut tasks, mut messages) = (Vec::new(), Vec::new());
        for token in self.tokens()? {
            match &token.resource {
                Resource::Task(id) => {
                    let held = task::load(tx, id).await?;
                    let held = held.filter(|task| {
                        task.hold
                            .as_ref()
                            .is_some_and(|hold| hold.fence == token.fence && hold.is_alive(tx.now))
                    });
                    if let Some(task) = held {
                        tasks.push((task.seq, token.clone()));
                        let view = task::full(tx, vec![task], vec![]).await?.1.remove(0);
                        trigger.claims.extend(view.claim.clone());
                        trigger.task = Some(view);
                    }
                }
                Resource::Message(id) => {
                    let Some(found) = mail::load(tx, *id).await? else { continue };
                    let is_held = found
                        .hold
                        .as_ref()
                        .is_some_and(|hold| hold.fence == token.fence && hold.is_alive(tx.now));
                    if is_held {
                        messages.push((*id, token.clone()));
                        let message = mail::show::of(tx, *id).await?;
                        trigger.claims.extend(message.claim.clone());
                        notices.push(message);
                    }
                }
                Resource::Mentions { agent, channel } => {
                    let held = channel::load(tx, agent, channel).await?;
                    let held = held.filter(|reader| {
                        reader
                            .hold
                            .as_ref()
                            .is_some_and(|hold| hold.fence == token.fence && hold.is_alive(tx.now))
                    });
                    if let Some(reader) = held {
                        trigger
                            .claims
                            .extend(reader.hold.as_ref().map(|hold| hold.claim(&reader.resource())));
                        trigger.channels.push(channel::reader::given(tx, &reader).await?);
                        readers.push(reader);
                    }
                }
                Resource::Lock(_) => {}
            }
        }
        let mut handed = Vec::new();
        if !tasks.is_empty() {
            handed.extend(deliver::again(tx, &tasks).await?);
        }
        if !messages.is_empty() {
            handed.extend(deliver::message_again(tx, &messages).await?);
        }
        if !readers.is_empty() {
            handed.extend(channel::again(tx, &readers).await?);
        }
        tx.handed = handed;
        match kind {
            Type::TasksFinished => trigger.tasks = trigger::finished_tasks(tx, notices.iter()).await?,
            _ => trigger.messages = notices.into_iter().map(inbox::Item::of).collect(),
        }
        trigger.count = match kind {
            Type::InboxMessage | Type::TasksFinished => Some(trigger.claims.len() as i64),
            Type::UnreadMentions => {
                Some(trigger.channels.iter().map(|given| given.mentions.len() as i64).sum())
            }
            _ => None,
        };
        Ok(trigger)
    }
}
