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

/// The outcome of an unmatched message that was routed later.
const ROUTED: &str = "routed";

/// Try the current rules on an unmatched message. If one matches, the message goes to that agent's inbox, in the
/// transaction that finishes it here. It is routed once, even if the call is repeated.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// The message's number, from `route/unmatched`.
    pub message: i64,
    /// Request id: repeating the call with the same id returns the first reply.
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
            return first.map_or_else(|| Err(finished(id)), Json::read);
        }
        let content = shown.payload.as_ref().and_then(|payload| payload.read::<Content>().ok());
        let content = content.ok_or_else(|| not_a_delivery(id))?;
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
        .hint("fence route unmatched lists them")
}

/// Earlier versions let every caller push to any mailbox.
fn not_a_delivery(id: i64) -> Error {
    Error::new(Code::Invalid, format!("message {id} did not come from outside, and no rule can match it"))
        .hint(format!("fence mail show {id} shows it; fence mail discard {id} discards it"))
}

fn finished(id: i64) -> Error {
    Error::new(Code::AlreadyFinished, format!("message {id} was finished without being routed"))
        .hint(format!("fence mail redrive {id} makes a failed message pending again"))
}
