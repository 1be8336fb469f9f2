//! `claim`: take a task.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Result, task};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "claim",
    about: "Take a task before you work on it; nobody else gets it while you hold it. Without arguments: the best ready task. The reply \
            has its token and all you need for the work. Hold one task at a time.",
    fields: &[
        Field::new("task", Kind::Text, "This task and no other, such as auth-3"),
        Field::new("board", Kind::Text, "Only tasks of this board"),
        Field::new("tag", Kind::Text, ""),
        Field::new(
            "wait_seconds",
            Kind::Number,
            "If nothing is ready, wait this long (45 suits most clients)",
        ),
        Field::new("resume", Kind::Flag, "If you hold the named task already, get its token again"),
    ],
    required: &[],
    effect: Effect::Writes,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let op = task::Claim {
        task: args.task("task"),
        board: args.text("board"),
        tag: args.text("tag"),
        run: session.run(),
        agent: session.agent(),
        ttl_ms: Some(session.host().lease()),
        max_ms: None,
        resume: args.flag("resume"),
        wait_ms: args.seconds("wait_seconds"),
        // Subagents share a session. Of them only one takes the next task.
        one_at_a_time: args.task("task").is_none(),
        request: session.request(),
    };
    let mut claimed = session.call(op).await?;
    // It stands beside the task.
    claimed.task.claim = None;
    let reply = serde_json::to_value(&claimed).map_err(fencepost::Error::internal)?;
    Ok(session.claimed(&session.acting, &[claimed.claim], reply).await)
}
