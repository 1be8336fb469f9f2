use super::Held;
use crate::context::Context;
use clap::Args;
use fencepost::{Code, Result, claim, claim::Verdict};
use std::process::ExitCode;

/// Ask whether a claim is still alive: exits 0, or 5 with the reason
#[derive(Debug, Args)]
pub struct Guard {
    #[command(flatten)]
    held: Held,
}

impl Guard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(claim::Guard { token: self.held.token(context).await? }).await?;
        context.print(&reply, |reply| {
            let reason = serde_json::json!(reply.reason);
            let reason = reason.as_str().unwrap_or_default();
            match &reply.claim {
                Some(claim) => format!("{reason}: held by run {} until {}", claim.run, claim.expires_at),
                None => reason.to_owned(),
            }
        })?;
        Ok(if reply.reason == Verdict::Ok {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(Code::LeaseExpired.exit_code())
        })
    }
}
