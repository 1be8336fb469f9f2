use crate::context::Context;
use clap::Args;
use fencepost::{Code, Error, Result};
use std::{path::PathBuf, process::ExitCode};

/// Write the manual pages: fence.1, and one for each command
///
/// `make install` runs it. Examples:
///   fence man ~/.local/share/man/man1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, hide = true)]
pub struct Man {
    /// The directory; created if it does not exist
    #[arg(value_name = "DIR")]
    to: PathBuf,
}

impl Man {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let written = std::fs::create_dir_all(&self.to)
            .and_then(|()| clap_mangen::generate_to(context.command_line(), &self.to));
        written.map_err(|e| {
            Error::new(Code::Invalid, format!("`{}` cannot be written to: {e}", self.to.display()))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
