//! Reading and writing the files of clients: all or none, as far as a file system can.

use crate::{location::refuse_link, names::unique};
use fencepost::{Code, Error, Result, files};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Larger files are refused; the largest that a client is known to have is some megabytes.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The directory that files are written below, locked against another `fence setup`.
#[derive(Debug)]
pub struct Locked {
    /// The lock ends with it.
    _directory: File,
}

/// Waits for another `fence setup` here, which takes no longer than writing a few files.
pub fn lock(directory: &Path) -> Result<Locked> {
    let failed =
        |e: io::Error| Error::unavailable(format!("`{}` cannot be locked: {e}", directory.display()));
    let directory = File::open(directory).map_err(failed)?;
    flock(&directory, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    Ok(Locked { _directory: directory })
}

/// The file to write for this path. In a project no link is followed: a cloned repository may contain one to anywhere. The user's own
/// settings may be links, to a directory under version control, and stay links.
pub fn target(base: &Path, path: &Path, follow_links: bool) -> Result<PathBuf> {
    if follow_links {
        return match path.is_symlink() {
            true => fs::canonicalize(path).map_err(|e| unusable(path, &e)),
            false => Ok(path.to_owned()),
        };
    }
    let below = path.ancestors().take_while(|ancestor| *ancestor != base);
    let links = below.map(refuse_link).collect::<Result<Vec<()>>>();
    links.map_err(|e| e.hint("remove it, or use --user")).map(|_| path.to_owned())
}

/// The text of a file; `None` if there is no file.
pub fn read(path: &Path) -> Result<Option<String>> {
    match files::text(path, LARGEST) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(path, &e)),
    }
}

/// A change of one file.
#[derive(Debug)]
pub struct Change {
    pub path: PathBuf,
    /// The directory that is never removed.
    pub base: PathBuf,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Writes all files, or none: every new text is on the disk before the first file changes.
pub fn write(changes: &[Change]) -> Result<()> {
    let mut drafts = Vec::new();
    for change in changes {
        drafts.push(Draft::prepare(change)?);
    }
    // The clients write these files, too, and do not take our lock.
    for change in changes {
        if read(&change.path)? != change.before {
            return Err(Error::unavailable(format!(
                "`{}` was changed by another program meanwhile; nothing was written",
                change.path.display()
            ))
            .hint("run the command again"));
        }
    }
    let mut written: Vec<String> = Vec::new();
    for (change, draft) in changes.iter().zip(drafts) {
        if let Err(e) = draft.publish(change) {
            let written = if written.is_empty() { "nothing".into() } else { written.join(", ") };
            return Err(unwritable(&change.path, &e).hint(format!(
                "{written} was written before that; repair this file, and run the command again"
            )));
        }
        written.push(change.path.display().to_string());
    }
    Ok(())
}

/// A new text beside its file, or nothing if the file goes away.
#[derive(Debug)]
struct Draft {
    file: Option<PathBuf>,
    /// Directories that were made for it.
    made: Vec<PathBuf>,
}

impl Draft {
    fn prepare(change: &Change) -> Result<Self> {
        let failed = |e: io::Error| unwritable(&change.path, &e);
        let mut draft = Self { file: None, made: Vec::new() };
        let Some(text) = &change.after else { return Ok(draft) };
        let directory = change.path.parent().unwrap_or(Path::new("."));
        let missing: Vec<_> =
            directory.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect();
        for directory in missing.into_iter().rev() {
            fs::create_dir(&directory).map_err(failed)?;
            draft.made.push(directory);
        }
        let path = directory.join(unique(".fence-setup-"));
        // A file that is there may hold secrets, and so may its draft. A new one gets the mode that the user's umask gives.
        let mode = fs::metadata(&change.path).ok().map(|about| about.permissions().mode() & 0o7777);
        let mut open = OpenOptions::new();
        open.write(true).create_new(true);
        if mode.is_some() {
            open.mode(0o600);
        }
        let mut file = open.open(&path).map_err(failed)?;
        draft.file = Some(path);
        if let Some(mode) = mode {
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(draft)
    }

    fn publish(mut self, change: &Change) -> io::Result<()> {
        match &self.file {
            Some(draft) => fs::rename(draft, &change.path)?,
            None => {
                fs::remove_file(&change.path)?;
                // Directories that are empty now go, too; others stay.
                let parents = change.path.ancestors().skip(1).take_while(|dir| *dir != change.base);
                let _ = parents.map(fs::remove_dir).take_while(io::Result::is_ok).count();
            }
        }
        (self.file, self.made) = (None, Vec::new());
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(draft) = &self.file {
            let _ = fs::remove_file(draft);
        }
        for directory in self.made.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn unusable(path: &Path, why: &io::Error) -> Error {
    Error::new(Code::Invalid, format!("`{}` cannot be read: {why}", path.display()))
}

fn unwritable(path: &Path, why: &io::Error) -> Error {
    Error::unavailable(format!("`{}` cannot be written: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: PathBuf, before: Option<&str>, after: Option<&str>) -> Change {
        let base = path.ancestors().nth(3).expect("a base").to_owned();
        Change { path, base, before: before.map(str::to_owned), after: after.map(str::to_owned) }
    }

    #[test]
    fn a_file_that_another_program_changed_stops_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let (new, old) = (dir.path().join("a/b/new"), dir.path().join("c/d/old"));
        fs::create_dir_all(dir.path().join("c/d")).expect("made");
        fs::write(&old, "theirs").expect("written");
        let refused =
            write(&[change(new.clone(), None, Some("x")), change(old.clone(), Some("seen"), Some("y"))]);
        let refused = refused.expect_err("changed");
        assert!(
            refused.message().ends_with("changed by another program meanwhile; nothing was written"),
            "{refused:?}"
        );
        assert!(!dir.path().join("a").exists(), "no directory is left");
        assert_eq!(fs::read_dir(dir.path().join("c/d")).expect("listed").count(), 1, "no draft is left");
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("set");
        write(&[change(new.clone(), None, Some("x")), change(old.clone(), Some("theirs"), Some("y"))])
            .expect("written");
        assert_eq!(fs::metadata(&old).expect("there").permissions().mode() & 0o777, 0o640);
        write(&[change(new, Some("x"), None), change(old.clone(), Some("y"), Some("theirs"))])
            .expect("written");
        assert!(!dir.path().join("a").exists(), "empty directories go");
        assert_eq!(fs::read_to_string(&old).expect("there"), "theirs");
    }
}
