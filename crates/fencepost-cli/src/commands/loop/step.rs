use super::{super::json, Held, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, loops};
use std::process::ExitCode;

/// Record a finished step of the story you hold, and renew its lease
///
/// A chain that takes over after a crash goes on after the last recorded step. The commit that a step records is the one that the verdict
/// judges. A step is recorded once; --redo replaces its record and forgets the steps after it.
///
/// Examples:
///   fence loop step implement --commit "$(git rev-parse HEAD)"
///   fence loop step plan --data @plan.json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Step {
    /// The step, such as implement
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    held: Held,
    /// Any JSON for the steps that follow; @FILE is a file, - is standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// The commit that the step made
    #[arg(long, value_name = "ID")]
    commit: Option<String>,
    /// A note for the chains of other stories
    #[arg(long, value_name = "TEXT")]
    learned: Option<String>,
    /// Numbers by name, such as '{"usd": 0.12}'
    #[arg(long, value_name = "JSON")]
    cost: Option<String>,
    /// Replace the record of this step, and forget the steps after it
    #[arg(long)]
    redo: bool,
}

impl Step {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = loops::Step {
            token: self.held.token(context).await?,
            name: self.name,
            data: self.data.map(|data| json("data", data)).transpose()?,
            commit: self.commit,
            learned: self.learned,
            cost: self.cost.map(|cost| json("cost", cost)).transpose()?,
            redo: self.redo,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| text::steps(&reply.steps, &context.terminal))
    }
}
