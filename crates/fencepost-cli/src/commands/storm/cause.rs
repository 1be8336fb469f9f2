use crate::{context::Context, output::Terminal};
use clap::Args;
use fencepost::{
    Result,
    storm::{
        self,
        cause::{Node, Tree},
    },
};
use std::process::ExitCode;

/// Show everything that one event caused, as a tree, with the agents that woke each other
///
/// Examples:
///   fence storm cause post/general/12
///   fence storm cause task/auth-3
///   fence storm cause run/r-7f
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Cause {
    /// post/CHANNEL/N, message/ID, task/ID or run/NAME
    id: String,
}

impl Cause {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(storm::Cause { id: self.id }).await?;
        context.print(&reply, |reply| page(reply, &context.terminal))
    }
}

fn page(tree: &Tree, terminal: &Terminal) -> String {
    let mut lines: Vec<String> = tree.nodes.iter().map(|node| line(node, terminal)).collect();
    lines.extend(tree.more.then(|| "not all of it is shown".to_owned()));
    lines.extend(tree.cycles.iter().map(|cycle| format!("agents woke each other: {cycle}")));
    lines.join("\n")
}

fn line(node: &Node, terminal: &Terminal) -> String {
    let indent = "  ".repeat(usize::try_from(node.level).unwrap_or_default());
    let who = match (&node.agent, &node.trigger) {
        (Some(agent), Some(trigger)) => format!("  {agent}, {trigger}"),
        _ => String::new(),
    };
    let when = node.at.map_or(String::new(), |at| format!("  {}", terminal.dim(&terminal.when(at))));
    format!("{indent}{}{who}{when}", node.id)
}
