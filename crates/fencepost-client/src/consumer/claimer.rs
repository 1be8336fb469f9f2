//! Claiming the next messages: only when there is a free slot, only before it is time to stop, and through outages.

use super::{
    Message, Options, Stop,
    in_flight::{Activity, InFlight},
};
use crate::{
    connection::Connection,
    renewal,
    retry::{is_permanent, new_request_id},
};
use fencepost::{Backoff, Code, Error, Millis, Result, mail};
use std::{sync::Arc, time::Duration};
// Real time: it sets the pace and decides no lease.
use tokio::time::sleep;

/// Between two checks of the stop condition while there is nothing to do.
const CHECK: Duration = Duration::from_millis(50);
/// Between two attempts while the database fails.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

#[derive(Debug)]
pub(super) struct Claimer {
    pub in_flight: Arc<InFlight>,
    pub stop: Stop,
    mailboxes: Vec<String>,
    agent: Option<String>,
    prefetch: usize,
}

impl Claimer {
    pub fn new(fleet: &Connection, mailboxes: Vec<String>, options: Options) -> Self {
        let Options { run, agent, ttl, prefetch, stop } = options;
        let in_flight = Arc::new(InFlight::new(fleet.clone(), run, ttl));
        Self { in_flight, stop, mailboxes, agent, prefetch: prefetch.clamp(1, 1000) }
    }

    /// The next messages; none if it is time to stop. An error if retrying cannot help.
    pub async fn next(self: Arc<Self>) -> Result<Vec<Message>> {
        tokio::select! {
            // The call that is dropped here has claimed nothing, or gives it back.
            biased;
            () = self.stopped() => Ok(Vec::new()),
            claimed = self.claim() => claimed,
        }
    }

    async fn claim(&self) -> Result<Vec<Message>> {
        let mut backoff = BACKOFF;
        // After a lost answer the claim is repeated under the same id. Under a new id the messages of the lost answer
        // would stay claimed, and nobody would work on them, until this consumer ends.
        let (mut request, mut wait) = (new_request_id(), None);
        // A repeat asks for the same number, because one id is one request. The slots are still free: nobody else claims.
        let mut unanswered = None;
        loop {
            let slots = match unanswered.take() {
                Some(slots) => slots,
                None => self.in_flight.free_slots(self.prefetch).await,
            };
            if self.stop.is_due() {
                return Ok(Vec::new());
            }
            let sent = renewal::now();
            let claim = mail::Claim {
                mailboxes: self.mailboxes.clone(),
                run: self.in_flight.run.clone(),
                agent: self.agent.clone(),
                count: i64::try_from(slots).ok(),
                ttl_ms: Some(self.in_flight.ttl.into()),
                wait_ms: wait,
                request: Some(request.clone()),
                ..mail::Claim::default()
            };
            self.in_flight.claim_sent(&request);
            let answer = self.in_flight.connection.call(claim).await;
            // After a lost answer the fleet may still carry out the claim.
            if !answer.as_ref().is_err_and(Error::is_transient) {
                self.in_flight.claim_answered(&request);
            }
            let error = match answer {
                Ok(claimed) => return Ok(self.in_flight.add(claimed.claims, sent)),
                Err(error) => error,
            };
            match error.code() {
                Code::NoneReady | Code::Paused => {
                    self.in_flight.set_activity(Activity::Idle);
                    // The lease counts from before the request was sent, so one request must not wait for long.
                    wait = Some(Millis::from(self.in_flight.ttl / 3));
                    backoff.reset();
                }
                // The messages of a lost answer: their lease has expired by now.
                Code::LeaseExpired => request = new_request_id(),
                _ if is_permanent(&error) => return Err(error),
                _ => {
                    tracing::warn!("run `{}` could not claim and retries: {error}", self.in_flight.run);
                    let least = error.field("retry_after_ms").and_then(|ms| ms.as_u64());
                    self.in_flight.set_activity(Activity::Retrying(error));
                    (wait, unanswered) = (None, Some(slots));
                    sleep(backoff.next().max(least.map_or(Duration::ZERO, Duration::from_millis))).await;
                }
            }
        }
    }

    async fn stopped(&self) {
        if self.stop.is_never() {
            return std::future::pending().await;
        }
        while !self.stop.is_due() {
            sleep(CHECK).await;
        }
    }
}
