use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, loops};
use std::process::ExitCode;

/// Cancel a loop: its chains stop, and stories that have not ended are skipped
///
/// Examples:
///   fence loop cancel auth-v1 --reason "the plan is wrong"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Cancel {
    #[arg(value_name = "LOOP")]
    id: String,
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Cancel {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(loops::Cancel { id: self.id, reason: self.reason }).await?;
        context.print(&reply, |reply| text::whole(&reply.brief, &reply.stories, &context.terminal))
    }
}
