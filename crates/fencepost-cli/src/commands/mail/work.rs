mod budget;
mod delivery;
mod slot;

use super::super::duration;
use crate::{
    context::Context,
    location::DatabaseFile,
    names::unique,
    supervise::{Service, exit_code},
};
use budget::Budget;
use clap::Args;
use fencepost::{Code, Error, Millis, Result, mail, run};
use futures_util::future::join_all;
use std::{cell::Cell, ffi::OsString, process::ExitCode, time::Duration};

/// The timeout for giving back messages that were not started. If the database does not answer, their lease expires soon.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Run a command for each message of one or more mailboxes, as they arrive
///
/// The command gets the payload on standard input: a text as it is, anything else as JSON. Its standard error is not touched.
///   exit 0       the message is completed, and the command's standard output is its output (JSON if valid, else text)
///   exit 65      the message fails for good (in sysexits, a data error)
///   other codes  the message fails, and is tried again after a while if attempts are left
///
/// The messages are held by a run of their own, which is renewed while the command runs. If fence is killed, its command is killed,
/// too, and the message goes back when the lease expires. If the claim is lost, the command's process group gets TERM, then KILL.
/// The command's environment has FENCE_CLAIM and FENCE_RUN, so that fence within it acts under the claim. It also has
/// FENCE_MESSAGE, FENCE_MAILBOX, FENCE_MESSAGE_TYPE (if the message has one), FENCE_ATTEMPT (1 for the first), and the fleet in
/// FENCE_DB or FENCE_URL.
///
/// The first TERM or Ctrl-C stops claiming: running commands finish, messages that were not started are given back, exit 0. The
/// second one also ends the commands, and their messages are given back.
///
/// With --batch the command gets several messages at once, one JSON object per line, as in the claims of `mail claim --json`. They
/// are completed or fail together. The command prints nothing, or one line per message, in the same order.
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
    /// The number of commands at the same time
    #[arg(long, short = 'c', value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// The most messages for each command, as lines of JSON
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1000))]
    batch: Option<i64>,
    /// Stop after this many messages
    #[arg(long, value_name = "N", alias = "max", value_parser = clap::value_parser!(i64).range(1..))]
    count: Option<i64>,
    /// Stop after one command
    #[arg(long, conflicts_with_all = ["count", "concurrency"])]
    once: bool,
    /// Stop when no message is ready
    #[arg(long)]
    drain: bool,
    /// Do not try failed messages again
    #[arg(long)]
    no_retry: bool,
    /// Lease: how long the messages stay claimed if this machine dies
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "1m")]
    ttl: Millis,
    /// The longest time for a command; then it is ended, and its message counts as lost
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    timeout: Option<Millis>,
    /// The time between TERM and KILL
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    grace: Millis,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The state that all slots share.
struct Worker<'c> {
    args: Work,
    service: Service<'c>,
    database_file: Option<DatabaseFile>,
    run: String,
    budget: Budget,
    /// The exit code if the command cannot be started.
    not_started: Cell<Option<u8>>,
}

impl Work {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let database_file = context.location()?.database_file();
        let service = Service::new(context).await?;
        let mut signals = Service::signals()?;
        let most = if self.once { Some(self.batch.unwrap_or(1)) } else { self.count };
        let worker = Worker {
            run: unique("mail-"),
            service,
            budget: Budget::new(most),
            not_started: Cell::new(None),
            args: self,
            database_file,
        };
        let slots = join_all((0..worker.args.concurrency).map(|_| worker.slot()));
        let results = tokio::select! {
            results = slots => results,
            never = worker.service.listen(&mut signals) => match never {},
        };
        worker.give_back().await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(match (worker.not_started.get(), worker.service.stop.ended_by()) {
            (Some(code), _) => ExitCode::from(code),
            (None, Some(signal)) => exit_code(signal),
            (None, None) => ExitCode::SUCCESS,
        })
    }
}

impl Worker<'_> {
    /// Ends the run, which exists for this command alone. Messages that it still holds were not started. They are released before,
    /// because the messages of an ended run count as lost.
    async fn give_back(&self) {
        let reset = mail::Reset { run: Some(self.run.clone()), ..Default::default() };
        let end = run::End {
            run: self.run.clone(),
            reason: Some("its command is over".into()),
            ..run::End::default()
        };
        let both = async {
            while self.service.context.call(reset.clone()).await?.more {}
            self.service.context.call(end).await.map(drop)
        };
        let late = Error::unavailable("the database does not answer");
        match tokio::time::timeout(GIVE_BACK, both).await.unwrap_or(Err(late)) {
            Ok(()) => {}
            // The run claimed nothing, or is over already.
            Err(error) if matches!(error.code(), Code::NotFound | Code::Unauthorized | Code::Forbidden) => {}
            Err(error) => self.service.context.warn(&Error::unavailable(format!(
                "messages that were not started go back when their lease expires: {}",
                error.message()
            ))),
        }
    }
}
