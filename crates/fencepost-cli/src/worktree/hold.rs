//! The lock of the process that works in a tree, on the directory itself. It ends with the last copy of its [`Tree`](super::Tree), or
//! with the process.

use crate::location::device_and_inode;
use fencepost::{Error, Result};
use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

/// How often to look whether a tree was left: no event tells it.
const LOOK: Duration = Duration::from_millis(100);

pub type Hold = Arc<File>;

/// Locks the tree; `None` if another process works in it, or removed it at this moment.
pub fn hold(tree: &Path) -> Result<Option<Hold>> {
    let failed = |e: io::Error| Error::unavailable(format!("cannot lock `{}`: {e}", tree.display()));
    let directory = File::open(tree).map_err(failed)?;
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        // A file system may have no locks for directories: NFS has none.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let ours = directory.metadata().map_err(failed)?;
    Ok((device_and_inode(tree) == Some((ours.dev(), ours.ino()))).then(|| Arc::new(directory)))
}

/// Returns when no process works in the tree, or the tree is gone.
pub async fn until_left(tree: &Path) {
    while matches!(hold(tree), Ok(None)) {
        tokio::time::sleep(LOOK).await;
    }
}
