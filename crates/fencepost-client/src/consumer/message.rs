//! A message in flight.

use super::in_flight::InFlight;
use fencepost::{
    BoxFuture, Code, Error, Json, Op, Result, Tx,
    claim::Claim,
    mail::{self, claim::ClaimedMessage},
};
use serde::de::DeserializeOwned;
use std::{ops::Deref, sync::Arc};
use tokio::runtime;
use tokio_util::sync::CancellationToken;

/// A message in flight: claimed by this consumer, which renews the claim until the message is finished, given back or
/// lost. Its fields are those of [`mail::Message`].
///
/// Dropping it gives it back, and the attempt does not count. If a panic drops it, or its completion was refused, the
/// attempt counts as failed.
#[derive(Debug)]
#[must_use = "dropping it gives the message back"]
pub struct Message {
    stored: mail::Message,
    claim: Claim,
    lost: CancellationToken,
    in_flight: Arc<InFlight>,
    finished: bool,
    /// Why its completion was refused.
    refusal: Option<String>,
}

impl Deref for Message {
    type Target = mail::Message;
    fn deref(&self) -> &mail::Message {
        &self.stored
    }
}

impl Message {
    pub(super) fn new(in_flight: Arc<InFlight>, claimed: ClaimedMessage) -> Self {
        let ClaimedMessage { claim, message } = claimed;
        let lost = CancellationToken::new();
        Self { stored: message, claim, lost, in_flight, finished: false, refusal: None }
    }

    pub(super) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(super) fn lost_token(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// The token of the claim, such as `message/7@3`. Every write about the message names it.
    pub fn token(&self) -> &str {
        &self.claim.token
    }

    /// The payload, read as a value.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        self.stored.payload.as_ref().map_or_else(|| Json::from(serde_json::Value::Null).read(), Json::read)
    }

    /// Returns when the claim is lost. Stop working on the message then: its completion will be refused.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        self.lost.clone().cancelled_owned()
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Completes the message and stores its outputs, if any, in one transaction.
    pub async fn complete(self, outputs: impl IntoIterator<Item = Json>) -> Result<mail::Message> {
        self.complete_as("done", outputs).await
    }

    /// Like [`Self::complete`], with an outcome of your own.
    pub async fn complete_as(
        self,
        outcome: &str,
        outputs: impl IntoIterator<Item = Json>,
    ) -> Result<mail::Message> {
        let (token, outputs) = (self.claim.token.clone(), outputs.into_iter().collect());
        let done = mail::Done { token, outputs, outcome: Some(outcome.into()) };
        Ok(self.end(done).await?.message)
    }

    /// Completes the message in a transaction with your own tables, on a fleet that this process opened. `work` may run
    /// more than once, so it must have no side effects elsewhere. If it fails, nothing is stored, and the message is
    /// retried later.
    pub async fn complete_in<F>(mut self, work: F) -> Result<()>
    where
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<()>> + Send + Sync + 'static,
    {
        let Some(fleet) = self.in_flight.connection.fleet().cloned() else {
            return Err(Error::new(Code::Invalid, "this process did not open the database")
                .hint("over HTTP, `complete` stores its outputs together with the completion"));
        };
        let (work, done) = (Arc::new(work), mail::Done::new(self.token()));
        let both = || {
            let (work, done) = (work.clone(), done.clone());
            fleet.transaction(move |tx| {
                let (work, done) = (work.clone(), done.clone());
                Box::pin(async move {
                    work(tx).await?;
                    tx.call(done).await.map(drop)
                })
            })
        };
        self.in_flight.set_ending(self.token());
        let ended = match self.in_flight.call_until_answered(&self.lost, both).await {
            // The first attempt was accepted, and its answer lost.
            Err(error) if error.field("repeat") == Some(&true.into()) => Ok(()),
            ended => ended,
        };
        self.note_end(&ended);
        ended
    }

    /// Fails the message for good.
    pub async fn fail(self, reason: &str) -> Result<mail::Message> {
        let fail = mail::Fail::new(self.token(), reason);
        Ok(self.end(fail).await?.message)
    }

    /// Fails this attempt. The message is retried after the mailbox's backoff, while attempts are left.
    pub async fn retry(self, reason: &str) -> Result<mail::Message> {
        let fail = mail::Fail { retry: true, ..mail::Fail::new(self.token(), reason) };
        Ok(self.end(fail).await?.message)
    }

    /// Gives the message back, at its position in the queue. The attempt does not count.
    pub async fn release(self) -> Result<()> {
        let release = mail::Release { tokens: vec![self.claim.token.clone()] };
        self.end(release).await.map(drop)
    }

    /// Stores how far the work has come. The next holder finds it in the field `checkpoint`.
    pub async fn checkpoint(&mut self, phase: &str, data: Option<serde_json::Value>) -> Result<()> {
        let ordinal = self.stored.checkpoint.as_ref().map_or(0, |last| last.ordinal) + 1;
        let save =
            mail::SaveCheckpoint { token: self.claim.token.clone(), ordinal, phase: phase.into(), data };
        let call = || self.in_flight.connection.call(save.clone());
        let saved = self.in_flight.call_until_answered(&self.lost, call).await?;
        self.stored.checkpoint = Some(saved.checkpoint);
        Ok(())
    }

    /// Tells the consumer that you finished the message, or gave it back, under its token.
    pub fn mark_finished(mut self) {
        self.finish();
    }

    async fn end<O: Op>(mut self, op: O) -> Result<O::Reply> {
        self.in_flight.set_ending(self.token());
        let call = || self.in_flight.connection.call(op.clone());
        let ended = self.in_flight.call_until_answered(&self.lost, call).await;
        self.note_end(&ended);
        ended
    }

    fn note_end<T>(&mut self, ended: &Result<T>) {
        match ended {
            Err(error) if !error.ends_claim() => self.refusal = Some(error.to_string()),
            _ => self.finish(),
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        self.in_flight.remove(&self.claim.token);
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (in_flight, lost, token) = (self.in_flight.clone(), self.lost.clone(), self.claim.token.clone());
        let Ok(runtime) = runtime::Handle::try_current() else {
            tracing::warn!(
                "`{token}` was dropped outside a tokio runtime and cannot be given back: its lease will expire"
            );
            return in_flight.remove(&token);
        };
        let panic = std::thread::panicking().then(|| "its worker panicked".to_owned());
        let failure = self.refusal.take().or(panic);
        runtime.spawn(async move {
            let ended = match failure {
                Some(reason) => {
                    let fail = mail::Fail { retry: true, ..mail::Fail::new(&token, reason) };
                    let call = || in_flight.connection.call(fail.clone());
                    in_flight.call_until_answered(&lost, call).await.map(drop)
                }
                None => {
                    let release = mail::Release { tokens: vec![token.clone()] };
                    let call = || in_flight.connection.call(release.clone());
                    in_flight.call_until_answered(&lost, call).await.map(drop)
                }
            };
            if let Err(error) = ended {
                tracing::debug!("`{token}` could not be given back: {error}");
            }
            // Only now: the run must not end while it holds this claim.
            in_flight.remove(&token);
        });
    }
}
