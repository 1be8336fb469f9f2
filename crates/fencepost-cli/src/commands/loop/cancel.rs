use super::text;
use crate::{context::Context, session};
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
        let reply = context.call(loops::Cancel { id: self.id.clone(), reason: self.reason }).await?;
        // A loop is a board.
        let is_story = |resource: &str| {
            let task = resource.strip_prefix("task/").and_then(|task| task.rsplit_once('-'));
            task.is_some_and(|(board, _)| board == self.id)
        };
        session::ended_where(context, "release", |token, _| is_story(session::resource(token)));
        context.print(&reply, |reply| text::whole(&reply.brief, &reply.stories, &context.terminal))
    }
}
