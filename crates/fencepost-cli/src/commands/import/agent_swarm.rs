use super::Fleet;
use crate::context::Context;
use clap::Args;
use fencepost::Result;
use fencepost_import::agent_swarm::{self, Report};
use std::{path::PathBuf, process::ExitCode};

/// Import an agent-swarm database: agents, tasks, inboxes and channels
///
/// Work that was in progress is free again: tasks in progress become assigned, offers under review become offered, and messages being
/// processed become unread. Leads are notified of finished tasks that agent-swarm had not reported. The file is not changed. The
/// report lists everything that could not be carried over, row by row. Stop agent-swarm before the import; if it ran on, a second
/// import brings the new rows.
///
/// Examples:
///   fence import agent-swarm agent-swarm-db.sqlite --dry-run
///   fence import agent-swarm agent-swarm-db.sqlite --board work
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AgentSwarm {
    /// The database, such as agent-swarm-db.sqlite
    file: PathBuf,
    /// Report what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The board for the tasks
    #[arg(long, default_value = "swarm", value_parser = super::board)]
    board: String,
}

impl AgentSwarm {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let swarm = agent_swarm::AgentSwarm { file: self.file, board: self.board, dry_run: self.dry_run };
        let report = swarm.import(&Fleet::new(context)).await?;
        context.print(&report, Report::describe)
    }
}
