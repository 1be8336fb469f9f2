//! Causes: which run made a post, a message or a task, and where the chain of causes began.
//!
//! The run of a call is believed only if it is the caller's own: it exists, the caller's key may use it, and it is not another
//! agent's. It may be over, so that a chain does not begin anew if an agent settles first and posts then. A run that a poll opened
//! continues the chain of its trigger (table `triggered`). Any other run starts a chain.

use crate::{
    db::{Stmt, Tx, set},
    error::Result,
    params,
};
use serde_json::json;

/// A place in a chain of causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The run that caused it.
    pub run: String,
    /// The item or run at the start of the chain.
    pub root: String,
    /// The number of mentions and wake-ups since the root.
    pub depth: i64,
}

/// The caller's run as a cause. `agent`: the agent that the call acts as, if it names one.
async fn of_caller(tx: &mut Tx<'_>, agent: Option<&str>) -> Result<Option<Cause>> {
    let Some(name) = tx.caller.run.clone() else { return Ok(None) };
    let rows = tx
        .query(
            "select run.agent, triggered.root, triggered.depth from run left join triggered on triggered.run = run.key
             where run.name = ?1 order by run.key desc limit 1",
            params![&name],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let owner: Option<String> = row.get("agent")?;
    let acting = agent.or(tx.caller.agent.as_deref());
    let is_own = tx.caller.may_use(&name, owner.as_deref()).is_ok()
        && acting.is_none_or(|acting| owner.as_deref().is_none_or(|owner| owner == acting));
    if !is_own {
        return Ok(None);
    }
    let (root, depth): (Option<String>, Option<i64>) = (row.get("root")?, row.get("depth")?);
    let root = root.unwrap_or_else(|| format!("run/{name}"));
    Ok(Some(Cause { run: name, root, depth: depth.unwrap_or_default() }))
}

/// Records the caller's run as the cause of new items such as `post/general/12`.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    agent: Option<&str>,
    items: impl IntoIterator<Item = String>,
) -> Result<()> {
    let Some(Cause { run, root, depth }) = of_caller(tx, agent).await? else { return Ok(()) };
    let items = set(items.into_iter().map(|item| json!({ "item": item })))?;
    tx.one(Stmt::write(
        "insert into caused(item, run, root, depth, at)
         select value ->> 'item', cast(?2 as text), cast(?3 as text), cast(?4 as bigint), cast(?5 as bigint)
         from json_each(?1) where true order by key on conflict (item) do nothing",
        params![items, run, root, depth, tx.now],
    ))
    .await
    .map(drop)
}

/// The resource of a post, as causes name it.
pub(crate) fn post(channel: &str, n: i64) -> String {
    format!("post/{channel}/{n}")
}
