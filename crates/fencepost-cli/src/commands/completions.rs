use crate::{context::Context, output::streams};
use clap::Args;
use clap_complete::Shell;
use fencepost::Result;
use std::process::ExitCode;

/// Print the completion script for a shell
///
/// Examples:
///   source <(fence completions bash)
///   fence completions zsh > ~/.zfunc/_fence
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut context.command_line(), "fence", &mut script);
        streams::print(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}
