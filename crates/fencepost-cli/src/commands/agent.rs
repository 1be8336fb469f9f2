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
use fencepost::{Result, agent::list as listed};
use std::process::ExitCode;

verbs![join::Join, list::List, leave::Leave, recall::Recall];

/// Say which agents there are: join, leave, and see what each is doing; alone it lists them
///
/// An agent is a name for which any number of processes may act. A lead is told of what others finish; a worker takes from
/// the pool. Who joined can `fence poll`. It is online if it polled within five minutes, or a run
/// of its own lives.
///
/// Examples:
///   fence agent join lead --role lead
///   fence agent join bob --capability rust --max-concurrent 3
///   fence agent                                   who is there, and what each is doing
///   fence agent recall bob                        bob is gone: what waits for it is anyone's again
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

/// The agent that is meant: who is named, else who acts.
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

/// A line each: `bob  worker  online  1 of 3  pool_task task/auth-3@42`.
fn table(agents: &[listed::Agent], terminal: &Terminal) -> String {
    let mut table =
        Table::new(&["AGENT", "ROLE", "STATE", "BUSY", "CAN", "DOING", "WAITING FOR IT"]).headed();
    for agent in agents {
        let state = match (agent.left_at, agent.online) {
            (Some(_), _) => "left",
            (None, true) => "online",
            (None, false) => "offline",
        };
        let busy = agent.runs.iter().filter(|run| run.trigger.is_some()).count();
        let busy = agent.max_concurrent.map_or(busy.to_string(), |max| format!("{busy} of {max}"));
        table.row(vec![
            agent.name.as_str().into(),
            agent.role.as_str().into(),
            Cell::state(state),
            busy.into(),
            agent.capabilities.join(", ").into(),
            agent.runs.iter().filter_map(doing).collect::<Vec<_>>().join("; ").into(),
            waiting(agent).into(),
        ]);
    }
    table.render(terminal)
}

/// What a run is at; nothing, if it holds nothing.
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
