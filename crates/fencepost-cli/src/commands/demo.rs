pub mod cast;
pub mod director;
mod summary;

use crate::{
    context::Context,
    names::unique,
    output::streams,
    private_files::make_directory,
    supervise::{Service, exit_code, watchdog::Watchdog},
};
use cast::Cast;
use clap::Args;
use director::{Audience, Director};
use fencepost::{Code, Error, Result};
use fencepost_client::Connection;
use std::{path::PathBuf, process::ExitCode, time::Duration};
use summary::Summary;
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
/// The summary at the end is computed from the event log. Exits 1 if a promise was broken, or if the demo did not come to its end.
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
        let mut signals = Service::signals()?;
        let mut cast = Cast::new(&stage.directory, Watchdog::start(None, None)?);
        let (played, signal) = tokio::select! {
            played = self.play(context, &stage, &mut cast) => (Some(played), None),
            signal = signals.next() => (None, Some(signal)),
        };
        let stopped = signal.map(exit_code).or_else(|| cast.view_closed());
        cast.end();
        match (stopped, played) {
            (None, Some(Ok(summary))) => {
                let directory = self.keep.then(|| stage.directory.display().to_string());
                context.print(&summary, |summary| summary.page(directory.as_deref()))?;
                Ok(if summary.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            (None, Some(Err(error))) => {
                streams::print_error(&cast.last_lines());
                stage.print_if_kept();
                // The code of a call that failed is not the exit code of the demo.
                Err(Error::new(Code::Internal, error.message()).hint(
                    "a promise was broken, or this machine is too busy: fence demo --keep leaves the fleet to look at",
                ))
            }
            (stopped, _) => {
                streams::print_error("stopped");
                stage.print_if_kept();
                Ok(stopped.unwrap_or(ExitCode::FAILURE))
            }
        }
    }

    async fn play(&self, context: &Context, stage: &Stage, cast: &mut Cast) -> Result<Summary> {
        let began = Instant::now();
        let is_live = !self.plain && !context.json() && context.terminal.width().is_some();
        let connection = Connection::open(&stage.database()).await?;
        let audience = match (is_live, context.json()) {
            (true, _) => Audience::View,
            (false, true) => Audience::Nobody,
            (false, false) => Audience::Lines,
        };
        let play = Director::new(&connection, cast, audience).play();
        let seen = tokio::time::timeout(LONGEST, play).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!("the demo was not over after {} s", LONGEST.as_secs())))
        })?;
        let left = cast.drain().await;
        let mut summary = summary::read(&connection, &seen, cast.directory()).await?;
        summary.took_ms = began.elapsed().into();
        summary.problems.extend(left);
        connection.flush().await;
        Ok(summary)
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

    fn print_if_kept(&self) {
        if self.keep {
            streams::print_error(&format!("the fleet is kept: {}", self.directory.display()));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}
