//! Files of one run on this machine: `fence work` keeps the trigger, the output and the processes of a child process here, and
//! `fence log RUN` reads the output.
//!
//! Every run has a directory, `fence/runs/RUN` in the user's directory for state. Only this user can read it: prompts and output
//! may contain secrets.

mod log;

use crate::{
    environment::{host, state_home, variable},
    identity::process::{self, Process},
    private_files::{Directory, Missing, touch, write_whole},
};
use fencepost::{Clock, Error, Millis, Result, Time};
pub use log::{LogReader, LogWriter};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    time::UNIX_EPOCH,
};

const STATE: &str = "state.json";
/// The part that is for the child.
pub const GIVEN: &str = "given";
/// The trigger, as `agent/poll` returned it. A change of its time is a sign of life of the child.
pub const TRIGGER: &str = "given/trigger.json";
pub const PROMPT: &str = "given/prompt.md";

/// How long the files of a run are kept after its end: as long as its events.
const KEPT: Millis = Millis::days(30);

/// A process, by its id and its start time: a system uses ids again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    pub pid: i32,
    pub started: u64,
}

impl Identified {
    pub fn of(pid: i32) -> Option<Self> {
        Process::read(pid, &[]).map(|process| Self { pid, started: process.started })
    }

    pub fn is_alive(&self) -> bool {
        Process::read(self.pid, &[]).is_some_and(|process| process.started == self.started)
    }
}

/// A run's processes and its work tree. A later worker reads it to clean up after a worker that died.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub run: String,
    pub agent: String,
    /// The address of the fleet, without a password.
    pub fleet: String,
    /// The machine's name.
    #[serde(default)]
    pub host: String,
    /// The boot and the container in which the process ids are valid.
    pub realm: String,
    /// When it began, by the clock of this machine.
    pub began: Time,
    /// The process of `fence work`.
    pub worker: Identified,
    /// The first process of the child, which leads its group. `None` until the child is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Identified>,
    /// The directory of the child's work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<PathBuf>,
    /// The id of the task or, for a wake-up, `channel/NAME`. Other triggers have none.
    #[serde(default, alias = "task", skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The profile and the directory of the client, in which its sessions are.
    #[serde(default)]
    pub client: Option<(String, PathBuf)>,
    /// The session of the client, if it can be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How the run ended. `None` while it runs, or if its worker died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// The boot of a realm.
fn boot(realm: &str) -> &str {
    realm.split(' ').next().unwrap_or_default()
}

impl State {
    /// For a run of this process.
    pub fn new(run: &str, agent: &str, fleet: &str) -> io::Result<Self> {
        let us = Process::own_id().and_then(Identified::of);
        Ok(Self {
            run: run.into(),
            agent: agent.into(),
            fleet: fleet.into(),
            host: host(),
            realm: process::realm(),
            began: Clock::System.read(),
            worker: us.ok_or_else(|| io::Error::other("/proc does not know this process"))?,
            child: None,
            tree: None,
            subject: None,
            client: None,
            session: None,
            ended: None,
        })
    }

    /// The task, if the trigger is one. Its id has no slash.
    pub fn task(&self) -> Option<&str> {
        self.subject.as_deref().filter(|subject| !subject.contains('/'))
    }

    /// Did the worker of this run die, and leave it behind? Another machine or container, with the same directory for state, may have
    /// workers that cannot be seen from here.
    pub fn is_left_behind(&self) -> bool {
        let ours = process::realm();
        let is_over = match (self.realm == ours, boot(&self.realm) == boot(&ours)) {
            (true, _) => !self.worker.is_alive(),
            (false, same_boot) => !same_boot,
        };
        self.ended.is_none() && self.host == host() && is_over
    }

    /// Kills all processes of a run that was left behind. After a new boot there are none.
    pub fn kill(&self, kill: impl FnOnce(Option<i32>, &str)) {
        if self.realm != process::realm() {
            return;
        }
        // The group's id may belong to others by now. It does not while its leader lives.
        let group = self.child.as_ref().filter(|child| child.is_alive()).map(|child| child.pid);
        kill(group, &self.run);
    }
}

/// The directory of a run.
#[derive(Debug)]
pub struct RunFiles {
    directory: Directory,
}

/// Tells the worker that started this process, if one did, that its child lives: a child that only calls `fence`, and prints nothing,
/// has not stalled.
pub fn sign_of_life() {
    if let Some(file) = variable("FENCE_TRIGGER_FILE") {
        // The worker may be gone, or a sandbox may keep the file read-only.
        let _ = File::options().append(true).open(file).and_then(|file| touch(&file));
    }
}

/// The directory with a directory for each run.
fn home() -> io::Result<PathBuf> {
    let home = state_home().ok_or_else(|| io::Error::other("neither HOME nor XDG_STATE_HOME is set"))?;
    Ok(home.join("fence").join("runs"))
}

/// A name that leads out of the directory, or to a hidden file, is no run of `fence work`.
fn is_plain(run: &str) -> bool {
    !run.is_empty() && !run.contains('/') && !run.starts_with('.')
}

impl RunFiles {
    pub fn create(run: &str) -> Result<Self> {
        let create = || {
            if !is_plain(run) {
                return Err(io::Error::other("its name has a slash"));
            }
            let directory = home()?.join(run);
            Directory::create(&directory.join(GIVEN))?;
            Directory::open(&directory)
        };
        let directory = create()
            .map_err(|e| Error::unavailable(format!("the files of run `{run}` cannot be written: {e}")))?;
        Ok(Self { directory })
    }

    /// The files of a run that ran on this machine.
    pub fn find(run: &str) -> Option<Self> {
        if !is_plain(run) {
            return None;
        }
        Directory::open(&home().ok()?.join(run)).ok().map(|directory| Self { directory })
    }

    /// The runs of this machine.
    pub fn all() -> Vec<Self> {
        let Ok(entries) = home().and_then(std::fs::read_dir) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Self::find(&name)).collect()
    }

    /// Removes the files of runs that ended long ago.
    pub fn prune() {
        for files in Self::all() {
            let is_old = files.changed_at(STATE).is_some_and(|at| Clock::System.read().since(at) > KEPT);
            if is_old && files.state().is_none_or(|state| !state.worker.is_alive()) {
                // A failure only means that the files stay.
                let _ = std::fs::remove_dir_all(files.directory.path());
            }
        }
    }

    /// When a file was last written or touched, by the clock of this machine.
    pub fn changed_at(&self, name: &str) -> Option<Time> {
        let modified = std::fs::metadata(self.path(name)).and_then(|about| about.modified()).ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        Some(Time(i64::try_from(since.as_millis()).ok()?))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        write_whole(&self.path(name), text)
    }

    /// Writes a file that need not be text, and returns its path.
    pub fn write_bytes(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.path(name);
        let failed =
            |e: io::Error| Error::unavailable(format!("`{}` cannot be written: {e}", path.display()));
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(bytes)).map_err(failed)?;
        Ok(path)
    }

    pub fn state(&self) -> Option<State> {
        let mut text = String::new();
        self.directory.file(STATE, Missing::Refuse).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub fn set_state(&self, state: &State) -> Result<()> {
        self.write(STATE, &serde_json::to_string(state).map_err(Error::internal)?)
    }

    pub fn log_writer(&self) -> Result<LogWriter> {
        LogWriter::open(self.directory.path())
            .map_err(|e| Error::unavailable(format!("the output cannot be kept: {e}")))
    }

    /// The output so far, if there is any.
    pub fn log(&self) -> Option<LogReader> {
        LogReader::open(self.directory.path())
    }
}
