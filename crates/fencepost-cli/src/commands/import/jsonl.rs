use super::{Fleet, Options};
use crate::{commands::read_file, context::Context};
use clap::Args;
use fencepost::Result;
use fencepost_import::{Report, jsonl, limits::LIMITS};
use std::process::ExitCode;

/// Import tasks as lines of JSON, or a fleet that fence export wrote
///
/// A line without a `type` is an item of task/import. It has `id` and `title`, and optionally `body`, `done_when`, `kind`,
/// `priority`, `tags`, `after`, `status` (unassigned, completed, failed or cancelled), `parked`, `failure_reason`, `output`,
/// `notes`, `progress`, `owner`, `source`, `origin`, `creator`, `max_attempts`, `created_at`, `finished_at` and `key`.
///
/// Lines with a `type` come from `fence export`: tasks, agents, channels, posts, cursors, routes, boards, mailboxes and messages.
/// Items that exist already are not changed, and the report says how they differ. Dependencies on tasks that are neither in the file
/// nor in the fleet are dropped and listed. On a fleet with keys it needs an admin's key.
///
/// Examples:
///   fence import jsonl tasks.jsonl
///   jq -c '.[] | {id: "web-\(.number)", title, body}' issues.json | fence import jsonl -
///   fence import jsonl fleet.jsonl --dry-run
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Jsonl {
    /// The file, or - for standard input
    file: String,
    #[command(flatten)]
    options: Options,
}

impl Jsonl {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Options { dry_run, board } = self.options;
        let text = read_file(&self.file, LIMITS.total as u64)?;
        let jsonl = jsonl::Jsonl { file: self.file, text, boards: board, dry_run };
        let report = jsonl.import(&Fleet::new(context)).await?;
        context.print(&report, Report::describe)
    }
}
