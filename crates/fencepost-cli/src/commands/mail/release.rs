use super::{resource, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Give back messages without processing them; they keep their position, and the attempt does not count
///
/// Examples:
///   fence mail release message/7@1 message/8@1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Release {
    /// The tokens that `mail claim` printed  [default: FENCE_CLAIM, else this run's only claim]
    #[arg(value_name = "TOKEN")]
    tokens: Vec<String>,
}

impl Release {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut tokens = Vec::new();
        for token in &self.tokens {
            tokens.push(context.token(Some(resource(token))).await?);
        }
        if tokens.is_empty() {
            tokens.push(context.token(None).await?);
        }
        let reply = context.call(mail::Release { tokens }).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| text::messages(&reply.messages, &context.terminal))
    }
}
