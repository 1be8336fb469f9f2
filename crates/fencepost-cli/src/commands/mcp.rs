mod host;

use super::duration;
use crate::{
    context::{Context, GIVE_BACK},
    identity,
    keeper::{self, Owner},
    output::streams,
    session,
};
use clap::Args;
use fencepost::{Clock, Code, Error, Millis, Result, claim};
use fencepost_mcp::Connection;
use host::{Ask, Stdio};
use std::{io::IsTerminal, process::ExitCode, sync::Arc};
use tokio::sync::mpsc;

/// Serve the fleet's tools to an agent over MCP, on standard input and output
///
/// An MCP client such as Claude Code or Codex starts this command and calls its tools: look, claim, report, guard, finish, plan, poll,
/// settle and say. The resource fence://prime is a page for the agent. The command ends when its client closes the connection.
///
/// MCP calls and shell commands of one client session act for one run. The run is, in this order: --run or FENCE_RUN; the session
/// in CLAUDE_CODE_SESSION_ID or CODEX_SESSION_ID, or the one that the client began or resumed since, if its hook recorded that; the
/// session that the call names (Codex does); the session that a hook of the client recorded; else a run of this connection.
/// A tool's argument `run` names another one, for subagents; but a client that was started for a claim (FENCE_RUN and
/// FENCE_CLAIM are set, as in `fence work`) acts for no other run.
///
/// A claim has a lease of --ttl, and a small process renews it while the client lives. A client that is killed gives back what it held.
///
/// Examples:
///   claude mcp add fence -- fence mcp
///   codex mcp add fence -- fence mcp
///   fence mcp --agent bob --url https://fleet.example.com
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Mcp {
    /// Lease: others may claim this run's items if it is not renewed for this long
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "60s")]
    ttl: Millis,
}

impl Mcp {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if std::io::stdin().is_terminal() {
            streams::print_error(
                "waiting for an MCP client on standard input; fence mcp --help says how to set one up",
            );
        }
        let connection = Arc::new(Connection::default());
        let (ask, mut asked) = mpsc::unbounded_channel();
        let host = Arc::new(Stdio::new(context, connection.clone(), ask, self.ttl));
        let owner = identity::client().map(|client| Owner { pid: client.pid, started: client.started });
        let service = fencepost_mcp::Mcp::new(host.clone());
        let serving = connection.clone().serve(service, tokio::io::stdin(), streams::for_a_protocol());
        let served = {
            let mut serving = std::pin::pin!(serving);
            // The context is not shared with the tasks that answer calls, so they ask for what only it can do.
            loop {
                tokio::select! {
                    served = &mut serving => break served,
                    Some(question) = asked.recv() => answer(context, owner.as_ref(), question).await,
                }
            }
        };
        give_back(context, &connection).await;
        served.map(|()| ExitCode::SUCCESS).map_err(|why| {
            Error::new(Code::Invalid, format!("the client does not speak MCP: {why}"))
                .hint("an MCP client starts this command: claude mcp add fence -- fence mcp")
        })
    }
}

async fn answer(context: &Context, owner: Option<&Owner>, question: Ask) {
    match question {
        Ask::Open(reply) => {
            let fleet = context.connection().await.cloned();
            let _ = reply.send(fleet.and_then(|fleet| Ok((fleet, context.location()?.absolute_url()))));
        }
        Ask::Keep { claim, named, record, reply } => {
            let kept =
                owner.map(|owner| keeper::keep_run(context, owner.clone(), &claim, named, vec![record]));
            let kept = kept.unwrap_or_else(|| Err(Error::unavailable("the client's process cannot be seen")));
            let _ = reply.send(kept.map(drop));
        }
        Ask::Remember { record, claims } => context.remember_for(&record, &claims),
        Ask::Acknowledge { record, reply } => {
            let _ = reply.send(session::acknowledge(&record, Clock::System.read()));
        }
        Ask::WakeKeepers => keeper::wake_all(context),
    }
}

/// Gives back the claims whose reply no client read.
async fn give_back(context: &Context, connection: &Connection) {
    let tokens = connection.undelivered();
    if tokens.is_empty() {
        return;
    }
    let given_back = async {
        for token in tokens {
            let release = claim::Release { token, note: None };
            if let Err(e) = context.call(release).await {
                context.warn(&e);
            }
        }
    };
    // After that, the lease has to expire.
    let _ = tokio::time::timeout(GIVE_BACK, given_back).await;
    keeper::wake_all(context);
}
