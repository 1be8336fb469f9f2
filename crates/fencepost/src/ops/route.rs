//! Routes: rules that send outside deliveries (from Slack, GitHub, a gateway of your own) to agents' inboxes.
//!
//! A delivery that was seen before is dropped. If a rule matches, the delivery goes to the inbox of that rule's agent.
//! Otherwise it is kept in the mailbox [`UNMATCHED`]. One transaction decides and writes this.

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

/// The mailbox of deliveries that match no rule.
pub const UNMATCHED: &str = "hooks/unmatched";

/// Limit on the rules: each delivery is compared with all of them.
pub(crate) const ROUTES_MAX: usize = 1000;

/// The header of an unmatched message that holds its `item`.
const ITEM: &str = "item";

/// A rule, and the agent that gets the deliveries that match it.
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

/// Serialises changes of routes, because a change counts the rules and their places.
pub(crate) async fn lock(tx: &mut Tx<'_>) -> Result<()> {
    let lock = "select pg_advisory_xact_lock(hashtextextended('routes of ' || current_schema(), 0)) is null";
    tx.one(Stmt::lock(lock, params![])).await?;
    Ok(())
}

/// The active routes, in the order in which they are tried.
pub(crate) async fn in_force(tx: &mut Tx<'_>) -> Result<Vec<Route>> {
    let rows = tx.query(routes!("where removed_at is null order by place, id"), params![]).await?;
    rows.iter().map(Route::read).collect()
}

fn not_found(route: i64) -> Error {
    Error::new(Code::NotFound, format!("there is no route {route}")).hint("fence route list lists the routes")
}

/// The result of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It went to an agent's inbox.
    Routed,
    /// No rule matches. It is kept and can be routed again.
    Unmatched,
    /// It was seen before. Nothing was done.
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
    /// The message created for it. For a repeat, the message of the first delivery.
    pub message: i64,
    /// The agent that owns the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The rule that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<i64>,
    /// Number of repeats so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<i64>,
}

impl Delivered {
    fn new(outcome: Outcome, message: i64) -> Self {
        Self { outcome, message, agent: None, route: None, repeats: None }
    }
}

/// Sends the content to the inbox of the first matching rule's agent, if a rule matches. An agent gets each `item` only
/// once, even if several deliveries report it.
async fn send(tx: &mut Tx<'_>, content: &Content, item: Option<String>) -> Result<Option<Delivered>> {
    let routes = in_force(tx).await?;
    let Some(route) = routes.into_iter().find(|route| route.rule.matches(content)) else { return Ok(None) };
    let content = Content { matched: Some(route.rule.to_string()), ..content.clone() };
    let push = mail::push_many::Item {
        key: item,
        ..inbox::send::push_item(inbox::mailbox(&route.agent), &content)?
    };
    let (message, existing) = inbox::send::put(tx, push).await?;
    let outcome = if existing { Outcome::Repeated } else { Outcome::Routed };
    Ok(Some(Delivered {
        agent: Some(route.agent),
        route: Some(route.id),
        ..Delivered::new(outcome, message.id)
    }))
}
