//! Which locks the processes on one file wait for, told without a write to the database.
//!
//! A process learns of its own commits at once, and of another's up to 10 ms later. So a lock that is always wanted would
//! go from one client of a process to the next for ever: measured with three clients of one server that held it for 50 ms
//! each, the waiter of another server got it never in 20 s, and they 1,145 times. Whoever waits for a lock marks it here, and
//! a process that was granted it many times in a row lets the others go first (see [`crate::engine::wait`]).
//!
//! The mark is a lock on one byte of a file, at the hash of the name; the operating system takes it back from a
//! process that dies.

use crate::{error::Result, sync::lock};
use std::{
    collections::HashMap,
    fs::File,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

#[derive(Debug, Clone)]
pub(crate) struct Wanted(Arc<Marks>);

#[derive(Debug)]
struct Marks {
    file: File,
    /// How many here wait for each.
    own: Mutex<HashMap<i64, usize>>,
}

/// Somebody here waits for a lock, until this is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    marks: Arc<Marks>,
    at: i64,
}

impl Wanted {
    pub fn open(database: &Path) -> Result<Self> {
        let file = super::turnstile::lock_file(database, "-wanted")?;
        Ok(Self(Arc::new(Marks { file, own: Mutex::default() })))
    }

    pub fn mark(&self, lock: &str) -> Mark {
        let at = place_of(lock);
        let mut own = self.0.own();
        let count = own.entry(at).or_default();
        *count += 1;
        if *count == 1 {
            // If it cannot be marked, nobody gives way: that is unfair, and otherwise harmless.
            let _ = system::mark(&self.0.file, at);
        }
        Mark { marks: self.0.clone(), at }
    }

    /// Does another process wait for this lock?
    pub fn by_others(&self, lock: &str) -> bool {
        system::is_marked_by_others(&self.0.file, place_of(lock))
    }
}

impl Marks {
    fn own(&self) -> MutexGuard<'_, HashMap<i64, usize>> {
        lock(&self.own)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut own = self.marks.own();
        let left = own.get_mut(&self.at).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            own.remove(&self.at);
            let _ = system::unmark(&self.marks.file, self.at);
        }
    }
}

/// The same in every process, and of any version.
fn place_of(lock: &str) -> i64 {
    use sha2::{Digest, Sha256};
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(lock)[..8]);
    i64::from_be_bytes(first) & (i64::MAX >> 1)
}

/// Locks that belong to an open file, not to a process, so that two fleets in one process see each other.
#[cfg(target_os = "linux")]
mod system {
    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc,
    };
    use std::fs::File;

    fn byte(kind: libc::c_int, at: i64) -> libc::flock {
        let small = |value: libc::c_int| libc::c_short::try_from(value).unwrap_or(0);
        libc::flock { l_type: small(kind), l_whence: small(libc::SEEK_SET), l_start: at, l_len: 1, l_pid: 0 }
    }

    pub fn mark(file: &File, at: i64) -> nix::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, at))).map(drop)
    }

    pub fn unmark(file: &File, at: i64) -> nix::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_UNLCK, at))).map(drop)
    }

    pub fn is_marked_by_others(file: &File, at: i64) -> bool {
        let mut asked = byte(libc::F_WRLCK, at);
        let found = fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked));
        found.is_ok() && libc::c_int::from(asked.l_type) != libc::F_UNLCK
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
    fn a_mark_is_seen_by_others_until_the_last_who_waits_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = [(); 2].map(|()| Wanted::open(&dir.path().join("f.db")).unwrap());
        assert!(!b.by_others("deploy"));
        let (first, second) = (a.mark("deploy"), a.mark("deploy"));
        assert!(b.by_others("deploy") && !b.by_others("other") && !a.by_others("deploy"));
        drop(first);
        assert!(b.by_others("deploy"));
        drop(second);
        assert!(!b.by_others("deploy"));
        let both = (a.mark("deploy"), b.mark("deploy"));
        assert!(a.by_others("deploy") && b.by_others("deploy"));
        drop(both);
        assert!(a.0.own().is_empty() && !a.by_others("deploy"));
    }
}
