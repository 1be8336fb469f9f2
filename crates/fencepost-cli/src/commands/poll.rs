pub mod text;
pub mod wanted;

use super::{duration, wait_reason};
use crate::{context::Context, environment::host, names::unique};
use clap::Args;
use fencepost::{
    Code, Error, Millis, Result,
    agent::{self, poll::Polled},
    run::SHELL_TTL,
};
use std::process::ExitCode;
use wanted::Wanted;

/// The length of the random part of a run's name. Among a million runs, the chance of two equal names is one in five hundred. The
/// engine refuses the second run of a name.
const TAIL: usize = 12;

/// Get the next trigger of your agent: work that is already claimed, under a new run
///
/// The order is: offers, assigned tasks, the inbox, mentions; then for a lead finished tasks of others, and for a worker a task
/// from the pool. Work that has waited for ten minutes comes first. Nobody else gets the same work while the run lives. Every
/// command under its claims renews the run, and `fence settle RUN` ends it. The first line of the output is the type and the run;
/// the rest is the work and the commands to use next. Exits 3 if there is nothing to do, and 6 while the agent is paused or
/// at a spend limit (fence spend).
///
/// A run gets one trigger. Polling again with the same --run returns the same trigger, in case the reply was lost.
///
/// Examples:
///   fence poll --agent lead --wait 60s
///   fence poll --agent bob --accept task_assigned,pool_task --board auth --tag rust --ttl 10m
///   fence poll --agent bob --pool notify          only report that the pool has tasks
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Poll {
    /// If there is nothing to do, wait up to this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
    #[command(flatten)]
    wanted: Wanted,
    /// Lease: others get the work if the run is not renewed for this long. Choose a short one for a program that renews it
    /// (fence renew), so that its work is free soon after it dies  [default: 30m]
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    ttl: Option<Millis>,
    /// The longest time that its claims may last, however often they are renewed
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    max: Option<Millis>,
}

impl Poll {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let agent = context.required_agent()?;
        let run = context.named_run().unwrap_or_else(|| new_run(&agent));
        let wanted = self.wanted.poll()?;
        let op = |wait_ms| agent::Poll {
            agent: agent.clone(),
            run: run.clone(),
            // The engine's default is for programs that renew. Work in a shell takes longer than a minute.
            ttl_ms: Some(self.ttl.unwrap_or(SHELL_TTL)),
            max_ms: self.max,
            host: Some(host()),
            wait_ms,
            ..wanted.clone()
        };
        let answer = match self.wait {
            None => context.call(op(None)).await,
            wait => context.call_while_read(wait, op, |answer| waiting_for(answer, &agent)).await,
        };
        let reply = answer.map_err(|error| with_run(error, &run))?;
        context.remember(reply.trigger.as_ref().map_or(&[], |trigger| &trigger.claims));
        context.print(&reply, |reply| match &reply.trigger {
            Some(trigger) => text::trigger(trigger, &agent, &context.terminal),
            None => nothing(reply, &agent),
        })?;
        Ok(match reply.trigger {
            Some(_) => ExitCode::SUCCESS,
            None => ExitCode::from(Code::NoneReady.exit_code()),
        })
    }
}

fn waiting_for(answer: &Result<Polled>, agent: &str) -> String {
    answer.as_ref().map_or_else(|_| wait_reason(answer), |reply| nothing(reply, agent))
}

fn nothing(reply: &Polled, agent: &str) -> String {
    let why = reply.held_back.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("nothing to do for agent {agent}{why}")
}

/// `bob-7f3a9c01b2d4`
pub fn new_run(agent: &str) -> String {
    let mut name = unique(&format!("{agent}-"));
    name.truncate(agent.len() + 1 + TAIL);
    name
}

/// Adds the run to an error whose outcome is unknown: a retry needs the same run, and only this poll knows its name.
fn with_run(error: Error, run: &str) -> Error {
    if error.code() == Code::OutcomeUnknown { error.with("run", run) } else { error }
}
