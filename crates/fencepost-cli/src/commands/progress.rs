use super::Held;
use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, Token, task};
use std::process::ExitCode;

/// Report progress on a task you hold, and renew your lease
///
/// Examples:
///   fence progress "the tests pass, the docs are left"
///   fence progress "half of it" task/auth-3@42
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Progress {
    /// The progress, in a few words
    text: String,
    #[command(flatten)]
    held: Held,
}

impl Progress {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Self { mut text, mut held } = self;
        // Other commands have the token first, so both orders are accepted.
        if let Some(token) = held.token.as_mut().filter(|token| token.parse::<Token>().is_err())
            && text.parse::<Token>().is_ok()
        {
            std::mem::swap(token, &mut text);
        }
        let token = held.token(context).await?;
        let op = task::Progress { token, text, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
