use super::{json, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Code, Result, run, run::settle::Outcome};
use std::process::ExitCode;

/// End a trigger's run with its outcome: all that the trigger gave, and you did not settle one by one, at once
///
/// Tasks are completed, messages and mentions read, notices dealt with. With --failed they are tried again while attempts
/// are left, with --released they go back as they were. An offer that was not decided is open again; after three times it
/// goes to the pool. Exits 5 if the run is over, or if something was taken from it meanwhile: what you did there is then
/// not accepted.
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
    /// It did not work, and why
    #[arg(long, value_name = "REASON", conflicts_with_all = ["released", "output"])]
    failed: Option<String>,
    /// Give it back: the attempt does not count
    #[arg(long, conflicts_with = "output")]
    released: bool,
    /// What came of it, kept with the task or the messages: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    output: Option<String>,
    /// How its process ended, such as 0 or SIGKILL
    #[arg(long, value_name = "TEXT")]
    exit: Option<String>,
    /// What it cost, in words of your own: JSON, @file, or - for standard input
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
                ("dealt with before", &reply.left),
                ("lost, and what was done there is not accepted", &reply.lost),
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
