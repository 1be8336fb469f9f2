use super::{Fleet, Options};
use crate::context::Context;
use clap::Args;
use fencepost::Result;
use fencepost_import::{Report, pm};
use std::{path::PathBuf, process::ExitCode};

/// Import a .pm/tasks.db; each sprint becomes a board
///
/// Pending and red tasks can be claimed (red ones get a progress note), green tasks are completed, and blocked tasks are parked. The
/// file is not changed. The report lists everything that could not be carried over.
///
/// Examples:
///   fence import pm .pm/tasks.db --dry-run
///   fence import pm .pm/tasks.db --board "Billing Sprint 2=billing"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Pm {
    /// The database, such as .pm/tasks.db
    file: PathBuf,
    /// A name for this list, to tell it from another list with the same sprints
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    options: Options,
}

impl Pm {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Options { dry_run, board } = self.options;
        let pm = pm::Pm { file: self.file, name: self.name, boards: board, dry_run };
        let report = pm.import(&Fleet::new(context)).await?;
        context.print(&report, Report::describe)
    }
}
