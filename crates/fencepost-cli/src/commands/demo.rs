mod cast;
pub mod director;
mod summary;

use crate::{
    context::Context,
    names::unique,
    output::streams,
    private_files::make_directory,
    supervise::{Signals, watchdog::Watchdog},
};
use cast::Cast;
use clap::Args;
use director::Director;
use fencepost::{Code, Error, Result};
use fencepost_client::Connection;
use rustix::process::Signal;
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::time::Instant;

/// The demo takes about 15 s. On a very busy machine it may take longer; after this it has failed.
const LONGEST: Duration = Duration::from_secs(180);

/// See all of it in one command: a lead and three workers, one killed and one frozen, and each piece of work done once
///
/// The demo makes a fleet in a temporary directory, and starts four real `fence work` processes with scripted agents as their
/// children. They share tasks with dependencies, messages, mentions and an offer. One worker is killed with kill -9 in the middle of a
/// task. Another one is frozen until its lease is over and another worker has its task; then it comes back, and its late write is
/// refused. On a terminal you watch it live (fence top).
///
/// The summary at the end is computed from the event log. Exits 1 if a promise was broken.
///
/// Examples:
///   fence demo
///   fence demo --keep        leaves the fleet, to look at
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Demo {
    /// Keep the fleet, and print how to look at it
    #[arg(long)]
    keep: bool,
    /// Print a line per event instead of the live view
    #[arg(long)]
    plain: bool,
}

impl Demo {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let stage = Stage::create(self.keep)?;
        // Handled, so that nothing is left behind.
        let mut signals = Signals::listen_to(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])?;
        let began = Instant::now();
        let is_live = !self.plain && !context.json() && context.terminal.width().is_some();
        let mut cast = Cast::start(&stage.directory, Watchdog::start(None)?, is_live)?;
        let connection = Connection::open(&stage.database()).await?;
        let played = {
            let director = Director::new(&connection, &mut cast, is_live || context.json());
            tokio::select! {
                played = tokio::time::timeout(LONGEST, director.play()) => played.unwrap_or_else(|_| {
                    Err(Error::unavailable(format!("the demo was not over after {} s", LONGEST.as_secs())))
                }),
                signal = signals.next() => {
                    cast.end();
                    return Ok(ExitCode::from(u8::try_from(128 + signal.as_raw()).unwrap_or(1)));
                }
            }
        };
        let seen = match played {
            Ok(seen) => seen,
            Err(error) => {
                let logs = cast.end();
                return Err(stage.explain(error, &logs));
            }
        };
        let left = cast.drain().await;
        let mut summary = summary::read(&connection, &seen).await?;
        summary.took_ms = began.elapsed().into();
        summary.problems.extend(left);
        connection.flush().await;
        let directory = self.keep.then(|| stage.directory.display().to_string());
        context.print(&summary, |summary| summary.page(directory.as_deref()))?;
        Ok(if summary.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The temporary directory of the demo. It is removed at the end, unless the user wants to look at it.
struct Stage {
    directory: PathBuf,
    keep: bool,
}

impl Stage {
    fn create(keep: bool) -> Result<Self> {
        let directory = std::env::temp_dir().join(unique("fence-demo-"));
        make_directory(&directory).map_err(|e| {
            Error::new(Code::Unavailable, format!("`{}` cannot be made: {e}", directory.display()))
        })?;
        Ok(Self { directory, keep })
    }

    fn database(&self) -> String {
        self.directory.join("fence.db").display().to_string()
    }

    /// A demo that failed says what its workers said last.
    fn explain(&self, error: Error, logs: &str) -> Error {
        if !logs.is_empty() {
            streams::print_error(logs);
        }
        error.hint("a promise was broken, or this machine is too busy: fence demo --keep leaves the fleet to look at")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}
