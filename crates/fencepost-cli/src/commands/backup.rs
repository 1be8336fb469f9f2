use crate::{context::Context, private_files::make_directory};
use clap::Args;
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, process::ExitCode};

/// Copy the fleet to a new file, while others use it
///
/// To put it back: stop everything, and put the copy where the fleet was, without the fleet's -wal and -shm files.
/// It is recognised as a copy, and no fence is given out twice. A fleet on PostgreSQL is copied by pg_dump.
///
/// Examples:
///   fence backup ../fence-before-the-release.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Backup {
    /// Where to; nothing may be there. Directories that are missing are made
    file: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Copied {
    file: String,
    bytes: u64,
}

impl Backup {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let shown = self.file.display().to_string();
        let fleet = context.connection().await?;
        if let Some(directory) = self.file.parent() {
            make_directory(directory).map_err(|e| {
                Error::unavailable(format!("cannot make the directory `{}`: {e}", directory.display()))
            })?;
        }
        fleet.backup(&self.file).await?;
        let size = std::fs::metadata(&self.file).map_err(|e| {
            Error::new(Code::Internal, format!("`{shown}` was written, but cannot be read: {e}"))
        })?;
        context.print(&Copied { file: shown, bytes: size.len() }, |copied| {
            format!("the fleet was copied to {} ({} KiB)", copied.file, copied.bytes.div_ceil(1024))
        })
    }
}
