use super::{Run, RunRow, check_name, end, list, sweep};
use crate::{
    agent::poll::Given,
    before::Before,
    channel,
    clock::Time,
    error::{Code, Error, Result},
    mail,
    names::{OUTPUT_MAX, Resource, TEXT_MAX, check},
    op::{Access, Op},
    params, task,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End a trigger's run with its outcome, in one transaction: what the trigger gave, and was not dealt with one by one
/// before, is completed or has failed. An offer that was not decided is open again.
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
    /// Asking again with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
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
    /// As the run's reason says it.
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
    /// Those that were dealt with before, or lost.
    pub left: Vec<String>,
}

impl Op for Settle {
    const NAME: &'static str = "run/settle";
    const ACCESS: Access = Access::Agent;
    type Reply = Settled;

    fn before(&self) -> Before {
        Before::hears(&self.run, None).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Settled> {
        check_name(&self.run)?;
        check::optional_text("output", self.output.as_deref(), OUTPUT_MAX)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        check::optional_text("exit", self.exit.as_deref(), TEXT_MAX)?;
        let cost = self.cost.as_ref().map(ToString::to_string);
        check::optional_text("cost", cost.as_deref(), TEXT_MAX)?;
        check::request(self.request.as_deref())?;
        if tx.opening.is_repeat_by(Some(&self.run), "run.ended", None)? {
            return self.over(tx).await;
        }
        let Some(row) = end::lock(tx, &self.run).await?.filter(|run| run.is_alive(tx.now)) else {
            return self.over(tx).await;
        };
        let given = tx.query("select given from run where key = ?1", params![row.key]).await?;
        let given: Option<String> = given.first().map_or(Ok(None), |row| row.get("given"))?;
        let given = given.map_or(Ok(Given { claims: Vec::new() }), |text| serde_json::from_str(&text));
        let given: Given = given.map_err(Error::internal)?;
        let (mut settled, mut left) = (Vec::new(), Vec::new());
        // Each verb opens the transaction for itself, and has no id of its own: the run's end is what this one is known by.
        let request = tx.opening.request.take();
        for token in given.tokens()? {
            let done = match &token.resource {
                Resource::Mentions { agent, channel } => {
                    self.mentions(tx, agent, channel, &token, row.key).await
                }
                _ => self.item(tx, &token).await,
            };
            match done {
                Ok(()) => settled.push(token.to_string()),
                // Dealt with before, one by one, or taken away: that stands.
                Err(e)
                    if matches!(e.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled) =>
                {
                    left.push(token.to_string());
                }
                Err(e) => return Err(e),
            }
        }
        let reason = self.outcome.as_str();
        tx.opening.request = request;
        end::end(tx, std::slice::from_ref(&row), reason).await?;
        tx.opening.request = None;
        tx.execute(
            "update run set exit = ?2, cost = ?3 where key = ?1",
            params![row.key, self.exit.as_deref(), cost],
        )
        .await?;
        sweep::give_back(tx).await?;
        Ok(Settled { run: list::of(tx, row.key).await?, settled, left })
    }
}

impl Settle {
    /// Each is a verb of its own noun, in this transaction.
    async fn item(&self, tx: &mut Tx<'_>, token: &crate::names::Token) -> Result<()> {
        let is_task = matches!(token.resource, Resource::Task(_));
        let token_text = token.to_string();
        let reason =
            self.reason.clone().or_else(|| self.exit.clone()).unwrap_or_else(|| "its run failed".into());
        match (self.outcome, is_task) {
            (Outcome::Done, true) => {
                match tx.call(task::Done { token: token_text.clone(), output: self.output.clone() }).await {
                    // An offer that nobody decided on.
                    Err(e) if e.code() == Code::NotReady => {
                        tx.call(crate::claim::Release::new(token_text)).await.map(drop)
                    }
                    done => done.map(drop),
                }
            }
            (Outcome::Done, false) => {
                let outputs = self.output.iter().map(crate::Json::of).collect::<Result<_>>()?;
                tx.call(mail::Done { token: token_text, outputs, outcome: Some("read".into()) })
                    .await
                    .map(drop)
            }
            (Outcome::Failed, true) => {
                let fail = task::Fail { retry: true, ..task::Fail::new(token_text.clone(), reason) };
                match tx.call(fail).await {
                    Err(e) if e.code() == Code::NotReady => {
                        tx.call(crate::claim::Release::new(token_text)).await.map(drop)
                    }
                    failed => failed.map(drop),
                }
            }
            (Outcome::Failed, false) => {
                tx.call(mail::Fail { retry: true, ..mail::Fail::new(token_text, reason) }).await.map(drop)
            }
            (Outcome::Released, _) => tx.call(crate::claim::Release::new(token_text)).await.map(drop),
        }
    }

    async fn mentions(
        &self,
        tx: &mut Tx<'_>,
        agent: &str,
        channel: &str,
        token: &crate::names::Token,
        run: i64,
    ) -> Result<()> {
        let held = channel::reader::load_locked(tx, agent, channel).await?;
        let held = held.filter(|held| {
            held.hold.as_ref().is_some_and(|hold| hold.fence == token.fence && hold.run_key == run)
        });
        let Some(held) = held else {
            return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` is over")));
        };
        match self.outcome {
            Outcome::Done => channel::settle(tx, &held).await,
            _ => channel::release::release(tx, agent, channel, token).await.map(drop),
        }
    }

    /// Asking twice is safe: the run as it ended. One that lapsed is refused.
    async fn over(&self, tx: &mut Tx<'_>) -> Result<Settled> {
        let rows = tx
            .query(
                "select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason from run
                 where name = ?1 and ended_at is not null order by key desc limit 1",
                params![&self.run],
            )
            .await?;
        let run = rows.first().map(RunRow::read).transpose()?;
        let settled = |run: &&RunRow| {
            matches!(run.reason.as_deref(), Some("done" | "failed" | "released"))
                && run.ended_at.is_some_and(|at: Time| at <= tx.now)
        };
        match run.as_ref().filter(settled) {
            Some(run) if run.reason.as_deref() != Some(self.outcome.as_str()) => {
                let how = run.reason.as_deref().unwrap_or_default();
                let message = format!("run `{}` has ended already, as `{how}` and not in this way", self.run);
                Err(Error::new(Code::AlreadyFinished, message).hint("the first answer stands"))
            }
            Some(run) => {
                Ok(Settled { run: list::of(tx, run.key).await?, settled: Vec::new(), left: Vec::new() })
            }
            None if run.is_some() => Err(Error::new(
                Code::LeaseExpired,
                format!("run `{}` is over: what it was given went to others", self.run),
            )
            .hint("what you did is not accepted; poll with a new run")),
            None => Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run))),
        }
    }
}
