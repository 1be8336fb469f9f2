//! The claim of an agent's session, for git without `FENCE_CLAIM`. So a push that a client's hook does not see, in a script or by an
//! alias, is checked all the same.

use super::super::hook::{Standing, session, standing};
use crate::{context::Context, identity};
use fencepost::{Code, Error, Result, Token};

/// The claim that the session's commits and pushes are made under: the task that it claimed last. `None` for a person, for a session
/// that never claimed, and for a commit of one that holds nothing. A push of such a session is refused.
pub async fn token(context: &Context, is_push: bool) -> Result<Option<Token>> {
    // Also if the agent names another run: that run has no claim of its own in most cases, and the session lost its.
    let session = identity::identify(None, None);
    if !session.reason.is_agent() {
        return Ok(None);
    }
    let mut runs = identity::with_session(&session.run);
    // A person lifts the guard of the whole session.
    let run = runs.last().cloned().unwrap_or(session.run);
    let session = session::read(&run);
    if !context.location()?.is_there() && session.fleet.is_none() {
        return Ok(None);
    }
    let named = context.run();
    if !runs.contains(&named) {
        runs.push(named);
    }
    let lifted = session.is_lifted(context.terminal.now());
    let found = async {
        let is_elsewhere = session.is_elsewhere(&context.location()?.absolute_url());
        let held = if is_elsewhere { &[][..] } else { &session.held };
        standing(context.connection().await?, &runs, held).await
    };
    match found.await {
        Ok((Standing::Holds, mut claims)) => {
            claims.sort_by_key(|claim| claim.claimed_at);
            let tasks = claims.iter().rev().filter_map(|claim| claim.token.parse::<Token>().ok());
            Ok(tasks.into_iter().find(|token| token.resource.task().is_some()))
        }
        Ok((Standing::HoldsNothing, _)) if is_push && !lifted => Err(over(&run)),
        Ok(_) => Ok(None),
        Err(error) if is_push && !lifted => Err(unknown(&run, &error)),
        Err(_) => Ok(None),
    }
}

fn over(run: &str) -> Error {
    let message = format!("no push: this session (run `{run}`) holds no claim any more");
    Error::new(Code::LeaseExpired, message).hint(format!(
        "stop: somebody else may have the task. A person can lift this for ten minutes, in a terminal of their own: fence lift {run}"
    ))
}

fn unknown(run: &str, error: &Error) -> Error {
    let message =
        format!("no push: nobody can tell what this session (run `{run}`) holds: {}", error.message());
    Error::new(error.code(), message).hint(format!(
        "try again when the fleet can be reached. A person can lift this for ten minutes: fence lift {run}"
    ))
}
