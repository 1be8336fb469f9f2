use super::{super::speech, Which, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Answer a message: the answer is stored with it
///
/// Nothing is posted: the message says in which channel and thread it was said, and whoever answers it posts there.
///
/// Example:
///   fence inbox respond message/7@1 "it is up again"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Respond {
    #[command(flatten)]
    which: Which,
    /// The answer; - for standard input
    text: String,
}

impl Respond {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let text = speech(self.text)?;
        let reply =
            context.call(inbox::Respond { message: self.which.message(context).await?, text }).await?;
        context.print(&reply, |reply| text::item(&reply.item, &context.terminal))
    }
}
