//! Facts about a client's session that its hooks remember between two calls: a file per run beside the records of `identity`.

use crate::{identity::recorded, output::untrusted, private_files::Missing};
use fencepost::{Error, Millis, Result, Time};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, Write},
};

const PREFIX: &str = "session-";
/// A name of a file has at most 255 bytes.
const RUN_MAX: usize = 240;
/// Files of sessions that were silent for this long are removed.
const KEPT: Millis = Millis::days(30);

/// The memory of a session's hooks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The address of the fleet in which the session last held a claim. The file is this user's own.
    pub fleet: Option<String>,
    /// When a hook last renewed the run.
    pub renewed_at: Option<Time>,
    /// The claims that the session held at the last look.
    pub held: Vec<String>,
    /// The number of notes that the session knows, by task.
    pub notes: BTreeMap<String, usize>,
    /// The last message of its agent's inbox, and the number of its unread mentions, that the session was told of.
    pub mail: Option<(i64, i64)>,
    /// A stop was refused while these claims were held.
    pub stop_refused: Vec<String>,
    /// Its run is marked as waiting for a person.
    pub is_waiting: bool,
    /// A person lifted the guard.
    pub lift: Option<Lift>,
    /// When the file was last written, by the clock of this machine.
    pub written_at: Option<Time>,
}

/// A guard that a person lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lift {
    pub until: Time,
    pub reason: Option<String>,
}

impl Session {
    /// Did a person lift the guard, and is it not yet over?
    pub fn is_lifted(&self, now: Time) -> bool {
        self.lift.as_ref().is_some_and(|lift| lift.until > now)
    }
}

/// The file of a session, locked: two hooks of one session run at the same time.
#[derive(Debug)]
pub struct Locked {
    file: File,
    pub session: Session,
}

impl Locked {
    pub fn open(run: &str) -> Result<Self> {
        let failed =
            |e: io::Error| Error::unavailable(format!("the state of the session cannot be kept: {e}"));
        let directory =
            recorded::directory().ok_or_else(|| Error::unavailable("HOME is not set"))?.map_err(failed)?;
        let mut file = directory.file(&name(run), Missing::Create).map_err(failed)?;
        file.lock().map_err(failed)?;
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(failed)?;
        // An empty or damaged file: a hook was killed while it wrote. The facts are found again.
        Ok(Self { session: serde_json::from_str(&text).unwrap_or_default(), file })
    }

    pub fn save(mut self, now: Time) -> Result<()> {
        self.session.written_at = Some(now);
        let text = serde_json::to_string(&self.session).map_err(Error::internal)?;
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|e| Error::unavailable(format!("the state of the session cannot be kept: {e}")))
    }
}

/// The session's facts, without a lock.
pub fn read(run: &str) -> Session {
    let directory = recorded::directory().and_then(io::Result::ok);
    let text = directory.and_then(|directory| recorded::text(&directory, &name(run)));
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Lifts the guard of a session, on this machine.
pub fn lift(run: &str, lift: Lift, now: Time) -> Result<()> {
    let mut locked = Locked::open(run)?;
    locked.session.lift = Some(lift);
    locked.save(now)
}

/// Removes the files of sessions that were silent for long.
pub fn forget_old(now: Time) {
    let Some(Ok(directory)) = recorded::directory() else { return };
    for name in directory.names().unwrap_or_default().iter().filter(|name| name.starts_with(PREFIX)) {
        let session = recorded::text(&directory, name);
        let session: Session = session.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        if session.written_at.is_some_and(|at| now.since(at) > KEPT) {
            let _ = directory.remove(name);
        }
    }
}

/// A text of somebody else in one line, in quotes. Characters that could forge a line of ours are shown as escapes.
pub fn quoted(text: &str) -> String {
    let line = untrusted::in_a_line(text);
    let cut: String = line.chars().take(120).collect();
    let dots = if cut.len() < line.len() { "…" } else { "" };
    format!("\"{}{dots}\"", cut.replace('"', "'"))
}

fn name(run: &str) -> String {
    // The fleet refuses a run with another character, and here it must not become a path.
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-:".contains(c) { c } else { '%' };
    format!("{PREFIX}{}", run.chars().take(RUN_MAX).map(safe).collect::<String>())
}
