//! Claiming the next messages: not before there is room, not after it is time to stop, and whatever the database says.

use super::{
    Letter, Options, Stop,
    hands::{Activity, Hands, is_open},
};
use crate::{Connection, again::Pauses};
use fencepost::{Code, Error, Millis, Result, mail};
use std::{sync::Arc, time::Duration};
// Real time: it paces, and decides no lease.
use tokio::time::{Instant, sleep};

/// Between two looks whether to stop, while there is nothing to do. Asking costs nothing but the condition itself.
const LOOK: Duration = Duration::from_millis(50);
/// Between two tries, if the database fails.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Claiming {
    pub hands: Arc<Hands>,
    pub stop: Stop,
    mailboxes: Vec<String>,
    agent: Option<String>,
    prefetch: usize,
}

impl Claiming {
    pub fn new(fleet: &Connection, mailboxes: Vec<String>, options: Options) -> Self {
        let Options { run, agent, ttl, prefetch, stop } = options;
        let hands = Arc::new(Hands::new(fleet.clone(), run, ttl));
        Self { hands, stop, mailboxes, agent, prefetch: prefetch.clamp(1, 1000) }
    }

    /// The next messages; none, if it is time to stop. An error is one that no waiting mends.
    pub async fn next(self: Arc<Self>) -> Result<Vec<Letter>> {
        tokio::select! {
            // Whatever is dropped here has claimed nothing, or gives it back.
            biased;
            () = self.stopped() => Ok(Vec::new()),
            claimed = self.claim() => claimed,
        }
    }

    async fn claim(&self) -> Result<Vec<Letter>> {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        // A lost answer is asked for under the same id: else what it brought would be held, unknown to anyone, for as
        // long as this consumer lives.
        let (mut request, mut wait) = (new_request(), None);
        // For as many as before: under one id it is one request. (There is room for them: nobody else claims.)
        let mut unanswered = None;
        loop {
            let room = match unanswered.take() {
                Some(room) => room,
                None => self.hands.room(self.prefetch).await,
            };
            if self.stop.is_due() {
                return Ok(Vec::new());
            }
            let asked = Instant::now();
            let claim = mail::Claim {
                mailboxes: self.mailboxes.clone(),
                run: self.hands.run.clone(),
                agent: self.agent.clone(),
                count: i64::try_from(room).ok(),
                ttl_ms: Some(self.hands.ttl.into()),
                wait_ms: wait,
                request: Some(request.clone()),
                ..mail::Claim::default()
            };
            self.hands.ask_for(&request);
            let answer = self.hands.connection.call(claim).await;
            // It may be carried out yet, if the answer was lost.
            if !answer.as_ref().is_err_and(is_open) {
                self.hands.answered(&request);
            }
            let error = match answer {
                Ok(claimed) => return Ok(self.hands.take(claimed.claims, asked)),
                Err(error) => error,
            };
            match error.code() {
                Code::NoneReady | Code::Paused => {
                    self.hands.turn(Activity::Idle);
                    // The lease of what comes is counted from before asking, so one ask must not wait for long.
                    wait = Some(Millis::from(self.hands.ttl / 3));
                    pauses.reset();
                }
                // An answer was lost, and by now also what it brought.
                Code::LeaseExpired => request = new_request(),
                _ if is_final(&error) => return Err(error),
                _ => {
                    tracing::warn!("run `{}` could not claim, and tries again: {error}", self.hands.run);
                    let least = error.field("retry_after_ms").and_then(|ms| ms.as_u64());
                    self.hands.turn(Activity::Troubled(error));
                    (wait, unanswered) = (None, Some(room));
                    sleep(pauses.next().max(least.map_or(Duration::ZERO, Duration::from_millis))).await;
                }
            }
        }
    }

    async fn stopped(&self) {
        if self.stop.is_never() {
            return std::future::pending().await;
        }
        while !self.stop.is_due() {
            sleep(LOOK).await;
        }
    }
}

fn new_request() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Asking again gives the same answer.
fn is_final(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Invalid | Code::NotFound | Code::Unauthorized | Code::Forbidden | Code::TooLarge
    )
}
