use super::super::duration;
use crate::context::Context;
use clap::{Args, ValueEnum};
use fencepost::{
    Millis, Result,
    storm::{self, breaker::BreakerChange},
};
use std::process::ExitCode;

/// Open or close the breaker by hand
///
/// While it is open, no new wake-ups are scheduled; pending and running ones go on. It opens by itself when too many wake-ups are
/// pending and running (breaker_backlog_threshold), and closes after breaker_cooldown if their number fell. A breaker that you open
/// stays open until you close it, or for --for. A breaker that you close opens again if the number is still too high.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Breaker {
    /// open or close
    state: State,
    /// Close it again after this long  [default: until you close it]
    #[arg(long = "for", value_parser = duration, value_name = "DURATION", allow_hyphen_values = true)]
    span: Option<Millis>,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Open,
    Close,
}

impl Breaker {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let state = match self.state {
            State::Open => BreakerChange::Open,
            State::Close => BreakerChange::Close,
        };
        let reply = context.call(storm::Breaker { state, for_ms: self.span, reason: self.reason }).await?;
        context.print(&reply, |reply| match (reply.open, reply.open_until) {
            (false, _) => "the breaker is closed".into(),
            (true, Some(until)) => format!("the breaker is open {}", context.terminal.until(until)),
            (true, None) => "the breaker is open until fence storm breaker close".into(),
        })
    }
}
