//! Files that only this user can have made: in directories that only this user can write, opened without following links and
//! without blocking.
//!
//! Commands read, touch and remove keepers' files that they find by listing a directory. Another user, or a cloned repository,
//! could put a link to another file there, or a pipe that nobody writes to.

pub mod draft;

use fencepost::{Error, Result};
use rustix::{
    fs::{
        AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat, futimens, open, openat, renameat,
        statat, unlinkat,
    },
    process::geteuid,
};
use std::{
    fs::{self, DirBuilder, File, Metadata},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// A directory that only this user can write, below parents that only this user or root can write.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: OwnedFd,
}

/// Whether to create a file that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Create,
    Refuse,
}

impl Directory {
    /// Fails if the directory does not exist, or if another user could have changed its files.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = File::from(open(path, flags, Mode::empty())?);
        let about = handle.metadata()?;
        if about.uid() != geteuid().as_raw() {
            return Err(refused(path, "belongs to another user"));
        }
        if about.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(refused(path, "can be written by others"));
        }
        check_parents(path.parent().unwrap_or(path))?;
        Ok(Self { path: path.to_owned(), handle: handle.into() })
    }

    /// Creates the directory for this user alone, and fails before that if others could replace it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let parent = path.ancestors().skip(1).find(|parent| parent.exists());
        check_parents(parent.unwrap_or(Path::new("/")))?;
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::open(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all entries, of any kind.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a regular file of this user to read and append.
    pub fn file(&self, name: &str, missing: Missing) -> io::Result<File> {
        let create = if missing == Missing::Create { OFlags::CREATE } else { OFlags::empty() };
        self.opened(name, OFlags::RDWR | OFlags::APPEND | create)
    }

    /// Opens a regular file of this user to read, also where it cannot be written: in a client's sandbox.
    pub fn reader(&self, name: &str) -> io::Result<File> {
        self.opened(name, OFlags::RDONLY)
    }

    fn opened(&self, name: &str, how: OFlags) -> io::Result<File> {
        let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.handle, name, how | safe, Mode::RUSR | Mode::WUSR).map_err(|e| match e {
            rustix::io::Errno::LOOP => refused(&self.path.join(name), "is a symbolic link"),
            e => e.into(),
        })?;
        let file = File::from(file);
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return Err(refused(&self.path.join(name), "is not a regular file of this user"));
        }
        Ok(file)
    }

    /// Does this open file still have this name, and the directory its path?
    pub fn has(&self, name: &str, file: &File) -> io::Result<bool> {
        let Ok(there) = statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(false) };
        let file = file.metadata()?;
        Ok((there.st_dev, there.st_ino) == (file.dev(), file.ino()) && self.check_path().is_ok())
    }

    /// Fails if the directory was moved or removed.
    pub fn check_path(&self) -> io::Result<()> {
        let (found, ours) = (fs::symlink_metadata(&self.path)?, fstat(&self.handle)?);
        match (found.dev(), found.ino()) == (ours.st_dev, ours.st_ino) {
            true => Ok(()),
            false => Err(refused(&self.path, "is another directory now")),
        }
    }

    /// Gives a file of this directory another name, and replaces the file that has it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.handle, from, &self.handle, to)?)
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }
}

/// Creates the directory, and the missing ones above it, for this user alone.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Writes a file that nobody sees half written. Not synced: for files that mean nothing after a power cut.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, path))
        .map_err(|e| Error::unavailable(format!("`{}` cannot be written: {e}", path.display())))
}

/// Sets the times of a file to now, which wakes a process that watches it.
pub fn touch(file: &File) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(futimens(file, &Timestamps { last_access: now, last_modification: now })?)
}

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// In a sticky directory, such as /tmp, others can create entries, but not rename or remove ours.
fn check_parents(directory: &Path) -> io::Result<()> {
    let trusted = trusted_owners();
    for parent in fs::canonicalize(directory)?.ancestors() {
        let about: Metadata = fs::symlink_metadata(parent)?;
        if !trusted.contains(&about.uid()) {
            return Err(refused(parent, "belongs to another user"));
        }
        if about.mode() & WRITABLE_BY_OTHERS != 0 && about.mode() & STICKY == 0 {
            return Err(refused(parent, "can be written by others"));
        }
    }
    Ok(())
}

/// This user and root. In a sandbox with its own user namespace, the files of all outer users, root included, appear as the
/// overflow user's.
fn trusted_owners() -> Vec<u32> {
    let mut owners = vec![geteuid().as_raw(), 0];
    let all_users = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !fs::read_to_string("/proc/self/uid_map").map_or(true, all_users) {
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
        owners.extend(overflow.ok().and_then(|id| id.trim().parse::<u32>().ok()));
    }
    owners
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("`{}` {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_regular_files_of_this_user_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o700);
        let path = dir.path().join("deep/keepers");
        let private = Directory::create(&path).unwrap();
        let file = private.file("run", Missing::Create).unwrap();
        assert_eq!(
            (file.metadata().unwrap().mode() & 0o777, private.has("run", &file).unwrap()),
            (0o600, true)
        );
        assert!(private.file("other", Missing::Refuse).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));

        symlink("run", path.join("link")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        fs::create_dir(path.join("directory")).unwrap();
        for name in ["link", "dangling", "pipe", "directory"] {
            assert!(private.file(name, Missing::Create).is_err() && private.reader(name).is_err(), "{name}");
        }
        assert!(!path.join("nowhere").exists());
        assert_eq!(private.names().unwrap(), ["dangling", "directory", "link", "pipe", "run"]);
        if geteuid().is_root() {
            chown(path.join("run"), Some(12_345), None).unwrap();
            assert!(private.file("run", Missing::Refuse).is_err(), "another's");
        }

        private.remove("run").unwrap();
        assert!(!private.has("run", &file).unwrap());
        let file = private.file("run", Missing::Create).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        assert!(!private.has("run", &file).unwrap(), "nobody finds it there");
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o700);
        let (parent, path) = (dir.path().join("parent"), dir.path().join("parent/keepers"));
        drop(Directory::create(&path).unwrap());
        for loose in [0o770, 0o702, 0o1777] {
            mode(&path, loose);
            assert!(Directory::open(&path).is_err(), "{loose:o}");
        }
        mode(&path, 0o755);
        Directory::open(&path).unwrap();
        for loose in [0o770, 0o702] {
            mode(&parent, loose);
            assert!(Directory::open(&path).is_err(), "{loose:o}");
            assert!(Directory::create(&parent.join("other")).is_err() && !parent.join("other").exists());
        }
        mode(&parent, 0o1777);
        Directory::open(&path).unwrap();
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(Directory::open(&link).is_err(), "a link");
        if geteuid().is_root() {
            chown(&parent, Some(12_345), None).unwrap();
            assert!(Directory::open(&path).is_err(), "its parent is another's");
            chown(&parent, Some(0), None).unwrap();
            chown(&path, Some(12_345), None).unwrap();
            assert!(Directory::open(&path).is_err(), "another's");
        }
    }
}
