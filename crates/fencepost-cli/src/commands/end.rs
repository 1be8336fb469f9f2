use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, run};
use std::process::ExitCode;

/// End a run: its tokens become invalid, and its items go back
///
/// For a worker that died, or when you stop for the day.
///
/// Examples:
///   fence end claude-7f3a --reason "its process died"
///   fence end                        end your own run
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "kill")]
pub struct End {
    /// The run  [default: your own]
    #[arg(value_name = "RUN")]
    name: Option<String>,
    /// The reason, which is kept
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl End {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let run = self.name.unwrap_or_else(|| context.run());
        let reply = context.call(run::End { run, reason: self.reason, ..run::End::default() }).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| {
            let reason = reply.run.reason.as_deref().unwrap_or("ended");
            format!("run {} is over: {reason}", reply.run.name)
        })
    }
}
