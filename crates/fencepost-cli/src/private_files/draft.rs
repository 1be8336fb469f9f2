//! Writing a file that nobody sees half written.

use super::make_directory;
use crate::names::unique;
use fencepost::{Code, Error, Result};
use std::{
    fs::{self, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// A file that gets its name once it is complete.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    draft: PathBuf,
    file: BufWriter<fs::File>,
    bytes: u64,
    force: bool,
}

impl Draft {
    pub fn create(path: &Path, force: bool) -> Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(existing) if !existing.is_file() => {
                return Err(Error::new(
                    Code::Invalid,
                    format!("`{}` exists, and is not a file", path.display()),
                )
                .hint("name a new file; - is standard output"));
            }
            Ok(_) if !force => return Err(exists(path)),
            _ => {}
        }
        let failed = |e: io::Error| unwritable(path, &e);
        let directory = path.parent().unwrap_or(Path::new(""));
        make_directory(directory).map_err(failed)?;
        let draft = directory.join(unique(".fence-export-"));
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        Ok(Self { path: path.into(), draft, file: BufWriter::new(file), bytes: 0, force })
    }

    pub fn write(&mut self, text: &str) -> Result<()> {
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes()).map_err(|e| unwritable(&self.path, &e))
    }

    /// Gives the file its name, and returns its size.
    pub fn publish(mut self) -> Result<u64> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|e| unwritable(&self.path, &e))?;
        // A hard link fails if somebody has created the file meanwhile; a rename would replace it.
        let named = match self.force {
            true => fs::rename(&self.draft, &self.path),
            false => fs::hard_link(&self.draft, &self.path),
        };
        match named {
            Ok(()) => Ok(self.bytes),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.path)),
            // Not every file system has hard links.
            Err(_) if !self.force && fs::symlink_metadata(&self.path).is_err() => {
                fs::rename(&self.draft, &self.path).map_err(|e| unwritable(&self.path, &e))?;
                Ok(self.bytes)
            }
            Err(e) => Err(unwritable(&self.path, &e)),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.draft);
    }
}

fn exists(path: &Path) -> Error {
    Error::new(Code::Invalid, format!("`{}` exists already", path.display()))
        .hint("name another file; --force replaces it")
}

fn unwritable(path: &Path, why: &io::Error) -> Error {
    Error::unavailable(format!("`{}` cannot be written: {why}", path.display()))
}
