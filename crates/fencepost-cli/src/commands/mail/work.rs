mod budget;
mod delivery;
mod slot;
mod stop;

use super::super::duration;
use crate::{context::Context, location::DatabaseFile, names::unique, output::streams, supervise::Signals};
use budget::Budget;
use clap::Args;
use fencepost::{Code, Error, Millis, Result, mail, run};
use futures_util::future::join_all;
use rustix::process::Signal;
use std::{cell::Cell, ffi::OsString, process::ExitCode, time::Duration};
use stop::Stop;

/// For giving back what was not started. The lease ends soon enough if the database does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run a command for each message of a mailbox, or of several, as they come
///
/// The command gets the payload on standard input: a text as it is, anything else as JSON. Its standard error is yours.
///   exit 0       the message is completed, with what the command printed as its output (JSON if it is that, else text)
///   exit 65      it has failed for good: sysexits calls it a data error
///   other codes  it has failed, and is tried again after a while, as long as attempts are left
///
/// A run of its own holds the messages, renewed while the command runs. If fence is killed, so is its command, and the
/// message comes back when the lease is over. If the claim is lost, the command's process group is ended (TERM, then
/// KILL). The command finds in its environment FENCE_CLAIM and FENCE_RUN, under which fence within it acts, FENCE_MESSAGE,
/// FENCE_MAILBOX, FENCE_MESSAGE_TYPE (if it has one), FENCE_ATTEMPT (1 for the first), and the fleet in FENCE_DB or FENCE_URL.
///
/// TERM or Ctrl-C once: no more is claimed, what runs is finished, what was not started is given back; exit 0. Twice: the
/// commands are ended too, and their messages given back.
///
/// With --batch the command gets several messages at once, a line of JSON each, as in the claims of `mail claim --json`;
/// they are completed or fail together. Its output is nothing, or a line for each message, in their order.
///
/// Examples:
///   fence mail work session/42 -- ./handle.sh
///   fence mail work 'jobs' 'slow-jobs' --concurrency 4 -- python worker.py
///   fence mail work imports --batch 100 --drain -- ./insert-rows
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Work {
    /// Mailboxes, such as session/42
    #[arg(required = true, value_name = "MAILBOX")]
    mailboxes: Vec<String>,
    /// So many commands at the same time
    #[arg(long, short = 'c', value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// Up to so many messages for each command, as lines of JSON
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1000))]
    batch: Option<i64>,
    /// Stop after so many messages
    #[arg(long, value_name = "N", alias = "max", value_parser = clap::value_parser!(i64).range(1..))]
    count: Option<i64>,
    /// Stop after one command
    #[arg(long, conflicts_with_all = ["count", "concurrency"])]
    once: bool,
    /// Stop when nothing is ready
    #[arg(long)]
    drain: bool,
    /// What failed is not tried again
    #[arg(long)]
    no_retry: bool,
    /// How long the messages stay claimed if this machine dies
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "1m")]
    ttl: Millis,
    /// The longest that a command may take; past it, it is ended, and its message counts as lost
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    timeout: Option<Millis>,
    /// Between telling a command to end and killing it
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    grace: Millis,
    /// What to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What all who work here share.
struct Worker<'c> {
    args: Work,
    context: &'c Context,
    footing: Option<DatabaseFile>,
    run: String,
    stop: Stop,
    budget: Budget,
    /// How a command said that it cannot even be started.
    not_started: Cell<Option<u8>>,
}

impl Work {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let footing = context.location()?.database_file();
        context.connection().await?;
        let mut signals = Signals::listen_to(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])?;
        let most = if self.once { Some(self.batch.unwrap_or(1)) } else { self.count };
        let worker = Worker {
            run: unique("mail-"),
            stop: Stop::default(),
            budget: Budget::new(most),
            not_started: Cell::new(None),
            args: self,
            context,
            footing,
        };
        let slots = join_all((0..worker.args.concurrency).map(|_| worker.slot()));
        let results = tokio::select! {
            results = slots => results,
            never = worker.listen(&mut signals) => match never {},
        };
        worker.give_back().await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(match (worker.not_started.get(), worker.stop.ended_by()) {
            (Some(code), _) => ExitCode::from(code),
            (None, Some(signal)) => ExitCode::from(u8::try_from(128 + signal.as_raw()).unwrap_or(1)),
            (None, None) => ExitCode::SUCCESS,
        })
    }
}

impl Worker<'_> {
    async fn listen(&self, signals: &mut Signals) -> std::convert::Infallible {
        loop {
            let signal = signals.next().await;
            match (signal, self.stop.is_draining()) {
                (Signal::QUIT, _) | (_, true) => self.stop.end(signal),
                (_, false) => {
                    self.stop.drain();
                    self.note("finishing what runs; once more ends it");
                }
            }
        }
    }

    /// The run was opened for this command alone, and ends with it. What it holds by now nobody has begun: it goes back
    /// before, because what an ended run held counts as lost.
    async fn give_back(&self) {
        let reset = mail::Reset { run: Some(self.run.clone()), ..Default::default() };
        let end = run::End {
            run: self.run.clone(),
            reason: Some("its command is over".into()),
            ..run::End::default()
        };
        let both = async {
            while self.context.call(reset.clone()).await?.more {}
            self.context.call(end).await.map(drop)
        };
        let late = Error::unavailable("the database does not answer");
        match tokio::time::timeout(PATIENCE, both).await.unwrap_or(Err(late)) {
            // It claimed nothing, or is over already.
            Ok(()) => {}
            Err(error) if matches!(error.code(), Code::NotFound | Code::Unauthorized | Code::Forbidden) => {}
            Err(error) => self.context.warn(&Error::unavailable(format!(
                "what was not started comes back when its lease ends: {}",
                error.message()
            ))),
        }
    }

    /// For whoever watches.
    fn note(&self, line: &str) {
        if !self.context.json() {
            streams::complain(line);
        }
    }
}
