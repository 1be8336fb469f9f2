use super::{BY_NAME, LAPSED, Lease, Run, RunRow, check_name, runs, sweep};
use crate::{
    db::tx::{Stmt, Tx, by_keys},
    engine::op::{Access, Op, erased, refuses},
    error::{Code, Error, Result},
    names::{TEXT_MAX, check},
    ops::{
        event::{Event, Topic},
        task,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End a run. Every token of it is dead from now on, and what it held goes back.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub run: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// Only if it is still under this lease, as `run/doubt` showed it: nobody was heard since.
    #[serde(default)]
    pub lease: Option<Lease>,
    /// The terminal or agent that the run worked for is gone. Nobody failed at the tasks it held, so their attempts do
    /// not count; but after ten times a task's attempt counts all the same.
    #[serde(default)]
    pub owner_gone: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ended {
    pub run: Run,
}

impl Op for End {
    const NAME: &'static str = "run/end";
    const ACCESS: Access = Access::Agent;
    refuses![NotReady];
    type Reply = Ended;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Ended> {
        check_name(&self.run)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let Some(row) = lock(tx, &self.run).await? else { return self.ended_before(tx).await };
        row.under(self.lease)?;
        let reason = self.reason.as_deref().unwrap_or("ended");
        if self.owner_gone && row.is_alive(tx.now) {
            task::release::unclaim_of(tx, row.key, reason).await?;
        }
        end(tx, std::slice::from_ref(&row), reason).await?;
        sweep::give_back(tx).await?;
        let run = RunRow { ended_at: Some(tx.now), reason: Some(reason.into()), ..row };
        Ok(Ended { run: run.view(tx.now) })
    }
}

impl End {
    /// Asking twice is safe: the last incarnation is shown as it ended.
    async fn ended_before(self, tx: &mut Tx<'_>) -> Result<Ended> {
        let rows = tx.query(runs!("where name = ?1 order by key desc limit 1"), params![&self.run]).await?;
        match rows.first().map(RunRow::read).transpose()? {
            Some(run) => Ok(Ended { run: run.view(tx.now) }),
            None => Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run))
                .hint("fence runs --all shows the runs there are")),
        }
    }
}

/// The unended run of this name, locked so that nobody is heard under it meanwhile.
pub(super) async fn lock(tx: &mut Tx<'_>, name: &str) -> Result<Option<RunRow>> {
    let mut answers = tx.pipeline(vec![locked(name), Stmt::new(BY_NAME, params![name])]).await?;
    let run = answers.remove(1).rows.first().map(RunRow::read).transpose()?;
    if let Some(run) = &run {
        tx.caller.may_use(&run.name, run.agent.as_deref())?;
    }
    Ok(run)
}

pub(super) fn locked(name: &str) -> Stmt {
    Stmt::lock("select key from run where name = ?1 and ended_at is null for update", params![name])
}

/// The living run of this name, locked, if a poll opened it.
pub(crate) async fn lock_triggered(tx: &mut Tx<'_>, name: Option<&str>) -> Result<Option<RunRow>> {
    let Some(name) = name else { return Ok(None) };
    let rows = tx
        .query(
            runs!("where name = ?1 and ended_at is null and trigger_type is not null /*pg for update*/"),
            params![name],
        )
        .await?;
    Ok(rows.first().map(RunRow::read).transpose()?.filter(|run| run.is_alive(tx.now)))
}

/// Ends a locked run that holds nothing.
pub(crate) async fn end_if_idle(tx: &mut Tx<'_>, run: RunRow, reason: &str) -> Result<()> {
    let held = tx
        .query(
            "select (select count(*) from task where run = ?1) + (select count(*) from message where run = ?1)
               + (select count(*) from reader where run = ?1) + (select count(*) from lock where run = ?1) as n",
            params![run.key],
        )
        .await?;
    if held[0].get::<i64>("n")? == 0 {
        let statements = statements(tx, &[run], reason, Hands::Empty)?;
        tx.pipeline(statements).await?;
    }
    Ok(())
}

/// What a run holds as it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hands {
    Empty,
    /// Perhaps something.
    Full,
}

pub(super) async fn end(tx: &mut Tx<'_>, runs: &[RunRow], reason: &str) -> Result<()> {
    let statements = statements(tx, runs, reason, Hands::Full)?;
    tx.pipeline(statements).await.map(drop)
}

/// Ends every run there is; gives how many.
pub(crate) async fn end_all(tx: &mut Tx<'_>, reason: &str) -> Result<u64> {
    let rows = tx.query(runs!("where ended_at is null order by key /*pg for update*/"), params![]).await?;
    let runs = rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !runs.is_empty() {
        end(tx, &runs, reason).await?;
    }
    Ok(runs.len() as u64)
}

/// One write, and final. Whoever does it holds the rows' locks. The last statement settles those with empty hands.
pub(super) fn statements(tx: &mut Tx<'_>, runs: &[RunRow], reason: &str, hands: Hands) -> Result<Vec<Stmt>> {
    let topic = match hands {
        Hands::Empty => Topic::ended,
        Hands::Full => Topic::dead,
    };
    let events = runs.iter().map(|run| Event {
        run: Some(run.name.clone()),
        agent: run.agent.clone(),
        details: Some(serde_json::json!({ "reason": reason })),
        topic: Some(topic(run.agent.as_deref())),
        ..Event::new("run.ended", format!("run/{}", run.name)).states("alive", "ended")
    });
    let events = Event::insert_many(tx, events.collect())?;
    tx.stirred = true;
    let keys: Vec<i64> = runs.iter().map(|run| run.key).collect();
    let end = by_keys!(
        keys.as_slice(),
        "update run set ended_at = ?2, reason = ?3 where key",
        "and ended_at is null",
        tx.now,
        reason
    );
    let mut statements = vec![end, events];
    if hands == Hands::Empty {
        statements.push(sweep::settle(&keys));
    }
    Ok(statements)
}

/// Ends one incarnation whose lease is over, so that its name can begin anew. What it held follows later. It waits a
/// second for whoever has the row.
pub(crate) async fn lapse(tx: &mut Tx<'_>, key: i64) -> Result<u64> {
    let select = Stmt::new(
        runs!("where key = ?1 and ended_at is null and expires_at <= ?2 /*pg for update*/"),
        params![key, tx.now],
    );
    let patience = Stmt::lock(
        "select set_config('fence.lock_timeout', current_setting('lock_timeout'), true),
           set_config('lock_timeout', '1s', true)",
        params![],
    );
    let restore = Stmt::lock(
        "select set_config('lock_timeout', current_setting('fence.lock_timeout'), true)",
        params![],
    );
    let mut answers = tx.pipeline(vec![patience, select, restore]).await.map_err(|e| match e.code() {
        Code::Unavailable => {
            Error::unavailable("this run's lease is over, and another transaction is using the run")
                .hint("try again in a moment, or act under another run: --run or FENCE_RUN names it")
        }
        _ => e,
    })?;
    let runs = answers.swap_remove(1).rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !runs.is_empty() {
        end(tx, &runs, LAPSED).await?;
    }
    Ok(runs.len() as u64)
}
