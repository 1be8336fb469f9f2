//! The trait of a claimable noun, and the statements that are generated from the list of nouns.

use super::ClaimState;
use crate::{
    clock::{Millis, Time},
    db::{BoxFuture, Delivered, Stmt, Tx, key_set},
    error::{Error, Result},
    ids::{Resource, Token},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// A noun that can be claimed. Every function with an `id` gets one that [`Self::id_problem`] accepts.
///
/// To add one: the steps of any noun (`ops.rs` has them), with a verb that claims it and logs `NOUN.claimed`; a file that
/// implements this trait (`ops/conformance/parcel.rs` is the smallest); a line in the list of `ops.rs`; a migration that creates its
/// [`Table`] (`db/migrate.rs`); and a sample in `ops/conformance.rs`, which runs the suite on it. Expiry logs `NOUN.lapsed`, and a
/// claim that was not delivered `NOUN.undelivered`.
pub(crate) trait Claimable: Debug + Sync {
    /// The word before the slash in its resources, and before the dot in its events: `task`.
    fn noun(&self) -> &'static str;
    fn table(&self) -> &'static Table;
    /// The reason why this text is not an id of the noun.
    fn id_problem(&self, id: &str) -> Option<String>;
    /// Reads the run behind a token, with the columns of [`RunRow`](crate::db::RunRow).
    fn run_behind(&self, id: &str, fence: i64) -> Stmt;
    /// The claim state of an item.
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>>;
    /// The claim state as expiry would write it now.
    fn claim_state_now<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        self.claim_state(tx, id)
    }
    /// Expiry: gives back one batch of these ended runs' items. It waits for no lock. Returns the number of changes.
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>>;
    /// Expiry: gives back one batch of claims that reached their own limit (`until_at`).
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>>;
    /// Expiry: other changes that only depend on time. Their deadlines are in [`Table::deadlines`].
    fn end_delays<'t>(&'t self, _tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(std::future::ready(Ok(0)))
    }
    /// The holder gives the item back: the attempt does not count. Returns the item's new state.
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>>;
    /// An operator takes the item from its holder.
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>>;
    /// Gives back claims of one reply that did not arrive, except for those that were delivered again since. The
    /// attempt does not count. Returns their number.
    fn return_undelivered<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        delivered: &'t [&'t Delivered],
    ) -> BoxFuture<'t, Result<u64>>;
    /// Ends a claim that a poll gave, when its run is settled. Returns false if the item only went back.
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>>;
    /// The kinds of events by which a holder ends its own claim. Any other event takes the claim away from it. The verbs that such
    /// calls store as `last_verb` are in [`ENDED_BY_HOLDER`](super::hold::ENDED_BY_HOLDER).
    fn ended_by_holder(&self) -> &'static [&'static str];
    /// Whether an event of this verb reports an expired claim. The verb alone may not tell: a task becomes `failed` by expiry
    /// and by a caller. `from` is the state before; `reported`: the holder itself reported a failure.
    fn is_expiry(&self, verb: &str, _from: Option<&str>, _reported: bool) -> bool {
        verb == "lapsed"
    }
    /// Invariants of its rows, besides those of every noun.
    fn promises(&self) -> &'static [Promise];
}

/// The table of a noun's claims. It has the columns `run`, `fence`, `delivery`, `claimed_at`, `until_at`,
/// `last_fence`, `last_verb` and `last_digest`, and indexes on `run` and on `until_at`, both without nulls.
#[derive(Debug)]
pub(crate) struct Table {
    pub name: &'static str,
    /// SQL: the item's id, as in its resource.
    pub id: &'static str,
    /// SQL: the order of claims in `claim/list`.
    pub order: &'static str,
    /// SQL: the order of a run's claims in `run/list`, a text and a number.
    pub sort: (&'static str, &'static str),
    /// SQL: deadlines besides the limit of a claim, each the first entry of a partial index.
    pub deadlines: &'static [&'static str],
}

/// An invariant, as a query for the rows that break it: `select … as resource`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    pub text: &'static str,
    pub broken: &'static str,
}

/// The result of [`Claimable::unclaim`].
#[derive(Debug)]
pub(crate) struct Unclaimed {
    /// The run that held the item, if it was alive.
    pub held_by: Option<String>,
    /// The item's state afterwards.
    pub status: String,
}

/// How a run ends the items that a poll gave it.
#[derive(Debug)]
pub(crate) struct Settlement {
    pub outcome: Outcome,
    /// The key of the run, which is locked.
    pub run: i64,
    /// Stored as the verb that ended the claims of released items: `release`, or `pause` if an operator took them away.
    pub release_verb: &'static str,
    pub output: Option<String>,
    /// The delay until the item can be claimed again, if not the noun's own. A noun without delays ignores it.
    pub delay: Option<Millis>,
    /// The reason of a failure.
    pub reason: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Done,
    /// Retried, while attempts are left.
    Failed,
    /// Given back unchanged: the attempt does not count.
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

/// The claimable nouns of a fleet, and the statements generated from them once.
#[derive(Debug)]
pub(crate) struct Nouns {
    list: &'static [&'static dyn Claimable],
    /// Reads [`Due`](crate::db::Due). Each part is the first entry of a partial index, so that it costs the same for one
    /// row and for a million.
    pub due: &'static str,
    /// Marks ended runs that hold nothing: one, or a set.
    mark_empty: [&'static str; 2],
    /// Counts a run's claims.
    held: &'static str,
    /// The tokens of these runs' claims. Claims past their own limit are left out.
    tokens_of_runs: &'static str,
    /// All tokens of the unended run of a name, also those past their limit.
    tokens_of_name: &'static str,
    /// SQL: the number of claims of a row's run at time `?1`.
    count_sql: String,
    /// By noun: its live claims.
    live_claims: Vec<(&'static str, &'static str)>,
    /// The highest fence ever issued, and the floor.
    highest_fence: &'static str,
    /// By noun: moves the limits of claims back by `?1`, as [`SET_BACK`] does.
    set_back: Vec<&'static str>,
    /// The invariants of every noun.
    promises: Vec<Promise>,
}

impl Nouns {
    /// Call this once: the generated statements are never freed.
    pub fn new(list: &'static [&'static dyn Claimable]) -> Self {
        let each = |part: &dyn Fn(&'static Table, &'static str) -> String, between: &str| {
            let parts: Vec<String> = list.iter().map(|noun| part(noun.table(), noun.noun())).collect();
            parts.join(between)
        };
        let deadlines = |table: &'static Table, _| {
            let name = table.name;
            let own = format!("(select min(until_at) from {name} where until_at is not null)");
            [&[own.as_str()], table.deadlines].concat().join(",\n  ")
        };
        let due = format!(
            "select floor,
  (select min(key) from run where ended_at is not null and settled = 0) as unreleased,
  (select min(expires_at) from run where ended_at is null),
  {}
from fleet",
            each(&deadlines, ",\n  ")
        );
        let holds_nothing = each(
            &|table, _| format!("not exists (select 1 from {0} where {0}.run = run.key)", table.name),
            "\n  and ",
        );
        let mark_empty = |keys: &str| {
            leak(format!(
                "update run set settled = 1 where key in (select key from run where settled = 0
  and {holds_nothing}
  and key {keys} /*pg for update skip locked*/)"
            ))
        };
        let held =
            each(&|table, _| format!("(select count(*) from {} where run = ?1)", table.name), "\n  + ");
        let count_sql = each(
            &|table, _| {
                format!(
                    "(select count(*) from {0} where {0}.run = run.key and (until_at is null or until_at > ?1))",
                    table.name
                )
            },
            "\n  + ",
        );
        let tokens = |listed: &str, until: &str| {
            let mut kind = 0;
            let parts: Vec<String> = list
                .iter()
                .map(|noun| {
                    let Table { name, id, sort: (text, number), .. } = noun.table();
                    kind += 1;
                    format!(
                        "select {name}.run, '{}/' || {id} || '@' || {name}.fence as token, {kind} as kind, {text} as name, {number} as n
  from listed join {name} on {name}.run = listed.key {until}",
                        noun.noun()
                    )
                })
                .collect();
            leak(format!("with listed as ({listed})\n{}\nlimit 10000", parts.join("\nunion all\n")))
        };
        let promise = |text, part: &dyn Fn(&'static Table, &'static str) -> String| Promise {
            text,
            broken: leak(each(part, "\nunion all\n")),
        };
        let promises = vec![
            promise("every claim's run exists", &|Table { name, id, .. }, noun| {
                format!(
                    "select '{noun}/' || {id} as resource from {name}
  where run is not null and not exists (select 1 from run where run.key = {name}.run)"
                )
            }),
            promise("an ended run that is settled holds nothing", &|Table { name, id, .. }, noun| {
                format!(
                    "select '{noun}/' || {id} as resource from {name}
  join run on run.key = {name}.run where run.ended_at is not null and run.settled = 1"
                )
            }),
            promise("every claimed item has a fence", &|Table { name, id, .. }, noun| {
                format!(
                    "select '{noun}/' || {id} as resource from {name} where run is not null and fence < 1"
                )
            }),
            promise("no fence was issued twice", &|_, noun| {
                format!(
                    "select resource from event where kind = '{noun}.claimed'
  group by resource, fence having count(*) > 1"
                )
            }),
            promise("no claim has a fence above its item's", &|Table { name, id, .. }, noun| {
                format!(
                    "select event.resource from event join {name} on event.resource = '{noun}/' || {id}
  where event.kind = '{noun}.claimed' and event.fence > {name}.fence"
                )
            }),
        ];
        let live_claims = |Table { name, id, order, .. }: &Table| {
            leak(format!(
                "select cast({id} as text) as resource_id, fence, claimed_at, until_at,
  run.key as run_key, run.name as run_name, run.agent as run_agent, run.expires_at as run_expires_at,
  run.ended_at as run_ended_at, run.waiting_at as run_waiting_at
from run join {name} on {name}.run = run.key
where run.ended_at is null and run.expires_at > ?1 and (until_at is null or until_at > ?1)
  and (cast(?2 as text) is null or run.name = ?2)
order by {order} limit ?3"
            ))
        };
        let live_claims = list.iter().map(|noun| (noun.noun(), live_claims(noun.table()))).collect();
        let highest_fence = format!(
            "select max(fence) as fence from (
  select floor as fence from fleet
  union all {}) as fences",
            each(&|table, _| format!("select max(fence) from {}", table.name), "\n  union all ")
        );
        let set_back = |noun: &&'static dyn Claimable| {
            leak(format!(
                "update {} set until_at = until_at - ?1 where until_at {SET_BACK}",
                noun.table().name
            ))
        };
        Self {
            highest_fence: leak(highest_fence),
            set_back: list.iter().map(set_back).collect(),
            list,
            live_claims,
            promises,
            due: leak(due),
            mark_empty: [
                mark_empty("= ?1"),
                mark_empty("in (select cast(value ->> 'k' as bigint) from json_each(?1))"),
            ],
            held: leak(format!("select {held} as n")),
            tokens_of_runs: tokens(
                "select cast(value ->> 'k' as bigint) as key from json_each(?1)",
                "and (until_at is null or until_at > ?2)",
            ),
            tokens_of_name: tokens("select key from run where name = ?1 and ended_at is null", ""),
            count_sql,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Claimable> + use<> {
        self.list.iter().copied()
    }

    pub fn find(&self, noun: &str) -> Option<&'static dyn Claimable> {
        self.iter().find(|claimable| claimable.noun() == noun)
    }

    /// The noun of a resource that was already checked.
    pub fn of(&self, resource: &Resource) -> Result<&'static dyn Claimable> {
        let noun = self.find(resource.noun());
        noun.ok_or_else(|| Error::internal(format!("`{resource}` is of a noun that cannot be claimed")))
    }

    /// The invariants of every noun, then those of each noun's own rows.
    pub fn promises(&self) -> impl Iterator<Item = &Promise> {
        self.promises.iter().chain(self.list.iter().flat_map(|noun| noun.promises()))
    }

    /// Marks those of these ended runs that hold nothing, so that expiry skips them: the column `settled`.
    pub fn mark_empty(&self, runs: &[i64]) -> Stmt {
        match runs {
            [run] => Stmt::write(self.mark_empty[0], params![*run]),
            runs => Stmt::write(self.mark_empty[1], params![key_set(runs.iter().copied())]),
        }
    }

    /// The live claims of a noun, of all runs or one: the columns of [`Hold`](super::Hold), and `resource_id`.
    pub fn live_claims(&self, noun: &dyn Claimable, now: Time, run: Option<&str>, limit: i64) -> Stmt {
        let sql = self.live_claims.iter().find(|(name, _)| *name == noun.noun()).map_or("", |(_, sql)| sql);
        Stmt::read(sql, params![now, run, limit])
    }

    /// Counts a run's claims, as `n`.
    pub fn held(&self, run: i64) -> Stmt {
        Stmt::read(self.held, params![run])
    }

    /// The claims of these runs that have not reached their own limit: `run`, `token`, and an order.
    pub fn tokens_of_runs(&self, runs: &[i64], now: Time) -> Stmt {
        Stmt::read(self.tokens_of_runs, params![key_set(runs.iter().copied()), now])
    }

    /// All tokens of the unended run of this name, also those past their limit.
    pub fn tokens_of_name(&self, run: &str) -> Stmt {
        Stmt::read(self.tokens_of_name, params![run])
    }

    /// SQL: the number of claims of a row's run at time `?1`.
    pub fn count_sql(&self) -> &str {
        &self.count_sql
    }

    /// The highest fence ever issued, as `fence`; pruned items count.
    pub fn highest_fence(&self) -> Stmt {
        Stmt::read(self.highest_fence, params![])
    }

    /// Moves the limits of claims back that were set after the clock jumped ahead: by `ahead`, to `now`.
    pub fn set_back(&self, ahead: Millis, now: Time) -> impl Iterator<Item = Stmt> {
        self.set_back.iter().map(move |sql| Stmt::write(sql, params![ahead, now]))
    }
}

/// SQL: the deadline was set after the clock jumped ahead. A jump looks like a time without calls, so table `gap` has its end: it is
/// the first gap that ends after the right time (`?2`). A deadline before that end was set before the jump, and is right.
const SET_BACK: &str = ">= coalesce((select min(at) from gap where at > ?2), ?2)";

/// Leaks a statement's text: it is needed as long as the process runs.
pub(crate) fn leak(sql: String) -> &'static str {
    sql.leak()
}
