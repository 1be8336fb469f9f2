//! Wake-ups and the limits on them: one verb, one file.

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![show::Show, set::Set, breaker::Breaker, cause::Cause, tick::Tick];

/// See and limit how agents wake each other; without a verb it shows the scheduler
///
/// Unread posts wake the members of a channel: a scheduler queues one wake-up per agent and channel, and `fence work` runs it. A
/// server schedules every second; without one, `fence storm tick` does. Limits bound what one event may set off: a budget for each
/// agent in a channel, a breaker for the whole fleet, and bounds on chains of causes. A post that is suppressed stays unread, and the
/// next wake-up brings it. `fence why CHANNEL AGENT` explains a wake-up that did not happen.
///
/// Examples:
///   fence storm                                          settings, breaker, budgets, and what was suppressed
///   fence storm set max_triggers_per_window=5 window=10m
///   fence storm set enabled=off --channel general
///   fence storm breaker open --for 10m                   no new wake-ups for ten minutes
///   fence storm cause post/general/12                    everything that this post caused
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Storm {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Storm {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::Show(show::Show::default())).run(context).await
    }
}
