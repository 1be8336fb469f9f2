use super::{Key, keys};
use crate::{
    error::{Code, Error, Result},
    event::Event,
    names::check,
    op::{Access, Op, erased},
    params,
    tx::{Stmt, Tx},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End a key: from now on its secret opens nothing. What was claimed with it stays claimed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Revoked {
    pub key: Key,
}

impl Op for Revoke {
    const NAME: &'static str = "key/revoke";
    const ACCESS: Access = Access::Admin;
    type Reply = Revoked;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Revoked> {
        check::plain_name("name", &self.name)?;
        let revoke = Stmt::new(
            "update access_key set revoked_at = ?2 where name = ?1 and revoked_at is null",
            params![&self.name, tx.now],
        );
        // Asking twice is safe: the last of this name is shown as it was revoked.
        if tx.one(revoke).await?.affected == 1 {
            tx.one(Event::new("key.revoked", format!("key/{}", self.name)).insert(tx)).await?;
        }
        let rows = tx.query(keys!("where name = ?1 order by id desc limit 1"), params![&self.name]).await?;
        match rows.first().map(Key::read).transpose()? {
            Some(key) => Ok(Revoked { key }),
            None => Err(Error::new(Code::NotFound, format!("there is no key `{}`", self.name))
                .hint("fence key list shows the keys there are")),
        }
    }
}
