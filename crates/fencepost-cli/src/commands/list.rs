use super::one_of;
use crate::context::Context;
use clap::Args;
use fencepost::{
    Result,
    task::{self, State},
};
use std::process::ExitCode;

/// List tasks, oldest first
///
/// Examples:
///   fence list --board auth --status blocked
///   fence list --open
///   fence list --tag rust --to kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["ls", "tasks"])]
pub struct List {
    /// Only of this board
    #[arg(long)]
    board: Option<String>,
    /// Only in this state, as the list shows it: unassigned, offered, reviewing, pending, blocked, parked, delayed,
    /// in_progress, completed, failed or cancelled; or ready, for tasks that could be claimed now
    #[arg(long)]
    status: Option<String>,
    /// Only tasks that are not finished
    #[arg(long, conflicts_with = "status")]
    open: bool,
    /// Only what is assigned to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Only with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only what comes after this task: the last of the page before
    #[arg(long, value_name = "ID", alias = "after")]
    start_after: Option<String>,
    /// At most this many  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

/// A word after `--status`: a state, or one that stands for several.
#[derive(Debug, Clone, Copy)]
enum Asked {
    State(State),
    Ready,
    Open,
}

impl Asked {
    fn as_str(self) -> &'static str {
        match self {
            Asked::State(state) => state.as_str(),
            Asked::Ready => "ready",
            Asked::Open => "open",
        }
    }

    fn all() -> Vec<Self> {
        State::ALL.into_iter().map(Asked::State).chain([Asked::Ready, Asked::Open]).collect()
    }
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let asked = self.status.as_deref().map(|text| one_of("status", &Asked::all(), Asked::as_str, text));
        let asked = asked.transpose()?;
        let op = task::List {
            board: self.board,
            status: match asked {
                Some(Asked::State(state)) => Some(state),
                _ => None,
            },
            ready: matches!(asked, Some(Asked::Ready)),
            open: self.open || matches!(asked, Some(Asked::Open)),
            assignee: self.to,
            tag: self.tag,
            after: self.start_after,
            limit: self.limit,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => "no tasks".into(),
            tasks => {
                let last = tasks.last().map_or("", |task| &task.id);
                let more = reply
                    .more
                    .then(|| format!("\n{}", context.terminal.and_more(&format!("--start-after {last}"))));
                crate::output::tasks::tasks(tasks, &context.terminal) + &more.unwrap_or_default()
            }
        })
    }
}
