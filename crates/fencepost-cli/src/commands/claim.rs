use super::{duration, refused};
use crate::{context::Context, keeper};
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
///   TOKEN=$(fence claim -q --keep)
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["take", "start", "begin", "grab", "pick"])]
pub struct Claim {
    /// The task  [default: the best that is ready]
    #[arg(value_name = "ID", value_parser = super::task_id)]
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
    /// If there is nothing to take, wait for it this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
    /// If this run has the task already, give its token again
    #[arg(long, requires = "task")]
    resume: bool,
    /// Keep it alive for as long as this terminal or agent lives: a small process stays behind and renews the run
    #[arg(long)]
    keep: bool,
    /// Print only the token
    #[arg(long, short)]
    quiet: bool,
}

impl Claim {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let owner = self.keep.then(|| keeper::owner(context)).transpose()?;
        let op = |wait_ms| task::Claim {
            task: self.task.clone(),
            board: self.board.clone(),
            tag: self.tag.clone(),
            run: context.run(),
            agent: context.agent(),
            ttl_ms: self.ttl,
            max_ms: self.max,
            resume: self.resume,
            request: context.request(),
            wait_ms,
        };
        let reply = match self.wait {
            None => context.call(op(None)).await?,
            wait => context.call_while_read(wait, op, refused).await?,
        };
        let kept = owner.map(|owner| keeper::keep(context, owner, &reply.claim)).transpose();
        context.print(&reply, |reply| match (self.quiet, &kept) {
            (true, _) => reply.claim.token.clone(),
            (false, Ok(Some(pid))) => {
                let page = crate::output::tasks::claimed(&reply.claim, &reply.task, &context.terminal);
                format!("{}\n\nkept alive by process {pid} as long as this session lives", page.trim_end())
            }
            (false, _) => crate::output::tasks::claimed(&reply.claim, &reply.task, &context.terminal),
        })?;
        if self.quiet {
            context.warn_of_lease(&reply.claim);
        }
        // The claim stands, so its token was printed; that nobody renews it is for the caller to know.
        if let Err(e) = kept {
            context.warn(&e);
        }
        Ok(ExitCode::SUCCESS)
    }
}
