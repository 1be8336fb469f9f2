use crate::{
    context::Context,
    session::{self, Lost},
    settings::without_password,
};
use clap::Args;
use fencepost::{Error, Result};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Acknowledge that this session lost its claim, and work on
///
/// When an agent's session loses a claim and holds no other, its client's hooks block all tools that write or run, until the agent
/// acknowledges that it has stopped that work. A new claim acknowledges the loss, too. After this, guarded commands stay blocked until the
/// session claims something.
///
/// Examples:
///   fence ack
///   fence claim --keep
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Ack {}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    /// The run of the session, or of the subagent.
    run: String,
    acknowledged: Vec<Lost>,
}

impl Ack {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let now = context.terminal.now();
        let runs = context.session_runs();
        if runs.is_empty() {
            return Err(Error::invalid(
                "run",
                "is not that of an agent's session, so there is nothing to acknowledge",
            )
            .hint("an agent acknowledges a loss itself; a person lifts its guard: fence lift RUN"));
        }
        // A subagent with claims of its own stands for itself.
        let run = session::known(&runs, now).run;
        let acknowledged = session::acknowledge(&run, now).map_err(|e| {
            e.hint("the client's hook acknowledges it, if this command stands alone on its line")
        })?;
        // The record has the address as it was given.
        let shown = |lost: Lost| Lost { fleet: without_password(&lost.fleet), ..lost };
        let acknowledged = acknowledged.into_iter().map(shown).collect();
        context.print(&Reply { run, acknowledged }, |reply| {
            if reply.acknowledged.is_empty() {
                return "nothing was lost".to_owned();
            }
            let lines = reply
                .acknowledged
                .iter()
                .map(|lost| format!("acknowledged: {} is over: {}", lost.token, lost.describe()));
            format!("{}\nfence ready lists what you can take instead", lines.collect::<Vec<_>>().join("\n"))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
