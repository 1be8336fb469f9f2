use super::{Changed, Status, not_found, record};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    ids::Owner,
    limits::check,
    log::Event,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Forget an effect and its result. The next caller with its key runs its command again. An effect that is running
/// stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    pub key: String,
}

impl Op for Remove {
    const NAME: &'static str = "once/remove";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would remove an effect that began meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"key":"slack-812"}"#;
    refuses![AlreadyClaimed];
    /// The effect as it was.
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::path_name("key", &self.key)?;
        tx.caller.may_use_name(&format!("effect `{}`", self.key), Owner::of_name(&self.key))?;
        let before = record::load_locked(tx, &self.key).await?.ok_or_else(|| not_found(&self.key))?;
        if let Some(hold) = before.hold.as_ref().filter(|hold| hold.is_alive(tx.now)) {
            let message = format!("effect `{}` is held by {}", self.key, hold.describe());
            return Err(Error::new(Code::AlreadyClaimed, message)
                .with("holder", &hold.run)
                .hint(format!("fence unclaim once/{} takes it away from its holder first", self.key)));
        }
        let effect = record::show(tx, &self.key).await?;
        let gone = record::Record { status: Status::Unused, hold: None, ..before.clone() };
        let event = Event { run: None, agent: None, ..gone.event("once.removed", &before) };
        // A new effect with this key must get a higher fence. The floor is the last lock of all.
        tx.send(
            [
                Stmt::write("delete from effect where name = ?1", params![&self.key]),
                event.insert(tx),
                Stmt::write("update fleet set floor = ?1 where floor < ?1", params![before.fence]),
            ]
            .into_iter()
            .collect(),
        )
        .await?;
        Ok(Changed { effect })
    }
}
