use super::duration;
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, task};
use std::process::ExitCode;

/// Take a task: the one named, or the best that is ready
///
/// Exits 3 if there is nothing to take, 4 if it is not yours to take.
///
/// Examples:
///   fence claim --board auth
///   fence claim auth-3 --ttl 10m
///   TOKEN=$(fence claim -q)
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Claim {
    /// The task  [default: the best that is ready]
    #[arg(value_name = "ID")]
    task: Option<String>,
    /// Only of this board
    #[arg(long, conflicts_with = "task")]
    board: Option<String>,
    /// Only with this tag
    #[arg(long, conflicts_with = "task")]
    tag: Option<String>,
    /// How long this run may go unheard before others get what it holds (default: 30m)
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    ttl: Option<Millis>,
    /// The longest that the claim may last, however often it is renewed
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    max: Option<Millis>,
    /// If this run has the task already, give its token again
    #[arg(long, requires = "task")]
    resume: bool,
    /// Print only the token
    #[arg(long, short)]
    quiet: bool,
}

impl Claim {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Claim {
            task: self.task,
            board: self.board,
            tag: self.tag,
            run: context.run(),
            agent: context.agent(),
            ttl_ms: self.ttl,
            max_ms: self.max,
            resume: self.resume,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match self.quiet {
            true => reply.claim.token.clone(),
            false => crate::text::claimed(&reply.claim, &reply.task, &context.screen),
        })
    }
}
