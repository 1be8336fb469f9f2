use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, loops};
use std::process::ExitCode;

/// Run the stories again that have not passed, from their first step
///
/// Claims on them end, so a chain that runs is refused. A loop that is over becomes active again. Stories that have passed stay as they
/// are.
///
/// Examples:
///   fence loop restart auth-v1 --reason "the API is up again"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Restart {
    #[arg(value_name = "LOOP")]
    id: String,
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Restart {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = loops::Restart { id: self.id, reason: self.reason, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| text::whole(&reply.brief, &reply.stories, &context.terminal))
    }
}
