use super::text;
use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Change a task, in any state; options that are not given keep their values
///
/// Examples:
///   fence edit auth-3 --title "write the new parser" -p 90
///   fence edit auth-3 --body @notes.md --tag rust --tag parser
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["update", "modify"])]
pub struct Edit {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The title
    #[arg(long)]
    title: Option<String>,
    /// The description: TEXT, @file, or - for standard input
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// The condition under which it counts as done
    #[arg(long, value_name = "TEXT")]
    done_when: Option<String>,
    /// The kind of work, a word of your choice
    #[arg(long)]
    kind: Option<String>,
    /// 0 to 100, higher first
    #[arg(long, short, value_parser = super::priority, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The tags, which replace all old ones; --tag "" for none
    #[arg(long)]
    tag: Option<Vec<String>>,
    /// The most attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<i64>,
}

impl Edit {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let tags = self.tag.map(|tags| tags.into_iter().filter(|tag| !tag.is_empty()).collect());
        let op = task::Edit {
            task: self.task,
            title: self.title,
            body: self.body.map(text).transpose()?,
            done_when: self.done_when,
            kind: self.kind,
            priority: self.priority,
            tags,
            max_attempts: self.max_attempts,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
