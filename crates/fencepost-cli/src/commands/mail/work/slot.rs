//! One slot of a worker: it claims messages, runs the command, reports the result, and begins again.

use super::{
    super::text,
    Worker,
    delivery::{self, Verdict},
};
use crate::{
    identity,
    names::unique,
    output::streams,
    supervise::{
        self, Captured, Ended, FirstBytes, Job, LeaseRenewer, Pipes, Service, Signals, TerminalAccess,
    },
};
use fencepost::{
    Code, Error, OUTPUT_MAX, Result, WAIT_MAX,
    claim::Claim,
    mail::{self, claim::ClaimedMessage},
};
use std::{cell::Cell, process::Command};

/// The stored reason of messages whose command was ended because the worker stops.
const STOPPED: &str = "its worker was told to end";

impl Worker<'_> {
    /// Works until there is a reason to stop. An error that a retry cannot help stops the other slots, too.
    pub async fn slot(&self) -> Result<()> {
        let done = async {
            while let Some(claims) = self.next().await? {
                self.process(&claims).await?;
            }
            Ok(())
        };
        let done = done.await;
        if done.is_err() {
            self.service.stop.drain();
        }
        done
    }

    /// The next messages; `None` if it is time to stop.
    async fn next(&self) -> Result<Option<Vec<ClaimedMessage>>> {
        let mut request = unique("");
        let mut backoff = Service::BACKOFF;
        // A retry under the same request id must ask for the same number.
        let mut reserved = None;
        while !self.service.stop.is_draining() {
            let count = reserved.take().or_else(|| self.budget.reserve(self.args.batch.unwrap_or(1)));
            let Some(count) = count else { return Ok(None) };
            let answer = tokio::select! {
                answer = self.service.context.call(self.claim(count, &request)) => answer,
                // The claim may have succeeded meanwhile. The worker gives everything back at its end.
                () = self.service.stop.draining() => return Ok(None),
            };
            let error = match answer {
                Ok(claimed) => {
                    self.budget.give_back(count - claimed.claims.len() as i64);
                    return Ok(Some(claimed.claims));
                }
                Err(error) => error,
            };
            if Service::may_pass(&error) {
                // The retry returns what the first call claimed, if it did.
                reserved = Some(count);
                self.service.back_off(&error, &mut backoff).await;
                continue;
            }
            self.budget.give_back(count);
            match error.code() {
                Code::NoneReady if self.args.drain => return Ok(None),
                Code::NoneReady => request = unique(""),
                Code::Paused if !self.args.drain => request = unique(""),
                // The reply was lost, and the claim ended meanwhile.
                Code::LeaseExpired | Code::AlreadyFinished => request = unique(""),
                _ => return Err(error),
            }
        }
        Ok(None)
    }

    fn claim(&self, count: i64, request: &str) -> mail::Claim {
        mail::Claim {
            mailboxes: self.args.mailboxes.clone(),
            run: self.run.clone(),
            agent: self.service.context.agent(),
            count: Some(count),
            ttl_ms: Some(self.args.ttl),
            max_ms: None,
            wait_ms: (!self.args.drain).then_some(WAIT_MAX),
            request: Some(request.to_owned()),
        }
    }

    async fn process(&self, claims: &[ClaimedMessage]) -> Result<()> {
        let Some(first) = claims.first() else { return Ok(()) };
        let mut command = supervise::command(&self.args.command, &first.claim, self.service.context)?;
        self.set_environment(&mut command, first);
        let input = delivery::input(claims, self.args.batch.is_some())?;
        let printed = FirstBytes::up_to(OUTPUT_MAX);
        let pipes = Pipes::attach(&mut command, Some(input), Captured::Output, printed)
            .map_err(|e| Error::unavailable(format!("a command cannot be given its message: {e}")))?;
        let others: Vec<Claim> = claims[1..].iter().map(|claimed| claimed.claim.clone()).collect();
        let renewer = LeaseRenewer::new(
            self.service.context.connection().await?,
            self.database_file.clone(),
            first.claim.clone(),
        );
        let stopped = Cell::new(false);
        let recall = async {
            tokio::select! {
                () = self.service.stop.ending() => {
                    stopped.set(true);
                    Error::new(Code::Cancelled, STOPPED)
                }
                late = self.timed_out() => late,
            }
        };
        let job = Job { command, terminal: TerminalAccess::Background, grace: self.args.grace, run: None };
        let ended = supervise::run(renewer.and(others), job, Signals::of_children()?, recall, &()).await;
        let output = pipes.finish().await.map(|printed| printed.bytes).unwrap_or_default();
        match ended {
            Ok(Ended::Exited(code)) if self.service.stop.is_draining() && Service::is_stop_signal(code) => {
                self.stopped(claims).await
            }
            Ok(Ended::Exited(code)) => {
                let verdict = delivery::verdict(code, &output, claims.len(), self.args.batch.is_some());
                self.settle(claims, verdict).await
            }
            Ok(Ended::NotStarted { code, why, .. }) => {
                // The command cannot be started for any message.
                streams::print_error(&streams::label("error", &why));
                self.not_started.set(Some(code));
                self.service.stop.drain();
                self.release(claims).await;
                Ok(())
            }
            Ok(Ended::Lost(_)) if stopped.get() => self.stopped(claims).await,
            // The command was interrupted: it took too long, or a claim is over.
            Ok(Ended::Lost(error)) => {
                if error.code() != Code::Cancelled {
                    self.service.context.warn(&lost(&error));
                }
                self.lose(claims, error.message()).await
            }
            // The command was not started.
            Err(error) => {
                self.release(claims).await;
                self.service.back_off(&error, &mut Service::BACKOFF.clone()).await;
                Ok(())
            }
        }
    }

    /// Returns when the timeout is over. (Real time: the command is a real process.)
    async fn timed_out(&self) -> Error {
        let Some(timeout) = self.args.timeout else { return std::future::pending().await };
        tokio::time::sleep(timeout.into()).await;
        Error::new(Code::Cancelled, format!("its command took longer than {timeout}"))
    }

    /// Sets the variables of the command.
    fn set_environment(&self, command: &mut Command, first: &ClaimedMessage) {
        let message = &first.message;
        let single = self.args.batch.is_none();
        let kind = message.kind.clone();
        for (name, value) in [
            ("FENCE_CLAIM", single.then(|| first.claim.token.clone())),
            ("FENCE_MESSAGE", single.then(|| message.id.to_string())),
            ("FENCE_MAILBOX", single.then(|| message.mailbox.clone())),
            ("FENCE_MESSAGE_TYPE", kind.filter(|_| single)),
            ("FENCE_ATTEMPT", single.then(|| message.attempts.to_string())),
        ] {
            // Our own environment may have variables of another message.
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(identity::RUN, &self.run);
    }

    async fn settle(&self, claims: &[ClaimedMessage], verdict: Verdict) -> Result<()> {
        let outputs = match verdict {
            Verdict::Failed { reason, retry } => return self.fail(claims, &reason, retry).await,
            Verdict::Done(outputs) => outputs,
        };
        let done = claims.iter().zip(outputs).map(|(claimed, outputs)| mail::Done {
            token: claimed.claim.token.clone(),
            outputs,
            outcome: None,
        });
        let results =
            match self.service.call_until_answered(mail::DoneMany { messages: done.collect() }).await {
                Ok(done) => done.results,
                // The output cannot be stored, and a retry cannot change that.
                Err(error) if matches!(error.code(), Code::TooLarge | Code::Invalid) => {
                    return self.fail(claims, error.message(), true).await;
                }
                Err(error) => return self.not_accepted(&error),
            };
        for result in results {
            match (result.message, result.error) {
                (Some(message), _) => self.report(message)?,
                (None, Some(error)) => self.not_accepted(&error)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Fails interrupted messages, by the replay policy of the mailbox. Messages whose claims are over are left alone.
    async fn lose(&self, claims: &[ClaimedMessage], reason: &str) -> Result<()> {
        let lost = !self.args.no_retry;
        self.interrupted(claims, mail::Fail { lost, ..mail::Fail::new("", reason) }).await
    }

    /// Fails messages that were interrupted because the worker stops: the attempt does not count.
    async fn stopped(&self, claims: &[ClaimedMessage]) -> Result<()> {
        self.interrupted(claims, mail::Fail { stopped: true, ..mail::Fail::new("", STOPPED) }).await
    }

    async fn interrupted(&self, claims: &[ClaimedMessage], fail: mail::Fail) -> Result<()> {
        for claimed in claims {
            match self
                .service
                .call_until_answered(mail::Fail { token: claimed.claim.token.clone(), ..fail.clone() })
                .await
            {
                Ok(failed) => self.report(failed.message)?,
                Err(error) if error.code() == Code::LeaseExpired => {}
                Err(error) => self.not_accepted(&error)?,
            }
        }
        Ok(())
    }

    async fn fail(&self, claims: &[ClaimedMessage], reason: &str, retry: bool) -> Result<()> {
        for claimed in claims {
            let retry = retry && !self.args.no_retry;
            let fail = mail::Fail { retry, ..mail::Fail::new(&claimed.claim.token, reason) };
            match self.service.call_until_answered(fail).await {
                Ok(failed) => self.report(failed.message)?,
                Err(error) => self.not_accepted(&error)?,
            }
        }
        Ok(())
    }

    /// Gives messages back one by one: some of the claims may be lost.
    async fn release(&self, claims: &[ClaimedMessage]) {
        for claimed in claims {
            let release =
                self.service.call_until_answered(mail::Release { tokens: vec![claimed.claim.token.clone()] });
            if let Err(error) = release.await
                && Service::may_pass(&error)
            {
                self.service.context.warn(&error);
            }
        }
    }

    /// Warns that a result was not accepted. If the command completed its message itself, that is fine.
    fn not_accepted(&self, error: &Error) -> Result<()> {
        match error {
            error if supervise::is_finished(error) => {}
            error if error.ends_claim() => self.service.context.warn(&lost(error)),
            error if Service::may_pass(error) => self.service.context.warn(error),
            error => return Err(error.clone()),
        }
        Ok(())
    }

    fn report(&self, message: mail::Message) -> Result<()> {
        let changed = mail::Changed { message };
        self.service
            .context
            .print(&changed, |changed| text::message(&changed.message, &self.service.context.terminal))?;
        Ok(())
    }
}

fn lost(error: &Error) -> Error {
    Error::new(error.code(), format!("{}: the work of its command is not accepted", error.message()))
}
