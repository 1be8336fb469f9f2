use super::{Held, duration};
use crate::{context::Context, output::tasks::lease_kept};
use clap::Args;
use fencepost::{Millis, Result, claim};
use std::process::ExitCode;

/// Renew a claim
#[derive(Debug, Args)]
#[command(aliases = ["heartbeat", "extend"])]
pub struct Renew {
    #[command(flatten)]
    held: Held,
    /// The new lease, if it is longer than the old one
    #[arg(long, value_parser = duration)]
    ttl: Option<Millis>,
}

impl Renew {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply =
            context.call(claim::Renew { token: self.held.token(context).await?, ttl_ms: self.ttl }).await?;
        context.print(&reply, |reply| {
            let claim = &reply.claim;
            let lease = lease_kept(claim, &context.terminal);
            format!("{} is held until {}{lease}", claim.token, claim.expires_at)
        })
    }
}
