use super::{Held, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Complete a task that you hold
///
/// Exits 5 if the claim is over: what you did is then not accepted.
#[derive(Debug, Args)]
pub struct Done {
    #[command(flatten)]
    held: Held,
    /// What came of it: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    output: Option<String>,
}

impl Done {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let output = self.output.map(text).transpose()?;
        let reply = context.call(task::Done { token: self.held.token(context).await?, output }).await?;
        keeper::nudge(context);
        context.print(&reply, |reply| crate::text::task(&reply.task, &context.screen))
    }
}
