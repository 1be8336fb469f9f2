use super::{duration, refused};
use crate::{
    context::Context,
    names::unique,
    supervise::{self, Ended, Job, LeaseRenewer, Signals, TerminalAccess},
};
use clap::Args;
use fencepost::{Code, Error, Millis, Result, claim::Claim, lock, run};
use rustix::process::Signal;
use std::{ffi::OsString, process::ExitCode, time::Duration};

/// For giving the lock back. Its lease ends soon enough if the database does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run a command while holding a named lock
///
/// The lock is renewed while the command runs, and given back when nothing of its process group is left: what it
/// leaves running is told to end (TERM) and then killed. As soon as the lock is known to be lost or given back, the same
/// happens to the whole group; if it cannot be renewed, before anybody else can have it. If fence itself is killed, its
/// command is killed too. The command finds the lock's claim in FENCE_LOCK and the fleet in FENCE_DB or FENCE_URL; fence within
/// it acts for whoever took the lock, under FENCE_CLAIM and FENCE_RUN as they were.
///
/// Exits with the command's code; 4 if another holds the lock; 5 with the reason if the lock was lost.
///
/// Examples:
///   fence lock deploy -- ./deploy.sh
///   fence lock deploy --wait -- ./deploy.sh
///   fence lock git/main --wait=30s --max 10m -- git push
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Lock {
    /// Any name, such as deploy or git/main
    name: String,
    /// If another holds it, wait: for this long, or for as long as it takes
    #[arg(long, value_parser = duration, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<Millis>>,
    /// How long it stays locked if this machine dies
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "1m")]
    ttl: Millis,
    /// The longest that the command may take
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    max: Option<Millis>,
    /// Between telling the command to end and killing it
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    grace: Millis,
    /// What to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Lock {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let run = unique("lock-");
        let place = context.location()?;
        let footing = place.database_file();
        let mut signals = Signals::listen()?;
        let claimed = tokio::select! {
            claim = self.take(context, &run) => claim,
            code = interrupted(&mut signals) => {
                // It may have been taken at this very moment.
                let _ = give_back(context, &run, PATIENCE).await;
                return Ok(code);
            }
        };
        let claim = claimed?;
        let mut command = supervise::command(&self.command, &claim, context)?;
        // Whoever takes a lock for a while works on under its own run and claim.
        command.env("FENCE_LOCK", &claim.token);
        let keep = LeaseRenewer::new(context.connection().await?, footing, claim);
        let job = Job { command, terminal: TerminalAccess::Foreground, grace: self.grace };
        let ended = supervise::run(keep, job, signals, std::future::pending()).await;
        // What was lost needs no giving back; it is tried for tidiness, and not for long.
        let is_held = matches!(ended, Ok(Ended::Exited(_) | Ended::NotStarted(_)));
        let patience = if is_held { PATIENCE } else { Duration::from_secs(1) };
        if let (Err(error), true) = (give_back(context, &run, patience).await, is_held) {
            context.warn(&error);
        }
        ended?.code()
    }

    async fn take(&self, context: &Context, run: &str) -> Result<Claim> {
        let op = |wait_ms| lock::Claim {
            name: self.name.clone(),
            run: run.into(),
            agent: context.agent(),
            ttl_ms: Some(self.ttl),
            max_ms: self.max,
            wait_ms,
            resume: false,
            request: context.request(),
        };
        let claimed = match self.wait {
            None => context.call(op(None)).await,
            Some(limit) => context.call_with_progress(limit, op, refused).await,
        };
        match claimed {
            Ok(claimed) => Ok(claimed.claim),
            // The run is this process's own, so nobody else could ask again.
            Err(error) if error.code() == Code::OutcomeUnknown => Ok(context.call(op(None)).await?.claim),
            Err(error) if error.code() == Code::AlreadyClaimed && self.wait.is_none() => {
                Err(error.hint(format!("fence lock {} --wait -- … waits for it", self.name)))
            }
            Err(error) => Err(error),
        }
    }
}

/// The run was opened for this command alone, and ends with it. (If it claimed nothing, there is none.)
async fn give_back(context: &Context, run: &str, patience: Duration) -> Result<()> {
    let end = context.call(run::End {
        run: run.into(),
        reason: Some("its command is over".into()),
        ..run::End::default()
    });
    match tokio::time::timeout(patience, end).await {
        Ok(Err(error)) if error.code() == Code::NotFound => Ok(()),
        Ok(ended) => ended.map(drop).map_err(|error| kept(error.message())),
        Err(_) => Err(kept("the database does not answer")),
    }
}

fn kept(why: &str) -> Error {
    Error::unavailable(format!("the lock could not be given back, and stays until its lease ends: {why}"))
}

/// Until a signal ends us. Nothing is held yet, so we can be stopped as well.
async fn interrupted(signals: &mut Signals) -> ExitCode {
    loop {
        match signals.next().await {
            Signal::CHILD | Signal::CONT => {}
            Signal::TSTP => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
            signal => return ExitCode::from(u8::try_from(128 + signal.as_raw()).unwrap_or(1)),
        }
    }
}
