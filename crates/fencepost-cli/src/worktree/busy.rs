//! The mark of a tree that is being made, merged in or removed: a locked file beside it, `NAME.busy`.
//!
//! A tree with a mark holds no work of anybody. The lock ends with its process, so a mark without a lock shows that the process
//! died, and the tree can be removed.

use crate::{identity::process, location::device_and_inode};
use fencepost::{Error, Result};
use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const EXTENSION: &str = ".busy";
/// How often to look whether a mark that we made and could not lock is gone.
const SWEEP_LOOKS: u32 = 1000;

#[derive(Debug)]
pub struct Busy {
    path: PathBuf,
    _locked: File,
    /// Another process left the mark behind.
    pub was_left: bool,
}

impl Busy {
    /// Marks the tree; `None` if a living process has marked it.
    pub fn mark(tree: &Path) -> Result<Option<Self>> {
        let path = mark_of(tree);
        let failed = |e: io::Error| Error::unavailable(format!("cannot lock `{}`: {e}", path.display()));
        let mut looks = 0;
        loop {
            let (file, was_left) = match File::options().append(true).create_new(true).open(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    match File::options().append(true).open(&path) {
                        Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                        file => (file.map_err(failed)?, true),
                    }
                }
                file => (file.map_err(failed)?, false),
            };
            match file.try_lock() {
                Ok(()) => {}
                // Somebody who cleans up has locked our new mark before us, and removes it soon.
                Err(TryLockError::WouldBlock) if (!was_left || looks > 0) && looks < SWEEP_LOOKS => {
                    looks += 1;
                    process::look_again_later();
                    continue;
                }
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
            // Its last owner may have removed the file before we locked it.
            let ours = file.metadata().map_err(failed)?;
            if device_and_inode(&path) == Some((ours.dev(), ours.ino())) {
                return Ok(Some(Self { path, _locked: file, was_left }));
            }
        }
    }

    /// The tree is complete, or gone.
    pub fn unmark(self) {
        let _ = fs::remove_file(&self.path);
    }
}

pub fn is_marked(tree: &Path) -> bool {
    mark_of(tree).exists()
}

/// The trees in this directory that are marked.
pub fn marked(trees: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(trees).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // A name with a dot in front could be the directory itself, or the one above it.
    let trees_of = |name: String| {
        let tree = name.strip_suffix(EXTENSION).filter(|tree| !tree.is_empty() && !tree.starts_with('.'))?;
        Some(trees.join(tree))
    };
    names.filter_map(trees_of).collect()
}

fn mark_of(tree: &Path) -> PathBuf {
    let mut mark = tree.as_os_str().to_owned();
    mark.push(EXTENSION);
    mark.into()
}
