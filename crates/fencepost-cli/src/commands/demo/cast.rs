//! The processes of the demo: four workers, and the view.

use crate::{
    identity::process,
    supervise::{exit_code, watchdog::Watchdog},
};
use fencepost::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

pub const LEAD: &str = "lead";
/// One of them is killed, and one is frozen. It does not matter which.
pub const DOOMED: [&str; 2] = ["bob", "cy"];
/// Starts when the others have their work, so that this one lives, and can accept its offer.
pub const SAFE: &str = "ann";
/// Short, so that the work of a dead worker comes back while you watch.
pub const LEASE: Duration = Duration::from_secs(5);
/// The directory of the demo, in the environment of all its processes.
pub const STAGE: &str = "FENCE_DEMO";
/// How long workers have for a drain.
const DRAIN: Duration = Duration::from_secs(20);

pub struct Cast {
    directory: PathBuf,
    workers: Vec<Worker>,
    /// `fence top` on this terminal.
    view: Option<Child>,
    /// Kills the workers if the demo dies.
    watchdog: Option<Watchdog>,
}

struct Worker {
    agent: &'static str,
    process: Child,
    was_killed: bool,
}

impl Cast {
    pub fn new(directory: &Path, watchdog: Watchdog) -> Self {
        Self { directory: directory.to_owned(), workers: Vec::new(), view: None, watchdog: Some(watchdog) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command of this program, in the fleet of the demo, without the user's settings, and in nobody's name.
    fn command(&self) -> Command {
        let mut command = Command::new(process::own_program());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("FENCE_") || text.starts_with("MAX_CONCURRENT") || text == "SHUTDOWN_TIMEOUT"
            {
                command.env_remove(&name);
            }
        }
        command
            .env("FENCE_DB", self.directory.join("fence.db"))
            .env(STAGE, &self.directory)
            .env("XDG_CONFIG_HOME", self.directory.join("config"))
            .env("XDG_STATE_HOME", self.directory.join("state"))
            .current_dir(&self.directory);
        command
    }

    /// Starts the worker of an agent. All workers are in one process group.
    pub fn start(&mut self, agent: &'static str) -> Result<()> {
        let log = File::create(self.log(agent)).map_err(not_started)?;
        let group = self.workers.first().map_or(0, |first| first.process.id() as i32);
        let role = if agent == LEAD { "lead" } else { "worker" };
        let mut command = self.command();
        command
            .args(["work", "--agent", agent, "--role", role, "--plain", "--ttl"])
            .arg(format!("{}s", LEASE.as_secs()))
            .args(["--grace", "1s", "--shutdown-timeout", "10s", "--"])
            .arg(process::own_program())
            .arg("demo-agent")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(not_started)?)
            .stderr(log)
            .process_group(group);
        let process = command.spawn().map_err(not_started)?;
        if let (Some(watchdog), 0) = (&mut self.watchdog, group) {
            watchdog.instruct(process.id() as i32, None);
        }
        self.workers.push(Worker { agent, process, was_killed: false });
        Ok(())
    }

    pub fn open_view(&mut self) -> Result<()> {
        self.view = Some(self.command().arg("top").spawn().map_err(not_started)?);
        Ok(())
    }

    /// Fails if the demo cannot go on: a worker has ended by itself, or the person has closed the view.
    pub fn check(&mut self) -> Result<()> {
        if self.view_closed().is_some() {
            return Err(Error::unavailable("the view was closed before the end"));
        }
        for worker in self.workers.iter_mut().filter(|worker| !worker.was_killed) {
            if let Ok(Some(status)) = worker.process.try_wait() {
                let message = format!("the worker of agent {} has ended by itself: {status}", worker.agent);
                return Err(Error::unavailable(message));
            }
        }
        Ok(())
    }

    /// The person has closed the view: its exit code.
    pub fn view_closed(&mut self) -> Option<ExitCode> {
        let status = self.view.as_mut()?.try_wait().ok()??;
        let by_signal = status.signal().and_then(Signal::from_named_raw).map(exit_code);
        by_signal.or_else(|| Some(ExitCode::from(u8::try_from(status.code()?).unwrap_or(1))))
    }

    /// Kills a worker as a crash does.
    pub fn kill(&mut self, pid: i32) {
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.process.id() as i32 == pid) {
            worker.was_killed = true;
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }

    /// Waits until the workers have drained. Returns what they left.
    pub async fn drain(&mut self) -> Vec<String> {
        self.close_view();
        for worker in &self.workers {
            send(worker.process.id() as i32, Signal::TERM);
        }
        let ended = async {
            while self.workers.iter_mut().any(|worker| !matches!(worker.process.try_wait(), Ok(Some(_)))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(DRAIN, ended).await.is_ok();
        if in_time { Vec::new() } else { vec!["a worker did not end after TERM".into()] }
    }

    fn close_view(&mut self) {
        if let Some(mut view) = self.view.take() {
            send(view.id() as i32, Signal::TERM);
            let _ = view.wait();
        }
    }

    /// Ends everything at once, also what is frozen, and returns when no process of the demo is left.
    pub fn end(&mut self) {
        self.close_view();
        let stage = self.directory.display().to_string();
        while process::started_with(STAGE, &stage, 0).map(|process| process.send(Signal::KILL)).count() > 0 {
            std::thread::yield_now();
        }
        for worker in &mut self.workers {
            let _ = worker.process.wait();
        }
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.dismiss();
        }
    }

    /// The last lines of the workers.
    pub fn last_lines(&self) -> String {
        let mut last = String::new();
        for Worker { agent, .. } in &self.workers {
            let log = std::fs::read_to_string(self.log(agent)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                // Most lines begin with the name of the agent.
                let line = line.strip_prefix(&format!("{agent}: ")).unwrap_or(line);
                last += &format!("{agent}: {line}\n");
            }
        }
        last.trim_end().to_owned()
    }

    fn log(&self, agent: &str) -> PathBuf {
        self.directory.join(format!("{agent}.log"))
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.end();
    }
}

fn not_started(e: std::io::Error) -> Error {
    Error::unavailable(format!("a process of the demo cannot be started: {e}"))
}

pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
