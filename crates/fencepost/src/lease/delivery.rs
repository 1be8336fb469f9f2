//! Giving back claims whose reply did not arrive, and handing claims over again.
//!
//! A claim is committed before its reply is sent, so a client that hung up by then holds a claim it does not know of,
//! until the lease ends. Such a claim is given back instead, and no attempt counts. But the client may have asked again,
//! of another server, and been handed that very claim: each time a claim is handed over it has another number, and only
//! the latest is given back.

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

/// Why a run ended whose trigger did not arrive: polling again with its name begins anew.
pub(crate) const UNDELIVERED: &str = "undelivered";

/// Gives back what one reply handed over and no later one did. The events carry the request that took it, so that asking
/// again finds that nothing came of it.
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
        end_if_idle(tx, nouns, run, UNDELIVERED).await?;
    }
    Ok(returned)
}

#[derive(Debug, Default)]
struct Taken {
    request: Option<String>,
    fingerprint: Option<String>,
    run: Option<String>,
}

/// The request that took a claim, and the run.
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

/// The statements that hand over claims of a noun again, for a set of `{"k": key, "fence": fence}` each.
#[derive(Debug)]
pub(crate) struct Redelivery {
    /// Locks the rows in the order in which everybody locks them.
    pub lock: &'static str,
    /// Gives each claim its next number: `item_key` and `delivery`.
    pub raise: &'static str,
}

/// Hands claims over again, each under its next number. The rows may have changed since they were read: then the whole
/// call starts over.
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
