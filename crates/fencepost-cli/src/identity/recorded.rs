//! Sessions that a hook recorded for a client's process. Commands below that process act for the session's run, also if the client
//! gives them no variable.
//!
//! A record is a file `process-PID-STARTED` in `fence/sessions` of the user's directory for state: a client may start its processes with
//! another environment, but always with HOME. If others can write there, it is in a directory of this user alone below the temporary one.

use super::process::{self, Process};
use crate::{
    environment::state_home,
    private_files::{Directory, Missing},
};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read, Write},
    path::PathBuf,
};

const PREFIX: &str = "process-";

/// The sessions of one client process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The run of the current session.
    pub run: String,
    /// The boot and the container in which the process id is valid.
    pub realm: String,
}

/// The directories that may hold the records, and other facts about sessions, in order of preference.
fn directories() -> impl Iterator<Item = PathBuf> {
    let temporary = std::env::temp_dir().join(format!("fence-{}", rustix::process::geteuid().as_raw()));
    let state = state_home().map(|state| state.join("fence"));
    state.into_iter().chain([temporary]).map(|directory| directory.join("sessions"))
}

/// The first directory that only this user can write, or that can be created so.
pub fn directory() -> io::Result<Directory> {
    let mut refused = io::Error::other("there is no directory for it");
    for path in directories() {
        match Directory::create(&path) {
            Ok(directory) => return Ok(directory),
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

/// Did a client of this user ever record a session?
pub fn any() -> bool {
    directories().any(|directory| directory.exists())
}

/// The record of this process.
pub fn of(process: &Process) -> Option<Record> {
    let found = directories().filter_map(|path| Directory::open(&path).ok());
    let record = found.into_iter().find_map(|directory| read(&directory, &name(process)))?;
    (record.realm == process::realm()).then_some(record)
}

/// Records that the client with this process works for this run from now on, and forgets clients that are gone.
pub fn record(client: &Process, run: &str) -> io::Result<()> {
    let directory = directory()?;
    let record = Record { run: run.to_owned(), realm: process::realm() };
    replace(&directory, &name(client), serde_json::to_string(&record)?.as_bytes())?;
    forget_the_dead(&directory);
    Ok(())
}

/// Writes a file of the directory in one step: a reader sees the old content or the new.
pub fn replace(directory: &Directory, name: &str, content: &[u8]) -> io::Result<()> {
    let draft = format!("draft-{:016x}", fastrand::u64(..));
    let mut file = directory.file(&draft, Missing::Create)?;
    let written = file.write_all(content).and_then(|()| directory.rename(&draft, name));
    written.inspect_err(|_| {
        let _ = directory.remove(&draft);
    })
}

pub fn text(directory: &Directory, name: &str) -> Option<String> {
    let mut text = String::new();
    // Nothing that we write is as long.
    directory.reader(name).ok()?.take(1 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}

fn read(directory: &Directory, name: &str) -> Option<Record> {
    serde_json::from_str(&text(directory, name)?).ok()
}

fn name(process: &Process) -> String {
    format!("{PREFIX}{}-{}", process.pid, process.started)
}

/// Records of other boots and containers go, too, if no process here has their id and start time: their process cannot be asked, and
/// a record that is missing only makes the terminal the run.
fn forget_the_dead(directory: &Directory) {
    for name in directory.names().unwrap_or_default() {
        let Some((pid, started)) = name.strip_prefix(PREFIX).and_then(|ids| ids.split_once('-')) else {
            continue;
        };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse()) else { continue };
        if !(Process { pid, started, ..Process::default() }).is_alive() {
            let _ = directory.remove(&name);
        }
    }
}
