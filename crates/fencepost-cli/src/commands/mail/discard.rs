use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Give up messages that nobody processes; `mail redrive` brings them back
#[derive(Debug, Args)]
pub struct Discard {
    /// The messages, such as 7
    #[arg(value_name = "ID", value_parser = super::number, required = true)]
    messages: Vec<i64>,
    /// The reason, which is kept with the messages
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Discard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Discard { messages: self.messages, reason: self.reason }).await?;
        context.print(&reply, |reply| format!("gave up {}", text::how_many(reply.messages.len())))
    }
}
