//! `report`: progress, a checkpoint, or only a renewal.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Result, claim, task};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "report",
    about: "Tell how the work on your task goes, at each milestone; it renews your claim. With phase it saves a checkpoint that \
            the next holder gets if you are cut off. Without either it only renews. If it is refused, stop working on the task.",
    fields: &[
        Field::new("text", Kind::Text, "One line of progress"),
        Field::new("phase", Kind::Text, "Name of the checkpoint"),
        Field::new("ordinal", Kind::Number, "Of the checkpoint; higher than the task's last one"),
        Field::new("data", Kind::Any, "Of the checkpoint: any JSON"),
        Field::new("token", Kind::Text, "Default: your only claim"),
    ],
    required: &[],
    effect: Effect::Writes,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let phase = args.text("phase");
    match &phase {
        Some(_) => args.only("a checkpoint has no text", &["phase", "ordinal", "data", "token"])?,
        None => args.only("only a checkpoint, with phase, has it", &["text", "token"])?,
    }
    let token = session.token(args.text("token")).await?;
    match (phase, args.text("text")) {
        (Some(phase), _) => {
            let ordinal = args.number("ordinal").ok_or_else(|| {
                fencepost::Error::invalid("ordinal", "is missing: a checkpoint has a number that rises")
            })?;
            session.send(task::SaveCheckpoint { token, ordinal, phase, data: args.any("data") }).await
        }
        (None, Some(text)) => session.send(task::Progress { token, text, request: session.request() }).await,
        (None, None) => session.send(claim::Renew::new(&token)).await,
    }
}
