//! Messages as a claimable noun.

use super::{Done, Fail, end_delays, lapse, now, record, release};
use crate::{
    db::{BoxFuture, Delivered, Stmt, Tx},
    error::Result,
    ids::{Resource, Token, clip, number},
    json::Json,
    lease::{
        ClaimState, Claimable,
        claimable::{Outcome, Promise, Settlement, Table, Unclaimed},
        delivery::Redelivery,
    },
    params,
};

#[derive(Debug)]
pub(crate) struct Messages;

/// The message's id, if the resource is a message.
pub(crate) fn message(resource: &Resource) -> Option<i64> {
    number(resource.id()).filter(|_| resource.noun() == "message")
}

/// The number in an id that was already checked.
pub(super) fn message_number(id: &str) -> i64 {
    number(id).unwrap_or(0)
}

impl Claimable for Messages {
    fn noun(&self) -> &'static str {
        "message"
    }
    fn table(&self) -> &'static Table {
        &Table {
            name: "message",
            id: "message.id",
            order: "message.id",
            sort: ("''", "message.id"),
            deadlines: &["(select min(delayed_until) from message where delayed_until is not null)"],
        }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        number(id).is_none().then(|| format!("`{}` is not a message's number", clip(id)))
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
     from message join run on run.key = message.run where message.id = ?1 and message.fence = ?2",
            params![message_number(id), fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move {
            Ok(record::load(tx, message_number(id)).await?.map(|message| message.claim_state()))
        })
    }
    fn claim_state_now<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move {
            let Some(message) = record::load(tx, message_number(id)).await? else { return Ok(None) };
            Ok(now(tx, vec![message]).await?.first().map(record::Record::claim_state))
        })
    }
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::of_runs(tx, runs))
    }
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::at_limit(tx))
    }
    fn end_delays<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(end_delays(tx))
    }
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>> {
        Box::pin(async move {
            let tokens = [(message_number(token.resource.id()), token.clone())].into();
            let released = release::release(tx, &tokens, None, "release").await?;
            Ok(released.first().map_or("pending", |message| message.status().as_str()).into())
        })
    }
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>> {
        Box::pin(release::unclaim(tx, message_number(id), reason))
    }
    fn return_undelivered<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        delivered: &'t [&'t Delivered],
    ) -> BoxFuture<'t, Result<u64>> {
        Box::pin(release::return_undelivered(tx, delivered))
    }
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let text = token.to_string();
            match settlement.outcome {
                Outcome::Done => {
                    let outputs = settlement.output.iter().map(Json::of).collect::<Result<_>>()?;
                    let done = Done { token: text, outputs, outcome: Some("read".into()) };
                    tx.part(done).await.map(|_| true)
                }
                Outcome::Failed => {
                    let fail = Fail {
                        retry: true,
                        delay_ms: settlement.delay,
                        ..Fail::new(text, settlement.reason.clone())
                    };
                    tx.part(fail).await.map(|_| true)
                }
                Outcome::Released => {
                    let tokens = [(message_number(token.resource.id()), token.clone())].into();
                    let writes = tx.notes.writes;
                    let released =
                        release::release(tx, &tokens, settlement.delay, settlement.release_verb).await;
                    tx.part_of("the release", writes, released).map(|_| false)
                }
            }
        })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &[
            "message.completed",
            "message.failed",
            "message.retrying",
            "message.released",
            "message.held",
            "message.discarded",
        ]
    }
    /// A caller can discard only messages that nobody holds.
    fn is_expiry(&self, verb: &str, from: Option<&str>, reported: bool) -> bool {
        match verb {
            "lapsed" | "held" => true,
            "failed" => !reported,
            "discarded" => from == Some("processing"),
            _ => false,
        }
    }
    fn promises(&self) -> &'static [Promise] {
        PROMISES
    }
}

/// Hands claims over again, by the messages' ids.
pub(crate) const REDELIVERY: Redelivery = Redelivery {
    lock: "select 1 from message where id in (select cast(value ->> 'k' as bigint) from json_each(?1)) order by id for update",
    raise: "update message set delivery = delivery + 1 from json_each(?1) as item
            where message.id = cast(item.value ->> 'k' as bigint)
            and message.fence = cast(item.value ->> 'fence' as bigint) and message.run is not null
            returning message.id as item_key, message.delivery",
};

const PROMISES: &[Promise] = &[
    Promise {
        text: "a message is held exactly while it is processing",
        broken: "select 'message/' || id as resource from message
         where (run is not null) <> (status = 'processing') or (run is null) <> (claimed_at is null)
         or (run is null and until_at is not null)",
    },
    Promise {
        text: "a message has a finishing time and a removal time exactly if it is finished",
        broken: "select 'message/' || id as resource from message
         where (finished_at is not null) <> (status in ('processed', 'failed'))
         or (finished_at is null) <> (prune_at is null)",
    },
    Promise {
        text: "a message was completed at most once",
        broken: "select resource from event where kind = 'message.completed' group by resource having count(*) > 1",
    },
    Promise {
        text: "outputs belong to the claim that completed their message",
        broken: "select 'message/' || message_output.message as resource from message_output
         left join message on message.id = message_output.message
         where message.id is null or message.status <> 'processed' or message_output.fence <> message.last_fence",
    },
    Promise {
        text: "every message has its texts, and a completed one has no payload, except in an inbox",
        broken: "select 'message/' || message.id as resource from message
         left join message_doc on message_doc.message = message.id
         where message_doc.message is null
         or (message.status = 'processed' and message.outcome <> 'taken' and message.mailbox not like 'inbox/%'
           and message_doc.payload is not null)
         union all
         select 'message_doc ' || message as resource from message_doc
         where not exists (select 1 from message where id = message_doc.message)",
    },
    Promise {
        text: "every message has a mailbox, and a lane exactly if the mailbox is strict",
        broken: "select 'message/' || message.id as resource from message left join mailbox on mailbox.name = message.mailbox
         where mailbox.name is null or (mailbox.in_order = 1) <> (message.lane is not null)
         or (message.lane is null and message.behind = 1)",
    },
    Promise {
        text: "every lane has exactly one unfinished message that comes first",
        broken: "select 'mailbox/' || mailbox as resource from message where lane is not null and finished_at is null
         group by mailbox, lane having sum(1 - behind) <> 1",
    },
];
