use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Give messages up that nobody works on; `mail redrive` brings them back
#[derive(Debug, Args)]
pub struct Discard {
    /// The messages, such as 7
    #[arg(value_name = "ID", value_parser = super::number, required = true)]
    messages: Vec<i64>,
    /// Whoever looks at them later is told
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Discard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Discard { messages: self.messages, reason: self.reason }).await?;
        context.print(&reply, |reply| format!("gave up {}", text::how_many(reply.messages.len())))
    }
}
