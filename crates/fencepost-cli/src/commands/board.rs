mod graph;

use crate::{
    context::Context,
    output::{
        table::{Cell, Table},
        terminal::state,
    },
};
use clap::{Args, Subcommand};
use fencepost::{Result, board, board::list::Board as Counts, task::State};
use std::process::ExitCode;

/// Show a board with its dependencies; without a verb it lists the boards
///
/// Examples:
///   fence board                      list the boards, with the number of tasks in each state
///   fence board show auth
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "boards")]
pub struct Board {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the boards, with the number of tasks in each state
    #[command(alias = "ls")]
    List,
    /// Show the tasks of a board as a tree of dependencies
    Show {
        board: String,
        /// The most tasks to show  [default: 200]
        #[arg(long)]
        limit: Option<i64>,
    },
}

impl Board {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.verb.unwrap_or(Verb::List) {
            Verb::List => list(context).await,
            Verb::Show { board, limit } => show(context, board, limit).await,
        }
    }
}

async fn list(context: &Context) -> Result<ExitCode> {
    let reply = context.call(board::List {}).await?;
    context.print(&reply, |reply| {
        if reply.boards.is_empty() {
            return "no boards: fence add creates one".into();
        }
        let mut table = Table::new(&["BOARD", ">TASKS", ">READY", "STATES"]).headed();
        for board in &reply.boards {
            table.row(vec![
                Cell::from(board.name.as_str()),
                total(board).to_string().into(),
                board.ready.to_string().into(),
                states(board).map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join(", ").into(),
            ]);
        }
        table.render(&context.terminal)
    })
}

async fn show(context: &Context, board: String, limit: Option<i64>) -> Result<ExitCode> {
    let reply = context.call(board::Show { board, limit }).await?;
    context.print(&reply, |reply| {
        let terminal = &context.terminal;
        let counts =
            states(&reply.board).map(|(name, n)| terminal.paint(state(name), &format!("{n}\u{a0}{name}")));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let head = format!(
            "{}  {} tasks, {} ready: {counts}",
            terminal.bold(&reply.board.name),
            total(&reply.board),
            reply.board.ready
        );
        // Non-breaking spaces keep each number with its state.
        let head = terminal.wrap(&head, 0, 4).replace('\u{a0}', " ");
        let more =
            if reply.more { format!("\n{}", terminal.and_more("--limit shows them")) } else { String::new() };
        format!("{head}\n\n{}{more}", graph::draw(&reply.tasks, &reply.edges, terminal))
    })
}

fn total(board: &Counts) -> i64 {
    board.tasks.values().sum()
}

/// The states that tasks of this board have, in the order of a task's life.
fn states(board: &Counts) -> impl Iterator<Item = (&'static str, i64)> + '_ {
    State::ALL.into_iter().filter_map(|state| Some((state.as_str(), *board.tasks.get(state.as_str())?)))
}
