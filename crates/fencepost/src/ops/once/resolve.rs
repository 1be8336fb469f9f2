use super::{
    Changed, Output, Source, Status, check_outputs, effect_token, not_found,
    record::{Ended, Record, load_locked, raced, save_end, show},
};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{Owner, Token},
    lease::{
        Last,
        hold::{require, write_logged},
    },
    limits::{TEXT_MAX, check},
    log::Event,
    ops::nouns,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Say whether an effect in doubt happened. If it did, later callers get it as a success; if not, the next caller runs
/// it. `token` is the token of the effect in doubt, as `once/show` shows it, so that nobody resolves a doubt that they
/// did not see. The holder of a claim that was made with `retry_in_doubt` may also use its own token, after a check: if
/// the effect did not happen, the holder keeps the claim and runs the command.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// `once/slack-812@3`
    pub token: String,
    pub happened: bool,
    /// How you know.
    #[serde(default)]
    pub note: Option<String>,
    /// The output that later callers get, if it happened.
    #[serde(default)]
    pub stdout: Option<Output>,
    #[serde(default)]
    pub stderr: Option<Output>,
}

impl Op for Resolve {
    const NAME: &'static str = "once/resolve";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str =
        r#"{"token":"once/slack-812@3","happened":true,"note":"it is in the channel"}"#;
    refuses![NotReady, AlreadyClaimed, LeaseExpired, AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token).after_expiry(nouns())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let token = effect_token(&self.token)?;
        let key = token.resource.id();
        tx.caller.may_use_name(&format!("effect `{key}`"), Owner::of_name(key))?;
        check::optional_text("note", self.note.as_deref(), TEXT_MAX)?;
        check_outputs(self.stdout.as_ref(), self.stderr.as_ref())?;
        let before = load_locked(tx, key).await?.ok_or_else(|| not_found(key))?;
        let asked = self.last(&token)?;
        let alive = before.hold.as_ref().map(|hold| hold.run_key);
        let mut events = Vec::new();
        let (after, alive) = match decide(&before, &token, &asked, tx.now)? {
            Next::Repeat => return Ok(Changed { effect: show(tx, key).await? }),
            Next::InDoubt => {
                let doubted = before.clone().now(tx.now);
                if before.hold.is_some() {
                    events.push(doubted.event("once.lapsed", &before).because(doubted.reason.as_deref()));
                }
                let after = self.ended(&doubted, Source::Person, &asked, tx.now);
                events.push(self.event(&after, &doubted));
                (after, None)
            }
            Next::Holder if self.happened => {
                let after = self.ended(&before, Source::Check, &asked, tx.now);
                events.push(self.event(&after, &before));
                (after, alive)
            }
            Next::Holder => return self.goes_on(tx, &before).await,
        };
        let outputs = [self.stdout.as_ref(), self.stderr.as_ref()];
        if !save_end(tx, (&before, &after), alive, outputs, events).await? {
            return Err(raced(key));
        }
        Ok(Changed { effect: show(tx, key).await? })
    }
}

impl Resolve {
    /// How the effect's last claim ends by this call, to recognise a repeat.
    fn last(&self, token: &Token) -> Result<Last> {
        let [stdout, stderr] =
            [&self.stdout, &self.stderr].map(|output| output.as_ref().map(Output::json).transpose());
        let (stdout, stderr) = (stdout?, stderr?);
        let happened = if self.happened { "happened" } else { "did not happen" };
        let content = [Some(happened), self.note.as_deref(), stdout.as_deref(), stderr.as_deref()];
        Ok(Last::new(token.fence, "resolve", &content))
    }

    fn ended(&self, before: &Record, source: Source, last: &Last, now: Time) -> Record {
        let status = if self.happened { Status::Succeeded } else { Status::Unused };
        let exit_code = self.happened.then_some(0);
        let ended = Ended { status, source, exit_code, note: self.note.clone(), reason: None };
        Record { last: Some(last.clone()), ..before.finish("resolve", &[], ended, now) }
    }

    /// Without a claim, the event's agent is the caller.
    fn event(&self, after: &Record, before: &Record) -> Event {
        let source = if before.hold.is_some() { Source::Check } else { Source::Person };
        let details = serde_json::json!({ "happened": self.happened, "note": self.note, "source": source });
        after.event("once.resolved", before).details(details)
    }

    /// A check found that it did not happen. Its holder runs the command now: if that is never started, the effect is
    /// unused and no longer in doubt.
    async fn goes_on(&self, tx: &mut Tx<'_>, before: &Record) -> Result<Changed> {
        let key = &before.name;
        if before.was != Status::Unused {
            let after = Record { was: Status::Unused, updated_at: tx.now, ..before.clone() };
            let event = self.event(&after, before).insert(tx);
            let alive = before.hold.as_ref().map(|hold| hold.run_key);
            if write_logged(tx, after.save(before, alive, tx.now), event).await? == 0 {
                return Err(raced(key));
            }
        }
        Ok(Changed { effect: show(tx, key).await? })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The same was said before.
    Repeat,
    InDoubt,
    /// The caller holds the claim.
    Holder,
}

/// The rule.
fn decide(effect: &Record, token: &Token, asked: &Last, now: Time) -> Result<Next> {
    let key = &effect.name;
    if effect.last.as_ref() == Some(asked) && effect.hold.is_none() {
        return Ok(Next::Repeat);
    }
    if token.fence != effect.fence {
        return match effect.hold.as_ref().filter(|hold| hold.is_alive(now)) {
            Some(hold) if token.fence < effect.fence => {
                let message = format!("effect `{key}` was begun again, and is held by {}", hold.describe());
                Err(Error::new(Code::AlreadyClaimed, message).with("holder", &hold.run))
            }
            _ if token.fence < effect.fence => {
                let message = format!("`{token}` is not the latest claim of effect `{key}`");
                Err(Error::new(Code::LeaseExpired, message)
                    .hint(format!("fence once {key} shows its state now")))
            }
            _ => require(Some(&effect.claim_state()), token, now).map(|_| Next::Holder),
        };
    }
    match effect.clone().now(now).status {
        Status::InDoubt => Ok(Next::InDoubt),
        // Its holder resolves only a doubt that was there before the claim.
        Status::Running if effect.was == Status::Failed => {
            Err(Error::new(Code::NotReady, format!("effect `{key}` was not in doubt before this claim")))
        }
        Status::Running => Ok(Next::Holder),
        Status::Unused => {
            Err(Error::new(Code::NotReady, format!("effect `{key}` is not in doubt: it is unused")))
        }
        status @ (Status::Succeeded | Status::Failed) => {
            let message = format!("effect `{key}` is not in doubt: it {}", status.as_str());
            Err(Error::new(Code::AlreadyFinished, message)
                .hint(format!("fence once {key} shows its result, which is kept")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::Resource, lease::Hold};

    #[test]
    fn only_a_doubt_that_the_caller_saw_is_resolved() {
        let effect = |status, was, hold: Option<i64>| Record {
            hold: hold.map(|expires_at| Hold::sample("r", 3, Time(expires_at))),
            ..Record::sample("mail", status, was, 3)
        };
        let asked = Last::new(3, "resolve", &[Some("happened"), None, None, None]);
        use Status::*;
        let holder = Ok(Next::Holder);
        for (effect, fence, says) in [
            (effect(InDoubt, Unused, None), 3, Ok(Next::InDoubt)),
            (effect(InDoubt, Unused, None), 2, Err(Code::LeaseExpired)),
            (effect(InDoubt, Unused, None), 4, Err(Code::NotFound)),
            (effect(Running, Unused, Some(5)), 3, Ok(Next::InDoubt)),
            (effect(Running, InDoubt, Some(9)), 3, holder),
            (effect(Running, InDoubt, Some(9)), 2, Err(Code::AlreadyClaimed)),
            (effect(Running, Failed, Some(9)), 3, Err(Code::NotReady)),
            (effect(Unused, InDoubt, None), 3, Err(Code::NotReady)),
            (effect(Succeeded, Unused, None), 3, Err(Code::AlreadyFinished)),
            (effect(Failed, Unused, None), 3, Err(Code::AlreadyFinished)),
            (Record { last: Some(asked.clone()), ..effect(Succeeded, Unused, None) }, 3, Ok(Next::Repeat)),
        ] {
            let token = Token { resource: Resource::new("once", "mail"), fence };
            let decided = decide(&effect, &token, &asked, Time(5)).map_err(|e| e.code());
            assert_eq!(decided, says, "{:?} @{fence}", effect.status);
        }
    }
}
