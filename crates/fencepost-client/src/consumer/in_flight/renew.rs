//! Renewing the lease of the messages in flight, and noticing lost claims.

use super::{Entry, InFlight, State};
use crate::{
    claims,
    renewal::{self, Answer, Ticks, Verdict},
};
use fencepost::{
    Millis, Op, Result,
    claim::{self, Claim},
    mail, run,
};
use std::{collections::BTreeSet, sync::Arc};

/// How long nothing is renewed while every claim is about to end.
const ENDING: Millis = Millis::seconds(1);

impl InFlight {
    /// Renews the lease while messages are in flight. Ends the run once there are none and will be none.
    pub async fn run_renewals(self: Arc<Self>) {
        while let Some(next_at) = self.next_renewal().await {
            tokio::select! {
                () = renewal::sleep_until(next_at) => {}
                // Something was removed or renewed: the next renewal may be at another time.
                () = self.changed_from(next_at) => continue,
            }
            if let Err(error) = self.renew().await {
                tracing::warn!("run `{}` could not be renewed and retries: {error}", self.run);
            }
        }
        self.end_run().await;
    }

    /// Waits until there is something to renew, and returns when to renew it. `None` if there never will be.
    async fn next_renewal(&self) -> Option<Ticks> {
        let mut state = self.state.subscribe();
        let found = state.wait_for(|state| state.needs_renewal() || state.is_finished()).await.ok()?;
        found.needs_renewal().then(|| found.renewal.next_at())
    }

    async fn changed_from(&self, next_at: Ticks) {
        let changed = |state: &State| !state.needs_renewal() || state.renewal.next_at() != next_at;
        let _ = self.state.subscribe().wait_for(changed).await;
    }

    /// Renews the run's lease, which covers every message in flight, and marks claims that the run no longer holds as
    /// lost. After an error nothing is known until the lease is certainly over.
    pub async fn renew(&self) -> Result<()> {
        let known = self.live_claims();
        for Claim { token, .. } in &known {
            let sent = renewal::now();
            let renewed = self.call_within_lease(claim::Renew::new(token)).await;
            match Answer::of(sent, renewed.map(|renewed| renewed.lease_ms)) {
                // Only this claim is over. Another one may renew the run.
                Answer::Over(_) => self.mark_lost(|other, entry| other == token && !entry.ending),
                answer => return self.apply(answer, &known).await,
            }
        }
        // Every claim that is left is about to end. Until that is answered there is nothing to renew.
        self.change(|state| {
            let pause = ENDING.min(state.renewal.interval());
            state.renewal.postpone(renewal::now() + pause.0);
        });
        Ok(())
    }

    async fn apply(&self, answer: Answer, known: &[Claim]) -> Result<()> {
        let mut verdict = Verdict::Held;
        self.change(|state| verdict = state.renewal.apply(&answer, renewal::now()));
        if verdict == Verdict::Over {
            self.mark_lost(|_, _| true);
        }
        match answer {
            Answer::Renewed(_) => self.find_lost(known).await,
            Answer::Over(error) | Answer::Unknown(error) => Err(error),
        }
    }

    /// Marks single claims as lost that an operator took away. Messages removed meanwhile are not missed.
    async fn find_lost(&self, known: &[Claim]) -> Result<()> {
        if known.len() < 2 {
            return Ok(());
        }
        let listed = self.call_within_lease(claims::list(&self.run)).await?.claims;
        let mut unlisted = claims::unlisted(known, &listed);
        // Many of them must not delay the next renewal. In random order, every claim is checked sooner or later.
        fastrand::shuffle(&mut unlisted);
        let next_at = self.state.borrow().renewal.next_at();
        for claim in unlisted {
            if renewal::now() >= next_at {
                break;
            }
            if !self.is_held(claim).await? {
                self.mark_lost(|token, entry| token == claim.token && !entry.ending);
            }
        }
        Ok(())
    }

    async fn is_held(&self, claim: &Claim) -> Result<bool> {
        let guarded = self.call_within_lease(claim::Guard::new(&claim.token)).await?;
        Ok(guarded.ok && guarded.claim.is_some_and(|held| claims::is_same(&held, claim)))
    }

    /// Releases claims that this consumer does not know. A call dropped at the moment of its answer leaves such claims
    /// behind: a server that has sent an answer cannot know that nobody read it. (A call dropped earlier is noticed by
    /// the server.)
    pub async fn release_unknown(&self) {
        if !self.own_run || self.state.borrow().unanswered.is_empty() {
            return;
        }
        // The claim may still be on its way, and its messages appear only after this list.
        let Ok(held) = self.connection.call(claims::list(&self.run)).await else { return };
        let known = self.tokens();
        let unknown = held.claims.into_iter().map(|claim| claim.token).filter(|token| !known.contains(token));
        let tokens: Vec<String> = unknown.collect();
        if !tokens.is_empty() {
            let _ = self.connection.call(mail::Release { tokens }).await;
        }
    }

    fn tokens(&self) -> BTreeSet<String> {
        self.state.borrow().messages.keys().cloned().collect()
    }

    fn live_claims(&self) -> Vec<Claim> {
        let state = self.state.borrow();
        let live = state.messages.values().filter(|entry| !entry.lost.is_cancelled());
        live.map(|entry| entry.claim.clone()).collect()
    }

    fn mark_lost(&self, which: impl Fn(&str, &Entry) -> bool) {
        self.change(|state| {
            for (_, entry) in state.messages.iter().filter(|(token, entry)| which(token, entry)) {
                entry.lost.cancel();
            }
        });
    }

    /// Calls an op, but not past the end of the lease.
    async fn call_within_lease<O: Op>(&self, op: O) -> Result<O::Reply> {
        let limit = self.state.borrow().renewal.limit(renewal::now());
        renewal::within(limit, self.connection.call(op)).await
    }

    /// Ends the run, if no other program uses it. After a claim without an answer the run lapses instead: the fleet may
    /// still carry out that claim, and the server then gives it back; under an ended run its attempt would count.
    async fn end_run(&self) {
        let (may_exist, unanswered) = {
            let state = self.state.borrow();
            (state.run_may_exist, !state.unanswered.is_empty())
        };
        if !self.own_run || !may_exist {
            return;
        }
        if unanswered {
            let reset = mail::Reset { run: Some(self.run.clone()), ..Default::default() };
            let _ = self.connection.call(reset).await;
            return;
        }
        let end = run::End { run: self.run.clone(), reason: Some("closed".into()), ..run::End::default() };
        if let Err(error) = self.connection.call(end).await {
            tracing::debug!("run `{}` could not be ended and will lapse: {error}", self.run);
        }
    }
}
