use crate::context::{Context, resource};
use clap::Args;
use fencepost::{Result, claim};
use std::process::ExitCode;

/// Take a claim away from its holder: an operator's verb, and it is logged
///
/// Whoever held it is refused from now on, and its guard says so. To take all that a dead worker held, end its
/// run instead.
///
/// Example:
///   fence unclaim task/auth-3 --reason "stuck since this morning"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Unclaim {
    /// task/ID or lock/NAME; a bare ID is a task
    resource: String,
    /// Why; it is kept
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
