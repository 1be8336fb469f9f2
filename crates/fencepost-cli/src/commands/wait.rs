use super::duration;
use crate::{context::Context, output::terminal::state};
use clap::Args;
use fencepost::{
    Code, Millis, Result,
    task::{self, wait::Waited},
};
use std::process::ExitCode;

/// Wait until tasks are completed; exits 0 only if all of them are
///
/// It stops at once, and exits 1, when a task fails or is cancelled, because only a person can change that. With --any it stops
/// when the first task is finished, and exits 0 if that one was completed. Exits 3 when the timeout is over.
///
/// Examples:
///   fence wait auth-1 auth-2
///   fence wait --board release --timeout 1h && ./deploy.sh
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Wait {
    /// The tasks, such as auth-3
    #[arg(value_name = "ID", required_unless_present = "board", conflicts_with = "board")]
    tasks: Vec<String>,
    /// All tasks of this board
    #[arg(long)]
    board: Option<String>,
    /// Stop when the first task is finished
    #[arg(long)]
    any: bool,
    /// Give up after this long  [default: never]
    #[arg(long, value_parser = duration)]
    timeout: Option<Millis>,
}

impl Wait {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = |wait_ms| task::Wait {
            tasks: self.tasks.clone(),
            board: self.board.clone(),
            any: self.any,
            wait_ms,
        };
        let waited = context.call_while_read(self.timeout, op, waiting_for).await?;
        context.print(&waited, |waited| {
            let line = |task: &task::wait::Waiting| {
                let shown = task.state.as_str();
                format!("{}  {}", task.id, context.terminal.paint(state(shown), shown))
            };
            waited.tasks.iter().map(line).chain([counts(waited)]).collect::<Vec<_>>().join("\n")
        })?;
        let lost = waited.failed + waited.cancelled;
        let enough = if self.any { waited.completed > 0 || waited.open + lost == 0 } else { lost == 0 };
        Ok(match (waited.over, enough) {
            (true, true) => ExitCode::SUCCESS,
            (true, false) => ExitCode::FAILURE,
            (false, _) => ExitCode::from(Code::NoneReady.exit_code()),
        })
    }
}

fn waiting_for(answer: &Result<Waited>) -> String {
    answer.as_ref().map_or_else(|error| error.message().to_owned(), counts)
}

fn counts(waited: &Waited) -> String {
    let Waited { completed, failed, cancelled, open, .. } = waited;
    format!("{completed} completed, {failed} failed, {cancelled} cancelled, {open} open")
}
