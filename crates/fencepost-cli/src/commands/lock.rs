use super::{duration, wait_reason};
use crate::{
    context::Context,
    names::unique,
    supervise::{self, Ended, Job, LeaseRenewer, Signals, TerminalAccess},
};
use clap::Args;
use fencepost::{Code, Error, Millis, Result, claim::Claim, lock, run};
use rustix::process::Signal;
use std::{ffi::OsString, process::ExitCode, time::Duration};

/// The timeout for giving the lock back. If the database does not answer, its lease expires soon.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Run a command while holding a named lock
///
/// The lock is renewed while the command runs, and released when the command's process group is empty. Processes that the command
/// leaves behind get TERM, then KILL. The same happens to the whole group when the lock is lost, or when it cannot be renewed, before
/// anybody else can get the lock. If fence itself is killed, the command is killed, too. The command's environment has the lock's
/// token in FENCE_LOCK and the fleet in FENCE_DB or FENCE_URL. FENCE_CLAIM and FENCE_RUN stay as they are, so that fence within the
/// command acts for the run that took the lock.
///
/// Exits with the code of the command, with 4 if somebody else holds the lock, or with 5 and the reason if the lock was lost.
///
/// Examples:
///   fence lock deploy -- ./deploy.sh
///   fence lock deploy --wait -- ./deploy.sh
///   fence lock git/main --wait=30s --max 10m -- git push
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Lock {
    /// The name of the lock, such as deploy or git/main
    name: String,
    /// If somebody else holds it, wait up to this long; without a value, for ever
    #[arg(long, value_parser = duration, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<Millis>>,
    /// Lease: how long it stays locked if this machine dies
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "1m")]
    ttl: Millis,
    /// The longest time for the command
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    max: Option<Millis>,
    /// The time between TERM and KILL
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    grace: Millis,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Lock {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let run = unique("lock-");
        let database_file = context.location()?.database_file();
        let mut signals = Signals::listen()?;
        let claimed = tokio::select! {
            claim = self.claim(context, &run) => claim,
            code = interrupted(&mut signals) => {
                // The claim may have succeeded meanwhile.
                let _ = give_back(context, &run, GIVE_BACK).await;
                return Ok(code);
            }
        };
        let claim = claimed?;
        let mut command = supervise::command(&self.command, &claim, context)?;
        // FENCE_RUN and FENCE_CLAIM stay those of the caller.
        command.env("FENCE_LOCK", &claim.token);
        let renewer = LeaseRenewer::new(context.connection().await?, database_file, claim);
        let job = Job { command, terminal: TerminalAccess::Foreground, grace: self.grace, run: None };
        let ended = supervise::run(renewer, job, signals, std::future::pending(), &()).await;
        // A lost lock need not be given back. It is tried for tidiness, with a short timeout.
        let is_held = matches!(ended, Ok(Ended::Exited(_) | Ended::NotStarted { .. }));
        let timeout = if is_held { GIVE_BACK } else { Duration::from_secs(1) };
        if let (Err(error), true) = (give_back(context, &run, timeout).await, is_held) {
            context.warn(&error);
        }
        ended?.code()
    }

    async fn claim(&self, context: &Context, run: &str) -> Result<Claim> {
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
            Some(limit) => context.call_with_progress(limit, op, wait_reason).await,
        };
        match claimed {
            Ok(claimed) => Ok(claimed.claim),
            // Only this process knows the run, so only this process can retry.
            Err(error) if error.code() == Code::OutcomeUnknown => Ok(context.call(op(None)).await?.claim),
            Err(error) if error.code() == Code::AlreadyClaimed && self.wait.is_none() => {
                Err(error.hint(format!("fence lock {} --wait -- … waits for it", self.name)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Ends the run, which exists for this command alone. If it claimed nothing, there is no run to end.
async fn give_back(context: &Context, run: &str, timeout: Duration) -> Result<()> {
    let end = context.call(run::End {
        run: run.into(),
        reason: Some("its command is over".into()),
        ..run::End::default()
    });
    match tokio::time::timeout(timeout, end).await {
        Ok(Err(error)) if error.code() == Code::NotFound => Ok(()),
        Ok(ended) => ended.map(drop).map_err(|error| not_released(error.message())),
        Err(_) => Err(not_released("the database does not answer")),
    }
}

fn not_released(why: &str) -> Error {
    Error::unavailable(format!("the lock could not be given back, and stays until its lease expires: {why}"))
}

/// Waits until a signal ends this process. It holds nothing yet, so Ctrl-Z may stop it, too.
pub(super) async fn interrupted(signals: &mut Signals) -> ExitCode {
    loop {
        match signals.next().await {
            Signal::CHILD | Signal::CONT => {}
            Signal::TSTP => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
            signal => return supervise::exit_code(signal),
        }
    }
}
