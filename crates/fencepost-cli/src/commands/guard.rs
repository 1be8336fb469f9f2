use super::{Held, duration};
use crate::{
    context::Context,
    identity,
    supervise::{self, Ended, Job, LeaseRenewer, Signals, TerminalAccess},
};
use clap::Args;
use fencepost::{Code, Millis, Result, claim, claim::Verdict};
use std::{ffi::OsString, process::ExitCode};

/// Run a command only under a living claim; without a command, ask whether it is alive
///
/// The claim is renewed while the command runs. As soon as it is known to be lost or given back, the command's process
/// group is told to end (TERM) and then killed; if it cannot be renewed, before anybody else can have it. A command that
/// finishes its task itself (fence done) goes on to its own end. It finds the claim in FENCE_CLAIM, its run in FENCE_RUN
/// and the fleet in FENCE_DB or FENCE_URL.
///
/// Exits with the command's code, or 5 with the reason if the claim is or was lost.
///
/// Examples:
///   fence guard && echo "still mine"
///   fence guard -- git push
///   fence guard task/auth-3@42 -- sh -c 'make deploy && fence done'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Guard {
    #[command(flatten)]
    held: Held,
    /// Between telling a command whose claim is lost to end and killing it
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s", requires = "command")]
    grace: Millis,
    /// What to run
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Guard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let footing = context.location()?.database_file();
        let token = self.held.token(context).await?;
        if self.command.is_empty() {
            return answer(context, token).await;
        }
        let signals = Signals::listen()?;
        let claim = match context.call(claim::Renew::new(&token)).await {
            Ok(renewed) => renewed.claim,
            Err(error) => return Ended::Lost(error).code(),
        };
        let mut command = supervise::command(&self.command, &claim, context)?;
        // `fence` within it acts under the claim.
        command.env("FENCE_CLAIM", &claim.token).env(identity::RUN, &claim.run);
        let keep = LeaseRenewer::new(context.connection().await?, footing, claim);
        let job = Job { command, terminal: TerminalAccess::Foreground, grace: self.grace };
        supervise::run(keep, job, signals, std::future::pending()).await?.code()
    }
}

async fn answer(context: &Context, token: String) -> Result<ExitCode> {
    let reply = context.call(claim::Guard { token }).await?;
    context.print(&reply, |reply| {
        let reason = serde_json::json!(reply.reason);
        let reason = reason.as_str().unwrap_or_default();
        match &reply.claim {
            Some(claim) => format!("{reason}: held by run {} until {}", claim.run, claim.expires_at),
            None => reason.to_owned(),
        }
    })?;
    Ok(match reply.reason {
        Verdict::Ok => ExitCode::SUCCESS,
        _ => ExitCode::from(Code::LeaseExpired.exit_code()),
    })
}
