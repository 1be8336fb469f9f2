use super::{ROUTES_MAX, Route, Rule, in_force, lock, not_found, routes};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::check,
    log::Event,
    ops::agent,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Add a rule that sends outside messages to an agent's inbox. Rules are tried in order, and the first match decides.
/// An existing rule is reassigned to this agent, and keeps its place unless `before` moves it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// `slack`, `github`, or another source.
    pub source: String,
    /// The agent that owns the inbox.
    pub agent: String,
    /// Only messages of this channel, by the source's id.
    #[serde(default)]
    pub channel: Option<String>,
    /// Only messages of this user: a Slack id or a GitHub login.
    #[serde(default)]
    pub user: Option<String>,
    /// Only messages of this repository, such as `acme/api`.
    #[serde(default)]
    pub repository: Option<String>,
    /// Only this event, such as `issues.opened`, or a group of events, such as `issues`.
    #[serde(default)]
    pub event: Option<String>,
    /// Only messages that contain these words: whole words, ignoring case.
    #[serde(default)]
    pub text: Option<String>,
    /// Also match messages from programs. By default they match no rule, so that an agent's own answers do not wake it.
    #[serde(default)]
    pub bots: bool,
    /// Try it before this route (default: after all others).
    #[serde(default)]
    pub before: Option<i64>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Added {
    pub route: Route,
    /// The same rule already existed.
    pub existing: bool,
    /// No agent of this name has joined. Messages wait in its inbox until one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_unknown: bool,
}

impl Op for Add {
    const NAME: &'static str = "route/add";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"source":"slack","agent":"codex-1"}"#;
    type Reply = Added;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Added> {
        check::request(self.request.as_deref())?;
        check::plain_name("agent", &self.agent)?;
        let rule = Rule {
            source: self.source,
            channel: self.channel,
            user: self.user,
            repository: self.repository,
            event: self.event,
            text: self.text,
            bots: self.bots,
        };
        rule.check()?;
        let is_known = agent::is_known(tx, &self.agent).await?;
        if tx.opening.is_repeat("route.added", None)? {
            let first =
                tx.opening.repeat.iter().find_map(|did| did.resource.strip_prefix("route/")?.parse().ok());
            let route = load(tx, first.unwrap_or_default()).await?;
            return Ok(Added { route, existing: false, agent_unknown: !is_known });
        }
        lock(tx).await?;
        let routes = in_force(tx).await?;
        let there = routes.iter().find(|route| route.rule == rule);
        if there.is_none() && routes.len() >= ROUTES_MAX {
            let message = format!("there are already {ROUTES_MAX} routes, the maximum");
            return Err(Error::new(Code::TooLarge, message)
                .with("max", ROUTES_MAX)
                .hint("fence route rm ID removes one"));
        }
        if let Some(there) = there.filter(|there| there.agent == self.agent && self.before.is_none()) {
            return Ok(Added { route: there.clone(), existing: true, agent_unknown: !is_known });
        }
        let same = there.map(|route| route.id);
        let place = make_room(tx, self.before, same).await?;
        let id = write(tx, &rule, &self.agent, place, same).await?;
        let event = Event {
            topic: Some(Topic::Nobody),
            ..Event::new("route.added", format!("route/{id}"))
                .details(serde_json::json!({ "rule": rule, "for": self.agent }))
        };
        tx.one(event.insert(tx)).await?;
        let route = load(tx, id).await?;
        Ok(Added { route, existing: there.is_some(), agent_unknown: !is_known })
    }
}

/// The place of a rule that is new or moves; `None` if it keeps its place.
async fn make_room(tx: &mut Tx<'_>, before: Option<i64>, there: Option<i64>) -> Result<Option<i64>> {
    let Some(before) = before else {
        let last = tx.query("select coalesce(max(place), 0) as place from route", params![]).await?;
        let last: i64 = last[0].get("place")?;
        return Ok(there.is_none().then_some(last + 1));
    };
    let found = tx.query(routes!("where id = ?1 and removed_at is null"), params![before]).await?;
    let place: i64 = found.first().ok_or_else(|| not_found(before).with("field", "before"))?.get("place")?;
    tx.execute("update route set place = place + 1 where place >= ?1", params![place]).await?;
    Ok(Some(place))
}

/// Inserts a rule, or changes the agent and place of an existing one.
async fn write(
    tx: &mut Tx<'_>,
    rule: &Rule,
    agent: &str,
    place: Option<i64>,
    there: Option<i64>,
) -> Result<i64> {
    let statement = match there {
        Some(id) => Stmt::write(
            "update route set agent = ?1, place = coalesce(?2, place) where id = ?3 and removed_at is null returning id",
            params![agent, place, id],
        ),
        None => Stmt::write(
            "insert into route(agent, place, rule, created_at) values (?1, ?2, ?3, ?4) returning id",
            params![agent, place, serde_json::to_string(rule).map_err(Error::internal)?, tx.now],
        ),
    };
    let rows = tx.one(statement).await?.rows;
    rows.first().ok_or_else(|| Error::raced("a route was removed at this moment"))?.get("id")
}

pub(super) async fn load(tx: &mut Tx<'_>, id: i64) -> Result<Route> {
    let rows = tx.query(routes!("where id = ?1"), params![id]).await?;
    rows.first().map(Route::read).transpose()?.ok_or_else(|| not_found(id))
}
