use super::{super::body, Which, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Store a response to a message
///
/// fence does not post the response. The message has the channel and the thread to post it to.
///
/// Example:
///   fence inbox respond message/7@1 "it is up again"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Respond {
    #[command(flatten)]
    which: Which,
    /// The response, or - for standard input
    text: String,
}

impl Respond {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let text = body(self.text)?;
        let reply =
            context.call(inbox::Respond { message: self.which.message(context).await?, text }).await?;
        context.print(&reply, |reply| text::item(&reply.item, &context.terminal))
    }
}
