//! Contention: which resources the processes on one file wait for, shared without a write to the database.
//!
//! A process learns of its own commits at once, and of another's up to 10 ms later. So a lock under constant demand
//! would go from one client of a process to the next for ever. Measured with three clients of one server that held it
//! for 50 ms each: in 20 s they got it 1,145 times, and the waiter of another server never. A process that waits for a
//! resource marks it here, and a process that was granted it many times in a row lets the others go first
//! (`engine/waiting.rs`).
//!
//! The mark is a lock on one byte of a file, at the hash of the resource's name. The operating system releases the
//! locks of a process that dies.

use super::files::open_lock_file;
use crate::{error::Result, sync::lock};
use std::{
    collections::HashMap,
    fs::File,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

#[derive(Debug, Clone)]
pub(crate) struct Contention(Arc<Marks>);

#[derive(Debug)]
struct Marks {
    file: File,
    /// The number of calls of this process that wait, by the byte's offset.
    own: Mutex<HashMap<i64, usize>>,
}

/// A call of this process waits for a resource, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitMark {
    marks: Arc<Marks>,
    offset: i64,
}

impl Contention {
    pub fn open(database: &Path) -> Result<Self> {
        let file = open_lock_file(database, "-wanted")?;
        Ok(Self(Arc::new(Marks { file, own: Mutex::default() })))
    }

    pub fn mark(&self, resource: &str) -> WaitMark {
        let offset = offset_of(resource);
        let mut own = self.0.own();
        let count = own.entry(offset).or_default();
        *count += 1;
        if *count == 1 {
            // If the mark fails, no process lets this one go first: unfair, but harmless.
            let _ = system::mark(&self.0.file, offset);
        }
        WaitMark { marks: self.0.clone(), offset }
    }

    /// Does another process wait for this resource?
    pub fn others_wait_for(&self, resource: &str) -> bool {
        system::is_marked_by_others(&self.0.file, offset_of(resource))
    }
}

impl Marks {
    fn own(&self) -> MutexGuard<'_, HashMap<i64, usize>> {
        lock(&self.own)
    }
}

impl Drop for WaitMark {
    fn drop(&mut self) {
        let mut own = self.marks.own();
        let left = own.get_mut(&self.offset).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            own.remove(&self.offset);
            let _ = system::unmark(&self.marks.file, self.offset);
        }
    }
}

/// The byte that stands for a resource: the same in every process and every version.
fn offset_of(resource: &str) -> i64 {
    use sha2::{Digest, Sha256};
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(resource)[..8]);
    i64::from_be_bytes(first) & (i64::MAX >> 1)
}

/// Locks that belong to an open file and not to a process, so that two fleets in one process see each other's.
#[cfg(target_os = "linux")]
mod system {
    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc,
    };
    use std::fs::File;

    fn byte(kind: libc::c_int, offset: i64) -> libc::flock {
        let small = |value: libc::c_int| libc::c_short::try_from(value).unwrap_or(0);
        libc::flock {
            l_type: small(kind),
            l_whence: small(libc::SEEK_SET),
            l_start: offset,
            l_len: 1,
            l_pid: 0,
        }
    }

    pub fn mark(file: &File, offset: i64) -> nix::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, offset))).map(drop)
    }

    pub fn unmark(file: &File, offset: i64) -> nix::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_UNLCK, offset))).map(drop)
    }

    pub fn is_marked_by_others(file: &File, offset: i64) -> bool {
        let mut lock = byte(libc::F_WRLCK, offset);
        let found = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
        found.is_ok() && libc::c_int::from(lock.l_type) != libc::F_UNLCK
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::{fs::File, io};

    pub fn mark(_: &File, _: i64) -> io::Result<()> {
        Ok(())
    }

    pub fn unmark(_: &File, _: i64) -> io::Result<()> {
        Ok(())
    }

    pub fn is_marked_by_others(_: &File, _: i64) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn other_processes_see_a_mark_until_the_last_waiter_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = [(); 2].map(|()| Contention::open(&dir.path().join("f.db")).unwrap());
        assert!(!b.others_wait_for("deploy"));
        let (first, second) = (a.mark("deploy"), a.mark("deploy"));
        assert!(b.others_wait_for("deploy") && !b.others_wait_for("other") && !a.others_wait_for("deploy"));
        drop(first);
        assert!(b.others_wait_for("deploy"));
        drop(second);
        assert!(!b.others_wait_for("deploy"));
        let both = (a.mark("deploy"), b.mark("deploy"));
        assert!(a.others_wait_for("deploy") && b.others_wait_for("deploy"));
        drop(both);
        assert!(a.0.own().is_empty() && !a.others_wait_for("deploy"));
    }
}
