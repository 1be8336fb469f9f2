use super::{settings::Setting, state, wakeups};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    limits::{NAME_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Change settings of the scheduler, for the fleet or for one channel. Every process uses the new values at once.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The new values, by name. Null removes a value: the channel has the fleet's again, or the fleet the default.
    pub values: BTreeMap<Setting, Option<i64>>,
    /// Only for this channel.
    #[serde(default)]
    pub channel: Option<String>,
    /// The origin of the values, for people (default: the calling agent, or `call`).
    #[serde(default)]
    pub source: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WereSet {
    /// The settings that changed.
    pub changed: Vec<Setting>,
}

impl Op for Set {
    const NAME: &'static str = "storm/set";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"values":{"max_triggers_per_window":5}}"#;
    type Reply = WereSet;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<WereSet> {
        check::optional_text("source", self.source.as_deref(), NAME_MAX)?;
        if let Some(channel) = &self.channel {
            wakeups::check_channel(tx, channel).await?;
        }
        let source = self.source.or_else(|| tx.caller.agent.clone()).unwrap_or_else(|| "call".into());
        let changed = apply(tx, self.channel.as_deref(), &self.values, &source).await?;
        Ok(WereSet { changed })
    }
}

/// Writes the values, and looks at every waiting pair again. Returns the settings that changed.
pub(super) async fn apply(
    tx: &mut Tx<'_>,
    channel: Option<&str>,
    values: &BTreeMap<Setting, Option<i64>>,
    source: &str,
) -> Result<Vec<Setting>> {
    for (setting, value) in values {
        value.map_or(Ok(()), |value| setting.check(value))?;
        if channel.is_some() && !setting.is_of_channel() {
            return Err(Error::invalid(setting.as_str(), "is a setting of the whole fleet")
                .hint("leave out the channel"));
        }
    }
    // A tick that has read the old settings ends before, and the pairs that it decided on are looked at again.
    state::lock(tx).await?;
    let scope = channel.unwrap_or_default();
    let stored = super::settings::Settings::load(tx).await?;
    let is_new = |setting: &Setting, value: &Option<i64>| {
        stored.stored(scope, *setting).map(|stored| stored.value) != *value
    };
    let new: Vec<_> = values.iter().filter(|(setting, value)| is_new(setting, value)).collect();
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let rows = set(new.iter().map(|(setting, value)| json!({ "name": setting.as_str(), "value": value })))?;
    let details = json!({
        "channel": channel, "source": source,
        "values": new.iter().map(|(setting, value)| (setting.as_str(), **value)).collect::<BTreeMap<_, _>>(),
    });
    let event = Event { topic: Some(Topic::Nobody), ..Event::new("storm.set", "storm").details(details) };
    let event = event.insert(tx);
    tx.send(Batch::from([
        Stmt::write(
            "delete from setting where scope = ?2 and name in (select value ->> 'name' from json_each(?1))",
            params![rows.clone(), scope],
        ),
        Stmt::write(
            "insert into setting(scope, name, value, source, at)
             select cast(?2 as text), value ->> 'name', cast(value ->> 'value' as bigint), cast(?3 as text), cast(?4 as bigint)
             from json_each(?1) where value ->> 'value' is not null order by key
             on conflict (scope, name) do update set value = excluded.value, source = excluded.source, at = excluded.at",
            params![rows, scope, source, tx.now],
        ),
        Stmt::write(
            "update reader set wake_at = ?1 where member = 1 and wake_n > read_n and (wake_at is null or wake_at > ?1)",
            params![tx.now],
        ),
        event,
    ]))
    .await?;
    Ok(new.into_iter().map(|(setting, _)| *setting).collect())
}
