//! Imports cursors. In the other system a cursor is a time; here it is a post's number.

use super::{Import, Taken};
use crate::{
    db::{Stmt, Tx, set},
    error::Result,
    lease::hold::write_logged,
    log::Event,
    params,
    topic::Topic,
};
use serde_json::json;

impl Import {
    /// Moves a cursor to the last post that was read elsewhere. It never moves back, and never past a post that was
    /// written here: such a post was not read elsewhere. While a run holds the mentions, the cursor does not move.
    pub(super) async fn cursors(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.cursors.is_empty() {
            return Ok(taken);
        }
        let prefix = self.key("");
        let rows = self.cursors.iter().map(|item| {
            json!({
                "agent": item.agent, "channel": item.channel, "until": item.read_until.0,
                "to": item.read_to.as_ref().map(|id| self.key(id)),
            })
        });
        let rows = tx
            .query(
                "select channel.next_n, coalesce(reader.read_n, 0) as read_n, reader.run as held,
                   (select n from post where post.channel = item.value ->> 'channel'
                    and post.n > coalesce(reader.read_n, 0)
                    and (case when last.n is null then post.at > cast(item.value ->> 'until' as bigint)
                        else post.n > last.n end
                      or post.idempotency_key is null or substr(post.idempotency_key, 1, length(?2)) <> ?2)
                    order by n limit 1) as stop
                 from json_each(?1) as item
                 left join channel on channel.name = item.value ->> 'channel'
                 left join post as last on last.channel = item.value ->> 'channel'
                   and last.idempotency_key = item.value ->> 'to' and last.idempotency_key is not null
                 left join reader on reader.channel = item.value ->> 'channel'
                   and reader.agent = item.value ->> 'agent'
                 order by item.key",
                params![set(rows)?, prefix],
            )
            .await?;
        let (mut moved, mut events) = (Vec::new(), Vec::new());
        for (item, row) in self.cursors.iter().zip(&rows) {
            let id = format!("{}/{}", item.agent, item.channel);
            // The channel does not exist yet: this is a dry run.
            let Some(next) = row.get::<Option<i64>>("next_n")? else {
                taken.imported.push(id);
                continue;
            };
            let to = row.get::<Option<i64>>("stop")?.unwrap_or(next) - 1;
            if to <= row.get::<i64>("read_n")? {
                taken.there(&id, Vec::new());
                continue;
            }
            if row.get::<Option<i64>>("held")?.is_some() {
                let not_yet =
                    "read_until: a run holds the mentions; import again once it is settled".to_owned();
                taken.there(&id, vec![not_yet]);
                continue;
            }
            moved.push(json!({ "agent": item.agent, "channel": item.channel, "to": to }));
            events.push(Event {
                topic: Some(Topic::Nobody),
                agent: Some(item.agent.clone()),
                details: Some(json!({ "to": to, "source": self.source })),
                ..Event::new("mentions.imported", format!("mentions/{id}"))
            });
            taken.imported.push(id);
        }
        if self.dry_run || moved.is_empty() {
            return Ok(taken);
        }
        let update = Stmt::write(
            "insert into reader(agent, channel, read_n, updated_at)
             select value ->> 'agent', value ->> 'channel', cast(value ->> 'to' as bigint), cast(?1 as bigint)
             from json_each(?2) where true order by value ->> 'agent', value ->> 'channel'
             on conflict (agent, channel) do update set read_n = excluded.read_n, updated_at = excluded.updated_at,
               since = (select min(at) from mention where mention.agent = excluded.agent
                 and mention.channel = excluded.channel and mention.n > excluded.read_n)
             where reader.read_n < excluded.read_n and reader.run is null",
            params![tx.now, set(moved)?],
        );
        let events = Event::insert_many(tx, events)?;
        write_logged(tx, update, events).await?;
        Ok(taken)
    }
}
