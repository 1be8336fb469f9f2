use super::{Run, list};
pub use crate::lease::claimable::Outcome;
use crate::{
    caller::Access,
    clock::Millis,
    db::{Answers, Batch, Row, RunRow, Slot, Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::Token,
    lease::{
        Last,
        claimable::Settlement,
        ending::{self, Holds},
        expiry,
        hold::ENDED_BY_HOLDER,
        run::{check_name, runs},
    },
    limits::{OUTPUT_MAX, TEXT_MAX, TTL_MAX, check},
    ops::{agent::given::Given, nouns, spend::cost::Cost, task},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Finish a polled run, in one transaction: complete or fail everything it still holds. An offer without a decision
/// goes back to the agent, up to three times.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settle {
    pub run: String,
    /// Default: `done`.
    #[serde(default)]
    pub outcome: Outcome,
    /// The result. It is kept with the task or the messages. If the work failed or is given back: the output of this
    /// attempt, kept with the run.
    #[serde(default)]
    pub output: Option<String>,
    /// The reason of a failure.
    #[serde(default)]
    pub reason: Option<String>,
    /// The delay until failed work is retried (default: the backoff), or until released work can be taken again (default:
    /// none). It is for tasks and messages; offers and mentions come back at once.
    #[serde(default)]
    pub delay_ms: Option<Millis>,
    /// The exit status of the process.
    #[serde(default)]
    pub exit: Option<String>,
    /// The cost: any JSON. Of an object, `usd` (dollars, a decimal number), `tokens_in` and `tokens_out` (integers) count for the
    /// spend limits; other keys are kept and not counted.
    #[serde(default)]
    pub cost: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settled {
    pub run: Run,
    /// The claims that this call completed or failed.
    pub settled: Vec<String>,
    /// The claims that only went back: a released item, or an offer without a decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<String>,
    /// The claims that the run ended itself before.
    pub left: Vec<String>,
    /// The claims that were taken away, or that reached their own limit: their work is not accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Op for Settle {
    const NAME: &'static str = "run/settle";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"run":"r-1"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished];
    type Reply = Settled;
    erased!();

    fn prelude(&self) -> Prelude {
        let is_name = check_name(&self.run).is_ok();
        let reads = if is_name { self.opening().0 } else { Batch::new() };
        Prelude::renews(&self.run, None).reading(reads.into_statements())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Settled> {
        check_name(&self.run)?;
        check::optional_text("output", self.output.as_deref(), OUTPUT_MAX)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        check::optional_text("exit", self.exit.as_deref(), TEXT_MAX)?;
        check::span("delay_ms", self.delay_ms.unwrap_or(Millis(0)), Millis(0), TTL_MAX)?;
        check::optional_json("cost", self.cost.as_ref().map(ToString::to_string).as_deref(), TEXT_MAX)?;
        Cost::of(self.cost.as_ref())?;
        // The row is locked, so that no other call renews the run meanwhile.
        let Some(row) = tx.opening.run.clone().filter(|run| run.is_alive(tx.now)) else {
            return self.reply_after_end(tx).await;
        };
        let (_, first) = self.opening();
        let mut answers = Answers::new(std::mem::take(&mut tx.opening.read));
        let held = answers.take(first.held).rows;
        let held = held.iter().map(|row| row.get("token")).collect::<Result<Vec<String>>>()?;
        let read = answers.take(first.given).rows;
        let given = self.given(read.first())?;
        let (trigger, host) = read
            .first()
            .map_or(Ok((None, None)), |row| Ok::<_, Error>((row.get("trigger_type")?, row.get("host")?)))?;
        let given = self.end(tx, &row, given, &held, "release").await?;
        let run = RunRow { ended_at: Some(tx.now), reason: Some(self.outcome.as_str().into()), ..row };
        let run = Run { trigger, host, exit: self.exit, cost: self.cost, ..run.view(tx.now) };
        Ok(given.into_reply(run))
    }
}

impl Settle {
    /// Ends a living run, which is locked, and everything that it still holds. Returns the stored report.
    async fn end(
        &self,
        tx: &mut Tx<'_>,
        row: &RunRow,
        mut given: Given,
        held: &[String],
        release_verb: &'static str,
    ) -> Result<Given> {
        given.settled = Some(Vec::new());
        let settlement = self.settlement(row.key, release_verb);
        for token in given.tokens()? {
            // The holder ended this claim before, which is kept, or it was lost.
            if !held.contains(&token.to_string()) {
                if !was_ended_by_holder(tx, &token).await? {
                    given.lost.push(token.to_string());
                }
                continue;
            }
            let done = nouns().of(&token.resource)?.settle(tx, &token, &settlement).await;
            match done {
                Ok(true) => given.settled.get_or_insert_default().push(token.to_string()),
                Ok(false) => given.back.push(token.to_string()),
                // The claim reached its own limit, or another call ended it meanwhile.
                Err(e)
                    if matches!(e.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled) =>
                {
                    if !was_ended_by_holder(tx, &token).await? {
                        given.lost.push(token.to_string());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        let reason = self.outcome.as_str();
        // Tasks that the run claimed by hand did not fail either.
        let by_hand = held.iter().any(|token| !given.claims.contains(token));
        if self.outcome == Outcome::Released && by_hand {
            task::release::unclaim_of(tx, row.key, reason).await?;
        }
        given.said = Some(self.digest());
        let settled = given.settled.as_deref().unwrap_or_default();
        let holds = match held.iter().all(|token| settled.contains(token)) {
            true => Holds::Nothing(nouns()),
            false => Holds::Perhaps,
        };
        let cost = self.cost.as_ref().map(ToString::to_string);
        let output = self.output.as_deref().filter(|_| self.outcome != Outcome::Done);
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "update run set exit = ?2, cost = ?3, given = ?4, output = ?5 where key = ?1",
            params![row.key, self.exit.as_deref(), cost, given.text()?, output],
        ));
        if let Some(stored) = Cost::of(self.cost.as_ref())?.store(row.key) {
            batch.add(stored);
        }
        let marked = ending::add_end(&mut batch, tx, std::slice::from_ref(row), reason, holds)?;
        let answers = tx.send(batch).await?;
        if marked.is_none_or(|marked| answers.affected(marked) == 0) {
            expiry::give_back(tx, nouns()).await?;
        }
        Ok(given)
    }
}

/// The lock that a process of this agent holds while it follows a notice about the pool, which claims nothing itself.
pub fn notice_lock(agent: &str) -> String {
    format!("pool-notice/{agent}")
}

/// Ends the live triggers of these agents: each is settled as `released`, but its holder did not give the items back, it lost them.
/// Also ends the runs that follow a notice about the pool. Returns the names of the runs. The caller has locked the agents, so that
/// no poll begins another trigger.
pub(crate) async fn release_triggers<'a>(
    tx: &mut Tx<'_>,
    agents: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>> {
    let names = set(agents.map(|name| serde_json::json!({ "name": name })))?;
    let rows = tx
        .query(
            runs!(
                "where agent in (select value ->> 'name' from json_each(?1)) and ended_at is null and expires_at > ?2
                 and (trigger_type is not null or key in (select lock.run from lock where lock.name = 'pool-notice/' || agent))
                 order by key /*pg for update*/"
            ),
            params![names, tx.now],
        )
        .await?;
    let runs = rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    let mut ended = Vec::with_capacity(runs.len());
    for run in runs {
        let settle = Settle { run: run.name.clone(), outcome: Outcome::Released, ..Settle::default() };
        let mut batch = Batch::new();
        let given = batch.add(given_by_key(run.key));
        let held = batch.add(nouns().tokens_of_name(&run.name));
        let mut answers = tx.send(batch).await?;
        let given = answers.take(given).rows;
        if given.is_empty() {
            // A notice is no trigger: its run claimed everything by hand.
            task::release::unclaim_of(tx, run.key, settle.outcome.as_str()).await?;
            ending::end(tx, std::slice::from_ref(&run), settle.outcome.as_str()).await?;
            expiry::give_back(tx, nouns()).await?;
            ended.push(run.name);
            continue;
        }
        let given = settle.given(given.first())?;
        let held = answers.take(held).rows;
        let held = held.iter().map(|row| row.get("token")).collect::<Result<Vec<String>>>()?;
        settle.end(tx, &run, given, &held, "pause").await?;
        ended.push(run.name);
    }
    Ok(ended)
}

/// Reads the items that a poll gave to this run.
fn given_by_key(run: i64) -> Stmt {
    let sql = "select given, trigger_type, host from run where key = ?1 and trigger_type is not null";
    Stmt::read(sql, params![run])
}

/// The same for the unended run of this name.
fn given_by_name(run: &str) -> Stmt {
    Stmt::read(
        "select given, trigger_type, host from run
         where name = ?1 and ended_at is null and trigger_type is not null",
        params![run],
    )
}

/// The slots of the statements that a settlement reads first.
#[derive(Debug, Clone, Copy)]
struct FirstReads {
    given: Slot,
    held: Slot,
}

impl Settle {
    /// The statements that the transaction begins with.
    fn opening(&self) -> (Batch, FirstReads) {
        let mut batch = Batch::new();
        batch.add(ending::locked(&self.run));
        let given = batch.add(given_by_name(&self.run));
        let held = batch.add(nouns().tokens_of_name(&self.run));
        (batch, FirstReads { given, held })
    }

    fn given(&self, row: Option<&Row>) -> Result<Given> {
        let Some(row) = row else {
            return Err(Error::new(Code::NotReady, format!("run `{}` has no trigger", self.run))
                .hint("fence end gives back all items of a run"));
        };
        Given::read(row.get("given")?)
    }

    /// A digest of the request, to tell a repeat from a different settlement.
    fn digest(&self) -> String {
        let content = [Some(self.outcome.as_str()), self.output.as_deref(), self.reason.as_deref()];
        Last::new(0, "settle", &content).digest
    }

    fn settlement(&self, run: i64, release_verb: &'static str) -> Settlement {
        let reason = self.reason.clone().or_else(|| self.exit.clone());
        Settlement {
            outcome: self.outcome,
            run,
            release_verb,
            output: self.output.clone(),
            delay: self.delay_ms,
            reason: reason.unwrap_or_else(|| "its run failed".into()),
        }
    }

    /// Repeating the call is safe: it returns the first reply. A run that lapsed or ended in another way is refused.
    async fn reply_after_end(&self, tx: &mut Tx<'_>) -> Result<Settled> {
        let sql = runs!("where name = ?1 order by key desc limit 1");
        let Some(run) = tx.query(sql, params![&self.run]).await?.first().map(RunRow::read).transpose()?
        else {
            return Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run)));
        };
        tx.caller.may_use(&run.name, run.agent.as_deref())?;
        let given = self.given(tx.one(given_by_key(run.key)).await?.rows.first())?;
        if given.settled.is_none() {
            return Err(Error::new(
                Code::LeaseExpired,
                format!("run `{}` is over: its items went to others", self.run),
            )
            .hint("this work is not accepted; poll with a new run"));
        }
        if given.said.as_ref().is_some_and(|said| *said != self.digest()) {
            let reason = run.reason.unwrap_or_default();
            return Err(Error::new(
                Code::AlreadyFinished,
                format!("run `{}` was already settled as {reason} with different content", self.run),
            )
            .hint("the first result is kept"));
        }
        Ok(given.into_reply(list::of(tx, run.key).await?))
    }
}

/// Whether an ended claim was ended by its holder, not taken away.
async fn was_ended_by_holder(tx: &mut Tx<'_>, token: &Token) -> Result<bool> {
    let noun = nouns().of(&token.resource)?;
    let last = noun.claim_state(tx, token.resource.id()).await?.and_then(|state| state.last);
    if let Some(last) = last.filter(|last| last.fence == token.fence) {
        return Ok(ENDED_BY_HOLDER.contains(&last.verb.as_str()));
    }
    // The row is gone, or another claim on it ended since. The log still has the end of this one: a failure that
    // the holder reported names the attempt, one of a lost holder does not.
    let rows = tx
        .query(
            "select kind, details from event where resource = ?1 and fence = ?2 and from_state <> to_state order by id",
            params![token.resource.to_string(), token.fence],
        )
        .await?;
    for row in &rows {
        let kind: String = row.get("kind")?;
        if !noun.ended_by_holder().contains(&kind.as_str()) {
            continue;
        }
        if !["failed", "held", "discarded"].iter().any(|state| kind.ends_with(state)) {
            return Ok(true);
        }
        let details: Option<String> = row.get("details")?;
        let details: serde_json::Value =
            serde_json::from_str(details.as_deref().unwrap_or("null")).map_err(Error::internal)?;
        return Ok(details.get("attempt").is_some());
    }
    Ok(false)
}
