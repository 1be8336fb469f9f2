use super::duration;
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, claim};
use std::process::ExitCode;

/// Keep a claim alive
#[derive(Debug, Args)]
pub struct Renew {
    #[arg(env = "FENCE_CLAIM")]
    token: String,
    /// A longer lease than before
    #[arg(long, value_parser = duration)]
    ttl: Option<Millis>,
}

impl Renew {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(claim::Renew { token: self.token, ttl_ms: self.ttl }).await?;
        context
            .print(&reply, |reply| format!("{} is held until {}", reply.claim.token, reply.claim.expires_at))
    }
}
