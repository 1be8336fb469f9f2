//! The claim that a command acts under.

use super::Context;
use crate::environment::variable;
use fencepost::{Code, Error, Result, claim, run};

/// The resource of a task: `task/auth-3` for `auth-3`. Text with a slash is a resource already.
pub fn resource(text: &str) -> String {
    if text.contains('/') { text.to_owned() } else { format!("task/{text}") }
}

impl Context {
    /// The token to act under: the named one, else `FENCE_CLAIM`, else the only one that this run holds.
    pub async fn token(&self, given: Option<String>) -> Result<String> {
        if let Some(given) = given {
            // A task that this run holds may be named instead of its token.
            let held = if given.contains('@') { None } else { self.token_of(&given).await? };
            return Ok(held.unwrap_or(given));
        }
        match variable("FENCE_CLAIM") {
            Some(token) => self.check_current(token).await,
            None => self.only_claim().await,
        }
    }

    /// Refuses a token of `FENCE_CLAIM` that is over while the run holds something else. A variable does not change when its claim
    /// ends, and a repeated completion returns the first reply, so nobody would notice the mistake.
    async fn check_current(&self, token: String) -> Result<String> {
        if self.call(claim::Guard::new(&token)).await?.ok {
            return Ok(token);
        }
        let others = self.claims().await?;
        let others: Vec<_> = others.iter().map(|claim| claim.token.as_str()).collect();
        if others.is_empty() {
            return Ok(token);
        }
        Err(Error::new(Code::LeaseExpired, format!("FENCE_CLAIM is `{token}`, and that claim is over"))
            .with("tokens", &others)
            .hint(format!("name one of your claims: {}", others.join(", "))))
    }

    async fn only_claim(&self) -> Result<String> {
        let run = self.run();
        let claims = self.claims().await?;
        match claims.as_slice() {
            [claim] => Ok(claim.token.clone()),
            [] => {
                let known =
                    self.call(run::List { run: Some(run.clone()), all: true, limit: Some(1) }).await?;
                // A run that has lost its claims must stop. A run that never had one made a mistake.
                let (code, message) = match known.runs.is_empty() {
                    false => (Code::LeaseExpired, format!("run `{run}` holds nothing any more")),
                    true => (Code::NotFound, format!("run `{run}` holds nothing, and never did")),
                };
                Err(Error::new(code, message).hint(
                    "name a claim, or claim a task with fence claim. If fence whoami shows another run each \
                     time, set FENCE_RUN",
                ))
            }
            several => {
                let tokens: Vec<_> = several.iter().map(|claim| claim.token.as_str()).collect();
                Err(Error::new(Code::Invalid, format!("run `{run}` holds {} claims", tokens.len()))
                    .with("tokens", &tokens)
                    .hint(format!("name one of them: {}", tokens.join(", "))))
            }
        }
    }

    /// The claims of this run.
    async fn claims(&self) -> Result<Vec<claim::Claim>> {
        Ok(self.call(claim::List { run: Some(self.run()), limit: None }).await?.claims)
    }

    /// The token of a task, if this run holds it.
    pub async fn token_of(&self, task: &str) -> Result<Option<String>> {
        let resource = resource(task);
        Ok(self.claims().await?.into_iter().find(|claim| claim.resource == resource).map(|claim| claim.token))
    }
}
