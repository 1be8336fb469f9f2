use crate::{
    context::Context,
    output::{tasks, terminal::state},
};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Explain why a task cannot be claimed, and when that could change
#[derive(Debug, Args)]
pub struct Why {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_of)]
    task: String,
}

impl Why {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(task::Why { task: self.task }).await?;
        context.print(&reply, |reply| {
            let terminal = &context.terminal;
            let mut lines = vec![tasks::task(&reply.task, terminal)];
            if reply.ready {
                lines.push("it can be claimed now: fence claim".into());
            }
            for reason in &reply.reasons {
                let when =
                    reason.until.map(|at| terminal.when(at)).filter(|when| !reason.message.contains(when));
                let until = when.map_or(String::new(), |when| format!(" ({when})"));
                let what = terminal.paint(state(&reason.what), &reason.what);
                lines.push(terminal.wrap(&format!("  {what}: {}{until}", reason.message), 0, 4));
            }
            lines.join("\n")
        })
    }
}
