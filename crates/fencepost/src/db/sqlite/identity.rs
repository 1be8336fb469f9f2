//! Is this still the fleet that was opened? Asked as each transaction opens.
//!
//! A file that is renamed or deleted stays open: this process would go on with the old one, and whoever opens the path
//! gets another. Looking at the path takes a microsecond.

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
pub(super) struct Identity {
    path: PathBuf,
    /// Device and inode. No other file has this number while we have this one open.
    file: (u64, u64),
}

impl Identity {
    /// Of a file that is open already.
    pub fn of(path: &Path) -> Result<Self> {
        // The process may go to another directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match file(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(e) => Err(Error::unavailable(format!("cannot look at `{}`: {e}", path.display()))),
        }
    }

    pub fn check_file(&self) -> Result<()> {
        let path = self.path.display();
        match file(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            Ok(_) => Err(Error::lasting(format!("`{path}` was replaced by another file")).hint(
                "stop every process that had the old file open (servers, workers), then start them again",
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::lasting(format!(
                "`{path}` was deleted or moved away"
            ))
            .hint(
                "stop every process that had it open, put it back or restore a backup, then start them again",
            )),
            Err(e) => Err(Error::unavailable(format!("cannot look at `{path}`: {e}"))),
        }
    }

    /// The row of `fleet`, with `schema_version` and `restored`. A backup that was copied into the file says that it is
    /// one until a process opens it.
    pub fn check_fleet(&self, fleet: &Row) -> Result<()> {
        migrate::refuse_changed(fleet.get("schema_version")?)?;
        if fleet.get("restored")? {
            return Err(Error::lasting(format!("a backup was copied into `{}`", self.path.display()))
                .hint("stop every process that has it open, then start them again"));
        }
        Ok(())
    }
}

fn file(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::metadata(path)?;
    Ok((about.dev(), about.ino()))
}
