//! The git fence: one verb, one file.

mod accepted;
mod hook_script;
mod place;
mod push;
mod repository;
mod session;

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![install::Install, status::Status, forget::Forget, hook::Hook];

/// Make git refuse commits and pushes under a claim that is over
///
/// With its hooks a commit under FENCE_CLAIM, or in an agent's session that holds a task, gets the trailer `Fence: task/auth-3@42 3fa9c1d2`
/// (the token and the fleet's short id), and commits and pushes are refused once the claim is over. A repository that receives pushes refuses a push whose fence is lower than one
/// it accepted for the same task. It does that without asking the fleet. The fence stops work that is late; it does not stop somebody
/// who removes the trailer.
///
/// Examples:
///   fence git install                        in a clone, and where its pushes arrive
///   fence git install --require main         there: main takes only commits with a trailer
///   fence git status
///   fence git forget auth-3                  there: accept any fence for auth-3 next time
///   fence git install --remove
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Git {
    #[command(subcommand)]
    verb: Verb,
}

impl Git {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.run(context).await
    }
}
