use super::{accepted::Memory, repository::Repository};
use crate::{
    commands::{check_person, task_of},
    context::Context,
};
use clap::Args;
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Forget the accepted fences of a task, in the repository that receives pushes
///
/// The next push for the task is accepted under any fence. For a person, in a terminal: an agent's session is refused.
#[derive(Debug, Args)]
pub struct Forget {
    /// The task
    #[arg(value_name = "TASK", value_parser = task_of)]
    task: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Forgotten {
    task: String,
    fences: Vec<Fence>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Fence {
    fleet: String,
    fence: i64,
}

impl Forget {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        check_person("forgets accepted fences")?;
        let repository = Repository::here().await?;
        let memory = Memory::lock(&repository.own_directory()).await?;
        let mut fences = memory.read()?;
        let gone = fences.forget(&self.task);
        if gone.is_empty() {
            let message = format!("no push for task `{}` was accepted here", self.task);
            return Err(
                Error::new(Code::NotFound, message).hint("fence git status lists the accepted fences")
            );
        }
        memory.write(&fences)?;
        let fences = gone.into_iter().map(|(fleet, fence)| Fence { fleet, fence }).collect();
        context.print(&Forgotten { task: self.task, fences }, |gone| {
            let each = |fence: &Fence| {
                format!("forgot fence {} of {} (fleet {})", fence.fence, gone.task, fence.fleet)
            };
            gone.fences.iter().map(each).collect::<Vec<_>>().join("\n")
        })
    }
}
