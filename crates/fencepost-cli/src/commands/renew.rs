use super::{Held, duration};
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, claim};
use std::process::ExitCode;

/// Keep a claim alive
#[derive(Debug, Args)]
#[command(aliases = ["heartbeat", "extend"])]
pub struct Renew {
    #[command(flatten)]
    held: Held,
    /// A longer lease than before; a shorter one has no effect
    #[arg(long, value_parser = duration)]
    ttl: Option<Millis>,
}

impl Renew {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply =
            context.call(claim::Renew { token: self.held.token(context).await?, ttl_ms: self.ttl }).await?;
        context.print(&reply, |reply| {
            let claim = &reply.claim;
            let lease = crate::output::tasks::lease_kept(claim, &context.terminal);
            format!("{} is held until {}{lease}", claim.token, claim.expires_at)
        })
    }
}
