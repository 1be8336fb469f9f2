use super::{Run, list};
pub use crate::lease::claimable::Outcome;
use crate::{
    caller::Access,
    db::{Answers, Batch, Row, RunRow, Slot, Stmt, Tx},
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
    limits::{OUTPUT_MAX, TEXT_MAX, check},
    ops::{agent::given::Given, nouns},
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
        let cost = self.cost.as_ref().map(ToString::to_string);
        check::optional_json("cost", cost.as_deref(), TEXT_MAX)?;
        // Locked, so that nobody is heard under it meanwhile.
        let Some(row) = tx.opening.run.clone().filter(|run| run.is_alive(tx.now)) else {
            return self.over(tx).await;
        };
        let (_, first) = self.opening();
        let mut answers = Answers::new(std::mem::take(&mut tx.opening.read));
        let held = answers.take(first.held).rows;
        let held = held.iter().map(|row| row.get("token")).collect::<Result<Vec<String>>>()?;
        let read = answers.take(first.given).rows;
        let mut given = self.given(read.first())?;
        let (trigger, host) = read
            .first()
            .map_or(Ok((None, None)), |row| Ok::<_, Error>((row.get("trigger_type")?, row.get("host")?)))?;
        given.settled = Some(Vec::new());
        let settlement = self.settlement(row.key);
        for token in given.tokens()? {
            // Dealt with before, one by one, which stands; or lost.
            if !held.contains(&token.to_string()) {
                if !is_its_own_doing(tx, &token).await? {
                    given.lost.push(token.to_string());
                }
                continue;
            }
            let done = nouns().of(&token.resource)?.settle(tx, &token, &settlement).await;
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
        let holds = match held.iter().all(|token| settled.contains(token)) {
            true => Holds::Nothing(nouns()),
            false => Holds::Perhaps,
        };
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "update run set exit = ?2, cost = ?3, given = ?4 where key = ?1",
            params![row.key, self.exit.as_deref(), cost, given.text()?],
        ));
        let marked = ending::add_end(&mut batch, tx, std::slice::from_ref(&row), reason, holds)?;
        let answers = tx.send(batch).await?;
        if marked.is_none_or(|marked| answers.affected(marked) == 0) {
            expiry::give_back(tx, nouns()).await?;
        }
        let run = RunRow { ended_at: Some(tx.now), reason: Some(reason.into()), ..row }.view(tx.now);
        let run = Run { trigger, host, exit: self.exit, cost: self.cost, ..run };
        Ok(given.told(run))
    }
}

/// What a poll gave to this run.
fn given(run: i64) -> Stmt {
    let sql = "select given, trigger_type, host from run where key = ?1 and trigger_type is not null";
    Stmt::read(sql, params![run])
}

/// The same, of the unended run of this name.
fn given_to(run: &str) -> Stmt {
    Stmt::read(
        "select given, trigger_type, host from run
         where name = ?1 and ended_at is null and trigger_type is not null",
        params![run],
    )
}

/// The statements that a settlement reads first.
#[derive(Debug, Clone, Copy)]
struct FirstReads {
    given: Slot,
    held: Slot,
}

impl Settle {
    /// The call opens with these.
    fn opening(&self) -> (Batch, FirstReads) {
        let mut batch = Batch::new();
        batch.add(ending::locked(&self.run));
        let given = batch.add(given_to(&self.run));
        let held = batch.add(nouns().tokens_of_name(&self.run));
        (batch, FirstReads { given, held })
    }

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

    fn settlement(&self, run: i64) -> Settlement {
        let reason = self.reason.clone().or_else(|| self.exit.clone());
        Settlement {
            outcome: self.outcome,
            run,
            output: self.output.clone(),
            reason: reason.unwrap_or_else(|| "its run failed".into()),
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

/// Was a claim that is over ended by its holder, and not taken away?
async fn is_its_own_doing(tx: &mut Tx<'_>, token: &Token) -> Result<bool> {
    let noun = nouns().of(&token.resource)?;
    let last = noun.claim_state(tx, token.resource.id()).await?.and_then(|state| state.last);
    if let Some(last) = last.filter(|last| last.fence == token.fence) {
        return Ok(ENDED_BY_HOLDER.contains(&last.verb.as_str()));
    }
    // The row is gone, or another claim on it ended since. The log still says how this one ended. A failure that its
    // holder reported names the attempt; that of a lost holder does not.
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
