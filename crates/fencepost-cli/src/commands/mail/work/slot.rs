//! One who works: claims, runs the command, says what came of it, and begins again.

use super::{
    super::text,
    Worker,
    delivery::{self, Verdict},
};
use crate::{
    identity,
    names::unique,
    supervise::{self, Ended, Job, LeaseRenewer, Pipes, Signals, TerminalAccess},
};
use fencepost::{
    Code, Error, OUTPUT_MAX, Op, Result, WAIT_MAX,
    claim::Claim,
    mail::{self, claim::ClaimedMessage},
};
use rustix::process::Signal;
use std::{cell::Cell, process::Command, time::Duration};

/// Between two tries, while the database does not answer: doubled with each.
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(15);

const STOPPED: &str = "its worker was told to end";

impl Worker<'_> {
    /// Until there is a reason to stop. What cannot be helped by trying again stops the others, too.
    pub async fn slot(&self) -> Result<()> {
        let done = async {
            while let Some(claims) = self.take().await? {
                self.process(&claims).await?;
            }
            Ok(())
        };
        let done = done.await;
        if done.is_err() {
            self.stop.drain();
        }
        done
    }

    /// The next messages; `None` if it is time to stop.
    async fn take(&self) -> Result<Option<Vec<ClaimedMessage>>> {
        let mut request = unique("");
        let mut pause = Pause::default();
        // What a request asked for it asks for again: under one id it is one request.
        let mut reserved = None;
        while !self.stop.is_draining() {
            let count = reserved.take().or_else(|| self.budget.reserve(self.args.batch.unwrap_or(1)));
            let Some(count) = count else { return Ok(None) };
            let answer = tokio::select! {
                answer = self.context.call(self.claim(count, &request)) => answer,
                // It may have been taken at this very moment: all is given back at the end.
                () = self.stop.draining() => return Ok(None),
            };
            let error = match answer {
                Ok(claimed) => {
                    self.budget.give_back(count - claimed.claims.len() as i64);
                    return Ok(Some(claimed.claims));
                }
                Err(error) => error,
            };
            if is_passing(&error) {
                // The same request again gives what it took, if it took something.
                reserved = Some(count);
                self.wait_out(&error, &mut pause).await;
                continue;
            }
            self.budget.give_back(count);
            match error.code() {
                Code::NoneReady if self.args.drain => return Ok(None),
                Code::NoneReady => request = unique(""),
                Code::Paused if !self.args.drain => request = unique(""),
                // It was taken, and lost while the answer was.
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
            agent: self.context.agent(),
            count: Some(count),
            ttl_ms: Some(self.args.ttl),
            max_ms: None,
            wait_ms: (!self.args.drain).then_some(WAIT_MAX),
            request: Some(request.to_owned()),
        }
    }

    async fn process(&self, claims: &[ClaimedMessage]) -> Result<()> {
        let Some(first) = claims.first() else { return Ok(()) };
        let mut command = supervise::command(&self.args.command, &first.claim, self.context)?;
        self.tell(&mut command, first);
        let input = delivery::input(claims, self.args.batch.is_some())?;
        let pipes = Pipes::attach(&mut command, input, OUTPUT_MAX)
            .map_err(|e| Error::unavailable(format!("a command cannot be given its message: {e}")))?;
        let others: Vec<Claim> = claims[1..].iter().map(|claimed| claimed.claim.clone()).collect();
        let keep =
            LeaseRenewer::new(self.context.connection().await?, self.footing.clone(), first.claim.clone());
        let stopped = Cell::new(false);
        let recall = async {
            tokio::select! {
                () = self.stop.ending() => {
                    stopped.set(true);
                    Error::new(Code::Cancelled, STOPPED)
                }
                late = self.late() => late,
            }
        };
        let job = Job { command, terminal: TerminalAccess::Background, grace: self.args.grace };
        let ended = supervise::run(keep.and(others), job, Signals::of_children()?, recall).await;
        let said = pipes.finish().await;
        match ended {
            // Whoever stops a service tells all of its processes, and the command was one of them.
            Ok(Ended::Exited(code)) if self.stop.is_draining() && is_told_to_end(code) => {
                self.stopped(claims).await
            }
            Ok(Ended::Exited(code)) => {
                let verdict = delivery::verdict(code, &said, claims.len(), self.args.batch.is_some());
                self.settle(claims, verdict).await
            }
            Ok(Ended::NotStarted(code)) => {
                // It will be so for every message.
                self.not_started.set(Some(code));
                self.stop.drain();
                self.release(claims).await;
                Ok(())
            }
            Ok(Ended::Lost(_)) if stopped.get() => self.stopped(claims).await,
            // It was cut off in the middle: it took too long, or a claim is over.
            Ok(Ended::Lost(error)) => {
                if error.code() != Code::Cancelled {
                    self.context.warn(&lost(&error));
                }
                self.lose(claims, error.message()).await
            }
            // It was not begun.
            Err(error) => {
                self.release(claims).await;
                self.wait_out(&error, &mut Pause::default()).await;
                Ok(())
            }
        }
    }

    /// When the command has had its time. (Real time: it is a process's.)
    async fn late(&self) -> Error {
        let Some(timeout) = self.args.timeout else { return std::future::pending().await };
        tokio::time::sleep(Duration::from_millis(timeout.0.unsigned_abs())).await;
        Error::new(Code::Cancelled, format!("its command took longer than {timeout}"))
    }

    /// What the command finds in its environment.
    fn tell(&self, command: &mut Command, first: &ClaimedMessage) {
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
            // What is around us is not about this message.
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
        let results = match self.insist(mail::DoneMany { messages: done.collect() }).await {
            Ok(done) => done.results,
            // What came of it cannot be stored, and will not be next time.
            Err(error) if matches!(error.code(), Code::TooLarge | Code::Invalid) => {
                return self.fail(claims, error.message(), true).await;
            }
            Err(error) => return self.given_up(&error),
        };
        for result in results {
            match (result.message, result.error) {
                (Some(message), _) => self.report(message)?,
                (None, Some(error)) => self.given_up(&error)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// The mailbox says what becomes of them. Those whose claims are over are somebody else's.
    async fn lose(&self, claims: &[ClaimedMessage], reason: &str) -> Result<()> {
        let lost = !self.args.no_retry;
        self.cut_off(claims, mail::Fail { lost, ..mail::Fail::new("", reason) }).await
    }

    /// The same, because we were told to stop: that is nobody's attempt.
    async fn stopped(&self, claims: &[ClaimedMessage]) -> Result<()> {
        self.cut_off(claims, mail::Fail { stopped: true, ..mail::Fail::new("", STOPPED) }).await
    }

    async fn cut_off(&self, claims: &[ClaimedMessage], fail: mail::Fail) -> Result<()> {
        for claimed in claims {
            match self.insist(mail::Fail { token: claimed.claim.token.clone(), ..fail.clone() }).await {
                Ok(failed) => self.report(failed.message)?,
                Err(error) if error.code() == Code::LeaseExpired => {}
                Err(error) => self.given_up(&error)?,
            }
        }
        Ok(())
    }

    async fn fail(&self, claims: &[ClaimedMessage], reason: &str, retry: bool) -> Result<()> {
        for claimed in claims {
            let retry = retry && !self.args.no_retry;
            let fail = mail::Fail { retry, ..mail::Fail::new(&claimed.claim.token, reason) };
            match self.insist(fail).await {
                Ok(failed) => self.report(failed.message)?,
                Err(error) => self.given_up(&error)?,
            }
        }
        Ok(())
    }

    /// Back to their places, each on its own: some of them may be lost, and are somebody else's.
    async fn release(&self, claims: &[ClaimedMessage]) {
        for claimed in claims {
            let release = self.insist(mail::Release { tokens: vec![claimed.claim.token.clone()] });
            if let Err(error) = release.await
                && is_passing(&error)
            {
                self.context.warn(&error);
            }
        }
    }

    /// What was done is not accepted. If the command completed its message itself, there is nothing to say.
    fn given_up(&self, error: &Error) -> Result<()> {
        let by = error.field("ended_by").and_then(|verb| verb.as_str()).unwrap_or_default();
        match error.code() {
            Code::AlreadyFinished if ["done", "fail"].contains(&by) => Ok(()),
            Code::LeaseExpired | Code::AlreadyFinished | Code::NotFound => {
                self.context.warn(&lost(error));
                Ok(())
            }
            _ if is_passing(error) => {
                self.context.warn(error);
                Ok(())
            }
            _ => Err(error.clone()),
        }
    }

    fn report(&self, message: mail::Message) -> Result<()> {
        let changed = mail::Changed { message };
        self.context.print(&changed, |changed| text::message(&changed.message, &self.context.terminal))?;
        Ok(())
    }

    /// Asks until there is an answer: a verdict can be given twice. Whoever ends us does not wait for that.
    async fn insist<O: Op>(&self, op: O) -> Result<O::Reply> {
        let mut pause = Pause::default();
        loop {
            match self.context.call(op.clone()).await {
                Err(error) if is_passing(&error) && !self.stop.is_ending() => {
                    self.wait_out(&error, &mut pause).await;
                }
                answer => return answer,
            }
        }
    }

    /// Says that it will be tried again, and waits until it is time.
    async fn wait_out(&self, error: &Error, pause: &mut Pause) {
        let pause = pause.next();
        self.context.warn(&Error::unavailable(format!("{}; trying again in {pause:?}", error.message())));
        tokio::select! {
            // Real time: it is a real database that does not answer.
            () = tokio::time::sleep(pause) => {}
            () = self.stop.ending() => {}
        }
    }
}

/// Did a command end as by one of the signals that tell a service to end?
fn is_told_to_end(code: u8) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP].iter().any(|signal| i32::from(code) == 128 + signal.as_raw())
}

/// The next try may succeed, and none of it is our fault.
fn is_passing(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown | Code::RateLimited | Code::Internal)
}

fn lost(error: &Error) -> Error {
    Error::new(error.code(), format!("{}: what its command did is not accepted", error.message()))
}

/// How long until the next try.
#[derive(Debug)]
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(SOONEST)
    }
}

impl Pause {
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = LATEST.min(now * 2);
        now
    }
}
