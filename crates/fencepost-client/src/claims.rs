//! Whether a run still holds its claims: one request for many claims.

use fencepost::claim::{self, Claim};
use std::collections::HashMap;

/// Lists the run's claims, up to the limit of a list.
pub fn list(run: &str) -> claim::List {
    claim::List { run: Some(run.to_owned()), limit: Some(1000) }
}

/// The claims that are missing from the list. Each may be over, or the run holds more claims than a list has; check it
/// by itself.
pub fn unlisted<'c>(claims: impl IntoIterator<Item = &'c Claim>, listed: &[Claim]) -> Vec<&'c Claim> {
    let listed: HashMap<&str, &Claim> = listed.iter().map(|claim| (claim.token.as_str(), claim)).collect();
    let is_listed =
        |claim: &Claim| listed.get(claim.token.as_str()).is_some_and(|listed| is_same(listed, claim));
    claims.into_iter().filter(|claim| !is_listed(claim)).collect()
}

/// Whether two claims with the same token are the same claim. A fleet that was deleted and created anew gives out the
/// same tokens again.
pub fn is_same(one: &Claim, other: &Claim) -> bool {
    (&one.run, one.claimed_at) == (&other.run, other.claimed_at)
}
