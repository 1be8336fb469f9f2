//! Keeping what is in hand alive, and learning that it is lost.

use super::{FIRST, Hands, Held, LONGEST, State, is_over};
use crate::{again::Pauses, held};
use fencepost::{
    Error, Op, Result,
    claim::{self, Claim},
    mail, run,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
// Real time: see `hands.rs`.
use tokio::time::{Instant, sleep_until, timeout};

impl Hands {
    /// Keeps what is in hand alive, until there is nothing and will be nothing more. Then the run ends.
    pub async fn keep(self: Arc<Self>) {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        while let Some(renew_at) = self.next_renewal().await {
            tokio::select! {
                () = sleep_until(renew_at) => {}
                // Perhaps it is not for now: something was put down, or heard.
                () = self.changed_from(renew_at) => continue,
            }
            match self.renew().await {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    tracing::warn!("run `{}` could not be renewed, and tries again: {error}", self.run);
                    // The loss of the lease is told in time.
                    sleep_until(self.until().min(Instant::now() + pauses.next())).await;
                }
            }
        }
        self.end().await;
    }

    /// When to renew, as soon as there is something to keep; never, if there will be nothing.
    async fn next_renewal(&self) -> Option<Instant> {
        let mut state = self.state.subscribe();
        let found = state.wait_for(|state| state.is_keeping() || state.is_over()).await.ok()?;
        found.is_keeping().then_some(found.lease.renew_at)
    }

    async fn changed_from(&self, renew_at: Instant) {
        let changed = |state: &State| !state.is_keeping() || state.lease.renew_at != renew_at;
        let _ = self.state.subscribe().wait_for(changed).await;
    }

    /// One renewal covers all that is in hand; what the run no longer holds is lost. An error leaves that open, until
    /// the lease is certainly over.
    pub async fn renew(&self) -> Result<()> {
        let known = self.alive();
        for Claim { token, .. } in &known {
            // Before it is sent: the lease may have begun at any moment since.
            let asked = Instant::now();
            match self.ask(claim::Renew::new(token)).await {
                Ok(renewed) => {
                    let left = Duration::from_millis(renewed.lease_ms.0.unsigned_abs());
                    self.change(|state| state.renewed(asked, left, self.ttl));
                    return self.compare(&known).await;
                }
                Err(error) if is_over(&error) => self.lose(|other, held| other == token && !held.ending),
                Err(error) => {
                    if Instant::now() >= self.until() {
                        self.lose(|_, _| true);
                    }
                    return Err(error);
                }
            }
        }
        // What is left is being ended, and its answer tells how it went: until then there is nothing to renew.
        let later = Instant::now() + LONGEST.min(self.ttl / 3);
        self.change(|state| state.lease.renew_at = state.lease.renew_at.max(later));
        Ok(())
    }

    /// An operator may have taken one of many away. What was put down meanwhile is not missed.
    async fn compare(&self, known: &[Claim]) -> Result<()> {
        if known.len() < 2 {
            return Ok(());
        }
        let listed = self.ask(held::list(&self.run)).await?.claims;
        let mut unlisted = held::unlisted(known, &listed);
        // The next renewal does not wait for many. Those that were not asked for are at another time.
        fastrand::shuffle(&mut unlisted);
        let renew_at = self.state.borrow().lease.renew_at;
        for claim in unlisted {
            if Instant::now() >= renew_at {
                break;
            }
            if !self.is_held(claim).await? {
                self.lose(|token, own| token == claim.token && !own.ending);
            }
        }
        Ok(())
    }

    async fn is_held(&self, claim: &Claim) -> Result<bool> {
        let guarded = self.ask(claim::Guard::new(&claim.token)).await?;
        Ok(guarded.ok && guarded.claim.is_some_and(|held| held::is_same(&held, claim)))
    }

    /// A claim that was given up in the very moment of its answer is held, and nobody knows of it: a server that has sent
    /// an answer cannot know that it was not read. (Who hangs up before that is noticed by the server.)
    pub async fn sweep(&self) {
        if !self.own_run || self.state.borrow().asking.is_empty() {
            return;
        }
        // It is still being asked for: what is not listed yet may be claimed after this.
        let Ok(held) = self.connection.call(held::list(&self.run)).await else { return };
        let known = self.in_hand();
        let unknown = held.claims.into_iter().map(|claim| claim.token).filter(|token| !known.contains(token));
        let tokens: Vec<String> = unknown.collect();
        if !tokens.is_empty() {
            let _ = self.connection.call(mail::Release { tokens }).await;
        }
    }

    fn in_hand(&self) -> BTreeSet<String> {
        self.state.borrow().held.keys().cloned().collect()
    }

    fn until(&self) -> Instant {
        self.state.borrow().lease.until
    }

    fn alive(&self) -> Vec<Claim> {
        let state = self.state.borrow();
        let alive = state.held.values().filter(|held| !held.lost.is_cancelled());
        alive.map(|held| held.claim.clone()).collect()
    }

    fn lose(&self, which: impl Fn(&str, &Held) -> bool) {
        self.change(|state| {
            for (_, held) in state.held.iter().filter(|(token, held)| which(token, held)) {
                held.lost.cancel();
            }
        });
    }

    /// A database that does not answer must not keep the loss of a lease from being told.
    async fn ask<O: Op>(&self, op: O) -> Result<O::Reply> {
        let limit = self.until().saturating_duration_since(Instant::now()).min(self.ttl / 5);
        let late = |_| Error::unavailable(format!("the fleet did not answer in {limit:?}"));
        timeout(limit, self.connection.call(op)).await.map_err(late)?
    }

    /// A run that others may use is theirs. What a call that was given up has claimed goes back; what it claims after
    /// that is given back where it runs, unless the run has ended: so it is left to lapse, for then the attempt would count.
    async fn end(&self) {
        let (begun, given_up) = (self.state.borrow().begun, !self.state.borrow().asking.is_empty());
        if !self.own_run || !begun {
            return;
        }
        if given_up {
            let reset = mail::Reset { run: Some(self.run.clone()), ..Default::default() };
            let _ = self.connection.call(reset).await;
            return;
        }
        let end = run::End { run: self.run.clone(), reason: Some("closed".into()), ..run::End::default() };
        if let Err(error) = self.connection.call(end).await {
            tracing::debug!("run `{}` could not be ended, and will lapse: {error}", self.run);
        }
    }
}
