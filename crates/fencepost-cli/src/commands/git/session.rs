//! The claim of an agent's session, for git without `FENCE_CLAIM`. So a push that a client's hook does not see, in a script or by an
//! alias, is checked all the same.

use super::super::hook::refreshed;
use crate::{
    context::Context,
    session::{self, Deadline, Known, Lost, Standing},
    settings,
};
use fencepost::{Code, Error, Result, Token};

/// The claim that the session's commits and pushes are made under: the task that it claimed last. `None` for a person, and for a session
/// that holds nothing. A session that lost its claim is refused, and so is the push of one that gave its work back.
pub async fn token(context: &Context, is_push: bool) -> Result<Option<Token>> {
    // Also if the agent names another run: that run has no claim of its own in most cases, and the session lost its.
    let runs = context.session_runs();
    // A person lifts the guard of the whole session.
    let Some(session) = runs.last() else { return Ok(None) };
    let now = context.terminal.now();
    let Known { run, session: record, is_lifted } = session::known(&runs, now);
    if !context.location()?.is_there() && record.fleet.is_none() {
        return Ok(None);
    }
    let (record, unknown) = match refreshed(context, &run, Deadline::from_now()).await {
        Ok(record) => (record, None),
        Err(error) => (session::unanswered(&run, &error, now), Some(error)),
    };
    match record.standing(now) {
        _ if is_lifted => {}
        Standing::Lost(lost) => {
            return Err(over(session, Some(&lost), if is_push { "push" } else { "commit" }));
        }
        standing if is_push => {
            if let Some(error) = &unknown {
                return Err(unreachable(session, error));
            }
            push(context, session, &standing)?;
        }
        _ => {}
    }
    // Nobody can check the claim, so the commit, or the push that a person allowed, is made under none.
    if unknown.is_some() {
        return Ok(None);
    }
    let here = context.location()?.absolute_url();
    let tokens = record.held.iter().rev().filter(|held| held.until > now && held.fleet == here);
    Ok(tokens
        .filter_map(|held| held.token.parse::<Token>().ok())
        .find(|token| token.resource.task().is_some()))
}

fn push(context: &Context, session: &str, standing: &Standing) -> Result<()> {
    let (what, hint, may_pass) = match standing {
        Standing::GaveUp => return Err(over(session, None, "push")),
        Standing::LostOne(lost) => {
            let hint = "push nothing of that work. fence ack acknowledges the loss, and ends this message";
            (lost_claim(lost), hint, true)
        }
        Standing::Completed => {
            ("completed its claim and holds no other".into(), CLAIM_FIRST, !is_strict(context)?)
        }
        Standing::NeverClaimed => ("has claimed nothing".into(), CLAIM_FIRST, !is_strict(context)?),
        Standing::Holds | Standing::Lost(_) => return Ok(()),
    };
    let message = format!("this session (run `{session}`) {what}");
    let error = |message| Error::new(Code::LeaseExpired, message).hint(hint);
    match may_pass {
        true => {
            context.warn(&error(message));
            Ok(())
        }
        false => Err(error(format!("no push: {message}"))),
    }
}

const CLAIM_FIRST: &str = "if this belongs to a task, claim it first: fence claim --keep";

/// By the same setting as for the client's hook.
fn is_strict(context: &Context) -> Result<bool> {
    let (_, file) = context.settings();
    let settings = settings::by_command(&context.command_line(), file)?;
    let strict = settings.into_iter().find(|setting| setting.key == "hook.strict");
    let is_no = |value: &str| matches!(value, "0" | "false" | "no" | "off" | "n" | "f");
    Ok(strict.and_then(|setting| setting.value).is_some_and(|value| !is_no(&value.to_lowercase())))
}

fn lost_claim(lost: &[Lost]) -> String {
    lost.last().map_or(String::new(), |lost| format!("lost claim `{}`: {}", lost.token, lost.describe()))
}

fn over(session: &str, lost: Option<&[Lost]>, effect: &str) -> Error {
    let why = lost.map_or("holds no claim any more".to_owned(), lost_claim);
    let ack =
        if lost.is_some() { "fence ack acknowledges the loss; then claim something else. " } else { "" };
    Error::new(Code::LeaseExpired, format!("no {effect}: this session (run `{session}`) {why}")).hint(format!(
        "stop: somebody else may have the task. {ack}A person can lift this for ten minutes, in a terminal of their own: fence lift {session}"
    ))
}

fn unreachable(session: &str, error: &Error) -> Error {
    let message =
        format!("no push: nobody can tell what this session (run `{session}`) holds: {}", error.message());
    Error::new(error.code(), message).hint(format!(
        "try again when the fleet can be reached. A person can lift this for ten minutes: fence lift {session}"
    ))
}
