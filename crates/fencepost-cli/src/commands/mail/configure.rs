use super::{super::duration, text};
use crate::context::Context;
use clap::{Args, ValueEnum};
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Say how a mailbox works; what is not given stays as it is
///
/// Examples:
///   fence mail configure session/42 --max-attempts 5 --backoff 30s
///   fence mail configure orders --strict            one message at a time of each lane, for good
///   fence mail configure payments --replay hold     if a holder is lost, a person says what follows
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Configure {
    /// The mailbox, such as session/42; made if it is not there
    mailbox: String,
    /// Keep to the order of each lane, whatever becomes of a message: only a new mailbox can be made strict
    #[arg(long)]
    strict: bool,
    /// The lease of a run that claims here and does not say otherwise
    #[arg(long, value_parser = duration)]
    ttl: Option<Millis>,
    /// How often a message may be claimed before it has failed; for messages that are pushed from now on
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i64>,
    /// The pause after the first failure, doubled with each
    #[arg(long, value_parser = duration)]
    backoff: Option<Millis>,
    /// What becomes of a message whose holder was lost in the middle of it
    #[arg(long, value_enum)]
    replay: Option<Replay>,
    /// How long a finished message is kept; what has a key is kept for 7 days in any case
    #[arg(long, value_parser = duration)]
    retain: Option<Millis>,
    /// How many finished messages are kept, the latest; 0 for any number
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    retain_count: Option<i64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Replay {
    /// It is handed out again, while attempts are left
    Retry,
    /// It is held until a person says what becomes of it
    Hold,
    /// It has failed, with outcome `discarded`
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
