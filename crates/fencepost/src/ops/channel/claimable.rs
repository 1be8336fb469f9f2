//! An agent's unread mentions in a channel as a claimable noun: `mentions/AGENT/CHANNEL`.

use super::{lapse, reader, release};
use crate::{
    db::{BoxFuture, Delivered, Stmt, Tx},
    error::{Code, Error, Result},
    ids::{Token, clip},
    lease::{
        ClaimState, Claimable, Hold,
        claimable::{Outcome, Promise, Settlement, Table, Unclaimed},
    },
    limits::{PLAIN, name_problem},
    params,
};

#[derive(Debug)]
pub(crate) struct Mentions;

/// The agent and the channel of an id.
pub(crate) fn parts(id: &str) -> (&str, &str) {
    id.split_once('/').unwrap_or((id, ""))
}

impl Claimable for Mentions {
    fn noun(&self) -> &'static str {
        "mentions"
    }
    fn table(&self) -> &'static Table {
        &Table {
            name: "reader",
            id: "reader.agent || '/' || reader.channel",
            order: "reader.agent, reader.channel",
            sort: ("reader.channel", "0"),
            deadlines: &[],
        }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        let (agent, channel) = parts(id);
        let problem = name_problem(agent, PLAIN).or_else(|| name_problem(channel, PLAIN));
        problem.map(|_| format!("`mentions/{}` is not `mentions/AGENT/CHANNEL`", clip(id)))
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        let (agent, channel) = parts(id);
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
     from reader join run on run.key = reader.run
     where reader.agent = ?1 and reader.channel = ?2 and reader.fence = ?3",
            params![agent, channel, fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        let (agent, channel) = parts(id);
        Box::pin(
            async move { Ok(reader::load(tx, agent, channel).await?.map(|reader| reader.claim_state())) },
        )
    }
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::of_runs(tx, runs))
    }
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::at_limit(tx))
    }
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>> {
        Box::pin(release::release(tx, token, "release"))
    }
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>> {
        Box::pin(release::unclaim(tx, id, reason))
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
            let (agent, channel) = parts(token.resource.id());
            let held = reader::load_locked(tx, agent, channel).await?;
            let is_current = |hold: &Hold| {
                hold.fence == token.fence && hold.run_key == settlement.run && hold.is_alive(tx.now)
            };
            let held = held.filter(|held| held.hold.as_ref().is_some_and(is_current));
            let Some(held) = held else {
                return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` is over")));
            };
            match settlement.outcome {
                Outcome::Done => reader::settle(tx, &held).await.map(|()| true),
                Outcome::Failed => release::fail(tx, &held, settlement.run).await.map(|()| true),
                Outcome::Released => {
                    release::release(tx, token, settlement.release_verb).await.map(|_| false)
                }
            }
        })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &["mentions.released"]
    }
    fn promises(&self) -> &'static [Promise] {
        PROMISES
    }
}

const PROMISES: &[Promise] = &[
    Promise {
        text: "held mentions have a claim with its time and its last post",
        broken: "select 'mentions/' || agent || '/' || channel as resource from reader
         where (run is null) <> (claimed_at is null) or (run is null) <> (given_n is null)
         or (run is null and until_at is not null)",
    },
    Promise {
        text: "a reader row has its last mention, and a waiting time exactly if one is unread",
        broken: "select 'mentions/' || reader.agent || '/' || reader.channel as resource from reader
         left join (select agent, channel, max(n) as n from mention group by agent, channel) as last
           on last.agent = reader.agent and last.channel = reader.channel
         where (reader.mentioned_n <> coalesce(last.n, 0) and (last.n is not null or reader.mentioned_n > reader.read_n))
         or (reader.mentioned_n > reader.read_n) <> (reader.since is not null)",
    },
    Promise {
        text: "every mention has its post and its reader row",
        broken: "select 'mentions/' || agent || '/' || channel as resource from mention
         where not exists (select 1 from post where post.channel = mention.channel and post.n = mention.n)
         or not exists (select 1 from reader where reader.agent = mention.agent and reader.channel = mention.channel)",
    },
    Promise {
        text: "posts are numbered without a gap, and no cursor is past the last one",
        broken: "select 'channel/' || channel.name as resource from channel
         left join (select channel, max(n) - min(n) + 1 - count(*) as gaps, max(n) as last from post group by channel) as posts
           on posts.channel = channel.name
         where coalesce(posts.gaps, 0) <> 0 or channel.next_n - 1 <> coalesce(posts.last, 0)
         union all
         select 'channel/' || channel.name as resource from channel join reader on reader.channel = channel.name
         where reader.read_n >= channel.next_n",
    },
];
