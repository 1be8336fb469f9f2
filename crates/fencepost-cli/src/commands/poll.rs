mod text;

use super::{duration, one_of, refused};
use crate::{context::Context, names::unique};
use clap::{Args, ValueEnum};
use fencepost::{
    Code, Error, Millis, Result,
    agent::{
        self, Type,
        poll::{Polled, PoolMode},
    },
    run::SHELL_TTL,
};
use std::process::ExitCode;

/// How much of a random name tells one run of an agent from all others: a million of them share one by a chance of one
/// in five hundred, and then it is refused.
const TAIL: usize = 12;

/// Ask for your agent's next trigger: work that is already claimed, for a run of its own
///
/// In this order: offers, assigned tasks, its inbox, mentions; then for a lead what others finished, for a worker a task
/// from the pool. What has waited for ten minutes goes first. What you are given nobody else is, as long as the run lives:
/// it is heard from by whatever you do under its claims, and `fence settle RUN` ends it. The first line says the
/// type and the run; the rest says what it is about and what to say next. Exits 3 if there is nothing to do.
///
/// A run takes one trigger. Asking again with it (--run) gives the same, should the answer have been lost.
///
/// Examples:
///   fence poll --agent lead --wait 60s
///   fence poll --agent bob --accept task_assigned,pool_task --tag rust --ttl 10m
///   fence poll --agent bob --pool notify          only say that there is something in the pool
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Poll {
    /// If there is nothing to do, wait for it this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
    /// Only these: task_offered, task_assigned, inbox_message, unread_mentions, tasks_finished, pool_task
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    accept: Vec<String>,
    /// What to do with the pool: take a task, only say that there is something, or leave it alone  [default: take]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "take|notify|off")]
    pool: Option<Pool>,
    /// From the pool only what has this tag
    #[arg(long)]
    tag: Option<String>,
    /// How long the run may go unheard before others get what it was given: short for a program that renews it (fence
    /// renew), so that its work is soon another's if it dies  [default: 30m]
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    ttl: Option<Millis>,
    /// The longest that its claims may last, however often they are renewed
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    max: Option<Millis>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Pool {
    Take,
    Notify,
    Off,
}

impl Poll {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let agent = context.required_agent()?;
        let run = context.named_run().unwrap_or_else(|| fresh(&agent));
        let accept = self
            .accept
            .iter()
            .map(|text| one_of("type of trigger", &Type::ORDER, Type::as_str, text))
            .collect::<Result<Vec<_>>>()?;
        let op = |wait_ms| agent::Poll {
            agent: agent.clone(),
            run: run.clone(),
            accept: (!accept.is_empty()).then(|| accept.clone()),
            pool: match self.pool {
                None | Some(Pool::Take) => PoolMode::Take,
                Some(Pool::Notify) => PoolMode::Notify,
                Some(Pool::Off) => PoolMode::Off,
            },
            tag: self.tag.clone(),
            // The engine's own is for runners, which renew; a shell's work takes longer than a minute.
            ttl_ms: Some(self.ttl.unwrap_or(SHELL_TTL)),
            max_ms: self.max,
            host: Some(host()),
            wait_ms,
            ..agent::Poll::default()
        };
        let answer = match self.wait {
            None => context.call(op(None)).await,
            wait => context.call_while_read(wait, op, |answer| waiting_for(answer, &agent)).await,
        };
        let reply = answer.map_err(|error| to_ask_again(error, &run))?;
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
    answer.as_ref().map_or_else(|_| refused(answer), |reply| nothing(reply, agent))
}

fn nothing(reply: &Polled, agent: &str) -> String {
    let why = reply.held_back.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("nothing to do for agent {agent}{why}")
}

/// `bob-7f3a9c01b2d4`
fn fresh(agent: &str) -> String {
    let mut name = unique(&format!("{agent}-"));
    name.truncate(agent.len() + 1 + TAIL);
    name
}

/// The run is this poll's own: whoever wants its answer has to know it.
fn to_ask_again(error: Error, run: &str) -> Error {
    if error.code() == Code::OutcomeUnknown { error.with("run", run) } else { error }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
