//! Imports routes, mailboxes, board counters and the fence floor.

use super::{BoardItem, Import, MailboxItem, RouteItem, Taken, differs};
use crate::{
    clock::Millis,
    db::{Batch, Stmt, Tx, set},
    error::{Code, Error, Result},
    lease::hold::write_logged,
    limits::{ATTEMPTS_MAX, NUMBER_MAX, TEXT_MAX, TTL_MAX, check},
    log::Event,
    ops::{
        mail::{Mailbox, Replay, Settings, mailboxes},
        route::{self, ROUTES_MAX, Rule},
    },
    params,
    topic::Topic,
};
use serde_json::json;
use std::collections::{HashMap, HashSet};

impl RouteItem {
    fn rule(&self) -> Rule {
        let RouteItem { source, channel, user, repository, event, text, bots, .. } = self.clone();
        Rule { source, channel, user, repository, event, text, bots }
    }

    pub(crate) fn of(route: route::Route) -> Self {
        let Rule { source, channel, user, repository, event, text, bots } = route.rule;
        let (agent, created_at) = (route.agent, Some(route.created_at));
        Self { source, agent, channel, user, repository, event, text, bots, created_at }
    }

    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        check::plain_name(&format!("{at}agent"), &self.agent)?;
        self.rule().check_at(at)
    }
}

impl MailboxItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::path_name(&field("name"), &self.name)?;
        check::optional_text(&field("paused"), self.paused.as_deref(), TEXT_MAX)?;
        check::lease(&field("ttl_ms"), self.ttl_ms)?;
        check::range(&field("max_attempts"), self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        check::span(&field("backoff_ms"), self.backoff_ms.unwrap_or_default(), Millis(0), TTL_MAX)?;
        let longest = Millis(TTL_MAX.0 * 400);
        check::span(&field("retain_ms"), self.retain_ms.unwrap_or_default(), Millis(0), longest)?;
        check::range(&field("retain_count"), self.retain_count.unwrap_or(1), 1, 1_000_000)
    }

    /// The mailbox with its settings, defaults included.
    pub(super) fn mailbox(&self) -> Mailbox {
        let defaults = Settings::default();
        let settings = Settings {
            strict: self.strict,
            ttl_ms: self.ttl_ms.unwrap_or(defaults.ttl_ms),
            max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts),
            backoff_ms: self.backoff_ms.unwrap_or(defaults.backoff_ms),
            replay: self.replay.unwrap_or(defaults.replay),
            retain_ms: self.retain_ms.unwrap_or(defaults.retain_ms),
            retain_count: self.retain_count,
        };
        Mailbox { settings, paused: self.paused.clone() }
    }

    fn differs(&self, here: &Mailbox) -> Vec<String> {
        let there = self.mailbox();
        let shown = |mailbox: &Mailbox| {
            let it = &mailbox.settings;
            [
                it.strict.to_string(),
                mailbox.paused.clone().unwrap_or_default(),
                it.ttl_ms.to_string(),
                it.max_attempts.to_string(),
                it.backoff_ms.to_string(),
                it.replay.as_str().to_owned(),
                it.retain_ms.to_string(),
                it.retain_count.map(|count| count.to_string()).unwrap_or_default(),
            ]
        };
        let names =
            ["strict", "paused", "ttl", "max_attempts", "backoff", "replay", "retain", "retain_count"];
        let pairs = names.iter().zip(shown(here)).zip(shown(&there));
        pairs.filter_map(|((name, here), there)| differs(name, &here, &there)).collect()
    }
}

impl BoardItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        check::plain_name(&format!("{at}name"), &self.name)?;
        check::range(&format!("{at}next"), self.next, 1, NUMBER_MAX + 1)
    }
}

impl Import {
    pub(super) async fn routes(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.routes.is_empty() {
            return Ok(taken);
        }
        route::lock(tx).await?;
        let there = route::in_force(tx).await?;
        let (mut rows, mut given) = (Vec::new(), HashSet::new());
        for (i, item) in self.routes.iter().enumerate() {
            let rule = item.rule();
            let name = rule.to_string();
            if !given.insert(name.clone()) {
                return Err(Error::invalid(&format!("routes[{i}]"), format!("`{name}` is given twice")));
            }
            if let Some(route) = there.iter().find(|route| route.rule == rule) {
                taken.there(&name, differs("agent", &route.agent, &item.agent).into_iter().collect());
                continue;
            }
            rows.push(json!({
                "rule": serde_json::to_string(&rule).map_err(Error::internal)?, "agent": item.agent,
                "place": rows.len() + 1, "created": item.created_at.map_or(tx.now, |at| at.min(tx.now)).0,
            }));
            taken.imported.push(name);
        }
        if there.len() + rows.len() > ROUTES_MAX {
            let message = format!("there would be more than {ROUTES_MAX} routes, the maximum");
            return Err(Error::new(Code::TooLarge, message).with("max", ROUTES_MAX));
        }
        if self.dry_run || rows.is_empty() {
            return Ok(taken);
        }
        let written = tx
            .execute_returning(
                "insert into route(agent, place, rule, created_at)
                 select value ->> 'agent', cast(value ->> 'place' as bigint) + (select coalesce(max(place), 0) from route),
                   value ->> 'rule', cast(value ->> 'created' as bigint)
                 from json_each(?1) where true order by key returning id, rule, agent",
                params![set(rows)?],
            )
            .await?;
        let mut events = Vec::with_capacity(written.len());
        for row in &written {
            let rule: serde_json::Value =
                serde_json::from_str(&row.get::<String>("rule")?).map_err(Error::internal)?;
            let agent: String = row.get("agent")?;
            events.push(Event {
                topic: Some(Topic::Nobody),
                ..Event::new("route.added", format!("route/{}", row.get::<i64>("id")?))
                    .details(json!({ "rule": rule, "for": agent, "source": self.source }))
            });
        }
        tx.one(Event::insert_many(tx, events)?).await?;
        Ok(taken)
    }

    pub(super) async fn mailboxes(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.mailboxes.is_empty() {
            return Ok(taken);
        }
        let names = set(self.mailboxes.iter().map(|item| json!({ "name": item.name })))?;
        let sql = mailboxes!("where name in (select value ->> 'name' from json_each(?1))");
        let rows = tx.query(sql, params![names]).await?;
        let here = rows.iter().map(|row| Ok((row.get("name")?, Mailbox::read(row)?)));
        let here = here.collect::<Result<HashMap<String, Mailbox>>>()?;
        let (mut rows, mut events, mut given) = (Vec::new(), Vec::new(), HashSet::new());
        for (i, item) in self.mailboxes.iter().enumerate() {
            if !given.insert(&item.name) {
                let twice = format!("`{}` is given twice", item.name);
                return Err(Error::invalid(&format!("mailboxes[{i}].name"), twice));
            }
            if let Some(here) = here.get(&item.name) {
                taken.there(&item.name, item.differs(here));
                continue;
            }
            rows.push(json!({
                "name": item.name, "strict": i64::from(item.strict), "paused": item.paused,
                "ttl": item.ttl_ms.map(|span| span.0), "max": item.max_attempts,
                "backoff": item.backoff_ms.map(|span| span.0), "replay": item.replay.map(Replay::as_str),
                "retain": item.retain_ms.map(|span| span.0), "count": item.retain_count,
                "created": item.created_at.map_or(tx.now, |at| at.min(tx.now)).0,
            }));
            events.push(Event {
                topic: Some(Topic::mail(&item.name)),
                details: Some(json!({ "source": self.source })),
                ..Event::new("mailbox.imported", format!("mailbox/{}", item.name))
            });
            taken.imported.push(item.name.clone());
        }
        if self.dry_run || rows.is_empty() {
            return Ok(taken);
        }
        let wanted = rows.len() as u64;
        let insert = Stmt::write(
            "insert into mailbox(name, in_order, paused, ttl_ms, max_attempts, backoff_ms, replay, retain_ms,
               retain_count, created_at)
             select value ->> 'name', cast(value ->> 'strict' as bigint), value ->> 'paused',
               cast(value ->> 'ttl' as bigint), cast(value ->> 'max' as bigint), cast(value ->> 'backoff' as bigint),
               value ->> 'replay', cast(value ->> 'retain' as bigint), cast(value ->> 'count' as bigint),
               cast(value ->> 'created' as bigint)
             from json_each(?1) where true order by value ->> 'name' on conflict (name) do nothing",
            params![set(rows)?],
        );
        let events = Event::insert_many(tx, events)?;
        match write_logged(tx, insert, events).await? < wanted {
            true => Err(Error::raced("a mailbox was created at this moment")),
            false => Ok(taken),
        }
    }

    /// Raises the board counters and the floor; never lowers them.
    pub(super) async fn boards(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        let names = set(self.boards.iter().map(|board| json!({ "name": board.name })))?;
        let sql = "select name, next_n from board where name in (select value ->> 'name' from json_each(?1))";
        let rows = if self.boards.is_empty() { Vec::new() } else { tx.query(sql, params![names]).await? };
        let here = rows.iter().map(|row| Ok((row.get("name")?, row.get("next_n")?)));
        let here = here.collect::<Result<HashMap<String, i64>>>()?;
        let mut rows = Vec::new();
        for board in &self.boards {
            if here.get(&board.name).is_some_and(|next| *next >= board.next) {
                taken.there(&board.name, Vec::new());
                continue;
            }
            let created = board.created_at.map_or(tx.now, |at| at.min(tx.now)).0;
            rows.push(json!({ "name": board.name, "next": board.next, "created": created }));
            taken.imported.push(board.name.clone());
        }
        let mut batch = Batch::new();
        if !rows.is_empty() {
            batch.add(Stmt::write(
                "insert into board(name, next_n, created_at)
                 select value ->> 'name', max(cast(value ->> 'next' as bigint)),
                   min(cast(value ->> 'created' as bigint))
                 from json_each(?1) where true group by value ->> 'name' order by value ->> 'name'
                 on conflict (name) do update set next_n =
                   case when board.next_n < excluded.next_n then excluded.next_n else board.next_n end",
                params![set(rows)?],
            ));
        }
        if let Some(floor) = self.floor {
            batch.add(Stmt::write("update fleet set floor = ?1 where floor < ?1", params![floor]));
        }
        if !self.dry_run {
            tx.send(batch).await?;
        }
        Ok(taken)
    }
}
