//! The file that was opened, checked at the start of each transaction: is it still the fleet at its path?
//!
//! A file that is renamed or deleted stays open. This process would go on with the old file, and a process that opens
//! the path would use another. The check of the path takes a microsecond.

use crate::{
    db::{Row, migrate},
    error::{Error, Result},
};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    /// Device and inode. No other file has these numbers while we have this one open.
    file: (u64, u64),
}

impl OpenedFile {
    /// The file at this path, which is already open.
    pub fn of(path: &Path) -> Result<Self> {
        // The process may change its directory later.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match file(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(e) => Err(Error::unavailable(format!("cannot read the state of `{}`: {e}", path.display()))),
        }
    }

    /// Refuses if the path leads to another file, or to none.
    pub fn check_path(&self) -> Result<()> {
        let path = self.path.display();
        match file(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            Ok(_) => Err(Error::fleet_changed(format!("`{path}` was replaced by another file")).hint(
                "stop every process that had the old file open (servers, workers), then start them again",
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::fleet_changed(format!(
                "`{path}` was deleted or moved away"
            ))
            .hint(
                "stop every process that had it open, put it back or restore a backup, then start them again",
            )),
            Err(e) => Err(Error::unavailable(format!("cannot read the state of `{path}`: {e}"))),
        }
    }

    /// Refuses if the row of `fleet` has another `schema_version`, or says `restored`: a backup that was copied into
    /// the file says so until a process opens it.
    pub fn check_fleet(&self, fleet: &Row) -> Result<()> {
        migrate::refuse_changed(fleet.get("schema_version")?)?;
        if fleet.get("restored")? {
            return Err(Error::fleet_changed(format!("a backup was copied into `{}`", self.path.display()))
                .hint("stop every process that has it open, then start them again"));
        }
        Ok(())
    }
}

fn file(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::metadata(path)?;
    Ok((about.dev(), about.ino()))
}
