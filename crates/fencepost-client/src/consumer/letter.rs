//! A message in hand.

use super::hands::{Hands, is_over};
use fencepost::{
    BoxFuture, Code, Error, Json, Op, Result, Tx,
    claim::Claim,
    mail::{self, Message, claim::ClaimedMessage},
};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

/// A message in hand: claimed, and kept alive until it is finished, given back, or lost. Dropped unfinished it is given
/// back, and the attempt does not count; unless a panic drops it, or its completion was refused.
#[derive(Debug)]
#[must_use = "dropping it gives the message back"]
pub struct Letter {
    pub message: Message,
    claim: Claim,
    lost: CancellationToken,
    hands: Arc<Hands>,
    in_hand: bool,
    /// Why it could not be finished.
    trouble: Option<String>,
}

impl Letter {
    pub(super) fn new(hands: Arc<Hands>, claimed: ClaimedMessage) -> Self {
        let ClaimedMessage { claim, message } = claimed;
        Self { message, claim, lost: CancellationToken::new(), hands, in_hand: true, trouble: None }
    }

    pub(super) fn hands(&self) -> &Hands {
        &self.hands
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(super) fn loss(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// `message/7@3`: what every write about it names.
    pub fn token(&self) -> &str {
        &self.claim.token
    }

    /// What was pushed, read as a value.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        self.message.payload.as_ref().map_or_else(|| Json::from(serde_json::Value::Null).read(), Json::read)
    }

    /// Returns when it is known that the message is no longer ours: stop work on it, what you did is not accepted.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        self.lost.clone().cancelled_owned()
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Completes it, and stores what came of it (nothing is fine, too), at once or not at all.
    pub async fn complete(self, outputs: impl IntoIterator<Item = Json>) -> Result<Message> {
        self.complete_as("done", outputs).await
    }

    /// The same, with an outcome of your own.
    pub async fn complete_as(
        self,
        outcome: &str,
        outputs: impl IntoIterator<Item = Json>,
    ) -> Result<Message> {
        let (token, outputs) = (self.claim.token.clone(), outputs.into_iter().collect());
        let done = mail::Done { token, outputs, outcome: Some(outcome.into()) };
        Ok(self.end(done).await?.message)
    }

    /// Completes it in a transaction with your own tables, on a fleet that is opened in this process. The work may run
    /// again, so it must not have side effects elsewhere. If it fails, nothing is done, and the message is tried again.
    pub async fn complete_in<F>(mut self, work: F) -> Result<()>
    where
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<()>> + Send + Sync + 'static,
    {
        let Some(fleet) = self.hands.connection.fleet().cloned() else {
            return Err(Error::new(Code::Invalid, "the database is not opened in this process")
                .hint("over HTTP the outputs of `complete` are what is stored with the completion"));
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
        self.hands.ending(self.token());
        let ended = match self.hands.insist(&self.lost, both).await {
            // The answer to the first try was lost, and it had been accepted.
            Err(error) if error.field("repeat") == Some(&true.into()) => Ok(()),
            ended => ended,
        };
        self.settle(&ended);
        ended
    }

    /// Says that it cannot be processed, for good.
    pub async fn fail(self, reason: &str) -> Result<Message> {
        let fail = mail::Fail::new(self.token(), reason);
        Ok(self.end(fail).await?.message)
    }

    /// Says that it failed, to be tried again after the mailbox's backoff, while attempts are left.
    pub async fn retry(self, reason: &str) -> Result<Message> {
        let fail = mail::Fail { retry: true, ..mail::Fail::new(self.token(), reason) };
        Ok(self.end(fail).await?.message)
    }

    /// Gives it back, to its place. The attempt does not count.
    pub async fn release(self) -> Result<()> {
        let release = mail::Release { tokens: vec![self.claim.token.clone()] };
        self.end(release).await.map(drop)
    }

    /// Records how far the work has come, for whoever has it next (`message.checkpoint`).
    pub async fn checkpoint(&mut self, phase: &str, data: Option<serde_json::Value>) -> Result<()> {
        let ordinal = self.message.checkpoint.as_ref().map_or(0, |last| last.ordinal) + 1;
        let save =
            mail::SaveCheckpoint { token: self.claim.token.clone(), ordinal, phase: phase.into(), data };
        let saved = self.hands.insist(&self.lost, || self.hands.connection.call(save.clone())).await?;
        self.message.checkpoint = Some(saved.checkpoint);
        Ok(())
    }

    /// It was finished, or given back, under its token: nothing is left to do.
    pub fn settled(mut self) {
        self.put_down();
    }

    async fn end<O: Op>(mut self, op: O) -> Result<O::Reply> {
        self.hands.ending(self.token());
        let ended = self.hands.insist(&self.lost, || self.hands.connection.call(op.clone())).await;
        self.settle(&ended);
        ended
    }

    fn settle<T>(&mut self, ended: &Result<T>) {
        match ended {
            Err(error) if !is_over(error) => self.trouble = Some(error.to_string()),
            _ => self.put_down(),
        }
    }

    fn put_down(&mut self) {
        self.in_hand = false;
        self.hands.put_down(&self.claim.token);
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        if !self.in_hand {
            return;
        }
        let (hands, lost, token) = (self.hands.clone(), self.lost.clone(), self.claim.token.clone());
        let Ok(runtime) = runtime::Handle::try_current() else {
            tracing::warn!(
                "`{token}` was dropped, and nothing runs that could give it back: its lease will end"
            );
            return hands.put_down(&token);
        };
        let panic = std::thread::panicking().then(|| "its worker panicked".to_owned());
        let trouble = self.trouble.take().or(panic);
        runtime.spawn(async move {
            let given = match trouble {
                Some(reason) => {
                    let fail = mail::Fail { retry: true, ..mail::Fail::new(&token, reason) };
                    hands.insist(&lost, || hands.connection.call(fail.clone())).await.map(drop)
                }
                None => {
                    let release = mail::Release { tokens: vec![token.clone()] };
                    hands.insist(&lost, || hands.connection.call(release.clone())).await.map(drop)
                }
            };
            if let Err(error) = given {
                tracing::debug!("`{token}` could not be given back: {error}");
            }
            // Not before: the run must not end while it holds this.
            hands.put_down(&token);
        });
    }
}
