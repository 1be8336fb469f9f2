//! `settle`: the end of a polled run.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Code, Error, Result, run, run::settle::Outcome};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "settle",
    about: "End a run that poll gave you: completes, fails or gives back everything it still holds. Use it once, when all its work is over.",
    fields: &[
        Field::new("run", Kind::Text, "As poll named it"),
        Field::new("outcome", Kind::Word(&["done", "failed", "released"]), "Default: done"),
        Field::new("output", Kind::Text, "The result"),
        Field::new("reason", Kind::Text, "Why it failed"),
    ],
    required: &["run"],
    effect: Effect::Idempotent,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let outcome = match args.text("outcome").as_deref() {
        Some("failed") => Outcome::Failed,
        Some("released") => Outcome::Released,
        _ => Outcome::Done,
    };
    let settle = run::Settle {
        run: args.required("run", "")?,
        outcome,
        output: args.text("output"),
        reason: args.text("reason"),
        ..run::Settle::default()
    };
    let reply = session.end(settle).await?;
    let lost = reply.get("lost").and_then(Value::as_array).filter(|lost| !lost.is_empty());
    match lost {
        // The run is settled, but not all of its work is accepted: an agent must not overlook that.
        Some(lost) => Err(Error::new(
            Code::LeaseExpired,
            "the run lost claims meanwhile, and that work is not accepted",
        )
        .with("tokens", lost)),
        None => Ok(reply),
    }
}
