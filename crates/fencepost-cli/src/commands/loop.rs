//! Loops: one verb, one file.

mod text;

use super::{Held, duration, one_of, text as given_text};
use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

pub use run::LOOP_FILE;

verbs![
    start::Start,
    run::Run,
    status::Status,
    list::List,
    next::Next,
    step::Step,
    guard::Guard,
    verdict::Verdict,
    cancel::Cancel,
    restart::Restart,
];

/// Run a chain of steps for each story of a plan, each story once; without a verb it shows the active loop
///
/// A loop is a board that is started once: a second start changes nothing. Its stories are tasks with acceptance criteria. A chain
/// (fence loop run) claims a story, runs the steps of its config (plan, write tests, implement, review, judge), and gives a verdict on
/// the commit that was judged. Several chains share a loop, and each story is done by one of them at a time. A chain that lost its
/// claim is refused everywhere.
///
/// The other verbs are for chains of your own: next, step, guard and verdict.
///
/// Examples:
///   fence loop start auth-v1 --prd prd.json
///   fence loop run auth-v1                        with the steps in loop.toml
///   fence loop status auth-v1
///   fence loop cancel auth-v1 --reason "the plan is wrong"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Loop {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Loop {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::Status(status::Status::default())).run(context).await
    }
}
