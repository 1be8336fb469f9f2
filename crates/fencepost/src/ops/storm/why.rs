use super::{
    facts::{Facts, Reader, Roots, readers},
    rule::{Decision, Why as Reason, decide},
    settings::Settings,
    state,
    wakeups::{check_channel, is_online},
};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Explain whether unread posts of a channel wake an agent: if not, why not, and when they could.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Why {
    pub channel: String,
    pub agent: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    pub channel: String,
    pub agent: String,
    /// The agent is a member of the channel. Only members are woken.
    pub member: bool,
    pub online: bool,
    /// Unread posts of others that may wake it.
    pub unread: i64,
    pub state: WakeState,
    /// Why it is not woken now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Reason>,
    /// It could be woken at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The message of its last wake-up, while that is unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<i64>,
    /// The run that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Why that wake-up was handed out again: `callback_retry` or `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<String>,
    /// An explanation in one sentence.
    pub explanation: String,
}

/// Whether unread posts wake an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WakeState {
    /// There is nothing unread that may wake it.
    Nothing,
    /// Its wake-up waits for a poll.
    Pending,
    /// A run works on its wake-up.
    Running,
    /// The next tick wakes it.
    Due,
    /// A limit holds its wake-up back.
    Suppressed,
}

impl Op for Why {
    const NAME: &'static str = "storm/why";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"channel":"general","agent":"codex-1"}"#;
    const READS: bool = true;
    type Reply = Explained;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Explained> {
        check_channel(tx, &self.channel).await?;
        check::plain_name("agent", &self.agent)?;
        let online = !tx.one(is_online(&self.agent, tx.now)).await?.rows.is_empty();
        let sql = readers!("where reader.agent = ?1 and reader.channel = ?2 and reader.member = 1");
        let found = tx.query(sql, params![&self.agent, &self.channel]).await?;
        let mut explained = Explained {
            member: !found.is_empty(),
            online,
            unread: 0,
            state: WakeState::Nothing,
            why: None,
            until: None,
            message: None,
            run: None,
            reclaimed: None,
            explanation: format!(
                "agent `{}` is no member of `{}`: only members are woken",
                self.agent, self.channel
            ),
            channel: self.channel,
            agent: self.agent,
        };
        let Some(row) = found.first() else { return Ok(explained) };
        let mut reader = Reader::read(row)?;
        // Posts that no tick has marked yet count, too.
        let last =
            tx.query("select next_n - 1 as n from channel where name = ?1", params![&reader.channel]).await?;
        reader.wake = last.first().map_or(Ok(reader.wake), |row| row.get("n"))?;
        let settings = Settings::load(tx).await?;
        let (breaker, _) = state::read(&tx.one(state::stmt()).await?.rows)?;
        let facts = Facts::load(tx, std::slice::from_ref(&reader), &settings, Roots::Read).await?;
        let pair = &facts.pairs[&reader.pair()];
        explained.unread = pair.wakers.len() as i64;
        if explained.job(tx).await? {
            return Ok(explained);
        }
        let decision = decide(pair, &settings.limits(&reader.channel), |root| facts.fanout(root), tx.now);
        let decision = match decision {
            Decision::Wake(_) if breaker.is_open() => {
                Decision::Suppress { why: Reason::Breaker, until: breaker.open_until }
            }
            decision => decision,
        };
        explained.explain(&decision);
        Ok(explained)
    }
}

impl Explained {
    /// Adds the unfinished wake-up, if there is one.
    async fn job(&mut self, tx: &mut Tx<'_>) -> Result<bool> {
        let rows = tx
            .query(
                "select message.id, message.attempts, run.name from wakeup join message on message.id = wakeup.message
                 left join run on run.key = message.run and run.ended_at is null and run.expires_at > ?3
                 where wakeup.agent = ?1 and wakeup.channel = ?2 and message.finished_at is null
                 order by wakeup.n desc limit 1",
                params![&self.agent, &self.channel, tx.now],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let id: i64 = row.get("id")?;
        (self.message, self.run) = (Some(id), row.get("name")?);
        let rows = tx
            .query(
                "select details from event where resource = ?1 and kind = 'wakeup.reclaimed' order by id desc limit 1",
                params![format!("message/{id}")],
            )
            .await?;
        if let Some(row) = rows.first() {
            let details: Option<String> = row.get("details")?;
            let details: serde_json::Value =
                serde_json::from_str(details.as_deref().unwrap_or("null")).unwrap_or_default();
            self.reclaimed = details["reason"].as_str().map(str::to_owned);
        }
        let again =
            self.reclaimed.as_ref().map_or(String::new(), |why| format!(", handed out again ({why})"));
        (self.state, self.explanation) = match &self.run {
            Some(run) => (WakeState::Running, format!("run `{run}` works on wake-up message/{id}{again}")),
            None => (
                WakeState::Pending,
                format!("wake-up message/{id} waits for a poll of `{}`{again}", self.agent),
            ),
        };
        Ok(true)
    }

    fn explain(&mut self, decision: &Decision) {
        let text = match decision {
            Decision::Nothing => {
                self.state = WakeState::Nothing;
                "nothing is unread that has not woken it before".to_owned()
            }
            Decision::Wake(_) => {
                self.state = WakeState::Due;
                "the next tick wakes it; without a server, fence storm tick does".to_owned()
            }
            Decision::Suppress { why, until } => {
                // A busy pair is only looked at again then.
                let until = until.filter(|_| *why != Reason::Busy);
                (self.state, self.why, self.until) = (WakeState::Suppressed, Some(*why), until);
                let reason = match why {
                    Reason::Disabled => {
                        "wake-ups are switched off; fence storm set enabled=on switches them on"
                    }
                    Reason::Offline => "the agent is offline: it is woken when it polls again",
                    Reason::NotAccepted => {
                        "no poll of the agent accepts wake-ups: fence work does, and fence poll --accept unread_wakeup"
                    }
                    Reason::Budget => "it had all its wake-ups of this window",
                    Reason::Interval => "its last wake-up was too short a time ago",
                    Reason::Breaker => "the breaker is open",
                    Reason::Depth => "these posts end a chain of causes that is too long",
                    Reason::Fanout => "the root of these posts triggered too many runs",
                    Reason::Busy => "its mentions in this channel come first",
                };
                match until {
                    Some(until) => format!("{reason}; it could be woken at {until}"),
                    None => reason.to_owned(),
                }
            }
        };
        self.explanation = text;
    }
}
