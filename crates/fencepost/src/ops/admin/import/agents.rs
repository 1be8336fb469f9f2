//! Imports agents and channels.

use super::{AgentItem, ChannelItem, Import, Taken, differs};
use crate::{
    clock::Millis,
    db::{Batch, Stmt, Tx, set},
    error::Result,
    lease::hold::write_logged,
    limits::{TEXT_MAX, TTL_MAX, check},
    log::Event,
    ops::agent::{self, STRAND},
    params,
    topic::Topic,
};
use serde_json::json;
use std::collections::{HashMap, HashSet};

/// Time for an imported agent's first poll. A moved fleet's agents are started one by one, and their tasks must not go
/// to other agents in the meantime.
const FIRST_POLL: Millis = Millis::days(30);

impl AgentItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        check::plain_name(&format!("{at}name"), &self.name)?;
        check::tags(&format!("{at}capabilities"), &self.capabilities)?;
        check::range(&format!("{at}max_concurrent"), self.max_concurrent.unwrap_or(1), 1, 1000)?;
        check::span(&format!("{at}strand_ms"), self.strand_ms.unwrap_or(STRAND), Millis(0), TTL_MAX)?;
        let reason = self.paused.as_ref().and_then(|paused| paused.reason.as_deref());
        check::optional_text(&format!("{at}paused.reason"), reason, TEXT_MAX)
    }

    fn differs(&self, there: &agent::Record) -> Vec<String> {
        let limit = |max: Option<i64>| max.map(|max| max.to_string()).unwrap_or_default();
        [
            differs("role", there.role.as_str(), self.role.as_str()),
            differs("capabilities", &there.capabilities.join(" "), &self.capabilities.join(" ")),
            differs("max_concurrent", &limit(there.max_concurrent), &limit(self.max_concurrent)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl ChannelItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        check::plain_name(&format!("{at}name"), &self.name)?;
        check::optional_text(&format!("{at}description"), self.description.as_deref(), TEXT_MAX)?;
        check::optional_name(&format!("{at}creator"), self.creator.as_deref())?;
        self.members.iter().try_for_each(|name| check::plain_name(&format!("{at}members"), name))
    }
}

impl Import {
    pub(super) async fn agents(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.agents.is_empty() {
            return Ok(taken);
        }
        let names = set(self.agents.iter().map(|agent| json!({ "name": agent.name })))?;
        let sql = agent::agents!("where name in (select value ->> 'name' from json_each(?1))");
        let rows = tx.query(sql, params![names]).await?;
        let known = rows.iter().map(|row| agent::Record::read(row).map(|agent| (agent.name.clone(), agent)));
        let known = known.collect::<Result<HashMap<_, _>>>()?;
        let (mut rows, mut events) = (Vec::new(), Vec::new());
        for item in &self.agents {
            if let Some(there) = known.get(&item.name) {
                taken.there(&item.name, item.differs(there));
                continue;
            }
            let paused = item.paused.as_ref().filter(|paused| !paused.is_over(tx.now));
            let capabilities = (!item.capabilities.is_empty()).then(|| json!(item.capabilities).to_string());
            rows.push(json!({
                "name": item.name, "role": item.role.as_str(), "capabilities": capabilities,
                "max": item.max_concurrent, "joined": item.joined_at.map_or(tx.now, |at| at.min(tx.now)).0,
                "strand": item.strand_ms.unwrap_or(STRAND).0, "left": item.left_at.map(|at| at.min(tx.now).0),
                "paused": paused.map(|paused| paused.since.min(tx.now).0),
                "until": paused.and_then(|paused| paused.until).map(|until| until.0),
                "reason": paused.and_then(|paused| paused.reason.as_deref()),
            }));
            events.push(Event {
                topic: Some(Topic::Nobody),
                agent: Some(item.name.clone()),
                details: Some(json!({ "source": self.source, "role": item.role })),
                ..Event::new("agent.imported", format!("agent/{}", item.name))
            });
            taken.imported.push(item.name.clone());
        }
        if self.dry_run || rows.is_empty() {
            return Ok(taken);
        }
        let insert = Stmt::write(
            "insert into agent(name, role, capabilities, max_concurrent, strand_ms, joined_at, left_at, heard_until,
               strands_at, paused_at, paused_until, paused_reason)
             select value ->> 'name', value ->> 'role', value ->> 'capabilities', cast(value ->> 'max' as bigint),
               cast(value ->> 'strand' as bigint), cast(value ->> 'joined' as bigint),
               cast(value ->> 'left' as bigint), coalesce(cast(value ->> 'left' as bigint), cast(?1 as bigint)),
               case when value ->> 'left' is null then cast(?2 as bigint) else cast(?1 as bigint) end,
               cast(value ->> 'paused' as bigint), cast(value ->> 'until' as bigint), value ->> 'reason'
             from json_each(?3) where true order by value ->> 'name' on conflict (name) do nothing",
            params![tx.now, tx.now.plus(FIRST_POLL), set(rows)?],
        );
        let events = Event::insert_many(tx, events)?;
        write_logged(tx, insert, events).await?;
        Ok(taken)
    }

    pub(super) async fn channels(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.channels.is_empty() {
            return Ok(taken);
        }
        let names = set(self.channels.iter().map(|channel| json!({ "name": channel.name })))?;
        let sql = "select name from channel where name in (select value ->> 'name' from json_each(?1))";
        let known = tx.query(sql, params![names]).await?;
        let known = known.iter().map(|row| row.get("name")).collect::<Result<HashSet<String>>>()?;
        let (mut rows, mut events) = (Vec::new(), Vec::new());
        for item in &self.channels {
            if known.contains(&item.name) {
                taken.there(&item.name, Vec::new());
                continue;
            }
            rows.push(json!({
                "name": item.name, "description": item.description, "creator": item.creator,
                "created": item.created_at.map_or(tx.now, |at| at.min(tx.now)).0,
            }));
            events.push(Event {
                topic: Some(Topic::Nobody),
                agent: item.creator.clone(),
                details: Some(json!({ "source": self.source })),
                ..Event::new("channel.created", format!("channel/{}", item.name))
            });
            taken.imported.push(item.name.clone());
        }
        let members = self.channels.iter().flat_map(|channel| {
            channel.members.iter().map(|agent| json!({ "agent": agent, "channel": channel.name }))
        });
        let members: Vec<_> = members.collect();
        if self.dry_run {
            return Ok(taken);
        }
        let mut batch = Batch::new();
        if !rows.is_empty() {
            batch.add(Stmt::write(
                "insert into channel(name, description, next_n, creator, created_at)
                 select value ->> 'name', value ->> 'description', 1, value ->> 'creator',
                   cast(value ->> 'created' as bigint)
                 from json_each(?1) where true order by value ->> 'name' on conflict (name) do nothing",
                params![set(rows)?],
            ));
            batch.add(Event::insert_many(tx, events)?);
        }
        // An existing reader row stays unchanged: the agent joined or left the channel here.
        if !members.is_empty() {
            batch.add(Stmt::write(
                "insert into reader(agent, channel, member, updated_at)
                 select value ->> 'agent', value ->> 'channel', 1, cast(?1 as bigint) from json_each(?2) where true
                 order by value ->> 'agent', value ->> 'channel' on conflict (agent, channel) do nothing",
                params![tx.now, set(members)?],
            ));
        }
        tx.send(batch).await?;
        Ok(taken)
    }
}
