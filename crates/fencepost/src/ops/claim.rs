//! Claims: a resource held by a run under a fence. These ops work for every claimable noun.

pub(crate) mod checkpoint;

use super::{event::Entry, nouns};
use crate::{
    clock::Millis,
    engine::{op::verbs, prelude::Prelude},
    error::{Code, Error, Result},
    ids::{Resource, Token, clip},
};
pub use crate::{
    engine::delivery::Delivery,
    lease::{Claim, Verdict},
};
pub use checkpoint::Checkpoint;

verbs![guard::Guard, renew::Renew, release::Release, list::List, unclaim::Unclaim];

/// The nouns that can be claimed: `task`, `message`, …
pub fn claimable_nouns() -> impl Iterator<Item = &'static str> {
    nouns().iter().map(|noun| noun.noun())
}

/// The noun whose claim expired, if the event reports that.
pub fn expired_noun(event: &Entry) -> Option<&'static str> {
    let (noun, verb) = event.kind.split_once('.')?;
    let noun = nouns().find(noun)?;
    // A failure that the holder reported has the number of the attempt.
    let reported = event.details.as_ref().is_some_and(|details| details.get("attempt").is_some());
    noun.is_expiry(verb, event.from.as_deref(), reported).then(|| noun.noun())
}

/// The reason why this is not a valid resource.
fn problem(resource: &Resource) -> Option<String> {
    match nouns().find(resource.noun()) {
        Some(noun) => noun.id_problem(resource.id()),
        None => Some(format!(
            "`{}` is not a resource such as `task/auth-3` or `lock/deploy`",
            clip(&resource.to_string())
        )),
    }
}

impl Resource {
    /// Parses a resource of a claimable noun.
    fn check(text: &str) -> Result<Self, String> {
        let resource: Resource = text.parse()?;
        problem(&resource).map_or(Ok(resource), Err)
    }
}

impl Token {
    /// Parses a token of a claimable noun.
    pub(crate) fn check(text: &str) -> Result<Self> {
        let token: Result<Token, String> = text.parse();
        let known = token.and_then(|token| match problem(&token.resource) {
            None => Ok(token),
            Some(_) => Err(Token::malformed(text)),
        });
        known.map_err(|problem: String| {
            Error::new(Code::Invalid, problem)
                .with("field", "token")
                .hint("copy the whole token that `fence claim` printed, with its fence")
        })
    }
}

impl Prelude {
    /// For an op that claims for a run. (The op itself refuses a malformed name.)
    pub fn claims(run: &str, ttl: Option<Millis>) -> Self {
        Self::expires(nouns()).for_run(run, ttl)
    }
    /// For an op that takes items without a run.
    pub fn takes() -> Self {
        Self::expires(nouns())
    }
    /// For an op that only renews a run.
    pub fn renews(run: &str, ttl: Option<Millis>) -> Self {
        Self::nothing().for_run(run, ttl)
    }
    /// For a writing op under a token. (The op itself refuses a malformed token.)
    pub fn holds(token: &str) -> Self {
        let token = Token::check(token).ok();
        let run_behind = token.and_then(|Token { resource, fence }| {
            Some(nouns().find(resource.noun())?.run_behind(resource.id(), fence))
        });
        Self::nothing().for_holder(run_behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_of_nouns_that_can_be_claimed_and_of_their_ids() {
        for good in ["task/my-board-3@42", "lock/deploy/eu@1", "message/812@3", "mentions/lead/general@7"] {
            assert_eq!(Token::check(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "@",
            "task",
            "task/",
            "task/a@1",
            "task/a-0@1",
            "task/a-1@",
            "task/a-1@0",
            "task/a-01@1",
            "task/a-1@-1",
            "task/a-1@+1",
            "task/-1@1",
            "lock/@1",
            "lock/a b@1",
            "mail/a@1",
            "message/x@1",
            "mentions/a@1",
            "task/a-1@1@",
            "task/a-99999999999999999999@1",
            "task/a-1@99999999999999999999",
            "task/a\n-1@1",
        ] {
            assert!(Token::check(bad).is_err(), "{bad:?} was taken for a token");
        }
    }
}
