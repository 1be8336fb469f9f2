use super::Fleet;
use crate::context::Context;
use clap::Args;
use fencepost::Result;
use fencepost_import::agent_swarm::{self, Report};
use std::{path::PathBuf, process::ExitCode};

/// An agent-swarm database: agents, tasks, inboxes and channels
///
/// What somebody was at when agent-swarm stopped is free again: tasks in progress are assigned, offers under review are
/// offered, messages being processed are unread. Leads are told of what was finished and not told of there. The file is
/// only read. What cannot be carried over is listed, row by row, and the rest is imported. Stop agent-swarm first; if
/// it went on, importing again brings what is new.
///
/// Examples:
///   fence import agent-swarm agent-swarm-db.sqlite --dry-run
///   fence import agent-swarm agent-swarm-db.sqlite --board work
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AgentSwarm {
    /// Its database, such as agent-swarm-db.sqlite
    file: PathBuf,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The board that the tasks are put on
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
