use super::{super::duration, text};
use crate::context::Context;
use clap::{Args, ValueEnum};
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Change the settings of a mailbox; options that are not given keep their values
///
/// Examples:
///   fence mail configure session/42 --max-attempts 5 --backoff 30s
///   fence mail configure orders --strict            one message at a time per lane
///   fence mail configure payments --replay hold     if a holder is lost, wait for a person
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Configure {
    /// The mailbox, such as session/42; created if it does not exist
    mailbox: String,
    /// Keep the order within each lane, one message at a time; only a new mailbox can be made strict
    #[arg(long)]
    strict: bool,
    /// The lease of a run that claims without --ttl
    #[arg(long, value_parser = duration)]
    ttl: Option<Millis>,
    /// The most attempts, for messages that are pushed from now on
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i64>,
    /// The backoff after the first failure, doubled with each further one
    #[arg(long, value_parser = duration)]
    backoff: Option<Millis>,
    /// The replay policy: how a message is handled if its holder was lost
    #[arg(long, value_enum)]
    replay: Option<Replay>,
    /// How long finished messages are kept; those with a key are kept for at least 7 days
    #[arg(long, value_parser = duration)]
    retain: Option<Millis>,
    /// The most finished messages to keep, the latest; 0 for no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    retain_count: Option<i64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Replay {
    /// It is pending again, while attempts are left
    Retry,
    /// It is held until a person redrives or discards it
    Hold,
    /// It fails, with the outcome `discarded`
    Discard,
}

impl From<Replay> for mail::Replay {
    fn from(replay: Replay) -> Self {
        match replay {
            Replay::Retry => Self::Retry,
            Replay::Hold => Self::Hold,
            Replay::Discard => Self::Discard,
        }
    }
}

impl Configure {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = mail::Configure {
            mailbox: self.mailbox,
            strict: self.strict.then_some(true),
            ttl_ms: self.ttl,
            max_attempts: self.max_attempts,
            backoff_ms: self.backoff,
            replay: self.replay.map(Into::into),
            retain_ms: self.retain,
            retain_count: self.retain_count,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| text::mailbox(&reply.mailbox, &context.terminal))
    }
}
