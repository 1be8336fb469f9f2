use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, claim, task};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Show your run, its claims, and the tasks that are ready (the default)
#[derive(Debug, Args)]
#[command(alias = "st")]
pub struct Status {}

#[derive(Debug, Serialize, Deserialize)]
struct Now {
    run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    claims: Vec<claim::Claim>,
    ready: Vec<task::Task>,
}

/// Enough tasks to choose from.
const READY: i64 = 10;

impl Status {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let (run, agent) = (context.run(), context.agent());
        let claims = context.call(claim::List { run: Some(run.clone()), limit: None }).await?.claims;
        let ready = task::Ready { agent: agent.clone(), limit: Some(READY), ..task::Ready::default() };
        let ready = context.call(ready).await?.tasks;
        context.print(&Now { run, agent, claims, ready }, |now| {
            let terminal = &context.terminal;
            let agent = now.agent.as_ref().map_or(String::new(), |agent| format!(", agent {agent}"));
            let you = format!("you are run {}{agent}", terminal.bold(&now.run));
            let mut lines = vec![terminal.wrap(&you, 0, 4)];
            match now.claims.is_empty() {
                true => lines.push("you hold nothing".into()),
                false => lines.push("you hold".into()),
            }
            let held = now.claims.iter().map(|claim| {
                terminal.wrap(&format!("  {} {}", claim.token, terminal.until(claim.expires_at)), 0, 4)
            });
            lines.extend(held);
            match now.ready.is_empty() {
                true => lines.push("nothing is ready".into()),
                false => lines.push(format!("ready\n{}", tasks::tasks(&now.ready, terminal))),
            }
            lines.join("\n")
        })
    }
}
