use super::{super::json, Held};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Record how far the work on a message has come, for whoever claims it next
///
/// Ordinals only go up: a checkpoint that arrives late changes nothing, and the newer one is the answer.
///
/// Example:
///   fence mail checkpoint 2 "asked the model" message/7@1 --data '{"request": "r-81"}'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Checkpoint {
    /// Higher than that of the checkpoint before, also across attempts
    ordinal: i64,
    /// How far it is, in a few words
    phase: String,
    #[command(flatten)]
    held: Held,
    /// JSON, @file, or - for standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

impl Checkpoint {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = self.held.token(context).await?;
        let data = self.data.map(|given| json("data", given)).transpose()?;
        let op = mail::SaveCheckpoint { token, ordinal: self.ordinal, phase: self.phase, data };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| format!("{} {}", reply.checkpoint.ordinal, reply.checkpoint.phase))
    }
}
