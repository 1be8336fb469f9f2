use super::{Fleet, Options};
use crate::context::Context;
use clap::Args;
use fencepost::Result;
use fencepost_import::{Report, pm};
use std::{path::PathBuf, process::ExitCode};

/// A .pm/tasks.db: a sprint becomes a board
///
/// pending and red tasks can be taken (red ones with a note of progress), green ones are completed, blocked ones
/// parked. The file is only read. What cannot be carried over is listed, and the rest is imported.
///
/// Examples:
///   fence import pm .pm/tasks.db --dry-run
///   fence import pm .pm/tasks.db --board "Billing Sprint 2=billing"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Pm {
    /// Its database, such as .pm/tasks.db
    file: PathBuf,
    /// Tells this list's tasks from those of another with the same sprints
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
