use super::{super::duration, Named, table};
use crate::context::Context;
use clap::{Args, ValueEnum};
use fencepost::{Millis, Result, agent, agent::Role as Has};
use std::process::ExitCode;

/// Register an agent, or change one; options that are not given keep their values
///
/// An agent is online if it polled within the last five minutes, or if one of its runs lives. Capabilities and --max-concurrent
/// limit what a poll returns; they do not limit `fence claim`.
///
/// Examples:
///   fence agent join lead --role lead
///   fence agent join bob --capability rust --capability sql --max-concurrent 3 --strand 10m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Join {
    #[command(flatten)]
    named: Named,
    /// A lead is notified of tasks that others finish; a worker takes tasks from the pool  [default: worker]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// The tags that it can do: from the pool it gets tasks without tags, and tasks whose tags it has all of. `poll --tag rust`
    /// narrows it to rust. May be given several times; '' removes the limit  [default: no limit]
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    capability: Vec<String>,
    /// The most triggers that it may have at a time; 0 for no limit  [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_concurrent: Option<i64>,
    /// When it has been offline for this long, tasks that wait for it go back to the pool  [default: 30m]
    #[arg(long, value_parser = duration, value_name = "DURATION", allow_hyphen_values = true)]
    strand: Option<Millis>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Lead,
    Worker,
}

impl Join {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let given = !self.capability.is_empty();
        let capabilities = self.capability.into_iter().filter(|tag| !tag.is_empty()).collect();
        let op = agent::Join {
            agent: self.named.name(context)?,
            role: self.role.map(|role| match role {
                Role::Lead => Has::Lead,
                Role::Worker => Has::Worker,
            }),
            capabilities: given.then_some(capabilities),
            max_concurrent: self.max_concurrent,
            strand_ms: self.strand,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| table(std::slice::from_ref(&reply.agent), &context.terminal))
    }
}
