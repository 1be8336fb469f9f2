use super::{Held, text};
use crate::{context::Context, keeper, output::tasks};
use clap::Args;
use fencepost::{Result, Token, task};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Complete a task that you hold
///
/// Exits 5 if the claim is over; then the completion is not accepted. With --next, exits 3 if the task was completed and no other
/// task is ready.
///
/// Examples:
///   fence done --output "tables are in schema.sql"
///   fence done task/auth-3@42 --output @report.md
///   fence done --next
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["complete", "finish", "close", "resolve"])]
pub struct Done {
    #[command(flatten)]
    held: Held,
    /// The result, which tasks that depend on this one get: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    output: Option<String>,
    /// Claim the next task of the same board afterwards
    #[arg(long)]
    next: bool,
}

/// The completion, and the next claim.
#[derive(Debug, Serialize, Deserialize)]
struct Both {
    done: task::Changed,
    next: task::claim::Claimed,
}

impl Done {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = self.held.token(context).await?;
        let output = self.output.map(text).transpose()?;
        let done = context.call(task::Done { token: token.clone(), output }).await?;
        let line = |done: &task::Changed| tasks::task(&done.task, &context.terminal);
        if !self.next {
            keeper::wake_all(context);
            return context.print(&done, line);
        }
        let claim = task::Claim {
            board: board(&token),
            run: context.run(),
            agent: context.agent(),
            request: context.request(),
            ..task::Claim::default()
        };
        let next = context.call(claim).await;
        if let Ok(next) = &next {
            context.remember(std::slice::from_ref(&next.claim));
        }
        keeper::wake_all(context);
        match next {
            Ok(next) => context.print(&Both { done, next }, |Both { done, next }| {
                format!("{}\n\n{}", line(done), tasks::claimed(&next.claim, &next.task, &context.terminal))
            }),
            Err(nothing) => {
                // The task is completed, and the caller must know that.
                context.print(&done, line)?;
                Err(nothing)
            }
        }
    }
}

fn board(token: &str) -> Option<String> {
    Some(token.parse::<Token>().ok()?.resource.task()?.board)
}
