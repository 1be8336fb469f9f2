use super::{
    Run, RunRow, check_name,
    end::{self, Hands},
    list, runs, sweep,
};
use crate::{
    db::tx::{Row, Stmt, Tx},
    engine::{
        op::{Access, Op, erased, refuses},
        prelude::Before,
    },
    error::{Code, Error, Result},
    names::{OUTPUT_MAX, Resource, TEXT_MAX, Token, check},
    ops::{
        agent::given::Given,
        channel,
        claim::{self, Hold, Last},
        mail, task,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End a trigger's run with its outcome, in one transaction: what the trigger gave, and was not dealt with one by one
/// before, is completed or has failed. An offer that was not decided is open again, until that was so three times.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settle {
    pub run: String,
    /// `done` unless said.
    #[serde(default)]
    pub outcome: Outcome,
    /// What came of it: kept with the task or the messages.
    #[serde(default)]
    pub output: Option<String>,
    /// Why it failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// How its process ended.
    #[serde(default)]
    pub exit: Option<String>,
    /// What it cost.
    #[serde(default)]
    pub cost: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Done,
    /// To be tried again, while attempts are left.
    Failed,
    /// Given back as it was: the attempt does not count.
    Released,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Released => "released",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settled {
    pub run: Run,
    /// The claims that were settled with it.
    pub settled: Vec<String>,
    /// Those that only went back: what was released, an offer that nobody decided on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<String>,
    /// Those that were dealt with before, one by one.
    pub left: Vec<String>,
    /// Those that were taken from it, or whose own time was up: what was done there is not accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Op for Settle {
    const NAME: &'static str = "run/settle";
    const ACCESS: Access = Access::Agent;
    refuses![NotReady, LeaseExpired, AlreadyFinished];
    const SAME: bool = true;
    type Reply = Settled;
    erased!();

    fn before(&self) -> Before {
        let reads = match check_name(&self.run) {
            Ok(()) => vec![end::locked(&self.run), given_to(&self.run), list::tokens_of(&self.run)],
            Err(_) => Vec::new(),
        };
        Before::hears(&self.run, None).reading(reads)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Settled> {
        check_name(&self.run)?;
        check::optional_text("output", self.output.as_deref(), OUTPUT_MAX)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        check::optional_text("exit", self.exit.as_deref(), TEXT_MAX)?;
        let cost = self.cost.as_ref().map(ToString::to_string);
        check::optional_json("cost", cost.as_deref(), TEXT_MAX)?;
        // Locked, so that nobody is heard under it meanwhile.
        let Some(row) = tx.opening.run.clone().filter(|run| run.is_alive(tx.now)) else {
            return self.over(tx).await;
        };
        let held = tx.opening.read.pop().unwrap_or_default().rows;
        let held = held.iter().map(|row| row.get("token")).collect::<Result<Vec<String>>>()?;
        let read = tx.opening.read.pop().unwrap_or_default().rows;
        let mut given = self.given(read.first())?;
        let (trigger, host) = read
            .first()
            .map_or(Ok((None, None)), |row| Ok::<_, Error>((row.get("trigger_type")?, row.get("host")?)))?;
        given.settled = Some(Vec::new());
        for token in given.tokens()? {
            // Dealt with before, one by one, which stands; or lost.
            if !held.contains(&token.to_string()) {
                if !is_its_own_doing(tx, &token).await? {
                    given.lost.push(token.to_string());
                }
                continue;
            }
            let done = match &token.resource {
                Resource::Mentions { agent, channel } => {
                    self.mentions(tx, agent, channel, &token, row.key).await
                }
                _ => self.item(tx, &token).await,
            };
            match done {
                Ok(true) => given.settled.get_or_insert_default().push(token.to_string()),
                Ok(false) => given.back.push(token.to_string()),
                // Its own time was up, or it was dealt with at this moment.
                Err(e)
                    if matches!(e.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled) =>
                {
                    if !is_its_own_doing(tx, &token).await? {
                        given.lost.push(token.to_string());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        let reason = self.outcome.as_str();
        given.said = Some(self.said());
        let settled = given.settled.as_deref().unwrap_or_default();
        let hands = if held.iter().all(|token| settled.contains(token)) { Hands::Empty } else { Hands::Full };
        let mut statements = vec![Stmt::new(
            "update run set exit = ?2, cost = ?3, given = ?4 where key = ?1",
            params![row.key, self.exit.as_deref(), cost, given.text()?],
        )];
        statements.extend(end::statements(tx, std::slice::from_ref(&row), reason, hands)?);
        let ended = tx.pipeline(statements).await?.pop();
        if hands == Hands::Full || ended.is_none_or(|settled| settled.affected == 0) {
            sweep::give_back(tx).await?;
        }
        let run = RunRow { ended_at: Some(tx.now), reason: Some(reason.into()), ..row }.view(tx.now);
        let run = Run { trigger, host, exit: self.exit, cost: self.cost, ..run };
        Ok(given.told(run))
    }
}

/// What a poll gave to this run.
fn given(run: i64) -> Stmt {
    let sql = "select given, trigger_type, host from run where key = ?1 and trigger_type is not null";
    Stmt::new(sql, params![run])
}

/// The same, of the unended run of this name.
fn given_to(run: &str) -> Stmt {
    Stmt::new(
        "select given, trigger_type, host from run
         where name = ?1 and ended_at is null and trigger_type is not null",
        params![run],
    )
}

impl Settle {
    fn given(&self, row: Option<&Row>) -> Result<Given> {
        let Some(row) = row else {
            return Err(Error::new(Code::NotReady, format!("run `{}` was given no trigger", self.run))
                .hint("fence end gives back what a run holds"));
        };
        Given::read(row.get("given")?)
    }

    /// What tells a repeat from something else.
    fn said(&self) -> String {
        let content = [Some(self.outcome.as_str()), self.output.as_deref(), self.reason.as_deref()];
        Last::new(0, "settle", &content).digest
    }

    /// Each is a verb of its own noun, in this transaction. Says whether it was settled, or only goes back.
    async fn item(&self, tx: &mut Tx<'_>, token: &Token) -> Result<bool> {
        let is_task = matches!(token.resource, Resource::Task(_));
        let token_text = token.to_string();
        let reason =
            self.reason.clone().or_else(|| self.exit.clone()).unwrap_or_else(|| "its run failed".into());
        match (self.outcome, is_task) {
            (Outcome::Done, true) => {
                let done = task::Done { token: token_text, output: self.output.clone() };
                unless_undecided(tx.part(done).await)
            }
            (Outcome::Done, false) => {
                let outputs = self.output.iter().map(crate::Json::of).collect::<Result<_>>()?;
                let done = mail::Done { token: token_text, outputs, outcome: Some("read".into()) };
                tx.part(done).await.map(|_| true)
            }
            (Outcome::Failed, true) => {
                let fail = task::Fail { retry: true, ..task::Fail::new(token_text, reason) };
                unless_undecided(tx.part(fail).await)
            }
            (Outcome::Failed, false) => {
                let fail = mail::Fail { retry: true, ..mail::Fail::new(token_text, reason) };
                tx.part(fail).await.map(|_| true)
            }
            (Outcome::Released, _) => tx.part(claim::Release::new(token_text)).await.map(|_| false),
        }
    }

    async fn mentions(
        &self,
        tx: &mut Tx<'_>,
        agent: &str,
        channel: &str,
        token: &Token,
        run: i64,
    ) -> Result<bool> {
        let held = channel::reader::load_locked(tx, agent, channel).await?;
        let held = held.filter(|held| {
            let is_its =
                |hold: &Hold| hold.fence == token.fence && hold.run_key == run && hold.is_alive(tx.now);
            held.hold.as_ref().is_some_and(is_its)
        });
        let Some(held) = held else {
            return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` is over")));
        };
        match self.outcome {
            Outcome::Done => channel::settle(tx, &held).await.map(|()| true),
            Outcome::Failed => channel::release::fail(tx, &held, run).await.map(|()| true),
            Outcome::Released => channel::release::release(tx, agent, channel, token).await.map(|_| false),
        }
    }

    /// Asking twice is safe: the first answer. One that lapsed, or ended otherwise, is refused.
    async fn over(&self, tx: &mut Tx<'_>) -> Result<Settled> {
        let sql = runs!("where name = ?1 order by key desc limit 1");
        let Some(run) = tx.query(sql, params![&self.run]).await?.first().map(RunRow::read).transpose()?
        else {
            return Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run)));
        };
        tx.caller.may_use(&run.name, run.agent.as_deref())?;
        let given = self.given(tx.one(given(run.key)).await?.rows.first())?;
        if given.settled.is_none() {
            return Err(Error::new(
                Code::LeaseExpired,
                format!("run `{}` is over: what it was given went to others", self.run),
            )
            .hint("what you did is not accepted; poll with a new run"));
        }
        if given.said.as_ref().is_some_and(|said| *said != self.said()) {
            let reason = run.reason.unwrap_or_default();
            return Err(Error::new(
                Code::AlreadyFinished,
                format!("run `{}` was settled as {reason}, and not in this way", self.run),
            )
            .hint("what was settled stands"));
        }
        Ok(given.told(list::of(tx, run.key).await?))
    }
}

/// A review that came to nothing: the end of its run, which follows, gives the offer back, and counts it.
fn unless_undecided<T>(answer: Result<T>) -> Result<bool> {
    match answer {
        Err(e) if e.code() == Code::NotReady => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// Was a claim that is over ended by its holder, and not taken away?
async fn is_its_own_doing(tx: &mut Tx<'_>, token: &Token) -> Result<bool> {
    let last = claim::look(tx, &token.resource).await?.and_then(|look| look.last);
    if let Some(last) = last.filter(|last| last.fence == token.fence) {
        return Ok(claim::ENDED_BY_HOLDER.contains(&last.verb.as_str()));
    }
    // The row is gone, or another claim on it ended since. The log still says how this one ended. Failures that
    // were told name the attempt; those of a holder that was lost do not.
    let rows = tx
        .query(
            "select kind, details from event
             where resource = ?1 and fence = ?2 and from_state <> to_state and kind in (
               'task.completed', 'task.failed', 'task.retrying', 'task.released', 'task.accepted', 'task.rejected',
               'message.completed', 'message.failed', 'message.retrying', 'message.released', 'message.held',
               'message.discarded', 'mentions.released')",
            params![token.resource.to_string(), token.fence],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let kind: String = row.get("kind")?;
    if !["failed", "held", "discarded"].iter().any(|state| kind.ends_with(state)) {
        return Ok(true);
    }
    let details: Option<String> = row.get("details")?;
    let details: serde_json::Value =
        serde_json::from_str(details.as_deref().unwrap_or("null")).map_err(Error::internal)?;
    Ok(details.get("attempt").is_some())
}
