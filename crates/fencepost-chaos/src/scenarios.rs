//! Scenarios: short stories, each about one fault that was seen once. Unlike the random schedule, they find it every time.

use crate::{
    Database, Options, Result,
    clients::{Client, Target, text},
    cluster, context,
    follow::read_all,
    oracle::{Oracle, in_order},
    proxy::Mode,
    world::{Link, PATIENCE, World},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs::{File, TryLockError},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// A short story about one fault.
struct Scenario {
    name: &'static str,
    /// The databases that can have the fault.
    databases: &'static [Database],
    play: for<'s> fn(&'s Scene) -> Played<'s>,
}

/// An error says what was violated.
type Played<'s> = Pin<Box<dyn Future<Output = Result<()>> + 's>>;

/// `scenario!("its-name", [its databases], its_method_of_scene)`
macro_rules! scenario {
    ($name:literal, [$($database:ident),+], $play:ident) => {
        Scenario {
            name: $name,
            databases: &[$(Database::$database),+],
            play: |scene| Box::pin(scene.$play()),
        }
    };
}

/// All scenarios, in the order in which they are played.
const SCENARIOS: &[Scenario] = &[
    // A server is stopped in the middle of its transactions: no other server waits for it.
    scenario!("frozen-node", [Postgres], frozen_node),
    // Many callers push, and plan, the same keys in different orders: no deadlock happens.
    scenario!("deadlock", [Postgres], deadlock),
    // A locked task becomes free without an event: a waiting claim gets it, whatever else happens.
    scenario!("waiter", [Postgres], waiter),
    // Two servers on one file: a lock also goes to waiters of the other server.
    scenario!("fair-lock", [Sqlite], fair_lock),
    // The clock goes back while no server runs: a lease expires all the same.
    scenario!("clock-back", [Sqlite, Postgres], clock_back),
    // The clock goes back and is corrected, and a command claims before a server has noticed: its lease is not longer.
    scenario!("clock-right", [Postgres], clock_right),
    // The file is replaced by another one: a running server stops writing.
    scenario!("file-replaced", [Sqlite], file_replaced),
    // The schema becomes newer: a running server stops writing.
    scenario!("schema-moved", [Sqlite, Postgres], schema_moved),
    // A process is stopped while it queues for the file: the others pass it.
    scenario!("turnstile", [Sqlite], turnstile),
    // The log has the events of each resource in the order in which they happened.
    scenario!("order", [Postgres], order),
    // A mention that was read but not settled comes back.
    scenario!("mention", [Sqlite, Postgres], mention),
];

/// The names of the scenarios of this database.
pub fn names(on: Database) -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().filter(move |scenario| scenario.databases.contains(&on)).map(|scenario| scenario.name)
}

/// Plays the scenarios of this database, each in a world of its own. Returns their names, and the violations.
pub async fn play(on: Database, options: &Options) -> Result<(Vec<&'static str>, Vec<String>)> {
    let postgres = cluster(on, options).await?;
    let (mut names, mut violations) = (Vec::new(), Vec::new());
    for Scenario { name, databases, play } in SCENARIOS {
        if !databases.contains(&on) || options.leaves_out(name) {
            continue;
        }
        let began = Instant::now();
        let world = Arc::new(World::start(options, postgres.clone(), 2).await?);
        let scene = Scene { world, oracle: Arc::default(), bound: options.bound };
        let played = timeout(2 * PATIENCE, play(&scene)).await;
        let played = played.unwrap_or_else(|_| Err("it did not end".into()));
        scene.world.set_ahead(0).await?;
        let verdict = if played.is_ok() { "as promised" } else { "violated" };
        eprintln!("{on}: {name}: {verdict} ({:.1} s)", began.elapsed().as_secs_f64());
        names.push(*name);
        violations.extend(played.err().map(|what| format!("{name}: {what}")));
    }
    Ok((names, violations))
}

struct Scene {
    world: Arc<World>,
    oracle: Arc<Oracle>,
    bound: Option<Duration>,
}

/// Longer than the engine's own limit for a call.
const ATTEMPT: Duration = Duration::from_secs(45);

impl Scene {
    fn client(&self, name: &str, server: usize) -> Client {
        Client::new(name, Target::Only(server), &self.world, &self.oracle, 0)
    }

    /// One attempt at this server. Returns the answer, also if it is an error.
    async fn attempt(&self, server: usize, op: &str, request: Value) -> Result<Value> {
        let wait = Duration::from_millis(request["wait_ms"].as_u64().unwrap_or(0));
        let answer = self.client("scene", server).post(server, op, &request, wait + ATTEMPT).await;
        answer.ok_or_else(|| format!("{op} was not answered"))
    }

    /// Like [`Self::attempt`], but the call must succeed.
    async fn ok(&self, server: usize, op: &str, request: Value) -> Result<Value> {
        success(op, self.attempt(server, op, request).await?)
    }

    async fn command(&self, op: &str, request: Value) -> Result<Value> {
        success(
            op,
            self.world.call(op, &request, ATTEMPT).await.ok_or_else(|| format!("{op} was not answered"))?,
        )
    }

    /// Waits until the condition holds. The limit is longer than anything takes here.
    async fn until<F: Future<Output = Result<bool>>>(
        &self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) -> Result<()> {
        let began = Instant::now();
        while !holds().await? {
            if began.elapsed() > PATIENCE / 3 {
                return Err(format!("not within the limit: {what}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn frozen_node(&self) -> Result<()> {
        self.hanging_node().await?;
        let cluster = self.world.postgres.clone().ok_or("PostgreSQL only")?;
        let mut busy = JoinSet::new();
        for n in 0..24 {
            let mut client = self.client(&format!("busy-{n}"), 1);
            busy.spawn(async move {
                loop {
                    let title = client.request();
                    let _ = client.call("task/add", &json!({ "board": "busy", "title": title })).await;
                    let run = client.run();
                    let claim =
                        json!({ "board": "busy", "run": run, "ttl_ms": 1000, "request": client.request() });
                    let Ok(claimed) = client.call("task/claim", &claim).await else { continue };
                    // A note locks its task but not the run that holds it.
                    for _ in 0..5 {
                        let note = json!({ "task": claimed["task"]["id"], "text": "on it" });
                        let _ = client.call("task/note", &note).await;
                    }
                    let _ = client.call("task/done", &json!({ "token": claimed["claim"]["token"] })).await;
                }
            });
        }
        // Stops the server at a moment at which it has rows locked.
        let holding = "select count(*) from pg_stat_activity
                       where state = 'idle in transaction' and backend_xid is not null";
        self.until("the server was stopped in a transaction", async || {
            self.world.signal(1, Signal::STOP).await;
            sleep(Duration::from_millis(100)).await;
            let frozen = cluster.count(holding).await? > 1;
            if !frozen {
                self.world.signal(1, Signal::CONT).await;
            }
            Ok(frozen)
        })
        .await?;
        busy.shutdown().await;
        // Every lease has expired, so all claims of the frozen server are due.
        self.world.set_ahead(60_000).await?;
        let mut id = String::new();
        for n in 0..10 {
            let began = Instant::now();
            let added = self.ok(0, "task/add", json!({ "board": "other", "title": "work" })).await?;
            id = text(&added["task"]["id"]);
            self.ok(0, "task/claim", json!({ "board": "other", "run": format!("b{n}"), "ttl_ms": 60_000 }))
                .await?;
            self.ok(0, "lock/claim", json!({ "name": format!("l{n}"), "run": format!("b{n}") })).await?;
            self.in_time("a claim beside a frozen server", began)?;
        }
        self.until("the log goes on beside a frozen server", async || {
            let resource = format!("task/{id}");
            let page = self.ok(0, "event/list", json!({ "resource": resource })).await?;
            Ok(page["events"].as_array().is_some_and(|events| !events.is_empty()))
        })
        .await?;
        self.world.signal(1, Signal::CONT).await;
        Ok(())
    }

    /// The worst moment, which a signal seldom hits: a node hangs while it has a dead run's task locked, and the first
    /// caller that meets the lock is a claim and not a server's job.
    async fn hanging_node(&self) -> Result<()> {
        let cluster = self.world.postgres.clone().ok_or("PostgreSQL only")?;
        for n in 0..3 {
            self.ok(0, "task/add", json!({ "board": "dead", "title": "work" })).await?;
            let claim = json!({ "board": "dead", "run": format!("dead-{n}"), "ttl_ms": 10_000 });
            self.ok(0, "task/claim", claim).await?;
        }
        for server in 0..2 {
            self.world.kill(server).await;
        }
        let node = cluster.connect().await?;
        let lock = format!("begin; select 1 from {}.task for update", self.world.schema);
        node.batch_execute(&lock).await.map_err(context("a node"))?;
        self.world.set_ahead(30_000).await?;
        for n in 0..3 {
            let began = Instant::now();
            self.command("lock/claim", json!({ "name": format!("c{n}"), "run": format!("c{n}") })).await?;
            self.in_time("a claim beside a task that hangs", began)?;
        }
        drop(node);
        for server in 0..2 {
            self.world.start_server(server).await?;
        }
        Ok(())
    }

    fn in_time(&self, what: &str, began: Instant) -> Result<()> {
        match self.bound.filter(|bound| began.elapsed() > *bound) {
            Some(_) => Err(format!("{what} took {:?}", began.elapsed())),
            None => Ok(()),
        }
    }

    async fn deadlock(&self) -> Result<()> {
        let cluster = self.world.postgres.clone().ok_or("PostgreSQL only")?;
        let before = cluster.deadlocks()?;
        for (op, items, extra) in [("mail/push_many", "messages", "mailbox"), ("task/plan", "tasks", "title")]
        {
            for round in 0..12 {
                let mut callers = JoinSet::new();
                for n in 0..8 {
                    let mut client = self.client(&format!("caller-{n}-{round}"), n % 2);
                    let mut keys: Vec<_> = (0..300).map(|key| format!("{round}-{key}")).collect();
                    client.rng.shuffle(&mut keys);
                    let list: Vec<_> = keys.iter().map(|key| json!({ "key": key, extra: "same" })).collect();
                    callers
                        .spawn(async move { client.post(n % 2, op, &json!({ items: list }), ATTEMPT).await });
                }
                for answer in callers.join_all().await {
                    success(op, answer.ok_or_else(|| format!("{op} was not answered"))?)?;
                }
            }
        }
        match cluster.deadlocks()? - before {
            0 => Ok(()),
            met => Err(format!("PostgreSQL broke {met} deadlocks")),
        }
    }

    async fn waiter(&self) -> Result<()> {
        let cluster = self.world.postgres.clone().ok_or("PostgreSQL only")?;
        self.ok(0, "task/add", json!({ "board": "b", "title": "work" })).await?;
        // Another node has the task locked until the waiting claim has found nothing.
        let node = cluster.connect().await?;
        let lock = format!("begin; select 1 from {}.task for update", self.world.schema);
        node.batch_execute(&lock).await.map_err(context("a node"))?;
        // The end of a wait is an attempt, too, so the wait must not end.
        let claim = json!({ "board": "b", "run": "waits", "wait_ms": 600_000 });
        let waiting = timeout(PATIENCE / 2, self.ok(0, "task/claim", claim));
        let answered = AtomicBool::new(false);
        let others = async {
            let began = Instant::now();
            let mut rolled_back = false;
            while !answered.load(Ordering::Relaxed) {
                let claimed = self.ok(0, "lock/claim", json!({ "name": "busy", "run": "other" })).await?;
                self.ok(0, "claim/release", json!({ "token": claimed["claim"]["token"] })).await?;
                sleep(Duration::from_millis(200)).await;
                if !rolled_back && began.elapsed() > Duration::from_secs(2) {
                    node.batch_execute("rollback").await.map_err(context("a node"))?;
                    rolled_back = true;
                }
            }
            Ok(())
        };
        let waiting = async {
            let claimed = waiting.await;
            answered.store(true, Ordering::Relaxed);
            claimed
        };
        let (claimed, others): (_, Result<()>) = tokio::join!(waiting, others);
        others?;
        let claimed = claimed.map_err(|_| "a claim waited for 90 s beside a task that was free")?;
        claimed.map(drop)
    }

    async fn fair_lock(&self) -> Result<()> {
        let granted = Arc::new(AtomicU64::new(0));
        let mut near = JoinSet::new();
        for n in 0..3 {
            let (mut client, granted) = (self.client(&format!("near-{n}"), 0), granted.clone());
            near.spawn(async move {
                loop {
                    let (run, request) = (client.run(), client.request());
                    let claim = json!({ "name": "l", "run": run, "wait_ms": 10_000, "request": request });
                    if let Ok(claimed) = client.call("lock/claim", &claim).await {
                        granted.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_millis(50)).await;
                        let _ = client
                            .call("claim/release", &json!({ "token": claimed["claim"]["token"] }))
                            .await;
                    }
                }
            });
        }
        for round in 0..12 {
            let before = granted.load(Ordering::Relaxed);
            self.until("the lock is in use", async || Ok(granted.load(Ordering::Relaxed) > before + 5))
                .await?;
            let at_start = granted.load(Ordering::Relaxed);
            let claim = json!({ "name": "l", "run": format!("far-{round}"), "wait_ms": 60_000 });
            let overtaken = self.until("never", async || Ok(granted.load(Ordering::Relaxed) > at_start + 50));
            let claimed = tokio::select! {
                claimed = self.ok(1, "lock/claim", claim) => claimed?,
                _ = overtaken => return Err("a server's own clients were granted a lock 50 times before another's".into()),
            };
            self.ok(1, "claim/release", json!({ "token": claimed["claim"]["token"] })).await?;
        }
        near.shutdown().await;
        Ok(())
    }

    async fn clock_back(&self) -> Result<()> {
        for server in 0..2 {
            self.world.kill(server).await;
        }
        self.command("task/add", json!({ "board": "b", "title": "work" })).await?;
        self.command("task/claim", json!({ "board": "b", "run": "dies", "ttl_ms": 3000 })).await?;
        // By now everything that stores the time has stored it.
        sleep(Duration::from_millis(1100)).await;
        self.command("task/add", json!({ "board": "c", "title": "work" })).await?;
        self.world.set_ahead(-3_600_000).await?;
        self.until("a lease of 3 s ends after the clock was set back", async || {
            let claim = json!({ "board": "b", "run": "next", "ttl_ms": 60_000 });
            let answer = self.world.call("task/claim", &claim, ATTEMPT).await;
            Ok(answer.is_some_and(|answer| answer["error"].is_null()))
        })
        .await
    }

    async fn clock_right(&self) -> Result<()> {
        self.world.kill(1).await;
        self.ok(0, "task/add", json!({ "board": "b", "title": "work" })).await?;
        self.world.set_ahead(-600_000).await?;
        // The server notices the jump and stores it for the others.
        self.ok(0, "task/add", json!({ "board": "c", "title": "work" })).await?;
        self.world.signal(0, Signal::STOP).await;
        self.world.set_ahead(0).await?;
        self.command("task/claim", json!({ "board": "b", "run": "dies", "ttl_ms": 3000 })).await?;
        self.world.signal(0, Signal::CONT).await;
        self.until("a lease of 3 s ends after the clock was set right", async || {
            let answer = self
                .attempt(0, "task/claim", json!({ "board": "b", "run": "next", "ttl_ms": 60_000 }))
                .await?;
            Ok(answer["error"].is_null())
        })
        .await
    }

    async fn file_replaced(&self) -> Result<()> {
        self.ok(0, "task/add", json!({ "title": "before" })).await?;
        let other = format!("{}.other", self.world.db);
        let made =
            self.world.fence(&["init", "--db", &other]).output().await.map_err(context("fence init"))?;
        if !made.status.success() {
            return Err(format!("fence init: {}", String::from_utf8_lossy(&made.stderr)));
        }
        for left in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{left}", self.world.db));
        }
        std::fs::rename(other, &self.world.db).map_err(context("the file"))?;
        self.stops_writing().await
    }

    async fn schema_moved(&self) -> Result<()> {
        self.ok(0, "task/add", json!({ "title": "before" })).await?;
        // As after the next migration.
        let migrated = |fleet: &str| format!("update {fleet} set schema_version = 1000");
        match &self.world.postgres {
            Some(cluster) => cluster.execute(&migrated(&format!("{}.fleet", self.world.schema))).await?,
            None => {
                let file = rusqlite::Connection::open(&self.world.db).map_err(context("the file"))?;
                file.execute_batch(&migrated("fleet")).map_err(context("the file"))?;
            }
        }
        self.stops_writing().await
    }

    /// Checks that a server whose fleet was replaced refuses every call.
    async fn stops_writing(&self) -> Result<()> {
        for (op, request) in [
            ("task/add", json!({ "title": "after" })),
            ("task/claim", json!({ "run": "a" })),
            ("event/list", json!({})),
        ] {
            let answer = self.attempt(0, op, request).await?;
            if answer["error"]["code"] != "unavailable" {
                return Err(format!("{op} was answered with {answer}"));
            }
        }
        Ok(())
    }

    async fn turnstile(&self) -> Result<()> {
        let lock_file = |name: &str| {
            let open = File::options().append(true).open(format!("{}-{name}", self.world.db));
            open.map_err(context("the turnstile"))
        };
        let (queue, turn) = (lock_file("queue")?, lock_file("turn")?);
        let file = rusqlite::Connection::open(&self.world.db).map_err(context("the file"))?;
        file.busy_timeout(Duration::ZERO).map_err(context("the file"))?;
        let is_taken =
            || matches!(queue.try_lock(), Err(TryLockError::WouldBlock)) || queue.unlock().is_err();
        let frozen = loop {
            turn.lock().map_err(context("the turnstile"))?;
            let world = self.world.clone();
            let command =
                tokio::spawn(
                    async move { world.call("task/add", &json!({ "title": "in line" }), ATTEMPT).await },
                );
            while !is_taken() && !command.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
            let stopped = self.world.signal_command(None, Signal::STOP);
            while stopped.is_some_and(|id| !self.world.has_stopped(id)) {
                sleep(Duration::from_millis(1)).await;
            }
            turn.unlock().map_err(context("the turnstile"))?;
            // A command stopped inside a write transaction may block all writers: try another one.
            let writes = file.execute_batch("begin immediate; rollback").is_err();
            if let (Some(id), true, false) = (stopped, is_taken(), writes) {
                break id;
            }
            self.world.signal_command(stopped, Signal::CONT);
            let _ = command.await;
        };
        for n in 0..3 {
            self.ok(0, "task/add", json!({ "title": format!("passes by {n}") })).await?;
        }
        self.command("task/add", json!({ "title": "passes by" })).await?;
        self.world.signal_command(Some(frozen), Signal::CONT);
        Ok(())
    }

    async fn order(&self) -> Result<()> {
        // A slow link to the database: others do much between two of this server's statements.
        self.world.servers[1].link(Link::Database).set(Mode::Delay(Duration::from_millis(15)));
        let mut slow = JoinSet::new();
        for n in 0..3 {
            let mut client = self.client(&format!("poller-{n}"), 1);
            slow.spawn(async move {
                let agent = client.name.clone();
                let _ = client.call("agent/join", &json!({ "agent": agent, "max_concurrent": 100 })).await;
                loop {
                    let run = client.request();
                    let _ = client.call("agent/poll", &json!({ "agent": agent, "run": run })).await;
                    let _ = client.call("run/settle", &json!({ "run": run })).await;
                }
            });
            let mut client = self.client(&format!("locker-{n}"), n % 2);
            slow.spawn(async move {
                loop {
                    let (run, request) = (client.run(), client.request());
                    let claim = json!({ "name": "l", "run": run, "request": request });
                    if let Ok(claimed) = client.call("lock/claim", &claim).await {
                        let _ = client
                            .call("claim/release", &json!({ "token": claimed["claim"]["token"] }))
                            .await;
                    }
                }
            });
        }
        for n in 0..200 {
            // The newest goes first, so that a poll that began earlier takes it.
            let add = json!({ "board": "b", "title": "work", "priority": (n / 2) % 100 });
            self.ok(0, "task/add", add).await?;
        }
        slow.shutdown().await;
        self.world.servers[1].link(Link::Database).set(Mode::Pass);
        let wrong = in_order(&read_all(&mut self.client("reader", 0)).await);
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(format!("{} times, such as {first}", wrong.len())),
        }
    }

    async fn mention(&self) -> Result<()> {
        self.ok(0, "agent/join", json!({ "agent": "ann" })).await?;
        self.ok(0, "channel/create", json!({ "channel": "general" })).await?;
        let post = |body: &str| json!({ "channel": "general", "author": "bob", "body": body });
        let poll = async |run: &str| {
            let polled = self.ok(0, "agent/poll", json!({ "agent": "ann", "run": run })).await?;
            Ok::<_, String>(text(&polled["trigger"]["claims"][0]["token"]))
        };
        self.ok(0, "channel/post", post("@ann look at this")).await?;
        // It reads under its claim and dies.
        let token = poll("dies").await?;
        self.ok(0, "channel/read", json!({ "channel": "general", "agent": "ann", "token": token })).await?;
        let guarded = self.ok(0, "claim/guard", json!({ "token": token })).await?;
        if guarded["ok"] != true {
            return Err(format!("the guard refuses a live run: {}", guarded["reason"]));
        }
        self.ok(0, "run/end", json!({ "run": "dies" })).await?;
        let token = poll("next").await?;
        if token.is_empty() {
            return Err("a mention that was read but not settled is lost".into());
        }
        // Another run reads for the same agent, and then the holder dies.
        self.ok(0, "channel/read", json!({ "channel": "general", "agent": "ann" })).await?;
        self.ok(0, "run/end", json!({ "run": "next" })).await?;
        if poll("last").await?.is_empty() {
            return Err("a mention that another run read is lost".into());
        }
        self.ok(0, "run/settle", json!({ "run": "last" })).await?;
        match poll("none").await?.as_str() {
            "" => Ok(()),
            token => Err(format!("a settled mention came back: {token}")),
        }
    }
}

fn success(op: &str, answer: Value) -> Result<Value> {
    match answer["error"].is_null() {
        true => Ok(answer),
        false => Err(format!("{op}: {}", answer["error"])),
    }
}
