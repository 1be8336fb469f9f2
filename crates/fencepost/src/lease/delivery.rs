//! Giving back claims whose reply did not arrive, and delivering claims again.
//!
//! A claim is committed before its reply is sent. A client that disconnected by then holds a claim it does not know
//! of, until the lease expires. Such a claim is given back instead, and no attempt counts. But the client may have
//! repeated its request on another server and received the same claim. So each delivery of a claim has a number,
//! and a claim is given back only if its latest delivery did not arrive.

use super::{
    Nouns,
    ending::{end_if_idle, lock_triggered},
};
use crate::{
    db::{Batch, Delivered, Stmt, Tx, set},
    error::{Error, Result},
    ids::Token,
    params,
};
use std::collections::HashMap;

/// The end reason of a run whose trigger did not arrive. A poll with the same run name opens a new run.
pub(crate) const UNDELIVERED: &str = "undelivered";

/// Gives back the claims of one reply, except for those that a later reply delivered. The events carry the request
/// id of the claim, so that a repeated request finds it undone.
pub(crate) async fn return_undelivered(
    tx: &mut Tx<'_>,
    nouns: &'static Nouns,
    delivered: &[Delivered],
) -> Result<u64> {
    let Some(first) = delivered.first() else { return Ok(0) };
    let taken = taken_by(tx, &first.token).await?;
    (tx.opening.request, tx.opening.fingerprint) = (taken.request, taken.fingerprint);
    // Runs are locked before items.
    let polled = lock_triggered(tx, taken.run.as_deref()).await?;
    let mut returned = 0;
    for noun in nouns.iter() {
        let own: Vec<&Delivered> =
            delivered.iter().filter(|delivered| delivered.token.resource.noun() == noun.noun()).collect();
        if !own.is_empty() {
            returned += noun.return_undelivered(tx, &own).await?;
        }
    }
    if let Some(run) = polled.filter(|_| returned > 0) {
        let key = run.key;
        end_if_idle(tx, nouns, run, UNDELIVERED).await?;
        // A trigger that nobody got counts for no limit.
        let sql = "delete from triggered where run = ?1
                   and exists (select 1 from run where key = ?1 and ended_at is not null)";
        tx.execute(sql, params![key]).await?;
    }
    Ok(returned)
}

#[derive(Debug, Default)]
struct Taken {
    request: Option<String>,
    fingerprint: Option<String>,
    run: Option<String>,
}

/// The request id of a claim, and its run.
async fn taken_by(tx: &mut Tx<'_>, token: &Token) -> Result<Taken> {
    let rows = tx
        .query(
            "select request, asked, run from event where resource = ?1 and fence = ?2 and kind = ?3",
            params![token.resource.to_string(), token.fence, format!("{}.claimed", token.resource.noun())],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(Taken::default()) };
    Ok(Taken { request: row.get("request")?, fingerprint: row.get("asked")?, run: row.get("run")? })
}

/// The statements that deliver claims of a noun again, for a set of `{"k": key, "fence": fence}`.
#[derive(Debug)]
pub(crate) struct Redelivery {
    /// Locks the rows in the common lock order.
    pub lock: &'static str,
    /// Gives each claim its next delivery number: `item_key` and `delivery`.
    pub raise: &'static str,
}

/// Delivers claims again, each under its next number. If a row has changed since it was read, the whole call starts
/// over.
pub(crate) async fn redeliver(
    tx: &mut Tx<'_>,
    statements: &Redelivery,
    claims: &[(i64, Token)],
) -> Result<Vec<Delivered>> {
    let rows = set(claims.iter().map(|(key, token)| serde_json::json!({ "k": key, "fence": token.fence })))?;
    let mut batch = Batch::new();
    batch.add(Stmt::lock(statements.lock, params![rows.clone()]));
    let raised = batch.add(Stmt::write(statements.raise, params![rows]));
    let raised = tx.send(batch).await?.take(raised).rows;
    let mut numbers = HashMap::new();
    for row in &raised {
        numbers.insert(row.get::<i64>("item_key")?, row.get("delivery")?);
    }
    let delivered = claims.iter().map(|(key, token)| {
        let delivery = numbers.get(key).copied();
        let delivery =
            delivery.ok_or_else(|| Error::raced(format!("claim `{token}` ended at this moment")))?;
        Ok(Delivered { token: token.clone(), delivery })
    });
    delivered.collect()
}
