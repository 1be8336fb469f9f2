//! Asks the fleet which claims of a session are alive, and records what it says.

use super::soon;
use crate::{
    context::Context,
    session::{Ended, Held, Locked, Loss, Lost, Session},
};
use fencepost::{Result, Time, claim, run};
use fencepost_client::Connection;

/// What the fleet said.
pub struct Refreshed {
    /// The live claims of the run itself.
    pub claims: Vec<claim::Claim>,
    /// The claims that are over, and that the session did not end.
    pub lost: Vec<Lost>,
}

/// Asks about the claims of this run, and about those that the session made for other runs. `address`: of the fleet.
pub async fn refresh(
    fleet: &Connection,
    address: &str,
    run: &str,
    session: &mut Session,
    now: Time,
) -> Result<Refreshed> {
    let claims = super::claims(fleet, &[run.to_owned()]).await?;
    // The session works in another fleet, and only this command ran here.
    let elsewhere = session.is_elsewhere(address);
    session.hold(claims.iter().map(|claim| Held::confirmed(claim, now)).collect(), address);
    let mut lost = Vec::new();
    if elsewhere {
        return Ok(Refreshed { claims, lost });
    }
    let listed = |token: &String| claims.iter().any(|claim| claim.token == *token);
    let unconfirmed =
        session.lost.iter().filter(|lost| lost.how == Loss::Unconfirmed).map(|lost| &lost.token);
    let asked: Vec<String> =
        session.held.iter().map(|held| &held.token).chain(unconfirmed).cloned().collect();
    for token in asked.iter().filter(|token| !listed(token)) {
        let guarded = soon(fleet.call(claim::Guard::new(token))).await?;
        match (guarded.claim.filter(|_| guarded.ok), guarded.ended_by) {
            // It is another run's, which the session named.
            (Some(claim), _) => session.hold(vec![Held::confirmed(&claim, now)], address),
            (None, Some(verb)) => session.end(token, &verb),
            (None, None) => lost.push(session.lose(token, Loss::of(guarded.reason), now)),
        }
    }
    Ok(Refreshed { claims, lost })
}

/// The record of this run after its own fleet was asked. A session that works in another fleet than this directory's can write here from
/// there, so that one is asked.
pub async fn refreshed(context: &Context, run: &str) -> Result<Session> {
    let now = context.terminal.now();
    let mut locked = Locked::open(run);
    let here = context.location()?.absolute_url();
    let asked = async {
        let session = &mut locked.session;
        let has_fleet = context.location()?.is_there();
        if has_fleet {
            let fleet = soon(context.open(context.agent())).await?.without_retries();
            refresh(&fleet, &here, run, session, now).await?;
            if session.is_blank() {
                // A run begins with its first claim, of which this record knows nothing: perhaps it has no file.
                let ever = run::List { run: Some(run.to_owned()), all: true, limit: Some(1) };
                let began = !soon(fleet.call(ever)).await?.runs.is_empty();
                session.ended = began.then_some(Ended::GivenUp);
            }
        }
        if let Some(address) = session.fleet.clone().filter(|address| *address != here) {
            let fleet = soon(context.open_at(&address)).await?.without_retries();
            refresh(&fleet, &address, run, session, now).await?;
        }
        Ok(())
    };
    let asked: Result<()> = asked.await;
    let session = locked.session.clone();
    if asked.is_ok() && locked.is_kept() {
        let _ = locked.save(now);
    }
    asked.map(|()| session)
}
