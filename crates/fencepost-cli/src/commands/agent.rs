//! Agents: one verb, one file.

use crate::{
    context::Context,
    output::{
        Terminal,
        table::{Cell, Table},
        tasks,
    },
};
use clap::Args;
use fencepost::{
    Result,
    agent::{PauseState, list as listed},
};
use std::process::ExitCode;

verbs![join::Join, list::List, leave::Leave, recall::Recall, pause::Pause, resume::Resume];
pub use {pause::Pause, resume::Resume};

/// Manage agents: join, leave, and see what each one does; without a verb it lists them
///
/// An agent is a name, and any number of processes may act for it. A lead is notified of tasks that others finish. A worker takes
/// tasks from the pool. An agent that joined can use `fence poll`. It is online if it polled within the last five minutes, or if
/// one of its runs lives.
///
/// Examples:
///   fence agent join lead --role lead
///   fence agent join bob --capability rust --max-concurrent 3
///   fence agent                                   list the agents, and what each one does
///   fence agent recall bob                        bob is gone: give its waiting tasks back to the pool
///   fence agent pause bob --for 30m               no new work for bob in the next half hour
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "agents")]
pub struct Agent {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Agent {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::List(list::List::default())).run(context).await
    }
}

/// The agent: the one that is named, else the one that acts.
#[derive(Debug, Args)]
struct Named {
    /// The agent  [default: --agent, FENCE_AGENT]
    #[arg(value_name = "AGENT")]
    name: Option<String>,
}

impl Named {
    fn name(self, context: &Context) -> Result<String> {
        self.name.map_or_else(|| context.required_agent(), Ok)
    }
}

/// One line per agent: `bob  worker  online  1 of 3  pool_task task/auth-3@42`.
fn table(agents: &[listed::Agent], terminal: &Terminal) -> String {
    let mut table =
        Table::new(&["AGENT", "ROLE", "STATE", "BUSY", "CAN", "DOING", "WAITING FOR IT"]).headed();
    for agent in agents {
        let state = match (&agent.paused, agent.left_at, agent.online) {
            (_, Some(_), _) => Cell::state("left"),
            (Some(pause), ..) => Cell::state_as("paused", paused(pause, terminal)),
            (None, None, true) => Cell::state("online"),
            (None, None, false) => Cell::state("offline"),
        };
        let busy = agent.runs.iter().filter(|run| run.trigger.is_some()).count();
        let busy = agent.max_concurrent.map_or(busy.to_string(), |max| format!("{busy} of {max}"));
        table.row(vec![
            agent.name.as_str().into(),
            agent.role.as_str().into(),
            state,
            busy.into(),
            agent.capabilities.join(", ").into(),
            agent.runs.iter().filter_map(doing).collect::<Vec<_>>().join("; ").into(),
            waiting(agent).into(),
        ]);
    }
    table.render(terminal)
}

/// `paused for another 29m: the disk is full`
fn paused(pause: &PauseState, terminal: &Terminal) -> String {
    let until = pause.until.map_or(String::new(), |until| format!(" {}", terminal.until(until)));
    let reason = pause.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("paused{until}{reason}")
}

/// The trigger and the claims of a run; `None` if it holds nothing.
fn doing(run: &listed::Doing) -> Option<String> {
    let parts = run.trigger.iter().cloned().chain([tasks::tokens(&run.claims)]);
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

fn waiting(agent: &listed::Agent) -> String {
    match agent.stranded.as_slice() {
        [] if agent.waiting == 0 => String::new(),
        [] => agent.waiting.to_string(),
        stranded => format!("stranded: {}", stranded.join(", ")),
    }
}
