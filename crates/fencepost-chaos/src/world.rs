//! The processes around one fleet: its servers, its command lines, and a clock that can jump.

use crate::{
    Database, Options, Result, context,
    postgres::Cluster,
    proxy::{Mode, Proxy},
};
use fencepost::sync::lock;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Longer than anything takes here, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// One fleet, and everything that runs on it.
#[derive(Debug)]
pub struct World {
    pub on: Database,
    dir: tempfile::TempDir,
    fence: PathBuf,
    /// The address of the database.
    pub db: String,
    /// PostgreSQL: the schema of the fleet.
    pub schema: String,
    pub servers: Vec<Server>,
    /// The running command lines. Held by handle and not by number, so that no signal hits another process.
    commands: Mutex<BTreeMap<u64, OwnedFd>>,
    next: AtomicU64,
    pub postgres: Option<Arc<Cluster>>,
    /// Spans in which no client could work, whatever the engine does.
    outages: Mutex<Vec<(Instant, Instant)>>,
}

/// A `fence serve` with proxies on its connections.
#[derive(Debug)]
pub struct Server {
    running: tokio::sync::Mutex<Option<Running>>,
    from_clients: Proxy,
    to_database: Option<Proxy>,
}

impl Server {
    pub fn link(&self, link: Link) -> &Proxy {
        match (link, &self.to_database) {
            (Link::Database, Some(proxy)) => proxy,
            _ => &self.from_clients,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Clients,
    Database,
}

#[derive(Debug)]
struct Running {
    child: Child,
    handle: OwnedFd,
}

impl World {
    pub async fn start(options: &Options, postgres: Option<Arc<Cluster>>, servers: usize) -> Result<Self> {
        let on = if postgres.is_some() { Database::Postgres } else { Database::Sqlite };
        std::fs::create_dir_all(&options.scratch).map_err(context("the scratch directory"))?;
        let dir = tempfile::Builder::new().prefix("fleet-").tempdir_in(&options.scratch);
        let dir = dir.map_err(context("the scratch directory"))?;
        let schema = format!("fleet_{:08x}", fastrand::u32(..));
        let db = match &postgres {
            Some(cluster) => postgres_url(&cluster.address, &schema),
            None => dir.path().join("fence.db").display().to_string(),
        };
        let mut world = Self {
            on,
            db,
            schema,
            dir,
            fence: options.fence.clone(),
            servers: Vec::new(),
            commands: Mutex::default(),
            next: AtomicU64::new(0),
            postgres,
            outages: Mutex::default(),
        };
        let made = world.fence(&["init"]).output().await.map_err(context("fence init"))?;
        if !made.status.success() {
            return Err(format!("fence init: {}", String::from_utf8_lossy(&made.stderr)));
        }
        for server in 0..servers {
            let to_database = match &world.postgres {
                Some(cluster) => Some(Proxy::to(&cluster.address).await?),
                None => None,
            };
            let from_clients = Proxy::to("127.0.0.1:1").await?;
            world.servers.push(Server { running: Default::default(), from_clients, to_database });
            world.start_server(server).await?;
        }
        Ok(world)
    }

    /// Keeps the fleet's directory, with the servers' logs, and returns its path.
    pub fn keep_files(&mut self) -> PathBuf {
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }

    /// A `fence` command on the database itself, without the caller's environment.
    pub fn fence(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.fence);
        command.args(words).current_dir(self.dir.path()).env_clear().env("FENCE_DB", &self.db);
        command.env("FENCE_CHAOS_CLOCK", self.clock_file());
        for home in ["HOME", "XDG_RUNTIME_DIR"] {
            command.env(home, self.dir.path());
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn clock_file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }

    /// Sets the fleet's clock this far ahead: on SQLite the wall clock that `fence` reads, on PostgreSQL the database's.
    pub async fn set_ahead(&self, ms: i64) -> Result<()> {
        let began = Instant::now();
        let Some(cluster) = &self.postgres else {
            // Renamed, so that no process reads half of it.
            let new = self.dir.path().join("clock.new");
            std::fs::write(&new, ms.to_string()).map_err(context("the clock"))?;
            return std::fs::rename(new, self.clock_file()).map_err(context("the clock"));
        };
        // PostgreSQL may be down.
        while let Err(error) = cluster.set_ahead(ms).await {
            if began.elapsed() > PATIENCE {
                return Err(error);
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Starts a server, and retries while its database is down.
    pub async fn start_server(&self, server: usize) -> Result<()> {
        let Server { running, from_clients, to_database } = &self.servers[server];
        let mut running = running.lock().await;
        if running.is_some() {
            return Ok(());
        }
        let log = self.dir.path().join(format!("server-{server}.log"));
        let began = Instant::now();
        loop {
            let log = std::fs::File::options().create(true).append(true).open(&log);
            let mut serve =
                self.fence(&["serve", "--listen", "127.0.0.1:0", "--tick", "200ms", "--heartbeat", "1s"]);
            if let Some(proxy) = to_database {
                serve.env("FENCE_DB", postgres_url(&proxy.address, &self.schema));
            }
            serve.stdout(Stdio::piped()).stderr(log.map_err(context("the server's log"))?);
            let mut child = serve.spawn().map_err(context("fence serve"))?;
            let mut line = String::new();
            if let Some(out) = child.stdout.take() {
                let _ = timeout(PATIENCE, BufReader::new(out).read_line(&mut line)).await;
            }
            if let Some((_, address)) = line.trim().rsplit_once("http://") {
                from_clients.redirect(address);
                *running = Some(Running { handle: handle(&child)?, child });
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("server {server} does not start"));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Sets the mode of a link for a while.
    pub async fn set_link(&self, server: usize, link: Link, mode: Mode, span: Duration) {
        let proxy = self.servers[server].link(link);
        proxy.set(mode);
        sleep(span).await;
        proxy.set(Mode::Pass);
    }

    pub async fn kill(&self, server: usize) {
        if let Some(mut running) = self.servers[server].running.lock().await.take() {
            let _ = running.child.kill().await;
        }
    }

    /// SIGSTOP or SIGCONT.
    pub async fn signal(&self, server: usize, signal: Signal) {
        if let Some(running) = &*self.servers[server].running.lock().await {
            let _ = pidfd_send_signal(&running.handle, signal);
        }
    }

    pub fn url(&self, server: usize) -> String {
        format!("http://{}", self.servers[server].from_clients.address)
    }

    /// Runs `fence call` to its end. `None` if it was killed or did not end in time.
    pub async fn call(&self, op: &str, request: &Value, limit: Duration) -> Option<Value> {
        let mut command = self.fence(&["--json", "call", op, &request.to_string()]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.commands().insert(id, handle(&child).ok()?);
        let output = timeout(limit, child.wait_with_output()).await;
        self.commands().remove(&id);
        let output = output.ok()?.ok()?;
        let text = if output.status.success() { output.stdout } else { output.stderr };
        output.status.code()?;
        serde_json::from_slice(text.trim_ascii()).ok()
    }

    fn commands(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, OwnedFd>> {
        lock(&self.commands)
    }

    /// Signals the oldest running command, or this one.
    pub fn signal_command(&self, only: Option<u64>, signal: Signal) -> Option<u64> {
        let commands = self.commands();
        let (id, handle) = match only {
            Some(id) => commands.get_key_value(&id)?,
            None => commands.first_key_value()?,
        };
        pidfd_send_signal(handle, signal).ok().map(|()| *id)
    }

    /// Whether a command has stopped after SIGSTOP, which takes a moment. `true` if it has ended.
    pub fn has_stopped(&self, command: u64) -> bool {
        let how = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let commands = self.commands();
        let stopped = |handle: &OwnedFd| waitid(WaitId::PidFd(handle.as_fd()), how).ok().flatten().is_some();
        commands.get(&command).is_none_or(stopped)
    }

    /// Records that no client could work from then until now.
    pub fn add_outage(&self, since: Instant) {
        lock(&self.outages).push((since, Instant::now()));
    }

    /// The time since then without outages.
    pub fn workable(&self, since: Instant) -> Duration {
        let now = Instant::now();
        let mut outages = lock(&self.outages).clone();
        outages.sort();
        let (mut from, mut left) = (since, Duration::ZERO);
        for (began, ended) in outages {
            left += began.min(now).saturating_duration_since(from);
            from = from.max(ended);
        }
        left + now.saturating_duration_since(from)
    }
}

fn postgres_url(address: &str, schema: &str) -> String {
    format!("postgres://fence@{address}/postgres?schema={schema}&sslmode=disable")
}

fn handle(child: &Child) -> Result<OwnedFd> {
    let pid =
        child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or("the process is gone")?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(context("a handle on a process"))
}
