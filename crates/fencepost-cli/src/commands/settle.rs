use super::{duration, json, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Code, Millis, Result, run, run::settle::Outcome};
use std::process::ExitCode;

/// Finish a polled run: complete or fail everything it still holds
///
/// Tasks are completed, messages and mentions are read, notices are done. With --failed they are tried again while attempts are
/// left. With --released they go back as they were. An offer that was neither accepted nor rejected is open again; after three
/// times it goes to the pool. The --output of work that is not done is kept with the run, and `fence log TASK` shows its end.
/// Exits 5 if the run is over, or if it lost a claim meanwhile; then the work under that claim is not accepted.
///
/// Examples:
///   fence settle bob-7f3a9c01b2d4 --output "see schema.sql"
///   fence settle bob-7f3a9c01b2d4 --failed "the network is down" --exit 1 --cost '{"usd": 0.12}'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Settle {
    /// The run, as `poll` printed it
    #[arg(value_name = "RUN")]
    name: String,
    /// The work failed, for this reason
    #[arg(long, value_name = "REASON", conflicts_with = "released")]
    failed: Option<String>,
    /// Give everything back; the attempt does not count
    #[arg(long)]
    released: bool,
    /// The result, kept with the task or the messages: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    output: Option<String>,
    /// Tasks and messages that failed or are given back can be taken again after this long  [default: a backoff after a failure,
    /// at once if given back]
    #[arg(long, value_parser = duration, value_name = "DURATION", allow_hyphen_values = true)]
    delay: Option<Millis>,
    /// The exit of its process, such as 0 or SIGKILL
    #[arg(long, value_name = "TEXT")]
    exit: Option<String>,
    /// The cost: JSON, @file, or - for standard input. Of an object, `usd`, `tokens_in` and `tokens_out` count for the spend limits
    /// (fence spend); the rest is kept in a form of your choice
    #[arg(long, value_name = "JSON")]
    cost: Option<String>,
}

impl Settle {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let outcome = match (&self.failed, self.released) {
            (Some(_), _) => Outcome::Failed,
            (None, true) => Outcome::Released,
            (None, false) => Outcome::Done,
        };
        let op = run::Settle {
            run: self.name,
            outcome,
            output: self.output.map(text).transpose()?,
            reason: self.failed,
            delay_ms: self.delay,
            exit: self.exit,
            cost: self.cost.map(|cost| json("cost", cost)).transpose()?,
        };
        let reply = context.call(op).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| {
            let reason = reply.run.reason.as_deref().unwrap_or("ended");
            let mut page = format!("run {} is over: {reason}", reply.run.name);
            for (what, tokens) in [
                ("settled", &reply.settled),
                ("given back", &reply.back),
                ("finished before", &reply.left),
                ("lost, so the work is not accepted", &reply.lost),
            ] {
                if !tokens.is_empty() {
                    page += &format!("\n{what}: {}", tokens.join(", "));
                }
            }
            page
        })?;
        Ok(if reply.lost.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(Code::LeaseExpired.exit_code())
        })
    }
}
