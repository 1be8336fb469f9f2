//! The files of a fleet and their modes. Only their owner can use them, whatever the umask is; if the database is
//! writable for its group, the group can use them as well.

use crate::error::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
};

const OWNER_ONLY: u32 = 0o600;
const OWNER_AND_GROUP: u32 = 0o660;
const GROUP_WRITES: u32 = 0o020;

/// `fence.db` with `-queue` is `fence.db-queue`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Makes an empty file before SQLite would make one that everybody can read. SQLite gives its log the same mode. A file
/// that exists is left alone.
pub(super) fn make_database(path: &Path, like: Option<&Path>) -> io::Result<()> {
    // Closing a file drops every lock that this process has on it (POSIX), and SQLite may hold one in another thread.
    // So no thread of this process sees the new file before it is closed.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = crate::sync::lock(&MAKING);
    if path.exists() {
        return Ok(());
    }
    let mode = like.map_or(OWNER_ONLY, mode_of);
    let made = OpenOptions::new().append(true).create(true).mode(mode).open(path)?;
    restore_group_mode(&made, mode)
}

/// Opens a lock file beside the database, and makes it if it does not exist.
pub(super) fn open_lock_file(database: &Path, suffix: &str) -> Result<File> {
    open_beside(database, suffix).map_err(|e| {
        Error::unavailable(format!("cannot write `{}`: {e}", beside(database, suffix).display()))
            .hint("a fleet needs to write in the directory it lives in")
    })
}

/// Opens a file beside the database, and makes it if it does not exist. A link is not followed.
fn open_beside(database: &Path, suffix: &str) -> io::Result<File> {
    let path = beside(database, suffix);
    let how = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        match rustix::fs::open(&path, how, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => {}
            opened => return Ok(opened?.into()),
        }
        let mode = mode_of(database);
        match rustix::fs::open(&path, how | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(mode)) {
            Err(rustix::io::Errno::EXIST) => {}
            made => {
                let made = made?.into();
                return restore_group_mode(&made, mode).map(|()| made);
            }
        }
    }
}

fn mode_of(database: &Path) -> u32 {
    let shared = fs::metadata(database).is_ok_and(|about| about.mode() & GROUP_WRITES != 0);
    if shared { OWNER_AND_GROUP } else { OWNER_ONLY }
}

/// Sets the bits of the group that the umask cleared.
fn restore_group_mode(file: &File, mode: u32) -> io::Result<()> {
    if mode == OWNER_ONLY { Ok(()) } else { file.set_permissions(Permissions::from_mode(mode)) }
}
