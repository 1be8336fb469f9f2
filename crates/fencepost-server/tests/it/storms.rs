//! Wake-ups of a server: its tick, its metrics and its environment.

use crate::world::{World, get, text};
use fencepost::{Fleet, params, storm::Setting};
use fencepost_server::{App, Server, Settings};
use fencepost_testing::{eventually, on_both};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tokio::{sync::oneshot, task::JoinHandle};

/// A server on any free port that ticks often.
fn settings() -> Settings {
    let mut settings = Settings::new(([127, 0, 0, 1], 0).into());
    settings.tick = Duration::from_millis(5);
    settings
}

/// The jobs of a server with connections of its own. To the database it is another process.
struct Jobs {
    app: App,
    running: JoinHandle<()>,
}

impl Jobs {
    async fn start(world: &World) -> Self {
        let app = App::new(world.again().await, settings());
        Self { running: tokio::spawn(fencepost_server::run_jobs(app.clone())), app }
    }

    async fn stop(self) {
        self.app.stop();
        self.running.await.expect("it ends when the server stops");
    }
}

/// Agents that are members of a channel, one of which can post.
async fn channel(world: &World, channel: &str, agents: &[String]) {
    world.ok("channel/create", json!({ "channel": channel })).await;
    for agent in agents {
        world.ok("channel/join", json!({ "channel": channel, "agent": agent })).await;
    }
}

async fn agents(world: &World, count: usize) -> Vec<String> {
    let names: Vec<String> = (1..=count).map(|n| format!("agent-{n}")).collect();
    for name in &names {
        world.ok("agent/join", json!({ "agent": name })).await;
    }
    names
}

async fn post(world: &World, channel: &str) {
    world.ok("channel/post", json!({ "channel": channel, "body": "hello", "author": "agent-1" })).await;
}

async fn show(world: &World) -> Value {
    world.ok("storm/show", json!({ "limit": 1000 })).await
}

async fn number(fleet: &Fleet, sql: &'static str) -> i64 {
    let rows =
        fleet.transaction(move |tx| Box::pin(async move { tx.query(sql, params![]).await?[0].get("n") }));
    rows.await.expect("a number")
}

/// Every row of the scheduler's tables, and the length of the others.
async fn stored(world: &World) -> Vec<String> {
    let sql = "select 'events' as name, count(*) as n from event
               union all select 'runs', count(*) from run
               union all select 'locks', count(*) from lock
               union all select 'messages', count(*) from message
               union all select 'wake-ups', count(*) from wakeup
               union all select 'settings', count(*) from setting
               union all select 'servers', count(*) from server_setting
               union all select 'causes', count(*) from caused
               union all select name, n from storm_count
               union all select 'breaker', coalesce(opened_at, 0) from storm
               union all select 'alarm', coalesce(alarm_at, 0) from storm
               union all select 'asleep ' || name, asleep from agent
               union all select 'marked ' || name, marked_n from channel
               union all select 'wake ' || agent || channel, coalesce(wake_at, 0) + 7 * suppressed from reader";
    let rows = world.fleet.transaction(move |tx| Box::pin(tx.query(sql, params![]))).await.expect("rows");
    let line = |row: &fencepost::Row| {
        let (name, n): (String, i64) = (row.get("name").expect("a name"), row.get("n").expect("a number"));
        format!("{name} {n}")
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    lines.sort();
    lines
}

/// Waits until the servers have looked this often at the fleet: each look is at least one statement.
async fn looks(servers: &[Jobs], count: u64) {
    for server in servers {
        let before = server.app.fleet.stats().statements;
        eventually("it looks", async || server.app.fleet.stats().statements >= before + count).await;
    }
}

async fn metrics(world: &World) -> String {
    text(world.send(get("/metrics")).await).await
}

/// A server that listens, with this environment.
struct Listening {
    name: String,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Listening {
    async fn start(world: &World, environment: &[(Setting, i64)]) -> Self {
        let mut settings = settings();
        settings.environment = BTreeMap::from_iter(environment.iter().copied());
        settings.environment_every = Duration::from_millis(5);
        let server = Server::bind(App::new(world.again().await, settings)).await.expect("it listens");
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{host}:{}", server.address().port());
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.run(stopped).await.expect("it serves");
        });
        Self { name, stop, running }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.running.await.expect("it ends");
    }
}

on_both! {
    /// A server wakes the members of a channel by itself, once.
    async fn a_server_wakes_agents_for_unread_posts(world: World) {
        let agents = agents(&world, 3).await;
        channel(&world, "general", &agents).await;
        let server = Jobs::start(&world).await;
        post(&world, "general").await;
        eventually("two are woken", async || show(&world).await["counts"]["scheduled"] == 2).await;
        let poll = json!({ "agent": "agent-2", "run": "r", "accept": ["unread_wakeup"] });
        assert_eq!(world.ok("agent/poll", poll).await["trigger"]["type"], "unread_wakeup");
        server.stop().await;
    }

    async fn servers_on_an_idle_fleet_write_nothing(world: World) {
        let agents = agents(&world, 3).await;
        channel(&world, "general", &agents).await;
        post(&world, "general").await;
        let servers = [Jobs::start(&world).await, Jobs::start(&world).await];
        eventually("nothing is left to do", async || world.ok("storm/due", json!({})).await["due"] == false).await;
        let before = stored(&world).await;
        assert!(before.contains(&"scheduled 2".to_owned()), "{before:#?}");
        looks(&servers, 100).await;
        assert_eq!(stored(&world).await, before);
        for server in servers {
            server.stop().await;
        }
        assert_eq!(stored(&world).await, before, "also a stop leaves no trace");
    }

    /// Many pairs become due while several servers tick.
    async fn servers_that_tick_at_once_schedule_each_wake_up_once(world: World) {
        const CHANNELS: usize = 70;
        const AGENTS: usize = 5;
        let agents = agents(&world, AGENTS).await;
        let names: Vec<String> = (1..=CHANNELS).map(|n| format!("channel-{n}")).collect();
        for name in &names {
            channel(&world, name, &agents).await;
        }
        let pairs = (CHANNELS * (AGENTS - 1)) as i64;
        let set = json!({ "values": { "breaker_backlog_threshold": pairs + 1, "min_interval_ms": 0, "max_triggers_per_window": 1000 } });
        world.ok("storm/set", set).await;
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(Jobs::start(&world).await);
        }
        for name in &names {
            post(&world, name).await;
        }
        let scheduled = async || show(&world).await["counts"]["scheduled"].as_i64().expect("a count");
        eventually("every pair has its wake-up", async || scheduled().await >= pairs).await;
        // A second post of each channel: every pair has a wake-up that waits, so there is none for it.
        for name in &names {
            post(&world, name).await;
        }
        eventually("all posts were looked at", async || world.ok("storm/due", json!({})).await["due"] == false).await;
        looks(&servers, 50).await;
        for server in servers {
            server.stop().await;
        }
        let pushed = "select count(*) as n from event join message on event.resource = 'message/' || message.id
                      where event.kind = 'message.pushed' and message.mailbox like 'wakeups/%'";
        let distinct = "select count(*) as n from (select distinct agent, channel from wakeup) as pair";
        assert_eq!(number(&world.fleet, pushed).await, pairs);
        assert_eq!(number(&world.fleet, distinct).await, pairs);
        assert_eq!(number(&world.fleet, "select count(*) as n from wakeup").await, pairs);
        assert_eq!(scheduled().await, pairs);
    }

    /// Every server has the same numbers, because they are stored.
    async fn metrics_of_wake_ups(world: World) {
        let agents = agents(&world, 4).await;
        channel(&world, "general", &agents).await;
        channel(&world, "other", &agents[..2]).await;
        world.ok("storm/set", json!({ "values": { "breaker_backlog_threshold": 3 } })).await;
        let none = metrics(&world).await;
        for line in [
            "fence_storm_pending_jobs 0",
            "fence_storm_scheduled_total 0",
            "fence_storm_reclaimed_total 0",
            "fence_storm_breaker_open 0",
            r#"fence_storm_suppressed_total{reason="budget"} 0"#,
            r#"fence_storm_suppressed_total{reason="breaker"} 0"#,
            r#"fence_storm_suppressed_total{reason="cause"} 0"#,
            "fence_alarm 0",
        ] {
            assert!(none.lines().any(|found| found == line), "{line} is not in {none}");
        }
        post(&world, "general").await;
        world.ok("storm/tick", json!({})).await;
        post(&world, "other").await;
        world.ok("storm/tick", json!({})).await;
        // A wake-up whose worker is lost, and then a pair that is too early.
        for run in ["lost", "again"] {
            let poll = json!({ "agent": "agent-2", "run": run, "accept": ["unread_wakeup"], "ttl_ms": 1000 });
            assert_eq!(world.ok("agent/poll", poll).await["trigger"]["type"], "unread_wakeup", "{run}");
            if run == "lost" {
                world.pass(2);
            }
        }
        world.ok("run/settle", json!({ "run": "again" })).await;
        world.ok("storm/breaker", json!({ "state": "close" })).await;
        post(&world, "general").await;
        world.ok("storm/tick", json!({})).await;
        world.ok("storm/breaker", json!({ "state": "open" })).await;
        let (here, there) = (metrics(&world).await, metrics(&world.with(|_| {})).await);
        for line in [
            "fence_storm_pending_jobs 3",
            "fence_storm_scheduled_total 4",
            "fence_storm_reclaimed_total 1",
            "fence_storm_breaker_open 1",
            r#"fence_storm_suppressed_total{reason="budget"} 1"#,
            r#"fence_storm_suppressed_total{reason="breaker"} 1"#,
            r#"fence_storm_suppressed_total{reason="cause"} 0"#,
            "fence_alarm 0",
        ] {
            for found in [&here, &there] {
                assert!(found.lines().any(|found| found == line), "{line} is not in {found}");
            }
        }
    }

    /// Work is ready, an agent is online, and nothing is picked up for five minutes.
    async fn ignored_work_is_an_alarm(world: World) {
        let server = Jobs::start(&world).await;
        agents(&world, 1).await;
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        world.pass(301);
        // It polls, but takes only messages.
        let poll = json!({ "agent": "agent-1", "run": "p", "accept": ["inbox_message"] });
        assert_eq!(world.ok("agent/poll", poll).await["trigger"], Value::Null);
        let is_told = async |line: &str| metrics(&world).await.lines().any(|found| found == line);
        eventually("the alarm", async || is_told("fence_alarm 1").await).await;
        world.ok("task/claim", json!({ "run": "r", "board": "auth" })).await;
        eventually("it is over", async || is_told("fence_alarm 0").await).await;
        server.stop().await;
    }

    /// The last server that starts sets the fleet's values, and the fleet knows which servers disagree.
    async fn the_environments_of_two_servers_disagree(world: World) {
        let value = async |name: &str| {
            let shown = show(&world).await;
            let found = shown["settings"].as_array().expect("settings").iter().find(|setting| setting["name"] == name);
            let found = found.expect("the setting").clone();
            (found["value"].as_i64().expect("a value"), found["source"].as_str().expect("a source").to_owned())
        };
        let silent = Listening::start(&world, &[]).await;
        assert_eq!(number(&world.fleet, "select count(*) as n from server_setting").await, 0);
        assert_eq!(value("window_ms").await, (300_000, "default".into()));
        let first = Listening::start(&world, &[(Setting::WindowMs, 60_000), (Setting::MaxDepth, 7)]).await;
        let second = Listening::start(&world, &[(Setting::WindowMs, 120_000)]).await;
        assert_eq!(value("window_ms").await, (120_000, format!("environment of server {}", second.name)));
        assert_eq!(value("max_depth").await, (7, format!("environment of server {}", first.name)));
        let differs = json!([
            { "server": first.name, "name": "window_ms", "variable": "AUTO_UNREAD_WINDOW_MS", "value": 60_000, "fleet": 120_000 },
        ]);
        assert_eq!(show(&world).await["servers"], differs);
        // They renew it: the fleet would forget them after five minutes.
        let renewed = "select min(until_at) as n from server_setting";
        for _ in 0..3 {
            let before = number(&world.fleet, renewed).await;
            world.pass(240);
            eventually("both renew it", async || number(&world.fleet, renewed).await >= before + 240_000).await;
        }
        assert_eq!(show(&world).await["servers"], differs, "a renewal sets nothing");
        first.stop().await;
        assert_eq!(show(&world).await["servers"], Value::Null, "a server that stopped is forgotten");
        second.stop().await;
        silent.stop().await;
        assert_eq!(number(&world.fleet, "select count(*) as n from server_setting").await, 0);
        assert_eq!(value("window_ms").await.0, 120_000, "the fleet keeps its values");
    }
}
