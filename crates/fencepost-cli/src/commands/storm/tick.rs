use crate::context::Context;
use clap::Args;
use fencepost::{Result, storm};
use std::process::ExitCode;

/// Schedule wake-ups now, once; a server does it every second
#[derive(Debug, Args)]
pub struct Tick {}

impl Tick {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut all = context.call(storm::Tick {}).await?;
        while all.more {
            all = all.and(context.call(storm::Tick {}).await?);
        }
        context.print(&all, |all| match all.elsewhere {
            true => "another process schedules at this moment".into(),
            false => format!(
                "{} scheduled; suppressed: {} by budgets, {} by the breaker, {} by causes; {} pending or running; breaker {}",
                all.scheduled,
                all.suppressed_budget,
                all.suppressed_breaker,
                all.suppressed_cause,
                all.pending_jobs,
                if all.breaker_open { "open" } else { "closed" },
            ),
        })
    }
}
