//! Asks the fleet which claims of a session are alive, and records what it says.

use crate::{
    context::Context,
    session::{Deadline, Ended, Fleet, Held, Locked, Loss, Lost, Session},
};
use fencepost::{Code, Result, Time, claim, run};
use std::collections::BTreeSet;

/// What the fleet said.
pub struct Refreshed {
    /// The live claims of the run itself.
    pub claims: Vec<claim::Claim>,
    /// The claims that are over, and that the session did not end.
    pub lost: Vec<Lost>,
}

/// Asks about the claims of this run, and about those that the session made for other runs. `address`: of the fleet.
pub async fn refresh(
    fleet: &Fleet,
    address: &str,
    run: &str,
    session: &mut Session,
    now: Time,
) -> Result<Refreshed> {
    let claims = super::claims(fleet, &[run.to_owned()]).await?;
    session.hold(claims.iter().map(|claim| Held::confirmed(claim, address, now)).collect());
    let mut lost = Vec::new();
    let listed = |token: &String| claims.iter().any(|claim| claim.token == *token);
    for token in session.may_hold_in(address).iter().filter(|token| !listed(token)) {
        let guarded = fleet.call(claim::Guard::new(token)).await?;
        match (guarded.claim.filter(|_| guarded.ok), guarded.ended_by) {
            // It is another run's, which the session named.
            (Some(claim), _) => session.hold(vec![Held::confirmed(&claim, address, now)]),
            (None, Some(verb)) => session.end(address, token, &verb),
            (None, None) => lost.push(session.lose(address, token, Loss::of(guarded.reason), now)),
        }
    }
    Ok(Refreshed { claims, lost })
}

/// The record of this run after its fleets were asked: this directory's, and others in which it holds claims, because it can write here
/// from there. An error if this directory's cannot be asked, or another one, and no claim here is alive.
pub async fn refreshed(context: &Context, run: &str, deadline: Deadline) -> Result<Session> {
    let now = context.terminal.now();
    let mut locked = Locked::open(run, deadline);
    let here = context.location()?.absolute_url();
    let session = &mut locked.session;
    if context.location()?.is_there() {
        let fleet = deadline.open(context.open(context.agent())).await?;
        refresh(&fleet, &here, run, session, now).await?;
        session.silent_until = None;
        if session.is_blank() {
            // A run begins with its first claim, of which this record knows nothing: perhaps it has no file.
            let ever = run::List { run: Some(run.to_owned()), all: true, limit: Some(1) };
            let began = !fleet.call(ever).await?.runs.is_empty();
            session.ended = began.then_some(Ended::GivenUp);
        }
    }
    let lives_here = session.held.iter().any(|held| held.fleet == here);
    let mut unreached = None;
    let elsewhere: BTreeSet<String> = session.may_hold().map(|(fleet, _)| fleet.to_owned()).collect();
    for address in elsewhere.iter().filter(|address| **address != here) {
        let asked = async {
            let fleet = deadline.open(context.open_elsewhere(address)).await?;
            refresh(&fleet, address, run, session, now).await
        };
        match asked.await {
            Ok(_) => {}
            Err(error) if error.code() == Code::NotFound => session.forget(address),
            Err(error) => unreached = Some(error),
        }
    }
    if unreached.is_some() {
        session.lapse(now);
    }
    let session = locked.session.clone();
    // Without the file the next hook asks again.
    let _ = locked.save(now);
    match unreached.filter(|_| !lives_here) {
        Some(error) => Err(error),
        None => Ok(session),
    }
}
