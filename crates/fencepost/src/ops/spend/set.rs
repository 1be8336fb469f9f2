use super::{
    dollars::Dollars,
    rule::{Scope, What},
    show::LimitView,
    usage::Usage,
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    limits::{TTL_MAX, check},
    log::Event,
    ops::{agent, board},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, json};
use std::collections::BTreeMap;

/// Default window of a limit.
pub const WINDOW: Millis = Millis::days(1);
/// The highest limits. Sums stay far below an overflow.
const COUNT_MAX: i64 = 1_000_000_000_000_000;
const USD_MAX: Dollars = Dollars::whole(1_000_000_000);

/// Set spend limits of an agent, of a board, or of the fleet. At a limit, polls and claims are refused with `budget_refused`
/// until the window has room or somebody raises the limit. The work waits meanwhile. Work in flight goes on, so it may exceed the
/// limit by its own cost.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The new limits by kind: `runs`, `tokens` (in and out), `usd` (dollars, with up to six decimals). Null removes a limit, and 0
    /// allows nothing.
    pub limits: BTreeMap<What, Option<Number>>,
    /// Limits of this agent. Without an agent or a board they are limits of the fleet.
    #[serde(default)]
    pub agent: Option<String>,
    /// Limits of this board.
    #[serde(default)]
    pub board: Option<String>,
    /// The window of these limits, at most 30 days (default: the window that the limit has, or one day).
    #[serde(default)]
    pub window_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WereSet {
    /// The kinds of limits that changed.
    pub changed: Vec<What>,
    /// The limits of this agent, board or fleet now.
    pub limits: Vec<LimitView>,
}

impl Op for Set {
    const NAME: &'static str = "spend/set";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"limits":{"usd":5.00},"agent":"codex-1"}"#;
    type Reply = WereSet;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<WereSet> {
        let scope = self.scope()?;
        if self.limits.is_empty() {
            return Err(Error::invalid("limits", "is empty: it names at least one of runs, tokens and usd"));
        }
        if let Some(window) = self.window_ms {
            check::span("window_ms", window, Millis(1), TTL_MAX)?;
        }
        let amounts = self.limits.iter().map(|(what, limit)| {
            let amount = limit.as_ref().map(|limit| amount(*what, limit)).transpose()?;
            Ok((*what, amount))
        });
        let amounts = amounts.collect::<Result<Vec<_>>>()?;
        // A mistyped name would limit nobody. A limit of an agent that has left can still be removed.
        if amounts.iter().any(|(_, amount)| amount.is_some()) {
            require(tx, &scope).await?;
        }
        let stored = stored(tx, &scope).await?;
        let changes = amounts.into_iter().map(|(what, amount)| {
            let had = stored.get(&what).copied();
            let window = self.window_ms.or(had.map(|(_, window)| window)).unwrap_or(WINDOW);
            (what, had, amount.map(|amount| (amount, window)))
        });
        let changes: Vec<_> = changes.filter(|(_, had, new)| had != new).collect();
        if !changes.is_empty() {
            let rows = changes.iter().map(|(what, _, new)| {
                let (amount, window) = new.unzip();
                json!({ "what": what, "amount": amount, "window": window })
            });
            let rows = set(rows)?;
            let shown = |what: What, limit: Option<(i64, Millis)>| {
                limit.map(|(amount, window)| json!({ "limit": what.number(amount), "window_ms": window }))
            };
            let details = changes
                .iter()
                .map(|(what, had, new)| {
                    (what.as_str(), json!({ "from": shown(*what, *had), "to": shown(*what, *new) }))
                })
                .collect::<BTreeMap<_, _>>();
            // For everyone: a raised limit wakes every poll that waits for it.
            let event =
                Event::new("spend.set", format!("spend/{scope}")).details(json!({ "limits": details }));
            let event = event.insert(tx);
            tx.send(Batch::from([
                Stmt::write(
                    "delete from spend_limit where scope = ?2 and what in
                     (select value ->> 'what' from json_each(?1) where value ->> 'amount' is null)",
                    params![rows.clone(), scope.to_string()],
                ),
                Stmt::write(
                    "insert into spend_limit(scope, what, amount, window_ms, at)
                     select cast(?2 as text), value ->> 'what', cast(value ->> 'amount' as bigint),
                       cast(value ->> 'window' as bigint), cast(?3 as bigint)
                     from json_each(?1) where value ->> 'amount' is not null order by key
                     on conflict (scope, what) do update set amount = excluded.amount, window_ms = excluded.window_ms,
                       at = excluded.at",
                    params![rows, scope.to_string(), tx.now],
                ),
                event,
            ]))
            .await?;
        }
        let all = Usage::read(&tx.one(Usage::all(tx.now)).await?.rows)?.into_vec();
        let limits = all.into_iter().filter(|used| used.limit.scope == scope).map(LimitView::of).collect();
        Ok(WereSet { changed: changes.into_iter().map(|(what, ..)| what).collect(), limits })
    }
}

impl Set {
    fn scope(&self) -> Result<Scope> {
        check::optional_name("agent", self.agent.as_deref())?;
        check::optional_name("board", self.board.as_deref())?;
        match (&self.agent, &self.board) {
            (None, None) => Ok(Scope::Fleet),
            (Some(agent), None) => Ok(Scope::Agent(agent.clone())),
            (None, Some(board)) => Ok(Scope::Board(board.clone())),
            (Some(_), Some(_)) => {
                Err(Error::invalid("board", "and `agent` exclude each other: a limit counts one of them"))
            }
        }
    }
}

/// The amount as it is stored. More decimals than are counted are refused.
fn amount(what: What, limit: &Number) -> Result<i64> {
    let field = format!("limits.{}", what.as_str());
    let found = match what {
        What::Runs | What::Tokens => limit.as_i64().filter(|n| (0..=COUNT_MAX).contains(n)),
        What::Usd => Dollars::round(limit)
            .filter(|usd| usd.is_exact && (0..=USD_MAX.0).contains(&usd.millionths))
            .map(|usd| usd.millionths),
    };
    found.ok_or_else(|| {
        let allowed = match what {
            What::Runs | What::Tokens => "it must be an integer from 0 to 10^15",
            What::Usd => "it must be from 0 to 10^9 dollars, with at most six decimals",
        };
        Error::invalid(&field, format!("is {limit}; {allowed}"))
    })
}

async fn require(tx: &mut Tx<'_>, scope: &Scope) -> Result<()> {
    match scope {
        Scope::Fleet => Ok(()),
        Scope::Board(name) => board::require(tx, name).await,
        Scope::Agent(name) => match tx.one(agent::by_name(name)).await?.rows.is_empty() {
            true => Err(agent::not_found(name)),
            false => Ok(()),
        },
    }
}

/// The limits that a scope has: amount and window by kind.
async fn stored(tx: &mut Tx<'_>, scope: &Scope) -> Result<BTreeMap<What, (i64, Millis)>> {
    let sql = "select what, amount, window_ms from spend_limit where scope = ?1";
    let rows = tx.query(sql, params![scope.to_string()]).await?;
    let mut stored = BTreeMap::new();
    for row in &rows {
        if let Some(what) = What::read(&row.get::<String>("what")?) {
            stored.insert(what, (row.get("amount")?, row.get("window_ms")?));
        }
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_exact_or_refused() {
        let of = |what, text: &str| amount(what, &serde_json::from_str(text).unwrap()).ok();
        for (what, text, expected) in [
            (What::Usd, "5.00", Some(5_000_000)),
            (What::Usd, "0.1", Some(100_000)),
            (What::Usd, "0.000001", Some(1)),
            (What::Usd, "0", Some(0)),
            (What::Usd, "1000000000", Some(1_000_000_000_000_000)),
            (What::Usd, "0.0000001", None),
            (What::Usd, "1.2345678", None),
            (What::Usd, "-1", None),
            (What::Usd, "1000000000.01", None),
            (What::Runs, "3", Some(3)),
            (What::Runs, "3.5", None),
            (What::Tokens, "-1", None),
            (What::Tokens, "1000000000000001", None),
        ] {
            assert_eq!(of(what, text), expected, "{what:?} {text}");
        }
    }
}
