//! The files that are a fleet, and for whom they are made: for their owner alone, whatever the umask is; for a group, where the
//! database itself is the group's.

use rustix::fs::{Mode, OFlags};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
};

const OWNERS: u32 = 0o600;
const GROUPS: u32 = 0o660;
const GROUP_WRITES: u32 = 0o020;

/// `fence.db` with `-queue` is `fence.db-queue`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// An empty file where SQLite would make one that everybody can read; its log gets the mode of the database. Nothing, if there is a
/// file already.
pub(super) fn make_database(path: &Path, like: Option<&Path>) -> io::Result<()> {
    // To close a file takes back every lock that this process has on it (POSIX), and another thread's SQLite may have one:
    // so nobody here sees a file that is not closed yet.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = crate::sync::lock(&MAKING);
    if path.exists() {
        return Ok(());
    }
    let mode = like.map_or(OWNERS, mode_of);
    let made = OpenOptions::new().append(true).create(true).mode(mode).open(path)?;
    give(&made, mode)
}

/// Opens a file beside the database, and makes it if it is not there. A link is not followed.
pub(super) fn open_beside(database: &Path, suffix: &str) -> io::Result<File> {
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
                return give(&made, mode).map(|()| made);
            }
        }
    }
}

fn mode_of(database: &Path) -> u32 {
    let shared = fs::metadata(database).is_ok_and(|about| about.mode() & GROUP_WRITES != 0);
    if shared { GROUPS } else { OWNERS }
}

/// What the umask took from the group.
fn give(file: &File, mode: u32) -> io::Result<()> {
    if mode == OWNERS { Ok(()) } else { file.set_permissions(Permissions::from_mode(mode)) }
}
