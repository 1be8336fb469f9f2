use crate::{context::Context, screen, text};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Say everything that keeps a task from being claimed, and when that could change
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
            let screen = &context.screen;
            let mut lines = vec![text::task(&reply.task, screen)];
            if reply.ready {
                lines.push("nothing stands in the way: fence claim takes it".into());
            }
            for reason in &reply.reasons {
                let when =
                    reason.until.map(|at| screen.when(at)).filter(|when| !reason.message.contains(when));
                let until = when.map_or(String::new(), |when| format!(" ({when})"));
                let what = screen.paint(screen::state(&reason.what), &reason.what);
                lines.push(screen.wrap(&format!("  {what}: {}{until}", reason.message), 0, 4));
            }
            lines.join("\n")
        })
    }
}
