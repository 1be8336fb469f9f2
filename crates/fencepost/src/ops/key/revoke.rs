use super::Key;
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    limits::{TEXT_MAX, check},
    log::{Event, access::keys},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Revoke a key: from now on its secret is refused. Items claimed with it stay claimed. The server still requires a
/// key; if no admin key is left, new keys can be made only on the database itself.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    pub name: String,
    /// Allow revoking the last key with the role admin.
    #[serde(default)]
    pub force: bool,
    /// The reason. It is kept in the log.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Revoke {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), force: false, reason: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Revoked {
    pub key: Key,
}

impl Op for Revoke {
    const NAME: &'static str = "key/revoke";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat could revoke a new key of the same name.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"name":"deploy"}"#;
    type Reply = Revoked;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Revoked> {
        check::plain_name("name", &self.name)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        // Locked: if two admins revoke each other's key at the same time, one is refused.
        let admins = tx
            .query(
                "select name from access_key where role = 'admin' and revoked_at is null order by id /*pg for update*/",
                params![],
            )
            .await?;
        if let [last] = admins.as_slice()
            && last.get::<String>("name")? == self.name
            && !self.force
        {
            return Err(last_admin(&self.name));
        }
        let revoke = Stmt::write(
            "update access_key set revoked_at = ?2 where name = ?1 and revoked_at is null",
            params![&self.name, tx.now],
        );
        // Repeating the call is safe: the reply shows the last key of this name as it was revoked.
        if tx.one(revoke).await?.affected == 1 {
            let event = Event::new("key.revoked", format!("key/{}", self.name));
            tx.one(event.because(self.reason.as_deref()).insert(tx)).await?;
        }
        let rows = tx.query(keys!("where name = ?1 order by id desc limit 1"), params![&self.name]).await?;
        match rows.first().map(Key::read).transpose()? {
            Some(key) => Ok(Revoked { key }),
            None => Err(Error::new(Code::NotFound, format!("there is no key `{}`", self.name))
                .hint("fence key list shows the keys there are")),
        }
    }
}

fn last_admin(name: &str) -> Error {
    Error::new(Code::Forbidden, format!("key `{name}` is the last one with the role admin"))
        .with("field", "force")
        .hint(format!(
            "make another first: fence key add NAME --role admin; or end it all the same: fence key revoke {name} --force \
             (then keys can be made only where the database is)"
        ))
}
