use crate::{context::Context, output::table::Table};
use clap::Args;
use fencepost::{Result, claim};
use std::process::ExitCode;

/// List the live claims, with their holders and leases
#[derive(Debug, Args)]
pub struct Claims {
    /// Only claims of this run
    #[arg(long)]
    mine: bool,
    /// The most claims to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl Claims {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let run = self.mine.then(|| context.run());
        let reply = context.call(claim::List { run, limit: self.limit }).await?;
        context.print(&reply, |reply| {
            if reply.claims.is_empty() {
                return "no claims".into();
            }
            let mut table = Table::new(&["CLAIM", "RUN", "AGENT", "SINCE", "UNTIL", ""]).headed();
            for claim in &reply.claims {
                table.row(vec![
                    claim.token.as_str().into(),
                    claim.run.as_str().into(),
                    claim.agent.as_deref().unwrap_or_default().into(),
                    context.terminal.when(claim.claimed_at).into(),
                    context.terminal.when(claim.expires_at).into(),
                    claim.waiting_at.map_or("", |_| "waits for a person").into(),
                ]);
            }
            table.render(&context.terminal)
        })
    }
}
