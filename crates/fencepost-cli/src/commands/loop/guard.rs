use super::Held;
use crate::context::Context;
use clap::Args;
use fencepost::{Code, Result, loops};
use std::process::ExitCode;

/// Check the claim on your story before a side effect
///
/// Prints ok and exits 0, or prints the reason and exits 5: already_claimed, already_passed, already_finished, lease_expired, cancelled
/// or not_found. (fence guard -- CMD also ends the command when the claim is lost.)
///
/// Examples:
///   fence loop guard && git commit -am "the parser"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Guard {
    #[command(flatten)]
    held: Held,
}

impl Guard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(loops::Guard { token: self.held.token(context).await? }).await?;
        context.print(&reply, |reply| match &reply.claim {
            Some(claim) => format!("{}: held by run {} until {}", reply.status, claim.run, claim.expires_at),
            None => reply.status.clone(),
        })?;
        Ok(if reply.ok { ExitCode::SUCCESS } else { ExitCode::from(Code::LeaseExpired.exit_code()) })
    }
}
