use super::{Held, duration};
use crate::{
    context::Context,
    identity,
    supervise::{self, Ended, Job, LeaseRenewer, Signals, TerminalAccess},
};
use clap::Args;
use fencepost::{Code, Millis, Result, claim, claim::Verdict};
use std::{ffi::OsString, process::ExitCode};

/// Run a command only while your claim lives; without a command, check the claim
///
/// The claim is renewed while the command runs. When the claim is lost, or cannot be renewed, the command's process group gets TERM,
/// then KILL, before anybody else can claim the item. A command that completes its task itself (fence done) may run to its end. Its
/// environment has the token in FENCE_CLAIM, the run in FENCE_RUN and the fleet in FENCE_DB or FENCE_URL.
///
/// Exits with the code of the command, or with 5 and the reason if the claim is over.
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
    /// The time between TERM and KILL
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s", requires = "command")]
    grace: Millis,
    /// The command
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Guard {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let database_file = context.location()?.database_file();
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
        // fence within the command acts under the claim.
        command.env("FENCE_CLAIM", &claim.token).env(identity::RUN, &claim.run);
        let renewer = LeaseRenewer::new(context.connection().await?, database_file, claim);
        let job = Job { command, terminal: TerminalAccess::Foreground, grace: self.grace, run: None };
        supervise::run(renewer, job, signals, std::future::pending(), &()).await?.code()
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
