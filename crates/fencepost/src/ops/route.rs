//! Routes: how what comes from outside (Slack, GitHub, a gateway of your own) finds the agent that it is for.
//!
//! A delivery is one of three things: it was seen before, and is dropped; or a rule fits, and it is put into the inbox of
//! that rule's agent; or none does, and it is kept in the mailbox [`UNMATCHED`]. That is decided, and written, in one
//! transaction.

pub(crate) mod rule;

use crate::{
    clock::Time,
    db::{Row, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    ops::{
        inbox::{self, Content},
        mail,
    },
    params,
};
pub use rule::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![add::Add, list::List, remove::Remove, deliver::Deliver, unmatched::Unmatched, again::Again];
pub(crate) mod prune;

/// The mailbox of what no rule fits.
pub const UNMATCHED: &str = "hooks/unmatched";

/// All rules are looked at for each delivery.
pub(crate) const ROUTES_MAX: usize = 1000;

/// The header of an unmatched message that says what it tells of.
const ITEM: &str = "item";

/// A rule, and the agent that gets what fits it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    pub id: i64,
    #[serde(flatten)]
    pub rule: Rule,
    pub agent: String,
    pub created_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Time>,
}

macro_rules! routes {
    ($rest:literal) => {
        concat!("select id, place, rule, agent, created_at, removed_at from route ", $rest)
    };
}
pub(crate) use routes;

impl Route {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            id: row.get("id")?,
            rule: serde_json::from_str(&row.get::<String>("rule")?).map_err(Error::internal)?,
            agent: row.get("agent")?,
            created_at: row.get("created_at")?,
            removed_at: row.get("removed_at")?,
        })
    }
}

/// Those who add wait for each other: places are counted, and so are rules.
pub(crate) async fn lock(tx: &mut Tx<'_>) -> Result<()> {
    let lock = "select pg_advisory_xact_lock(hashtextextended('routes of ' || current_schema(), 0)) is null";
    tx.one(Stmt::lock(lock, params![])).await?;
    Ok(())
}

/// Those in force, in the order in which they are tried.
pub(crate) async fn in_force(tx: &mut Tx<'_>) -> Result<Vec<Route>> {
    let rows = tx.query(routes!("where removed_at is null order by place, id"), params![]).await?;
    rows.iter().map(Route::read).collect()
}

fn not_found(route: i64) -> Error {
    Error::new(Code::NotFound, format!("there is no route {route}"))
        .hint("fence route list shows those there are")
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in the inbox of an agent.
    Routed,
    /// No rule fits; it is kept, and can be routed again.
    Unmatched,
    /// It was seen before, and nothing was done.
    Repeated,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Routed => "routed",
            Outcome::Unmatched => "unmatched",
            Outcome::Repeated => "repeated",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Delivered {
    pub outcome: Outcome,
    /// The message that it became; of a repeat, the one that the first became.
    pub message: i64,
    /// In whose inbox it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The rule that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<i64>,
    /// How often it came again so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<i64>,
}

impl Delivered {
    fn new(outcome: Outcome, message: i64) -> Self {
        Self { outcome, message, agent: None, route: None, repeats: None }
    }
}

/// Puts it into the inbox of whom the first rule that fits names, if there is one. What it tells of (`item`) an agent
/// gets once, in however many ways it is told.
async fn send(tx: &mut Tx<'_>, content: &Content, item: Option<String>) -> Result<Option<Delivered>> {
    let routes = in_force(tx).await?;
    let Some(route) = routes.into_iter().find(|route| route.rule.matches(content)) else { return Ok(None) };
    let content = Content { matched: Some(route.rule.to_string()), ..content.clone() };
    let push =
        mail::push_many::Item { key: item, ..inbox::send::letter(inbox::mailbox(&route.agent), &content)? };
    let (message, existing) = inbox::send::put(tx, push).await?;
    let outcome = if existing { Outcome::Repeated } else { Outcome::Routed };
    Ok(Some(Delivered {
        agent: Some(route.agent),
        route: Some(route.id),
        ..Delivered::new(outcome, message.id)
    }))
}
