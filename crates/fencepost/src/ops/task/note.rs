use super::{Changed, change};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::Result,
    lease::Hold,
    limits::{TEXT_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Add a note to a task, in any state. The next holder reads it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Note {
    pub task: String,
    pub text: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Note {
    const NAME: &'static str = "task/note";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","text":"the schema is in docs/schema.sql"}"#;
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::line("text", &self.text, TEXT_MAX)?;
        check::request(self.request.as_deref())?;
        let repeat = !tx.opening.repeat.is_empty();
        let mut seq = 0;
        let details = Some(serde_json::json!({ "text": self.text }));
        let changed = change(tx, &self.task, "task.noted", details, |task, _| {
            seq = task.seq;
            Ok(())
        })
        .await?;
        if !repeat {
            tx.one(insert(tx, seq, "note", None, &self.text)).await?;
        }
        Ok(changed)
    }
}

/// A note, or a line of progress under a claim.
pub(super) fn insert(tx: &Tx<'_>, task: i64, kind: &str, hold: Option<&Hold>, text: &str) -> Stmt {
    let agent = hold.and_then(|hold| hold.agent.as_deref()).or(tx.caller.agent.as_deref());
    Stmt::write(
        "insert into note(task, kind, at, agent, run, fence, body) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            task,
            kind,
            tx.now,
            agent,
            hold.map(|hold| hold.run.as_str()),
            hold.map(|hold| hold.fence),
            text
        ],
    )
}
