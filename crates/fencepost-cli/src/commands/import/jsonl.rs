use super::{How, Report, other_titles, send};
use crate::{context::Context, lines};
use clap::Args;
use fencepost::{Result, TaskId, task::import::Item};
use std::process::ExitCode;

/// Tasks as lines of JSON
///
/// Each line is an item of task/import: `id` and `title`, and where known `body`, `done_when`, `kind`, `priority`,
/// `tags`, `after`, `status` (unassigned, completed, failed or cancelled), `parked`, `failure_reason`, `output`,
/// `notes`, `progress`, `owner`, `source`, `origin`, `creator`, `max_attempts`, `created_at`, `finished_at`, `key`.
///
/// Examples:
///   fence import jsonl tasks.jsonl
///   jq -c '.[] | {id: "web-\(.number)", title, body}' issues.json | fence import jsonl -
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Jsonl {
    /// The file, or - for standard input
    file: String,
    #[command(flatten)]
    how: How,
}

impl Jsonl {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut lines = lines::read::<Item>(&self.file)?;
        let ids = lines.items.iter().flat_map(|item| std::iter::once(&item.id).chain(&item.after));
        self.how.check("board", &ids.filter_map(|id| Some(id.parse::<TaskId>().ok()?.board)).collect())?;
        for item in &mut lines.items {
            item.id = renamed(&item.id, &self.how.board);
            item.after.iter_mut().for_each(|id| *id = renamed(id, &self.how.board));
        }
        let blame = |error, sent: &dyn Fn(usize) -> usize| lines.blame(error, sent);
        let reply = send(context, &lines.items, self.how.dry_run, blame).await?;
        let left = other_titles(&lines.items, &reply.existing);
        let report = Report { dry_run: self.how.dry_run, reply, left, ..Report::default() };
        context.print(&report, Report::told)
    }
}

/// The id on the board that its own was renamed to.
fn renamed(id: &str, boards: &[(String, String)]) -> String {
    let Ok(task) = id.parse::<TaskId>() else { return id.into() };
    match boards.iter().find(|(from, _)| *from == task.board) {
        Some((_, to)) => TaskId { board: to.clone(), ..task }.to_string(),
        None => id.into(),
    }
}
