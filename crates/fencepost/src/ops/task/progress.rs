use super::{
    Changed,
    done::{held, task_token},
    load_locked, note, save,
};
use crate::{
    caller::Access,
    db::{Batch, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    lease::{Under, hold::check_written},
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Report progress. The report is kept in the task's history, and the run is renewed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub token: String,
    pub text: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Progress {
    pub fn new(token: impl Into<String>, text: impl Into<String>) -> Self {
        Self { token: token.into(), text: text.into(), request: None }
    }
}

impl Op for Progress {
    const NAME: &'static str = "task/progress";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1","text":"the lexer works"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let (token, id) = task_token(&self.token)?;
        check::line("text", &self.text, TEXT_MAX)?;
        check::request(self.request.as_deref())?;
        let found = held(load_locked(tx, &id).await?, &token, tx)?;
        if tx.opening.is_repeat("task.progress", Some(&token.resource))? {
            return Ok(Changed { task: found.view(tx.now) });
        }
        let mut task = found.clone();
        task.updated_at = tx.now;
        let mut batch = Batch::new();
        let saved = save(&mut batch, &found.was(), &task, Under::Claim, tx.now);
        let details = serde_json::json!({ "text": self.text });
        batch.add(task.event("task.progress", task.status()).details(details).insert(tx));
        batch.add(note::insert(tx, task.seq, "progress", found.hold(), &self.text));
        check_written(tx.send(batch).await?.affected(saved), &token)?;
        Ok(Changed { task: task.view(tx.now) })
    }
}
