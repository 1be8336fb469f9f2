//! Facts about a client's session that its hooks remember between two calls: a file per run beside the records of `identity`.

use crate::{
    context::Context,
    identity::{self, recorded},
    output::untrusted,
    private_files::{Directory, Missing},
};
use fencepost::{Error, Millis, Result, Time, claim};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs::File, io};

const PREFIX: &str = "session-";
const LOCK: &str = ".lock";
/// A name of a file has at most 255 bytes.
const RUN_MAX: usize = 200;
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
    /// The claims that the session held at the last look, or made since, also for other runs.
    pub held: Vec<String>,
    /// The number of notes that the session knows, by task.
    pub notes: BTreeMap<String, usize>,
    /// The last message of its agent's inbox, and the number of its unread mentions, that the session was told of.
    pub mail: Option<(i64, i64)>,
    /// The fleet did not answer: until then, no hook asks it only to renew and to look for news.
    pub silent_until: Option<Time>,
    /// Tasks that the session was offered when it was idle.
    pub offered: Vec<String>,
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
    /// Adds claims in a fleet. Those of another fleet are forgotten: a session works in one.
    pub fn hold(&mut self, tokens: &[String], fleet: &str) {
        if self.is_elsewhere(fleet) {
            self.held.clear();
            self.notes.clear();
        }
        self.fleet = Some(fleet.to_owned());
        self.held
            .extend(tokens.iter().filter(|token| !self.held.contains(token)).cloned().collect::<Vec<_>>());
    }

    /// Did the session hold its last claim in another fleet?
    pub fn is_elsewhere(&self, fleet: &str) -> bool {
        self.fleet.as_deref().is_some_and(|own| own != fleet)
    }

    /// Did a person lift the guard, and is it not yet over?
    pub fn is_lifted(&self, now: Time) -> bool {
        self.lift.as_ref().is_some_and(|lift| lift.until > now)
    }
}

/// The facts of a session, while no other hook changes them: two hooks of one session run at the same time. If there is no directory for
/// them, the hooks work without a memory.
#[derive(Debug)]
pub struct Locked {
    kept: io::Result<(Directory, File)>,
    name: String,
    pub session: Session,
}

impl Locked {
    pub fn open(run: &str) -> Self {
        let name = name(run);
        // The file itself is replaced, and cannot have the lock.
        let lock = |directory: Directory| {
            let file = directory.file(&format!("{name}{LOCK}"), Missing::Create)?;
            file.lock()?;
            Ok((directory, file))
        };
        let kept = recorded::directory().and_then(lock);
        let session = kept.as_ref().ok().and_then(|(directory, _)| parse(directory, &name));
        Self { session: session.unwrap_or_default(), kept, name }
    }

    pub fn save(mut self, now: Time) -> Result<()> {
        let failed =
            |e: &io::Error| Error::unavailable(format!("the state of the session cannot be kept: {e}"));
        let (directory, _lock) = self.kept.as_ref().map_err(failed)?;
        self.session.written_at = Some(now);
        let text = serde_json::to_string(&self.session).map_err(Error::internal)?;
        recorded::replace(directory, &self.name, text.as_bytes()).map_err(|e| failed(&e))
    }
}

/// The session's facts, without a lock.
pub fn read(run: &str) -> Session {
    let directory = recorded::directory().ok();
    directory.and_then(|directory| parse(&directory, &name(run))).unwrap_or_default()
}

fn parse(directory: &Directory, name: &str) -> Option<Session> {
    serde_json::from_str(&recorded::text(directory, name)?).ok()
}

/// Lifts the guard of a session, on this machine.
pub fn lift(run: &str, lift: Lift, now: Time) -> Result<()> {
    let mut locked = Locked::open(run);
    locked.session.lift = Some(lift);
    locked.save(now)
}

/// Remembers a claim that a command of an agent's session made, perhaps for another run: the hooks of the session look after it.
pub fn remember(context: &Context, claims: &[claim::Claim]) {
    let session = identity::identify(None, None);
    if session.reason.is_agent() && !claims.is_empty() {
        remember_for(context, &session.run, claims);
    }
}

/// The same for a session whose run is known.
pub fn remember_for(context: &Context, session: &str, claims: &[claim::Claim]) {
    let Ok(location) = context.location() else { return };
    let tokens: Vec<String> = claims.iter().map(|claim| claim.token.clone()).collect();
    let mut locked = Locked::open(session);
    locked.session.hold(&tokens, &location.absolute_url());
    // Without the file, the hooks find the claims of the session's own run.
    let _ = locked.save(context.terminal.now());
}

/// Removes the files of sessions that were silent for long.
pub fn forget_old(now: Time) {
    let Ok(directory) = recorded::directory() else { return };
    let names = directory.names().unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(PREFIX) && !name.ends_with(LOCK)) {
        let session = parse(&directory, name).unwrap_or_default();
        if session.written_at.is_some_and(|at| now.since(at) > KEPT) {
            let _ = directory.remove(name);
            let _ = directory.remove(&format!("{name}{LOCK}"));
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
