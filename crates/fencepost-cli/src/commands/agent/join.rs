use super::{super::duration, Named, table};
use crate::context::Context;
use clap::{Args, ValueEnum};
use fencepost::{Millis, Result, agent, agent::Role as Has};
use std::process::ExitCode;

/// Make an agent known, or say anew what it is: what is not given stays as it was
///
/// It is online if it polled within five minutes, or a run of its own lives. Capabilities and --max-concurrent are about what
/// a poll gives: a claim by hand (`fence claim`) is bound by neither.
///
/// Examples:
///   fence agent join lead --role lead
///   fence agent join bob --capability rust --capability sql --max-concurrent 3 --strand 10m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Join {
    #[command(flatten)]
    named: Named,
    /// A lead is told of what others finish, a worker takes from the pool  [default: worker]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// It takes from the pool only tasks whose tags it has all of; tasks without tags anyone takes; `poll --tag rust` takes
    /// only rust. May be given several times, '' for all tasks  [default: all]
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    capability: Vec<String>,
    /// How many triggers it may have at a time, 0 for any number  [default: any number]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_concurrent: Option<i64>,
    /// How long after it went silent what waits for it goes back to the pool  [default: 30m]
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
