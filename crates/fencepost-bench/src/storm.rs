//! The scheduler of wake-ups: a tick costs what its unread posts cost, however many channels and members the fleet has.

use crate::table::{Targets, median};
use fencepost::{Fleet, Result, channel, params, storm};
use std::{collections::BTreeMap, time::Instant};

/// Members of each channel.
const MEMBERS: i64 = 5;
/// Channels with a new post: together a hundred members have not read it.
const UNREAD: i64 = 20;
const ROUNDS: usize = 30;

/// SQL: the numbers from 0 to below `?1`, as `i`.
macro_rules! for_each {
    ($select:literal) => {
        concat!(
            "with recursive c(i) as (select cast(0 as bigint) union all select i + 1 from c where i < cast(?1 as bigint) - 1) ",
            $select,
            " from c"
        )
    };
}

/// Channels in which everybody has read everything.
async fn seed(fleet: &Fleet, channels: i64) -> Result<()> {
    let agents = channels.clamp(UNREAD * MEMBERS, 1000);
    let fill = fleet.transaction(move |tx| {
        Box::pin(async move {
            tx.execute(
                concat!(
                    "insert into agent(name, role, strand_ms, joined_at, heard_until, strands_at, wakes_until) ",
                    for_each!("select 'agent-' || i, 'worker', 1800000, 1, 9000000000000, 9000000000000, 9000000000000")
                ),
                params![agents],
            )
            .await?;
            for sql in [
                concat!(
                    "insert into channel(name, next_n, created_at, marked_n) ",
                    for_each!("select 'channel-' || i, 2, 1, 1")
                ),
                concat!(
                    "insert into post(channel, n, body, at) ",
                    for_each!("select 'channel-' || i, 1, 'hello', 1")
                ),
            ] {
                tx.execute(sql, params![channels]).await?;
            }
            tx.execute(
                concat!(
                    "insert into reader(agent, channel, member, read_n, wake_n, updated_at) ",
                    for_each!("select 'agent-' || (i % cast(?2 as bigint)), 'channel-' || (i / cast(?3 as bigint)), 1, 1, 1, 1")
                ),
                params![channels * MEMBERS, agents, MEMBERS],
            )
            .await?;
            for sql in ["analyze agent", "analyze channel", "analyze post", "analyze reader"] {
                tx.execute(sql, params![]).await?;
            }
            Ok(())
        })
    });
    fill.await?;
    // Every wake-up is allowed, in each round again.
    let values = [
        (storm::Setting::MaxTriggersPerWindow, 100_000),
        (storm::Setting::MinIntervalMs, 0),
        (storm::Setting::BreakerBacklogThreshold, 1_000_000),
    ];
    let values: BTreeMap<_, _> = values.into_iter().map(|(name, value)| (name, Some(value))).collect();
    fleet.call(storm::Set { values, ..storm::Set::default() }).await?;
    Ok(())
}

/// Removes the wake-ups of the last round: everybody has read everything again.
async fn reset(fleet: &Fleet) -> Result<()> {
    let reset = fleet.transaction(|tx| {
        Box::pin(async move {
            for sql in [
                // By an index: reading all readers would push the pages of the tick out of SQLite's cache.
                "update reader set read_n = wake_n, wake_at = null where member = 1 and channel in (select channel from wakeup)",
                "delete from message_doc where message in (select message from wakeup)",
                "delete from message where id in (select message from wakeup)",
                "delete from wakeup",
            ] {
                tx.execute(sql, params![]).await?;
            }
            Ok(())
        })
    });
    reset.await
}

/// The medians in milliseconds: a tick with a hundred unread pairs, and the question whether a tick has something to do.
async fn costs(fleet: &Fleet) -> Result<(f64, f64)> {
    let (mut ticks, mut questions) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        reset(fleet).await?;
        let start = Instant::now();
        assert!(!fleet.call(storm::Due {}).await?.due, "everything is read");
        questions.push(start.elapsed().as_secs_f64() * 1e3);
        for n in 0..UNREAD {
            let post = channel::Post {
                channel: format!("channel-{n}"),
                body: "news".into(),
                ..channel::Post::default()
            };
            fleet.call(post).await?;
        }
        let start = Instant::now();
        let ticked = fleet.call(storm::Tick {}).await?;
        ticks.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!((ticked.scheduled, ticked.more), (UNREAD * MEMBERS, false), "one tick wakes all");
    }
    Ok((median(ticks), median(questions)))
}

/// A small fleet and a large one with the same hundred unread pairs.
pub async fn measure(
    database: &str,
    small: &Fleet,
    large: &Fleet,
    channels: i64,
    targets: &mut Targets,
) -> Result<()> {
    println!("\n{database}, storm tick with 100 unread pairs; the question whether one is due: ms each");
    let mut first = None;
    for (fleet, channels) in [(small, UNREAD), (large, channels)] {
        seed(fleet, channels).await?;
        let (tick, due) = costs(fleet).await?;
        let (base, base_due) = *first.get_or_insert((tick, due));
        let what = format!("{channels} channels, {} members", channels * MEMBERS);
        println!("  {what:<32} {tick:>8.2}   {:.2} x   {due:>8.3}   {:.2} x", tick / base, due / base_due);
        if channels > UNREAD {
            targets.push(
                format!("{database}, storm tick, {channels} channels / {UNREAD} channels"),
                tick / base,
                "at most 1.3",
            );
        }
    }
    Ok(())
}
