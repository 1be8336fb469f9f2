//! The file of a session.

use super::{Deadline, Lift, Lost, SILENT_FOR, Session};
use crate::{
    identity::recorded,
    private_files::{Directory, Missing},
};
use fencepost::{Error, Millis, Result, Time, claim::Claim};
use std::{
    fs::{File, TryLockError},
    io, thread,
    time::{Duration, UNIX_EPOCH},
};

const PREFIX: &str = "session-";
const LOCK: &str = ".lock";
/// A name of a file has at most 255 bytes.
const RUN_MAX: usize = 200;
/// Files of sessions that were silent for this long are removed.
const KEPT: Millis = Millis::days(30);

/// The record of a session, and its lock: two hooks of one session run at the same time. If the directory cannot be written, the record
/// stays as it is; if there is none, the hooks work without a record.
#[derive(Debug)]
pub struct Locked {
    kept: io::Result<(Directory, File)>,
    name: String,
    pub session: Session,
}

/// How often a locked record is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(10);

impl Locked {
    /// Waits until the deadline if another process has locked the record: that one may be frozen. After it the record is only read,
    /// and cannot be saved.
    pub fn open(run: &str, deadline: Deadline) -> Self {
        let name = name(run);
        // The file itself is replaced, and cannot have the lock.
        let locked = |directory: Directory| {
            let file = directory.file(&format!("{name}{LOCK}"), Missing::Create)?;
            lock(&file, deadline)?;
            Ok((directory, file))
        };
        let kept = recorded::directory().and_then(locked);
        // In a client's sandbox the record can be read, and not be locked.
        let session = recorded::directory().ok().and_then(|directory| parse(&directory, &name));
        Self { session: session.unwrap_or_default(), kept, name }
    }

    pub fn save(mut self, now: Time) -> Result<()> {
        let failed =
            |e: &io::Error| Error::unavailable(format!("the record of the session cannot be written: {e}"));
        let (directory, _lock) = self.kept.as_ref().map_err(failed)?;
        self.session.written_at = Some(now);
        let text = serde_json::to_string(&self.session).map_err(Error::internal)?;
        recorded::replace(directory, &self.name, text.as_bytes()).map_err(|e| failed(&e))
    }
}

#[expect(clippy::disallowed_methods, reason = "no event tells that a file is unlocked")]
fn lock(file: &File, deadline: Deadline) -> io::Result<()> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(e),
            Err(TryLockError::WouldBlock) if deadline.is_over() => {
                return Err(io::Error::other("another process has locked it"));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(TRY_AGAIN),
        }
    }
}

/// The record that counts for an event.
#[derive(Debug, Default)]
pub struct Known {
    pub run: String,
    pub session: Session,
    /// A person lifted the guard of one of the runs.
    pub is_lifted: bool,
}

/// The record of this run, without a lock.
pub fn read(run: &str) -> Session {
    recorded::directory().ok().and_then(|directory| parse(&directory, &name(run))).unwrap_or_default()
}

/// Reads the records of these runs, without a lock. The first that ever held a claim counts, else the last.
pub fn known(runs: &[String], now: Time) -> Known {
    let mut known = Known::default();
    for run in runs {
        let session = read(run);
        known.is_lifted |= session.is_lifted(now);
        if known.session.is_blank() {
            (known.run, known.session) = (run.clone(), session);
        }
    }
    known
}

/// The record after the fleet could not be asked, for this reason. Claims that lapsed are written down as lost, so that the session can
/// acknowledge that without the fleet.
pub fn unanswered(run: &str, why: &Error, now: Time) -> Session {
    let mut locked = Locked::open(run, Deadline::at_once());
    let before = locked.session.clone();
    locked.session.lapse(now);
    // A session without claims has nothing to remember.
    if why.is_transient() && !before.is_blank() {
        locked.session.silent_until = Some(now.plus(SILENT_FOR));
    }
    let session = locked.session.clone();
    if session != before {
        // If it cannot be written, the next hook finds the same.
        let _ = locked.save(now);
    }
    session
}

/// The session of this run acknowledges what it lost.
pub fn acknowledge(run: &str, now: Time) -> Result<Vec<Lost>> {
    let mut locked = Locked::open(run, Deadline::from_now());
    let is_new = !locked.session.lost.is_empty();
    let acknowledged = locked.session.acknowledge().to_vec();
    if is_new {
        locked.save(now)?;
    }
    Ok(acknowledged)
}

/// The session ended those of its claims in this fleet that have one of these tokens.
pub fn ended(run: &str, fleet: &str, tokens: &[String], verb: &str, now: Time) {
    let is_known = |session: &Session| tokens.iter().any(|token| session.knows(fleet, token));
    // Most commands end nothing of most sessions, and need no lock.
    if !is_known(&read(run)) {
        return;
    }
    let mut locked = Locked::open(run, Deadline::from_now());
    for token in tokens {
        if locked.session.knows(fleet, token) {
            locked.session.end(fleet, token, verb);
        }
    }
    // Without the record the hooks ask the fleet.
    let _ = locked.save(now);
}

/// The session is over, and gave these claims back.
pub fn given_back(run: &str, fleet: &str, claims: &[Claim], now: Time) {
    let tokens: Vec<String> = claims.iter().map(|claim| claim.token.clone()).collect();
    ended(run, fleet, &tokens, "release", now);
}

/// The keeper renewed this run until then. It does not wait for a hook that has the file, because that one asks the fleet itself.
pub fn renewed(session: &str, fleet: &str, run: &str, until: Time, now: Time) {
    let mut locked = Locked::open(session, Deadline::at_once());
    if locked.session.held.iter().any(|held| held.run == run) {
        locked.session.renew(fleet, run, until);
        // Without it the hooks ask the fleet.
        let _ = locked.save(now);
    }
}

/// Lifts the guard of a session and of its subagents, on this machine. A person has seen what they lost, except when the lift ends.
pub fn lift(run: &str, lift: Lift, now: Time) -> Result<()> {
    let begins = lift.until > now;
    let subagents = format!("{}.", name(run));
    let others = recorded::directory().and_then(|directory| directory.names()).unwrap_or_default();
    let others = if begins { others } else { Vec::new() };
    for name in others.iter().filter(|name| name.starts_with(&subagents) && !name.ends_with(LOCK)) {
        acknowledge(name.strip_prefix(PREFIX).unwrap_or(name), now)?;
    }
    let mut locked = Locked::open(run, Deadline::from_now());
    if begins {
        locked.session.acknowledge();
    }
    locked.session.lift = Some(lift);
    locked.save(now)
}

fn parse(directory: &Directory, name: &str) -> Option<Session> {
    serde_json::from_str(&recorded::text(directory, name)?).ok()
}

/// Removes the files of sessions that were silent for long, and locks that were made for no file.
pub fn forget_old(now: Time) {
    let Ok(directory) = recorded::directory() else { return };
    let names = directory.names().unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
        let last = match name.strip_suffix(LOCK) {
            Some(record) if names.iter().any(|name| name == record) => continue,
            Some(_) => made_at(&directory, name),
            None => parse(&directory, name).unwrap_or_default().written_at,
        };
        if last.is_some_and(|at| now.since(at) > KEPT) {
            let _ = directory.remove(name);
            let _ = directory.remove(&format!("{name}{LOCK}"));
        }
    }
}

fn made_at(directory: &Directory, name: &str) -> Option<Time> {
    let modified = directory.reader(name).ok()?.metadata().ok()?.modified().ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    Some(Time(i64::try_from(since.as_millis()).ok()?))
}

fn name(run: &str) -> String {
    // The fleet refuses a run with another character, and here it must not become a path.
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-:".contains(c) { c } else { '%' };
    format!("{PREFIX}{}", run.chars().take(RUN_MAX).map(safe).collect::<String>())
}
