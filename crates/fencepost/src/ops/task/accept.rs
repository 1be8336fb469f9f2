use super::{Changed, Phase, Record, change_under};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::Token,
    lease::{Under, hold::require},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Accept an offered task: it becomes the agent's own. While a run reviews the task, only that run may accept it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accept {
    pub task: String,
    /// The agent that the task was offered to.
    pub agent: String,
    /// The token of the review, if a run reviews the task.
    #[serde(default)]
    pub token: Option<String>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Accept {
    const NAME: &'static str = "task/accept";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","agent":"codex-1"}"#;
    refuses![NotReady, AlreadyClaimed, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        self.token.as_deref().map_or_else(Prelude::nothing, Prelude::holds).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::plain_name("agent", &self.agent)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let token = self.token.as_deref().map(Token::check).transpose()?;
        check::request(self.request.as_deref())?;
        let details = Some(serde_json::json!({ "by": self.agent }));
        let under = if token.is_some() { Under::Claim } else { Under::NoClaim };
        change_under(tx, &self.task, "task.accepted", details, under, |task, now| {
            deciding(task, &self.agent, token.as_ref(), now)?;
            accept(task, &self.agent, now);
            Ok(())
        })
        .await
    }
}

fn accept(task: &mut Record, agent: &str, now: Time) {
    task.assignee = Some(agent.into());
    task.accepted_at = Some(now);
    task.end_claim("accept", &[], Phase::Pending);
}

/// Only the agent that the task was offered to decides. While a run reviews the task, only that run does.
pub(super) fn deciding(task: &Record, agent: &str, token: Option<&Token>, now: Time) -> Result<()> {
    task.unfinished()?;
    let offered_to = task.offered_to.as_deref().unwrap_or_default();
    if !matches!(task.phase, Phase::Offered | Phase::Reviewing(_)) {
        let message = format!("task `{}` is {}, not offered", task.id, task.status().as_str());
        return Err(Error::new(Code::NotReady, message));
    }
    if offered_to != agent {
        let message = format!("task `{}` is offered to agent `{offered_to}`, not to `{agent}`", task.id);
        return Err(Error::new(Code::NotReady, message).with("agent", offered_to));
    }
    match (task.hold(), token) {
        (None, None) => Ok(()),
        (_, Some(token)) if token.resource != task.resource() => {
            let message = format!("`{token}` is not a claim of task `{}`", task.id);
            Err(Error::new(Code::Invalid, message).with("field", "token"))
        }
        (_, Some(token)) => require(Some(&task.claim_state()), token, now).map(drop),
        (Some(hold), None) => {
            Err(task.held_by(hold, false).hint("only that run may decide; fence claims shows its token"))
        }
    }
}
