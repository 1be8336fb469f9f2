use crate::context::{Context, resource};
use clap::Args;
use fencepost::{Result, claim};
use std::process::ExitCode;

/// Take a claim away from its holder; the log records it
///
/// The old holder is refused from now on, and its guard stops it. To take all claims of a dead worker, end its run instead.
///
/// Example:
///   fence unclaim task/auth-3 --reason "stuck since this morning"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Unclaim {
    /// The resource: task/ID, lock/NAME or once/KEY; an ID alone is a task
    resource: String,
    /// The reason, which is kept
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Unclaim {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply =
            context.call(claim::Unclaim { resource: resource(&self.resource), reason: self.reason }).await?;
        context.print(&reply, |reply| {
            let from =
                reply.held_by.as_ref().map_or("nobody held it".into(), |run| format!("taken from run {run}"));
            format!("{} is {}: {from}", reply.resource, reply.status)
        })
    }
}
