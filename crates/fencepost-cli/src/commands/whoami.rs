use crate::context::Context;
use clap::Args;
use fencepost::Result;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Show the run, the agent and the fleet that commands use here, and why
#[derive(Debug, Args)]
#[command(alias = "who")]
pub struct Whoami {}

#[derive(Debug, Serialize, Deserialize)]
struct Me {
    run: String,
    run_because: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    fleet: String,
    fleet_because: String,
    /// The process whose life decides how long `claim --keep` keeps the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    pid: i32,
    name: String,
}

impl Whoami {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let (identity, location) = (context.identity(), context.location()?);
        let owner = identity.owner.as_ref().map(|owner| Owner { pid: owner.pid, name: owner.name.clone() });
        let me = Me {
            run: identity.run.clone(),
            run_because: identity.reason.describe(),
            agent: context.agent(),
            fleet: location.shown(),
            fleet_because: location.reason.describe(),
            owner,
        };
        context.print(&me, |me| {
            let owner = me
                .owner
                .as_ref()
                .map_or(String::new(), |owner| format!("\nowner  process {} ({})", owner.pid, owner.name));
            let agent = me.agent.as_deref().unwrap_or("none (--agent or FENCE_AGENT names one)");
            let text = format!(
                "run    {}  ({})\nagent  {agent}\nfleet  {}  ({}){owner}",
                me.run, me.run_because, me.fleet, me.fleet_because
            );
            let lines = text.lines().map(|line| context.terminal.wrap(line, 0, 7));
            lines.collect::<Vec<_>>().join("\n")
        })
    }
}
