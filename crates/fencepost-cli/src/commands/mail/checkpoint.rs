use super::{super::json, Held};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Save a checkpoint of a message that you hold, from which the next attempt can go on
///
/// Ordinals only rise: a checkpoint that arrives late changes nothing, and the reply is the newer one.
///
/// Example:
///   fence mail checkpoint 2 "asked the model" message/7@1 --data '{"request": "r-81"}'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Checkpoint {
    /// A number higher than that of the last checkpoint, also across attempts
    ordinal: i64,
    /// The phase that the work has reached, in a few words
    phase: String,
    #[command(flatten)]
    held: Held,
    /// Data for the next attempt: JSON, @file, or - for standard input
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
