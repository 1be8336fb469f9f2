//! Leases: runs, the claims they hold under fences, the trait of a claimable noun, and expiry.
//!
//! A run that dies is not renewed. When its lease is over, [`expiry`] ends it and gives its items back by the noun's own rule,
//! `ops/NOUN/lapse.rs`. [`ending`] writes the end of a run, for whatever reason. [`overdue`] shows readers what expiry would write.

pub(crate) mod claimable;
pub(crate) mod delivery;
pub(crate) mod ending;
pub(crate) mod expiry;
pub(crate) mod hold;
pub(crate) mod overdue;
pub(crate) mod run;

pub(crate) use claimable::{Claimable, Nouns};
pub use hold::{Claim, Verdict};
pub(crate) use hold::{ClaimState, Closed, Hold, Last, Under};
pub use run::Lease;
