//! The callback of a wake-up: its result goes to the channel, in phases. The child exits → checkpoint `delivered` with the result →
//! post it → settle.
//!
//! A worker may die between any two phases. Before `delivered` another worker runs the child again; after it, the next worker goes on
//! at the post. The checkpoint is saved under the claim, so the result of a worker that lost the wake-up is refused. The post has an
//! idempotency key, so there is one post, whoever repeats it. Results and failure notices wake nobody; a post that the child itself
//! makes is a post like any other.

use super::{
    child::Child,
    place,
    profile::Profile,
    reading::Reading,
    settling::{Decision, fit, fit_reason},
    worker::what,
};
use crate::{names::unique, supervise::Service};
use fencepost::{
    Error, Result,
    agent::Trigger,
    channel, claim, mail,
    run::settle::Outcome,
    storm::{DELIVERED, Reclaimed, Wakeup},
};
use serde::{Deserialize, Serialize};

/// The longest result that is posted. Every member gets it in its next prompt. As JSON in a checkpoint it may be six times as long,
/// and a checkpoint has at most 256 KiB.
const RESULT_MAX: usize = 32 * 1024;

/// The ordinal of the checkpoint `delivered`: above those that a child may have saved itself.
const ORDINAL: i64 = 1 << 32;

/// The data of the checkpoint `delivered`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delivered {
    /// The text to post. If it is empty, nothing is posted.
    pub result: String,
    /// The last post that it answers.
    to: i64,
}

impl Delivered {
    fn new(result: &str, trigger: &Trigger) -> Self {
        let result = fit(result.trim(), RESULT_MAX);
        Self { result, to: trigger.channels.first().map_or(0, |given| given.to) }
    }

    /// The rule: a wake-up whose result was delivered starts no child. It goes on with this result.
    pub fn of(wakeup: &Wakeup) -> Option<Self> {
        if wakeup.reclaimed != Some(Reclaimed::CallbackRetry) {
            return None;
        }
        // A checkpoint of somebody else has no result.
        let data = wakeup.delivered.clone().and_then(|data| serde_json::from_value(data).ok());
        Some(data.unwrap_or_default())
    }
}

/// What a worker posts after the child of a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callback {
    Result,
    /// A notice, if this was the last attempt.
    Failure,
    Nothing,
}

impl Callback {
    /// The rule. `own` is the child's own verdict: a child that settled its run itself has answered as it wanted to.
    fn of(outcome: Outcome, own: Option<Outcome>) -> Self {
        match (outcome, own) {
            (Outcome::Done, None) => Callback::Result,
            (Outcome::Failed, _) => Callback::Failure,
            (Outcome::Done, Some(_)) | (Outcome::Released, _) => Callback::Nothing,
        }
    }
}

/// The result of a child: the last message of a client, or else the standard output. The output of a client that tells its result in
/// another form is no text for people.
pub fn result<'r>(reading: &'r Reading, output: &'r str, profile: &Profile) -> &'r str {
    let tells_result = profile.read.iter().any(|read| read.result.is_some());
    match &reading.result {
        Some(result) => result,
        None if tells_result => "",
        None => output,
    }
}

impl Child<'_> {
    /// Does what follows from the end of a wake-up's child, before its run is settled. Returns another decision if that fails.
    pub async fn call_back(
        &self,
        wakeup: &Wakeup,
        own: Option<Outcome>,
        decision: Decision,
        result: &str,
    ) -> Result<Decision> {
        let called = match Callback::of(decision.outcome, own) {
            Callback::Result => self.deliver(wakeup, Delivered::new(result, self.trigger)).await,
            Callback::Failure => {
                let reason = decision.reason.as_deref().unwrap_or("its command said so");
                self.give_notice(wakeup, own, reason).await
            }
            Callback::Nothing => Ok(()),
        };
        called.map_or_else(not_called_back, |()| Ok(decision))
    }

    /// Saves the result, and posts it.
    async fn deliver(&self, wakeup: &Wakeup, delivered: Delivered) -> Result<()> {
        let save = mail::SaveCheckpoint {
            token: self.message_token()?.into(),
            ordinal: ORDINAL,
            phase: DELIVERED.into(),
            data: Some(serde_json::to_value(&delivered).map_err(Error::internal)?),
        };
        self.worker.service.call_until_answered(save).await?;
        self.post_result(wakeup, &delivered).await
    }

    /// Goes on at the post, after the worker before this one was lost. Returns what becomes of the wake-up.
    pub async fn retry_callback(&self, wakeup: &Wakeup, delivered: &Delivered) -> Result<Decision> {
        self.worker.crew.report.called_back(&self.worker.agent, self.trigger);
        let line = format!("{}: only its result is posted: callback_retry\n", what(self.trigger));
        let _ = self.files.log_writer()?.write(line.as_bytes());
        self.post_result(wakeup, delivered).await.map_or_else(not_called_back, |()| Ok(Decision::done()))
    }

    async fn post_result(&self, wakeup: &Wakeup, delivered: &Delivered) -> Result<()> {
        if delivered.result.is_empty() {
            return Ok(());
        }
        let key = format!("wakeup/{}", wakeup.message);
        self.post(wakeup, key, delivered.result.clone(), Some(delivered.to)).await
    }

    /// Posts a notice if the wake-up failed for good.
    async fn give_notice(&self, wakeup: &Wakeup, own: Option<Outcome>, reason: &str) -> Result<()> {
        let show = mail::Show { message: wakeup.message };
        let message = self.worker.service.call_until_answered(show).await?.message;
        if wakeup.attempt < message.max_attempts {
            return Ok(());
        }
        if own.is_none() {
            // A worker that lost the wake-up says nothing about it.
            let renew = claim::Renew::new(self.message_token()?);
            self.worker.service.call_until_answered(renew).await?;
        }
        let (agent, attempts) = (&self.worker.agent, wakeup.attempt);
        let text =
            format!("{agent} did not answer: {attempts} attempts failed, the last one because {reason}");
        let key = format!("wakeup/{}/failed", wakeup.message);
        let last = self.trigger.channels.first().map(|given| given.to);
        self.post(wakeup, key, fit_reason(&text), last).await
    }

    /// Posts to the channel of the wake-up, as an answer to this post or the last one before it. The post wakes nobody.
    async fn post(&self, wakeup: &Wakeup, key: String, body: String, to: Option<i64>) -> Result<()> {
        let posts = self.trigger.channels.iter().flat_map(|given| &given.posts);
        let last = posts.map(|post| post.n).filter(|n| to.is_none_or(|to| *n <= to)).max();
        let post = channel::Post {
            channel: wakeup.channel.clone(),
            body,
            author: Some(self.worker.agent.clone()),
            reply_to: last,
            suppress_auto_trigger: true,
            key: Some(key),
            request: Some(unique("")),
            ..channel::Post::default()
        };
        self.worker.service.in_run(&self.trigger.run).call_until_answered(post).await.map(drop)
    }

    /// The claim on the wake-up's message. The other claim is on the agent's place in the channel.
    fn message_token(&self) -> Result<&str> {
        let claims = &mut self.trigger.claims.iter();
        let claim = claims.find(|claim| claim.resource.starts_with("message/"));
        claim.map(|claim| &*claim.token).ok_or_else(|| Error::internal("a wake-up without its message"))
    }
}

/// What an error of the callback means for the wake-up. After `delivered` the next attempt only posts the result.
fn not_called_back(error: Error) -> Result<Decision> {
    match error {
        // The claim is over, and others have the wake-up.
        error if place::lost(&error) => Ok(Decision::released(error.message())),
        error if Service::may_pass(&error) => Err(error),
        error => Ok(Decision::failed(format!("its result was not posted: {}", error.message()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::Millis;
    use serde_json::json;

    #[test]
    fn a_wake_up_goes_on_at_its_callback_only_after_delivery() {
        let wakeup = |reclaimed, delivered| Wakeup {
            message: 7,
            channel: "general".into(),
            attempt: 2,
            reclaimed,
            delivered,
            start_lease_ms: Millis::seconds(45),
        };
        let data = json!({ "result": "the build is green", "to": 3 });
        let result = Delivered { result: "the build is green".into(), to: 3 };
        for (reclaimed, delivered, expected) in [
            (None, None, None),
            (Some(Reclaimed::Timeout), None, None),
            (Some(Reclaimed::CallbackRetry), Some(data), Some(result)),
            // Nothing is posted, and the wake-up is settled.
            (Some(Reclaimed::CallbackRetry), None, Some(Delivered::default())),
            (Some(Reclaimed::CallbackRetry), Some(json!("mine")), Some(Delivered::default())),
        ] {
            assert_eq!(Delivered::of(&wakeup(reclaimed, delivered)), expected, "{reclaimed:?}");
        }
    }

    #[test]
    fn the_callback_of_each_end() {
        use Outcome::{Done, Failed, Released};
        for (outcome, own, expected) in [
            (Done, None, Callback::Result),
            (Done, Some(Done), Callback::Nothing),
            (Failed, None, Callback::Failure),
            (Failed, Some(Failed), Callback::Failure),
            (Released, None, Callback::Nothing),
            (Released, Some(Released), Callback::Nothing),
        ] {
            assert_eq!(Callback::of(outcome, own), expected, "{outcome:?} {own:?}");
        }
    }

    #[test]
    fn the_result_is_the_last_message_or_the_output() {
        let told = Reading { result: Some("told".into()), ..Reading::default() };
        let (claude, exec) = (Profile::load("claude").unwrap(), Profile::load("exec").unwrap());
        assert_eq!(result(&told, "{}", &claude), "told");
        assert_eq!(result(&Reading::default(), "{}", &claude), "", "lines of JSON are no answer");
        assert_eq!(result(&Reading::default(), "printed", &exec), "printed");
    }

    #[test]
    fn a_long_result_fits_into_a_checkpoint() {
        let delivered = Delivered { result: fit(&"\u{1}".repeat(5_000_000), RESULT_MAX), to: i64::MAX };
        let json = serde_json::to_string(&delivered).unwrap();
        assert!(json.len() < 256 * 1024, "{}", json.len());
    }
}
