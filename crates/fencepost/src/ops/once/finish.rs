use super::{
    Changed, Output, Source, Status, check_outputs, effect_token, not_found,
    record::{Ended, Record, load_locked, save_end, show},
};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    lease::hold::{check_written, is_repeat, require},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Record the result of the command that was run under a claim of `once/begin`. Exit code 0 is a success. Codes 129 to
/// 192 say, as in a shell, that a signal ended the command: nobody knows how far it came, so the effect is in doubt.
/// Any other code is a failure. The same result again returns the first reply; a different one is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    pub token: String,
    /// 0 to 255
    pub exit_code: i64,
    #[serde(default)]
    pub stdout: Option<Output>,
    #[serde(default)]
    pub stderr: Option<Output>,
}

impl Finish {
    /// A success without output.
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), ..Self::default() }
    }
}

impl Op for Finish {
    const NAME: &'static str = "once/finish";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"once/slack-812@1","exit_code":0,"stdout":{"text":"sent\n"}}"#;
    refuses![LeaseExpired, AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let token = effect_token(&self.token)?;
        check::range("exit_code", self.exit_code, 0, 255)?;
        check_outputs(self.stdout.as_ref(), self.stderr.as_ref())?;
        let key = token.resource.id();
        let code = self.exit_code.to_string();
        let outputs = [self.stdout.as_ref(), self.stderr.as_ref()];
        let texts = outputs.map(|output| output.map(|output| output.json()).transpose());
        let [stdout, stderr] = texts;
        let (stdout, stderr) = (stdout?, stderr?);
        let content = [Some(code.as_str()), stdout.as_deref(), stderr.as_deref()];
        let found = load_locked(tx, key).await?;
        if is_repeat(tx, found.as_ref().and_then(|effect| effect.last.as_ref()), &token, "done", &content)? {
            return Ok(Changed { effect: show(tx, key).await? });
        }
        let state = found.as_ref().map(Record::claim_state);
        let hold = require(state.as_ref(), &token, tx.now)?;
        tx.caller.may_use(&hold.run, hold.agent.as_deref())?;
        let before = found.ok_or_else(|| not_found(key))?;
        let after = before.finish("done", &content, outcome(self.exit_code), tx.now);
        let event = after
            .event("once.finished", &before)
            .details(serde_json::json!({ "exit_code": self.exit_code, "reason": after.reason }));
        let saved = save_end(tx, (&before, &after), Some(hold.run_key), outputs, vec![event]).await?;
        check_written(u64::from(saved), &token)?;
        Ok(Changed { effect: show(tx, key).await? })
    }
}

/// The signals of a system have the numbers 1 to 64.
const BY_SIGNAL: std::ops::RangeInclusive<i64> = 129..=192;

/// The rule: the meaning of an exit code.
fn outcome(exit_code: i64) -> Ended {
    let (status, reason) = match exit_code {
        0 => (Status::Succeeded, None),
        code if BY_SIGNAL.contains(&code) => {
            (Status::InDoubt, Some(format!("signal {} ended its command", code - 128)))
        }
        _ => (Status::Failed, None),
    };
    Ended { status, source: Source::Command, exit_code: Some(exit_code), note: None, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_an_outcome() {
        for (code, status, reason) in [
            (0, Status::Succeeded, None),
            (1, Status::Failed, None),
            (127, Status::Failed, None),
            (128, Status::Failed, None),
            (129, Status::InDoubt, Some("signal 1 ended its command")),
            (137, Status::InDoubt, Some("signal 9 ended its command")),
            (192, Status::InDoubt, Some("signal 64 ended its command")),
            (193, Status::Failed, None),
            (255, Status::Failed, None),
        ] {
            let ended = outcome(code);
            assert_eq!((ended.status, ended.reason.as_deref()), (status, reason), "{code}");
        }
    }
}
