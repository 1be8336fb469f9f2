//! The ops: a folder per noun, a file per verb. The list of ops is [`registry`], the list of claimable nouns is here.
//!
//! To add a verb, write `NOUN/VERB.rs` with a request, a reply and `impl Op` (`engine/op.rs` explains its parts), and name the
//! request in `verbs![…]` of `NOUN.rs`. The library, HTTP, OpenAPI, the client and `fence call` then have it. Accept the snapshot of
//! `tests/it/registry.rs`. A `fence` command for it is a file of its own in the command line's `commands/`. If the verb changes a
//! task that somebody else may hold, add its event to `BY_ANYONE` (`fencepost-cli/src/output/events.rs`).
//!
//! To add a noun, write `NOUN.rs` with its `verbs![…]`, and add a `mod` below, a line in `registry.rs` and its name to `pub use ops`
//! in `lib.rs`. [`Claimable`](crate::lease::Claimable) says what a noun that can be claimed needs besides.

pub mod admin;
pub mod agent;
pub mod board;
pub mod channel;
pub mod claim;
#[cfg(test)]
mod conformance;
pub mod event;
pub mod inbox;
pub mod key;
pub mod lock;
pub mod loops;
pub mod mail;
pub mod once;
pub(crate) mod registry;
pub mod route;
pub mod run;
pub mod spend;
pub mod storm;
pub mod task;
#[cfg(test)]
mod testing;

use crate::{
    db::{BoxFuture, options::Options},
    engine::fleet::Fleet,
    error::Result,
    lease::Nouns,
};
use std::sync::LazyLock;

/// All claimable nouns.
static NOUNS: LazyLock<Nouns> = LazyLock::new(|| {
    Nouns::new(&[
        &task::claimable::Tasks,
        &mail::claimable::Messages,
        &channel::claimable::Mentions,
        &lock::claimable::Locks,
        &once::claimable::Effects,
        #[cfg(test)]
        &conformance::parcel::Parcels,
    ])
});

pub(crate) fn nouns() -> &'static Nouns {
    &NOUNS
}

impl Fleet {
    /// Opens, or creates, the fleet at a file path, `sqlite:PATH` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    pub fn open_with(url: &str, options: Options) -> BoxFuture<'_, Result<Self>> {
        Self::open_nouns(url, options, nouns())
    }
}
