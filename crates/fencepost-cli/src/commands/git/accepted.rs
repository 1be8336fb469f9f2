//! The memory of a receiving repository: the highest fence that it accepted for each task.
//!
//! It is one JSON file in the git directory. A push reads, compares and writes it under a file lock, and the new file is on the disk
//! before git moves a branch. So a crash in between may leave a fence that is higher than the pushed ones, never a lower one. The
//! same push can be repeated, because an equal fence passes.

use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

const FILE: &str = "accepted.json";
const LOCK: &str = "accepted.lock";
/// The lock is held for two files' writes. A holder that needs longer was stopped, and nobody waits for it.
const LOCK_WAIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// The highest fences by fleet and task: `3fa9c1d2`, `auth-3`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fences {
    pub fleets: BTreeMap<String, BTreeMap<String, i64>>,
}

/// A task whose push has a lower fence than an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    pub task: String,
    pub pushed: i64,
    pub accepted: i64,
}

impl Fences {
    pub fn of(&self, fleet: &str, task: &str) -> Option<i64> {
        self.fleets.get(fleet)?.get(task).copied()
    }

    /// Keeps the higher fence.
    pub fn raise(&mut self, fleet: &str, task: &str, fence: i64) {
        let tasks = self.fleets.entry(fleet.to_owned()).or_default();
        let highest = tasks.entry(task.to_owned()).or_insert(fence);
        *highest = fence.max(*highest);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, i64)> {
        let tasks = |(fleet, tasks)| std::iter::repeat(fleet).zip(tasks);
        let all = self.fleets.iter().flat_map(tasks as fn((_, _)) -> _);
        all.map(|(fleet, (task, fence)): (&String, (&String, &i64))| (fleet.as_str(), task.as_str(), *fence))
    }

    /// The memory after a push with these fences, or the tasks for which it is late.
    pub fn after(&self, push: &Fences) -> Result<Fences, Vec<Late>> {
        let (mut next, mut late) = (self.clone(), Vec::new());
        for (fleet, task, pushed) in push.iter() {
            match self.of(fleet, task) {
                Some(accepted) if accepted > pushed => {
                    late.push(Late { task: task.into(), pushed, accepted })
                }
                _ => next.raise(fleet, task, pushed),
            }
        }
        if late.is_empty() { Ok(next) } else { Err(late) }
    }

    /// Forgets a task. Returns the fences that it had, by fleet.
    pub fn forget(&mut self, task: &str) -> Vec<(String, i64)> {
        let forget = |(fleet, tasks): (&String, &mut BTreeMap<String, i64>)| {
            Some((fleet.clone(), tasks.remove(task)?))
        };
        let gone = self.fleets.iter_mut().filter_map(forget).collect();
        self.fleets.retain(|_, tasks| !tasks.is_empty());
        gone
    }
}

/// The memory while this process alone may change it.
#[derive(Debug)]
pub struct Memory {
    directory: PathBuf,
    _lock: File,
}

/// Reads the memory; it is whole at any time.
pub fn read(directory: &Path) -> Result<Fences> {
    let path = directory.join(FILE);
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Fences::default()),
        text => text.map_err(|e| unusable(&path, &e))?,
    };
    serde_json::from_str(&text).map_err(|e| unusable(&path, &e.into()))
}

impl Memory {
    /// Locks the memory in this directory, which is created with the mode of the git directory that it is in.
    pub async fn lock(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let lock = prepare(directory).and_then(|()| open(&path, directory));
        let lock = lock.map_err(|e| unusable(&path, &e))?;
        let free = async {
            loop {
                match lock.try_lock() {
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
                    Err(TryLockError::Error(e)) => return Err(unusable(&path, &e)),
                    Ok(()) => return Ok(()),
                }
            }
        };
        let waited = tokio::time::timeout(LOCK_WAIT, free).await;
        waited.unwrap_or_else(|_| {
            Err(Error::unavailable(format!("another push has locked `{}` for {LOCK_WAIT:?}", path.display()))
                .hint("end the process that holds the lock: it was stopped"))
        })?;
        Ok(Self { directory: directory.into(), _lock: lock })
    }

    pub fn read(&self) -> Result<Fences> {
        read(&self.directory)
    }

    /// Replaces the memory. It is on the disk when this returns.
    pub fn write(&self, fences: &Fences) -> Result<()> {
        let (path, draft) = (self.directory.join(FILE), self.directory.join(format!("{FILE}.new")));
        let text = serde_json::to_string_pretty(fences).map_err(Error::internal)?;
        let written = || {
            // One that a crash left may be another user's, and only its owner may change its mode.
            let _ = fs::remove_file(&draft);
            let mut file = open(&draft, &self.directory)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        written().map_err(|e| unusable(&path, &e))
    }
}

/// Creates the directory. Everybody who may push to the repository may write it.
fn prepare(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    let above = directory.parent().unwrap_or(directory);
    fs::set_permissions(directory, fs::Permissions::from_mode(fs::metadata(above)?.mode() & 0o7777))
}

/// Opens a file to write, and creates it for those who may write its directory.
fn open(path: &Path, directory: &Path) -> io::Result<File> {
    let existing = OpenOptions::new().write(true).open(path);
    match existing {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(fs::metadata(directory)?.mode() & 0o666))?;
    Ok(file)
}

fn unusable(path: &Path, why: &io::Error) -> Error {
    Error::new(Code::Unavailable, format!("the accepted fences cannot be used: `{}`: {why}", path.display()))
        .hint("nothing is accepted until it can be read and written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn fences(all: &[(&str, &str, i64)]) -> Fences {
        let mut fences = Fences::default();
        all.iter().for_each(|(fleet, task, fence)| fences.raise(fleet, task, *fence));
        fences
    }

    #[test]
    fn a_push_is_late_if_one_of_its_fences_is_lower_than_an_accepted_one() {
        let before = fences(&[("f1", "auth-3", 42), ("f1", "auth-4", 7)]);
        for (case, push, expected) in [
            ("nothing", vec![], Ok(vec![("f1", "auth-3", 42), ("f1", "auth-4", 7)])),
            (
                "the same fence",
                vec![("f1", "auth-3", 42)],
                Ok(vec![("f1", "auth-3", 42), ("f1", "auth-4", 7)]),
            ),
            ("a higher one", vec![("f1", "auth-3", 43)], Ok(vec![("f1", "auth-3", 43), ("f1", "auth-4", 7)])),
            (
                "its predecessor's commits, too",
                vec![("f1", "auth-3", 41), ("f1", "auth-3", 43)],
                Ok(vec![("f1", "auth-3", 43), ("f1", "auth-4", 7)]),
            ),
            ("a lower one", vec![("f1", "auth-3", 41)], Err(vec![("auth-3", 41, 42)])),
            (
                "one of two is lower",
                vec![("f1", "auth-3", 50), ("f1", "auth-4", 6)],
                Err(vec![("auth-4", 6, 7)]),
            ),
            (
                "another fleet's",
                vec![("f2", "auth-3", 1)],
                Ok(vec![("f1", "auth-3", 42), ("f1", "auth-4", 7), ("f2", "auth-3", 1)]),
            ),
        ] {
            let expected: Result<_, Vec<Late>> = match expected {
                Ok(all) => Ok(fences(&all)),
                Err(late) => Err(late
                    .into_iter()
                    .map(|(task, pushed, accepted)| Late { task: task.into(), pushed, accepted })
                    .collect()),
            };
            assert_eq!(before.after(&fences(&push)), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn the_memory_is_kept_and_what_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("fence");
        assert_eq!(read(&own).unwrap(), Fences::default());
        let memory = Memory::lock(&own).await.unwrap();
        let mut kept = fences(&[("f1", "auth-3", 42), ("f2", "auth-3", 1), ("f2", "web-1", i64::MAX)]);
        memory.write(&kept).unwrap();
        assert_eq!(memory.read().unwrap(), kept);
        assert_eq!(kept.forget("auth-3"), [("f1".to_owned(), 42), ("f2".to_owned(), 1)]);
        assert_eq!(kept.iter().collect::<Vec<_>>(), [("f2", "web-1", i64::MAX)]);
        memory.write(&kept).unwrap();
        assert_eq!(read(&own).unwrap(), kept);
        // Another push waits until this one has stored its fences.
        let mut waiting = pin!(Memory::lock(&own));
        assert!(tokio::time::timeout(LOOK * 10, &mut waiting).await.is_err(), "two at once");
        drop(memory);
        waiting.await.unwrap();
        for broken in ["", "{", "[]", r#"{"fleets":{"f1":{"a-1":1.5}}}"#, r#"{"fleets":{},"more":1}"#] {
            fs::write(own.join(FILE), broken).unwrap();
            assert_eq!(read(&own).unwrap_err().code(), Code::Unavailable, "{broken}");
        }
    }
}
