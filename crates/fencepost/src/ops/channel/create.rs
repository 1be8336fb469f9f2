use crate::{
    caller::Access,
    clock::Time,
    db::{Row, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TEXT_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Create a channel. An existing channel stays unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    pub channel: String,
    #[serde(default)]
    pub description: Option<String>,
}

/// A channel in which agents talk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Channel {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Number of posts so far.
    pub posts: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    pub created_at: Time,
    /// The agents that joined it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
}

impl Channel {
    pub(super) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            name: row.get("name")?,
            description: row.get("description")?,
            posts: row.get::<i64>("next_n")? - 1,
            creator: row.get("creator")?,
            created_at: row.get("created_at")?,
            members: Vec::new(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Created {
    pub channel: Channel,
    /// The channel already existed.
    pub existing: bool,
}

impl Op for Create {
    const NAME: &'static str = "channel/create";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"channel":"general"}"#;
    type Reply = Created;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Created> {
        check::plain_name("channel", &self.channel)?;
        check::optional_text("description", self.description.as_deref(), TEXT_MAX)?;
        let creator = tx.caller.acting_as("creator", None)?.or_else(|| tx.caller.agent.clone());
        let made = tx
            .execute(
                "insert into channel(name, description, next_n, creator, created_at) values (?1, ?2, 1, ?3, ?4)
                 on conflict (name) do nothing",
                params![&self.channel, self.description.as_deref(), creator, tx.now],
            )
            .await?;
        if made == 1 {
            let event = Event {
                topic: Some(Topic::Nobody),
                ..Event::new("channel.created", format!("channel/{}", self.channel))
            };
            tx.one(event.insert(tx)).await?;
        }
        let rows = tx
            .query(
                "select name, description, next_n, creator, created_at from channel where name = ?1",
                params![&self.channel],
            )
            .await?;
        Ok(Created { channel: Channel::read(&rows[0])?, existing: made == 0 })
    }
}
