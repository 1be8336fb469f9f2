use super::{super::duration, table};
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, agent};
use std::process::ExitCode;

/// Pause an agent: its polls get no work until it is resumed
///
/// A poll of a paused agent exits 6; with --wait it waits until the agent is resumed. Running work goes on, unless you use --now:
/// then its runs end at once, and everything they hold goes back. That costs no attempt. `fence claim` is not refused.
///
/// With --for the pause ends by itself. Of two pauses the one that ends later counts. (`fence park` sets a task aside, and
/// `fence mail pause` pauses a mailbox.)
///
/// Examples:
///   fence agent pause bob --reason "the disk is full"
///   fence agent pause bob --for 30m
///   fence pause --all --now                       stop all agents, and give their work back
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Pause {
    #[command(flatten)]
    which: Which,
    /// The reason, which refused polls show
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// End the pause by itself after this long  [default: until it is resumed]
    #[arg(long = "for", value_parser = duration, value_name = "DURATION", allow_hyphen_values = true)]
    span: Option<Millis>,
    /// Also end its runs now, and give their work back
    #[arg(long)]
    now: bool,
}

/// One agent, or all of them.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The agent  [default: --agent, FENCE_AGENT]
    #[arg(value_name = "AGENT", conflicts_with = "all")]
    name: Option<String>,
    /// All agents
    #[arg(long)]
    pub all: bool,
}

impl Which {
    /// The name for the op: none for all agents.
    pub fn agent(self, context: &Context) -> Result<Option<String>> {
        match (self.all, self.name) {
            (true, _) => Ok(None),
            (false, Some(name)) => Ok(Some(name)),
            (false, None) => context.required_agent().map(Some),
        }
    }
}

impl Pause {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = agent::Pause {
            all: self.which.all,
            agent: self.which.agent(context)?,
            reason: self.reason,
            for_ms: self.span,
            now: self.now,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let mut page = match reply.agents.as_slice() {
                [] => "no agents".into(),
                agents => table(agents, &context.terminal),
            };
            if !reply.ended.is_empty() {
                page += &format!("\nended, and given back: {}", reply.ended.join(", "));
            }
            page
        })
    }
}
