use crate::{context::Context, private_files::make_directory};
use clap::Args;
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, process::ExitCode};

/// Copy a fleet's database to a new file, while others use it
///
/// To restore a copy, stop all agents, replace the database by the copy, and delete the database's -wal and -shm files. fence
/// recognises a restored copy, so that no fence is issued twice. To copy a fleet on PostgreSQL, use pg_dump.
///
/// Examples:
///   fence backup ../fence-before-the-release.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Backup {
    /// The new file, which must not exist; missing directories are created
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
