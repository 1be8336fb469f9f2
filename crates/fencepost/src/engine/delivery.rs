//! Delivering a claim to a caller that may have hung up meanwhile. See [`crate::lease::delivery`].

use super::fleet::Fleet;
use crate::{
    db::{BoxFuture, Delivered},
    error::Result,
};
use std::time::Duration;

/// The claims of one reply. Call [`Delivery::delivered`] when the reply has arrived; dropping it gives the claims back.
#[derive(Debug)]
#[must_use = "dropping it gives the claims back"]
pub struct Delivery {
    fleet: Fleet,
    claims: Vec<Delivered>,
}

/// The pauses before each attempt to give the claims back: together well below 2 s.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(800)];

impl Delivery {
    pub(crate) fn new(fleet: Fleet, claims: Vec<Delivered>) -> Self {
        Self { fleet, claims }
    }

    /// The reply has no claims.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The reply reached the caller, which keeps the claims.
    pub fn delivered(mut self) {
        self.claims.clear();
    }

    /// The reply did not reach the caller. Gives back the claims that no later reply delivered, and returns their
    /// number.
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
                "a claim was not delivered, and no runtime is left to give it back: its lease will expire"
            );
            return;
        };
        let fleet = self.fleet.clone();
        runtime.spawn(async move {
            for pause in PAUSES {
                // Real time: it paces attempts, and decides no lease.
                tokio::time::sleep(pause).await;
                match fleet.return_undelivered(claims.clone()).await {
                    Ok(_) => return,
                    Err(e) => tracing::warn!("a claim that was not delivered could not be given back: {e}"),
                }
            }
        });
    }
}
