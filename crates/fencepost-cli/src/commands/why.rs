use crate::{
    context::Context,
    output::{tasks, terminal::state},
};
use clap::Args;
use fencepost::{Result, storm, task};
use std::process::ExitCode;

/// Explain why a task cannot be claimed, or why posts did not wake an agent, and when that could change
///
/// Examples:
///   fence why auth-3
///   fence why general bob                         why unread posts of general do not wake bob
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Why {
    /// The task, such as auth-3, or a channel if an agent follows
    #[arg(value_name = "ID", value_parser = super::task_of)]
    task: String,
    /// The agent that unread posts of the channel did not wake
    #[arg(value_name = "AGENT")]
    agent: Option<String>,
}

impl Why {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.agent {
            Some(agent) => of_wakeup(context, self.task, agent).await,
            None => of_task(context, self.task).await,
        }
    }
}

async fn of_wakeup(context: &Context, channel: String, agent: String) -> Result<ExitCode> {
    let reply = context.call(storm::Why { channel, agent }).await?;
    context.print(&reply, |reply| {
        let terminal = &context.terminal;
        let presence = if reply.online { "online" } else { "offline" };
        let head = format!(
            "{} in {}: {}, {} unread post{} of others",
            terminal.bold(&reply.agent),
            terminal.bold(&reply.channel),
            terminal.paint(state(presence), presence),
            reply.unread,
            if reply.unread == 1 { "" } else { "s" },
        );
        let why = reply.why.map_or(String::new(), |why| format!("{}: ", why.as_str()));
        format!("{head}\n{}", terminal.wrap(&format!("  {why}{}", reply.explanation), 0, 4))
    })
}

async fn of_task(context: &Context, task: String) -> Result<ExitCode> {
    let reply = context.call(task::Why { task }).await?;
    context.print(&reply, |reply| {
        let terminal = &context.terminal;
        let mut lines = vec![tasks::task(&reply.task, terminal)];
        if reply.ready {
            lines.push("it can be claimed now: fence claim".into());
        }
        for reason in &reply.reasons {
            let when = reason.until.map(|at| terminal.when(at)).filter(|when| !reason.message.contains(when));
            let until = when.map_or(String::new(), |when| format!(" ({when})"));
            let what = terminal.paint(state(&reason.what), &reason.what);
            lines.push(terminal.wrap(&format!("  {what}: {}{until}", reason.message), 0, 4));
        }
        lines.join("\n")
    })
}
