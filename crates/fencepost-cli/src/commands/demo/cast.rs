//! The processes of the demo: four workers, and the view.

use crate::{identity::process, supervise::watchdog::Watchdog};
use fencepost::{Error, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The agents: the first one is the lead.
pub const AGENTS: [&str; 4] = ["lead", "ann", "bob", "cy"];
/// Short, so that the work of a dead worker comes back while you watch.
pub const LEASE: Duration = Duration::from_secs(5);
/// How long workers have for a drain.
const DRAIN: Duration = Duration::from_secs(20);

pub struct Cast {
    directory: PathBuf,
    workers: Vec<(&'static str, Child)>,
    /// `fence top` on this terminal.
    view: Option<Child>,
    /// Kills the workers if the demo dies.
    watchdog: Option<Watchdog>,
    is_live: bool,
}

impl Cast {
    pub fn start(directory: &Path, watchdog: Watchdog, is_live: bool) -> Result<Self> {
        let directory = directory.to_owned();
        Ok(Self { directory, workers: Vec::new(), view: None, watchdog: Some(watchdog), is_live })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command of this program, in the fleet of the demo and in nobody's name.
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
            .env("FENCE_DEMO", &self.directory)
            .env("XDG_STATE_HOME", self.directory.join("state"))
            .current_dir(&self.directory);
        command
    }

    /// Starts the workers, all in one process group, and the view.
    pub fn enter(&mut self) -> Result<()> {
        let failed = |e: std::io::Error| Error::unavailable(format!("a worker cannot be started: {e}"));
        for agent in AGENTS {
            let log = File::create(self.directory.join(format!("{agent}.log"))).map_err(failed)?;
            let group = self.workers.first().map_or(0, |(_, first)| first.id() as i32);
            let role = if agent == AGENTS[0] { "lead" } else { "worker" };
            let mut command = self.command();
            command
                .args(["work", "--agent", agent, "--role", role, "--plain", "--ttl"])
                .arg(format!("{}s", LEASE.as_secs()))
                .args(["--grace", "1s", "--shutdown-timeout", "10s", "--"])
                .arg(process::own_program())
                .arg("demo-agent")
                .stdin(Stdio::null())
                .stdout(log.try_clone().map_err(failed)?)
                .stderr(log)
                .process_group(group);
            self.workers.push((agent, command.spawn().map_err(failed)?));
            if let (Some(watchdog), true) = (&mut self.watchdog, group == 0) {
                let group = self.workers[0].1.id() as i32;
                watchdog.instruct(group, None);
            }
        }
        if self.is_live {
            self.view = Some(self.command().arg("top").spawn().map_err(failed)?);
        }
        Ok(())
    }

    /// The person has left the view.
    pub fn view_is_closed(&mut self) -> bool {
        self.view.as_mut().is_some_and(|view| matches!(view.try_wait(), Ok(Some(_))))
    }

    /// Kills a worker as a crash does.
    pub fn kill(&mut self, pid: i32) {
        if let Some((_, worker)) = self.workers.iter_mut().find(|(_, worker)| worker.id() as i32 == pid) {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }

    /// Waits until the workers have drained. Returns what they left.
    pub async fn drain(&mut self) -> Vec<String> {
        self.close_view();
        for (_, worker) in &self.workers {
            send(worker.id() as i32, Signal::TERM);
        }
        let ended = async {
            while self.workers.iter_mut().any(|(_, worker)| !matches!(worker.try_wait(), Ok(Some(_)))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(DRAIN, ended).await.is_ok();
        self.end();
        if in_time { Vec::new() } else { vec!["a worker did not end after TERM".into()] }
    }

    fn close_view(&mut self) {
        if let Some(mut view) = self.view.take() {
            send(view.id() as i32, Signal::TERM);
            let _ = view.wait();
        }
    }

    /// Ends everything at once. Returns the last lines of the workers.
    pub fn end(&mut self) -> String {
        self.close_view();
        if let Some(group) = self.workers.first().and_then(|(_, first)| Pid::from_raw(first.id() as i32)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let mut logs = String::new();
        for (agent, mut worker) in std::mem::take(&mut self.workers) {
            let _ = worker.wait();
            let log =
                std::fs::read_to_string(self.directory.join(format!("{agent}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                logs += &format!("{agent}: {line}\n");
            }
        }
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.dismiss();
        }
        logs.trim_end().to_owned()
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
