use super::{duration, wait_reason};
use crate::{context::Context, environment::sandbox, keeper, output::tasks::claimed};
use clap::Args;
use fencepost::{Code, Error, Millis, Result, task};
use std::process::ExitCode;

/// Claim a task: the named one, or the best that is ready
///
/// Exits 3 if nothing is ready, and 4 if the named task cannot be claimed.
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
    /// Only tasks of this board
    #[arg(long, conflicts_with = "task")]
    board: Option<String>,
    /// Only tasks with this tag
    #[arg(long, conflicts_with = "task")]
    tag: Option<String>,
    /// Lease: others may claim this run's items if it is not renewed for this long  [default: 30m]
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    ttl: Option<Millis>,
    /// The longest time that the claim may last, however often it is renewed
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    max: Option<Millis>,
    /// If nothing is ready, wait up to this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
    /// If this run holds the task already, print its token again
    #[arg(long, requires = "task")]
    resume: bool,
    /// Start a small process that renews the run while this terminal or agent lives
    #[arg(long)]
    keep: bool,
    /// Print only the token
    #[arg(long, short)]
    quiet: bool,
}

impl Claim {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let owner = self.keep.then(|| keeper::owner(context)).transpose();
        // An agent works on without a keeper, and is told: in a sandbox nothing outlives the command.
        let owner = match owner {
            Err(e) if !context.identity().reason.is_agent() && sandbox().is_none() => return Err(e),
            owner => owner,
        };
        let op = |wait_ms| task::Claim {
            task: self.task.clone(),
            board: self.board.clone(),
            tag: self.tag.clone(),
            run: context.run(),
            agent: context.agent(),
            ttl_ms: self.ttl,
            max_ms: self.max,
            resume: self.resume,
            // Subagents share a session. Of them only one takes the next task.
            one_at_a_time: self.task.is_none() && context.identity().reason.is_agent(),
            request: context.request(),
            wait_ms,
        };
        let reply = match self.wait {
            None => context.call(op(None)).await?,
            wait => context.call_while_read(wait, op, wait_reason).await?,
        };
        context.remember(std::slice::from_ref(&reply.claim));
        let kept =
            owner.and_then(|owner| owner.map(|owner| keeper::keep(context, owner, &reply.claim)).transpose());
        context.print(&reply, |reply| match (self.quiet, &kept) {
            (true, _) => reply.claim.token.clone(),
            (false, Ok(Some(pid))) => {
                let page = claimed(&reply.claim, &reply.task, &context.terminal);
                let named = context.identity().owner.as_ref().filter(|_| context.is_run_named());
                let lives = named.map_or("this session lives".to_owned(), |owner| {
                    format!("process {} ({}) lives", owner.pid, owner.name)
                });
                format!("{}\n\nprocess {pid} renews it while {lives}", page.trim_end())
            }
            (false, _) => claimed(&reply.claim, &reply.task, &context.terminal),
        })?;
        if self.quiet {
            context.warn_of_lease(&reply.claim);
        }
        // The claim exists, so its token was printed. The caller must know that nobody renews it, or that it ends soon.
        match kept {
            Err(e) => context.warn(&e),
            Ok(Some(_)) if context.identity().owner.as_ref().is_some_and(|owner| owner.is_throwaway) => {
                let message =
                    "the run ends with the shell that runs this command, and its claim is given back then";
                context.warn(&Error::new(Code::NotReady, message).hint(
                    "to keep it over several commands, name the run in each of them: --run NAME, or FENCE_RUN",
                ));
            }
            Ok(_) => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}
