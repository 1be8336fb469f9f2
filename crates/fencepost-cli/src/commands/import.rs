mod agent_swarm;
mod jsonl;
mod pm;

use crate::{context::Context, output::progress::Progress};
use clap::{Args, Subcommand};
use fencepost::{
    Result,
    op::{AnyOp, AnyReply},
};
use fencepost_import::{Renaming, Target, is_board};
use futures_util::future::LocalBoxFuture;
use std::{cell::RefCell, process::ExitCode, sync::Arc};

/// Import tasks, agents and conversations from other systems
///
/// Items that exist already are not changed, so you can repeat an import. Imported tasks are not claimed by anybody; the event of the
/// import records who had them.
///
/// Examples:
///   fence import pm .pm/tasks.db --dry-run
///   fence import agent-swarm agent-swarm-db.sqlite --dry-run
///   fence import jsonl tasks.jsonl
///   fence import jsonl fleet.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Import {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    Pm(pm::Pm),
    AgentSwarm(agent_swarm::AgentSwarm),
    Jsonl(jsonl::Jsonl),
}

impl Import {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.from {
            From::Pm(command) => command.run(context).await,
            From::AgentSwarm(command) => command.run(context).await,
            From::Jsonl(command) => command.run(context).await,
        }
    }
}

/// The options of every import whose source has boards.
#[derive(Debug, Args)]
struct Options {
    /// Report what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Put the tasks of board FROM on board TO; may be given several times
    #[arg(long, value_name = "FROM=TO", value_parser = renaming)]
    board: Vec<Renaming>,
}

/// A board's name has no `=`, so the last one is the separator.
fn renaming(text: &str) -> Result<Renaming, String> {
    let (from, to) = text.rsplit_once('=').ok_or("not of the form FROM=TO")?;
    Ok(Renaming { from: from.into(), to: board(to)? })
}

fn board(name: &str) -> Result<String, String> {
    match is_board(name) {
        true => Ok(name.into()),
        false => Err(format!("`{name}` is not a board's name: letters, digits, `.`, `_` and `-`")),
    }
}

/// The fleet of this command, with a line of progress while it is read or written.
pub(super) struct Fleet<'c> {
    context: &'c Context,
    progress: RefCell<Progress>,
}

impl<'c> Fleet<'c> {
    pub fn new(context: &'c Context) -> Self {
        Self { context, progress: RefCell::new(Progress::new(context.json())) }
    }
}

impl Target for Fleet<'_> {
    fn call(&self, op: Arc<dyn AnyOp>) -> LocalBoxFuture<'_, Result<AnyReply>> {
        Box::pin(self.context.call_any(op))
    }

    fn request(&self) -> Option<String> {
        self.context.request()
    }

    fn progress(&self, text: &str) {
        self.progress.borrow_mut().show(|| text.to_owned());
    }
}
