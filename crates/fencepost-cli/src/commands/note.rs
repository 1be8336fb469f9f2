use crate::context::Context;
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Add a note to a task, in any state; the next holder reads it
///
/// An @name in a note notifies nobody; use `fence channel post` for that.
///
/// Examples:
///   fence note auth-3 "the old schema is in git"
///   fence note auth-3 "it broke with $(git log -1 --oneline)"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "comment")]
pub struct Note {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The note
    text: String,
}

impl Note {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Note { task: self.task, text: self.text, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| format!("note added to {}", reply.task.id))
    }
}
