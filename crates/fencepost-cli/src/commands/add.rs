use super::{PLAN_MAX, ServerKey, read_file, text};
use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use fencepost_import::json_lines;
use std::process::ExitCode;

/// Add a task, or a plan of many
///
/// A plan is a file with one JSON object per line. Each has a `title`, and optionally `name`, `after` (names in this plan, or
/// ids), `body`, `done_when`, `kind`, `priority`, `tags`, `to`, `offer`, `max_attempts` and `key`. All tasks are added, or none.
///
/// Examples:
///   fence add "write the parser" --board auth
///   fence add "test it" --after auth-1 --body @notes.md -p 80
///   fence add -f plan.jsonl --board auth
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["new", "create"])]
pub struct Add {
    /// The title, one line
    #[arg(required_unless_present = "file")]
    title: Option<String>,
    /// Add the tasks of this file, or of standard input for -; only --board can go with it
    #[arg(
        long,
        short,
        conflicts_with_all = ["title", "body", "done_when", "kind", "priority", "after", "tag", "task_key", "to", "offer"]
    )]
    file: Option<String>,
    /// The board; created if it does not exist  [default: main]
    #[arg(long)]
    board: Option<String>,
    /// The description: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// The condition under which it counts as done
    #[arg(long, value_name = "TEXT")]
    done_when: Option<String>,
    /// The kind of work, a word of your choice
    #[arg(long)]
    kind: Option<String>,
    /// 0 to 100, higher first  [default: 50]
    #[arg(long, short, value_parser = super::priority, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Tasks that must be completed first
    #[arg(long, value_name = "ID", num_args = 1..)]
    after: Vec<String>,
    /// A tag, for `claim --tag`; may be given several times
    #[arg(long)]
    tag: Vec<String>,
    /// A key of your choice: a second task with the same key is not added
    #[arg(id = "task_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
    /// Assign it to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Offer it to this agent
    #[arg(long, value_name = "AGENT", conflicts_with = "to")]
    offer: Option<String>,
}

impl Add {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if let Some(file) = &self.file {
            return plan(context, file, self.board).await;
        }
        let op = task::Add {
            board: self.board,
            title: self.title.unwrap_or_default(),
            body: self.body.map(text).transpose()?,
            done_when: self.done_when,
            kind: self.kind,
            priority: self.priority,
            after: self.after,
            tags: self.tag,
            key: self.key,
            to: self.to,
            offer: self.offer,
            request: context.request(),
            ..task::Add::default()
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            format!(
                "{}{}",
                tasks::task(&reply.task, &context.terminal),
                if reply.existing { "  (existed already)" } else { "" }
            )
        })
    }
}

async fn plan(context: &Context, file: &str, board: Option<String>) -> Result<ExitCode> {
    let lines = json_lines::parse_file(file, &read_file(file, PLAN_MAX)?)?;
    let op = task::Plan { board, tasks: lines.items.clone(), request: context.request() };
    let reply = context.call(op).await.map_err(|error| lines.locate(error))?;
    context.print(&reply, |reply| {
        let existing = match reply.existing.as_slice() {
            [] => String::new(),
            ids => format!("\nexisted already: {}", ids.join(", ")),
        };
        tasks::tasks(&reply.tasks, &context.terminal) + &existing
    })
}
