//! Whether a run still holds what it was given: one question about many claims.

use fencepost::claim::{self, Claim};
use std::collections::HashMap;

/// What this run holds, as far as a list has room for it.
pub fn list(run: &str) -> claim::List {
    claim::List { run: Some(run.to_owned()), limit: Some(1000) }
}

/// Of these claims, those that are not listed. They are over, or their run holds more than a list has room for: each
/// is to be asked for by itself.
pub fn unlisted<'c>(claims: impl IntoIterator<Item = &'c Claim>, listed: &[Claim]) -> Vec<&'c Claim> {
    let listed: HashMap<&str, &Claim> = listed.iter().map(|claim| (claim.token.as_str(), claim)).collect();
    let is_listed =
        |claim: &Claim| listed.get(claim.token.as_str()).is_some_and(|listed| is_same(listed, claim));
    claims.into_iter().filter(|claim| !is_listed(claim)).collect()
}

/// In a fleet that was made anew, fences are given out anew.
pub fn is_same(one: &Claim, other: &Claim) -> bool {
    (&one.run, one.claimed_at) == (&other.run, other.claimed_at)
}
