use super::Held;
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, claim};
use std::process::ExitCode;

/// Give back a claim without finishing it
#[derive(Debug, Args)]
#[command(alias = "abandon")]
pub struct Release {
    #[command(flatten)]
    held: Held,
    /// A note for the next holder
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl Release {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = self.held.token(context).await?;
        let reply = context.call(claim::Release { token, note: self.note }).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| format!("{} is {}", reply.resource, reply.status))
    }
}
