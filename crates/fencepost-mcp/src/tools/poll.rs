//! `poll`: the next trigger of an agent.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Code, Error, Result, agent};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "poll",
    about: "Only if you act for a named agent (look with what=mine shows it): get your next work, already claimed: offers, assigned tasks, \
            messages, mentions, pool tasks. The reply names its run; end it with settle before you poll again.",
    fields: &[
        Field::new("board", Kind::Text, "Pool tasks of this board only"),
        Field::new("tag", Kind::Text, ""),
        Field::new("wait_seconds", Kind::Number, "If there is nothing, wait this long"),
        Field::new("run", Kind::Text, "Name for the new run"),
    ],
    required: &[],
    effect: Effect::Writes,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    if let Some(claim) = session.host().default_claim() {
        return Err(Error::new(
            Code::NotReady,
            format!("you were started for the claim `{claim}`, and get nothing else"),
        )
        .hint("do that work, end it with finish, and stop"));
    }
    let agent = session.agent().ok_or_else(|| {
        Error::new(Code::Invalid, "you act for no agent, so nothing is addressed to you")
            .hint("claim takes a task without one; a person names an agent for this server")
    })?;
    // A run gets one trigger. A repeated call has the same run, and gets the same trigger.
    let acting = session.new_run();
    let poll = agent::Poll {
        agent,
        run: acting.run.clone(),
        board: args.text("board"),
        tag: args.text("tag"),
        ttl_ms: Some(session.host().lease()),
        wait_ms: args.seconds("wait_seconds"),
        ..agent::Poll::default()
    };
    let polled = session.call(poll).await?;
    let reply = serde_json::to_value(&polled).map_err(Error::internal)?;
    let claims = polled.trigger.map(|trigger| trigger.claims).unwrap_or_default();
    if claims.is_empty() {
        return Ok(reply);
    }
    Ok(session.claimed(&acting, &claims, reply).await)
}
