use super::one_of;
use crate::{context::Context, output::tasks};
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
    /// Only tasks of this board
    #[arg(long)]
    board: Option<String>,
    /// Only tasks in this state: unassigned, offered, reviewing, pending, blocked, parked, delayed, in_progress, completed,
    /// failed or cancelled; or ready, for tasks that can be claimed now
    #[arg(long)]
    status: Option<String>,
    /// Only tasks that are not finished
    #[arg(long, conflicts_with = "status")]
    open: bool,
    /// Only tasks assigned to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Only tasks with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Start after this task, the last one of the previous page
    #[arg(long, value_name = "ID", alias = "after")]
    start_after: Option<String>,
    /// The most tasks to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

/// A word after `--status`: a state, or a word that stands for several.
#[derive(Debug, Clone, Copy)]
enum Filter {
    State(State),
    Ready,
    Open,
}

impl Filter {
    fn as_str(self) -> &'static str {
        match self {
            Filter::State(state) => state.as_str(),
            Filter::Ready => "ready",
            Filter::Open => "open",
        }
    }

    fn all() -> Vec<Self> {
        State::ALL.into_iter().map(Filter::State).chain([Filter::Ready, Filter::Open]).collect()
    }
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let filter =
            self.status.as_deref().map(|text| one_of("status", &Filter::all(), Filter::as_str, text));
        let filter = filter.transpose()?;
        let op = task::List {
            board: self.board,
            status: match filter {
                Some(Filter::State(state)) => Some(state),
                _ => None,
            },
            ready: matches!(filter, Some(Filter::Ready)),
            open: self.open || matches!(filter, Some(Filter::Open)),
            assignee: self.to,
            tag: self.tag,
            after: self.start_after,
            limit: self.limit,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => "no tasks".into(),
            listed => {
                let last = listed.last().map_or("", |task| &task.id);
                let more = reply
                    .more
                    .then(|| format!("\n{}", context.terminal.and_more(&format!("--start-after {last}"))));
                tasks::tasks(listed, &context.terminal) + &more.unwrap_or_default()
            }
        })
    }
}
