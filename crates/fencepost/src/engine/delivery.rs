//! Handing a claim over to a caller who may have hung up meanwhile. See [`crate::lease::delivery`].

use super::fleet::Fleet;
use crate::{
    db::{BoxFuture, Delivered},
    error::Result,
};
use std::time::Duration;

/// The claims that a reply hands over. Dropping it gives them back, unless it was said to be delivered.
#[derive(Debug)]
#[must_use = "dropping it gives the claims back"]
pub struct Delivery {
    fleet: Fleet,
    claims: Vec<Delivered>,
}

/// The pauses before another try, if the database does not take it: together well below 2 s.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(800)];

impl Delivery {
    pub(crate) fn new(fleet: Fleet, claims: Vec<Delivered>) -> Self {
        Self { fleet, claims }
    }

    /// Does it hand anything over? If not, nothing hangs on it.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The reply reached whoever asked.
    pub fn delivered(mut self) {
        self.claims.clear();
    }

    /// It did not: what is still as it was handed out is free when this returns. Gives how many claims that were.
    pub fn undelivered(mut self) -> BoxFuture<'static, Result<u64>> {
        let claims = std::mem::take(&mut self.claims);
        Box::pin(async move { self.fleet.return_undelivered(claims).await })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        if claims.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!(
                "a claim was not delivered, and nothing runs that could give it back: its lease will end"
            );
            return;
        };
        let fleet = self.fleet.clone();
        runtime.spawn(async move {
            for pause in PAUSES {
                // Real time: it paces tries, and decides nothing.
                tokio::time::sleep(pause).await;
                match fleet.return_undelivered(claims.clone()).await {
                    Ok(_) => return,
                    Err(e) => tracing::warn!("a claim that was not delivered could not be given back: {e}"),
                }
            }
        });
    }
}
