//! `guard`: is the claim still alive?

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Code, Error, Result, claim, claim::Verdict};
use serde_json::{Value, json};

pub const TOOL: Tool = Tool {
    name: "guard",
    about: "Check that your claim still lives, right before each effect outside the repository: a push, a deploy, a publish, a \
            message. If it is refused, do not cause the effect.",
    fields: &[Field::new("token", Kind::Text, "Default: your only claim")],
    required: &[],
    effect: Effect::Reads,
    run: |session, args| Box::pin(run(session, args)),
};

/// A claim that is over is a refusal: an agent that overlooks a field in a reply would go on.
async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let token = session.token(args.text("token")).await?;
    let guarded = session.call(claim::Guard::new(&token)).await?;
    let code = match guarded.reason {
        Verdict::Ok => return Ok(json!({ "ok": true, "claim": guarded.claim })),
        Verdict::Cancelled => Code::Cancelled,
        Verdict::AlreadyFinished => Code::AlreadyFinished,
        Verdict::NotFound => Code::NotFound,
        Verdict::AlreadyClaimed | Verdict::LeaseExpired => Code::LeaseExpired,
    };
    let holder = guarded.claim.map(|claim| format!("; run `{}` holds it now", claim.run)).unwrap_or_default();
    Err(Error::new(code, format!("claim `{token}` is over ({}){holder}", guarded.reason.as_str())))
}
