use super::{Delivered, ITEM, Outcome, UNMATCHED, send};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    json::Json,
    limits::check,
    ops::{
        inbox::{self, Content},
        mail,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome of an unmatched message that found its agent after all.
const ROUTED: &str = "routed";

/// Try the rules of today on a message that fitted none. If one fits, it is put into that agent's inbox in the transaction
/// that finishes it here: once, however often it is asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// Its number, as `route/unmatched` lists it.
    pub message: i64,
    /// Asking again with the same id gives the first answer.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Again {
    const NAME: &'static str = "route/again";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"message":1}"#;
    refuses![AlreadyClaimed, AlreadyFinished];
    type Reply = Delivered;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Delivered> {
        check::request(self.request.as_deref())?;
        tx.opening.is_repeat("message.pushed", None)?;
        let id = self.message;
        let found = mail::record::load_locked(tx, &[id]).await?.remove(&id);
        let found = found.filter(|found| found.mailbox == UNMATCHED).ok_or_else(|| unknown(id))?;
        let shown = mail::show::of(tx, id).await?;
        if found.phase.is_finished() {
            let first = shown.outputs.first().filter(|_| found.outcome.as_deref() == Some(ROUTED));
            return first.map_or_else(|| Err(over(id)), Json::read);
        }
        let content = shown.payload.as_ref().and_then(|payload| payload.read::<Content>().ok());
        let content = content.ok_or_else(|| strange(id))?;
        let item = shown.headers.get(ITEM).cloned();
        let Some(sent) = send(tx, &content, item).await? else {
            return Ok(Delivered::new(Outcome::Unmatched, id));
        };
        inbox::finish_unheld(tx, found, ROUTED, Some(Json::of(&sent)?)).await?;
        Ok(sent)
    }
}

fn unknown(id: i64) -> Error {
    Error::new(Code::NotFound, format!("there is no unmatched message {id}"))
        .hint("fence route unmatched shows those there are")
}

/// Earlier versions let anybody push into any mailbox.
fn strange(id: i64) -> Error {
    Error::new(Code::Invalid, format!("message {id} did not come from outside, and no rule can fit it"))
        .hint(format!("fence mail show {id} shows it, fence mail discard {id} gives it up"))
}

fn over(id: i64) -> Error {
    Error::new(Code::AlreadyFinished, format!("message {id} was given up"))
        .hint(format!("fence mail redrive {id} brings it back, to be routed again"))
}
