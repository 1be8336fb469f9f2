//! `look`: ready tasks, all tasks, one task, the reasons that hold it back, and the claims of the run.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Result, task};
use serde_json::{Value, json};

pub const TOOL: Tool = Tool {
    name: "look",
    about: "See the work. Use it to choose a task, after a refusal, and whenever you are not sure what you hold. It changes nothing.",
    fields: &[
        Field::new(
            "what",
            Kind::Word(&["ready", "mine", "list", "show", "why"]),
            "ready: tasks you can claim (default). mine: who you are and what you hold. list: tasks that are not finished. show: one task \
             in full (default if task is given). why: what keeps a task from being claimed",
        ),
        Field::new("task", Kind::Text, "Such as auth-3, for show and why"),
        Field::new("board", Kind::Text, ""),
        Field::new("limit", Kind::Number, ""),
    ],
    required: &[],
    effect: Effect::Reads,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let (board, limit) = (args.text("board"), args.number("limit"));
    let task = || args.task("task").ok_or_else(|| fencepost::Error::invalid("task", "is missing"));
    let what = args.text("what");
    let default = if args.task("task").is_some() { "show" } else { "ready" };
    match what.as_deref().unwrap_or(default) {
        "mine" => {
            args.only("what=mine shows what you hold", &["what"])?;
            mine(session).await
        }
        "list" => {
            args.only("what=list lists tasks", &["what", "board", "limit"])?;
            session.send(task::List { board, open: true, limit, ..task::List::default() }).await
        }
        "show" => {
            args.only("what=show shows one task", &["what", "task"])?;
            session.send(task::Show { task: task()? }).await
        }
        "why" => {
            args.only("what=why is about one task", &["what", "task"])?;
            session.send(task::Why { task: task()? }).await
        }
        _ => {
            args.only("what=ready lists tasks", &["what", "board", "limit"])?;
            session.send(task::Ready { board, agent: session.agent(), limit }).await
        }
    }
}

async fn mine(session: &Session<'_>) -> Result<Value> {
    let claims = session.claims().await?;
    let default = session.host().default_claim();
    Ok(json!({ "run": session.run(), "agent": session.agent(), "claims": claims, "token": default }))
}
