//! A storm: ten agents in five channels, each answering every post with a post that mentions two others, for a simulated day.
//! With the limits the number of runs stays below what the settings imply; without them the same script goes on without end.

use fencepost::{Fleet, Millis, agent, channel, run, storm};
use fencepost_testing::{World, on_both};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const AGENTS: usize = 10;
const CHANNELS: usize = 5;
/// Seconds of a step in which the agents act, and of one in which nothing happens. An agent must poll within five minutes to be
/// online.
const ACTIVE: u64 = 5;
const IDLE: u64 = 240;
/// Polls of each agent in one step, at most.
const POLLS: usize = 5;
const DAY: u64 = 24 * 3600;

struct Day {
    world: World,
    /// Runs by the type of their trigger.
    runs: BTreeMap<&'static str, i64>,
    /// The last post of a person in each channel.
    asked: BTreeMap<String, i64>,
    most_pending: i64,
    next_run: usize,
    elapsed: u64,
}

fn agent_name(n: usize) -> String {
    format!("agent{}", n % AGENTS)
}

async fn set(fleet: &Fleet, values: &[(&str, i64)]) {
    let values = values
        .iter()
        .map(|(name, value)| (serde_json::from_value(json!(name)).expect("a setting"), Some(*value)));
    let set = storm::Set { values: values.collect(), channel: None, source: None };
    fleet.call(set).await.expect("set");
}

impl Day {
    async fn begin(world: World) -> Self {
        for channel in 0..CHANNELS {
            let create = channel::Create { channel: format!("c{channel}"), ..Default::default() };
            world.fleet.call(create).await.expect("a channel");
        }
        for n in 0..AGENTS {
            world.join(&agent_name(n), agent::Role::Worker).await;
            for channel in 0..CHANNELS {
                let join = channel::Join { channel: format!("c{channel}"), agent: agent_name(n) };
                world.fleet.call(join).await.expect("a member");
            }
        }
        Self {
            world,
            runs: BTreeMap::new(),
            asked: BTreeMap::new(),
            most_pending: 0,
            next_run: 0,
            elapsed: 0,
        }
    }

    fn total(&self) -> i64 {
        self.runs.values().sum()
    }

    /// A person posts: a new root.
    async fn ask(&mut self, channel: usize) {
        let channel = format!("c{channel}");
        let body = format!("@{} look at this", agent_name(self.asked.len()));
        let n = post(&self.world.fleet, &channel, "person", body, None).await;
        self.asked.insert(channel, n);
    }

    /// One step of all agents. Returns the number of runs.
    async fn step(&mut self) -> i64 {
        let before = self.total();
        loop {
            let ticked = self.world.fleet.call(storm::Tick {}).await.expect("a tick");
            self.most_pending = self.most_pending.max(ticked.pending_jobs);
            if !ticked.more {
                break;
            }
        }
        for n in 0..AGENTS {
            for _ in 0..POLLS {
                if !self.act(n).await {
                    break;
                }
            }
        }
        self.total() - before
    }

    /// One poll of an agent, which answers in every channel of its trigger. Returns whether it got one.
    async fn act(&mut self, n: usize) -> bool {
        let (agent, run) = (agent_name(n), format!("run-{}", self.next_run));
        self.next_run += 1;
        let accept = Some(vec![agent::Type::UnreadMentions, agent::Type::UnreadWakeup]);
        let ttl_ms = Some(Millis::minutes(10));
        let poll =
            agent::Poll { agent: agent.clone(), run: run.clone(), accept, ttl_ms, ..Default::default() };
        let Some(trigger) = self.world.fleet.call(poll).await.expect("a poll").trigger else { return false };
        *self.runs.entry(trigger.kind.as_str()).or_default() += 1;
        let inside = self.world.fleet.as_agent(&agent).in_run(&run);
        for given in &trigger.channels {
            let body = format!("@{} @{} what do you think?", agent_name(n + 1), agent_name(n + 3));
            post(&inside, &given.channel, &agent, body, Some(given.to)).await;
        }
        let settle = run::Settle { run, ..Default::default() };
        self.world.fleet.call(settle).await.expect("settled");
        true
    }

    /// Steps until this much time has passed, or until there were more than `most` runs.
    async fn pass(&mut self, seconds: u64, most: i64) {
        let end = self.elapsed + seconds;
        while self.elapsed < end && self.total() <= most {
            let step = if self.step().await > 0 { ACTIVE } else { IDLE };
            self.world.clock.advance(Duration::from_secs(step));
            self.elapsed += step;
        }
    }

    /// The runs that the settings allow: a root may trigger `fanout` runs in each window that touches the time since it began.
    fn bound(roots: &[u64], end: u64, window: u64, fanout: i64) -> i64 {
        roots.iter().map(|begun| fanout * (((end - begun).div_ceil(window)) as i64 + 1)).sum()
    }

    /// The members that have not read the person's last post, by channel.
    async fn unreached(&self) -> BTreeSet<(String, String)> {
        let mut left = BTreeSet::new();
        for n in 0..AGENTS {
            let unread = channel::Unread { agent: agent_name(n) };
            for unread in self.world.fleet.call(unread).await.expect("unread").channels {
                if self.asked.get(&unread.channel).is_some_and(|asked| unread.cursor < *asked) {
                    left.insert((unread.channel, agent_name(n)));
                }
            }
        }
        left
    }
}

async fn post(fleet: &Fleet, channel: &str, author: &str, body: String, reply_to: Option<i64>) -> i64 {
    let author = Some(author.to_owned());
    let post = channel::Post { channel: channel.into(), body, author, reply_to, ..Default::default() };
    fleet.call(post).await.expect("posted").post.n
}

/// Five posts of a person in a day, each in another channel. Returns the day and the bound.
async fn day(world: World, window: u64, fanout: i64) -> (Day, i64) {
    let mut day = Day::begin(world).await;
    let mut roots = Vec::new();
    for channel in 0..CHANNELS {
        roots.push(day.elapsed);
        day.ask(channel).await;
        day.pass(DAY / CHANNELS as u64, i64::MAX).await;
        let left = day.unreached().await;
        assert!(left.is_empty(), "these starve: {left:?}");
    }
    let bound = Day::bound(&roots, day.elapsed, window, fanout);
    (day, bound)
}

on_both! {
    async fn a_day_stays_below_its_bound(world: World) {
        let (day, bound) = day(world, 300, 100).await;
        println!("a day: {:?}, {} runs; the settings allow {bound}; at most {} pending", day.runs, day.total(), day.most_pending);
        assert!(day.total() <= bound, "{} runs, and the bound is {bound}", day.total());
        // Every post of a person woke the nine or ten members of its channel at least once.
        assert!(day.total() >= (CHANNELS * (AGENTS - 1)) as i64, "{:?}", day.runs);
        assert!(day.most_pending <= 50, "{} pending", day.most_pending);
        let shown = day.world.fleet.call(storm::Show::default()).await.unwrap();
        assert!(shown.counts["suppressed_cause"] > 0, "{:?}", shown.counts);
        assert_eq!(shown.pending_jobs, 0);
        // The storm is over: nothing wakes anybody any more.
        let mut day = day;
        let before = day.total();
        day.pass(3600, i64::MAX).await;
        assert_eq!(day.total(), before);
    }

    /// A changed limit changes the result.
    async fn a_lower_limit_allows_fewer_runs(world: World) {
        let mut day = Day::begin(world).await;
        let mut runs = Vec::new();
        for (channel, depth) in [3, 20].into_iter().enumerate() {
            set(&day.world.fleet, &[("max_depth", depth)]).await;
            let before = day.total();
            day.ask(channel).await;
            day.pass(3600, i64::MAX).await;
            runs.push(day.total() - before);
        }
        println!("runs of one post with a depth of 3 and of 20: {runs:?}");
        assert!(runs[0] >= 9 && runs[1] > runs[0], "{runs:?}");
    }

    /// Chains of any length: the limit on the runs of a root alone keeps them below the bound.
    async fn the_runs_of_a_root_are_bounded(world: World) {
        set(&world.fleet, &[("max_depth", 1_000_000)]).await;
        let mut day = Day::begin(world).await;
        day.ask(0).await;
        day.pass(3600, i64::MAX).await;
        let bound = Day::bound(&[0], day.elapsed, 300, 100);
        println!("an hour of endless chains: {:?}, {} runs; the settings allow {bound}", day.runs, day.total());
        assert!(day.total() <= bound, "{} runs, and the bound is {bound}", day.total());
        // It goes on in each window.
        assert!(day.total() > bound / 4, "{:?}", day.runs);
        let left = day.unreached().await;
        assert!(left.is_empty(), "these starve: {left:?}");
    }

    /// The same script without limits has more runs in an hour than the limits allow: the test above can fail.
    async fn without_limits_it_explodes(world: World) {
        let many = 100_000;
        set(&world.fleet, &[
            ("max_depth", 1_000_000),
            ("max_fanout", 1_000_000),
            ("max_triggers_per_window", many),
            ("min_interval_ms", 0),
            ("breaker_backlog_threshold", 1_000_000),
            ("max_active_global", many),
            ("max_active_per_agent", many),
        ])
        .await;
        let mut day = Day::begin(world).await;
        day.ask(0).await;
        let bound = Day::bound(&[0], 3600, 300, 100);
        day.pass(3600, bound).await;
        println!("without limits: {:?}, {} runs after {} s; the limits allow {bound} in an hour", day.runs, day.total(), day.elapsed);
        assert!(day.total() > bound, "{:?} after {} s", day.runs, day.elapsed);
    }
}
