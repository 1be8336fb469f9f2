//! Running the command of an effect, or printing its kept result.

use super::{Once, kept};
use crate::{
    commands::{lock::interrupted, wait_reason},
    context::Context,
    environment::variable,
    location::DatabaseFile,
    names::unique,
    output::streams,
    supervise::{
        self, Captured, Ended, Forwarded, Job, LeaseRenewer, Pipes, Service, Signals, Tee, TerminalAccess,
    },
};
use fencepost::{
    Code, Error, Op, Result,
    claim::{self, Claim},
    once::{self, Effect, OUTPUT_KEPT, Output, Status},
    run,
};
use fencepost_client::claims;
use sha2::{Digest, Sha256};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    process::ExitCode,
    time::Duration,
};

/// The timeout for giving the claim back. If the database does not answer, the key is in doubt when its lease expires.
const GIVE_BACK: Duration = Duration::from_secs(10);
/// The longest command that is kept for people. The digest has all of it.
const SHOWN: usize = 4096;

/// The exit codes of a check.
const HAPPENED: u8 = 0;
const NOT_HAPPENED: u8 = 1;

impl Once {
    pub(super) async fn execute(self, key: String, context: &Context) -> Result<ExitCode> {
        let run = unique("once-");
        let database_file = context.location()?.database_file();
        let mut signals = Signals::listen()?;
        let begun = tokio::select! {
            begun = self.begin(context, &key, &run) => begun?,
            code = interrupted(&mut signals) => {
                // The claim may have succeeded meanwhile. Nothing was started.
                give_back(context, &run).await;
                return Ok(code);
            }
        };
        let Some(claim) = begun.claim else { return replay(context, begun.effect) };
        let attempt = Attempt { once: &self, context, claim, database_file };
        let done = attempt.run(begun.was == Some(Status::InDoubt), signals).await;
        end_run(context, &run).await;
        done
    }

    async fn begin(&self, context: &Context, key: &str, run: &str) -> Result<once::begin::Begun> {
        let op = |wait_ms| once::Begin {
            key: key.to_owned(),
            command: shown(&self.command),
            digest: Some(digest(&self.command)),
            run: run.into(),
            agent: context.agent(),
            ttl_ms: Some(self.ttl),
            max_ms: self.max,
            retry_failed: self.retry_failed,
            retry_in_doubt: self.retry_in_doubt || self.check.is_some(),
            under: variable("FENCE_CLAIM"),
            wait_ms,
            request: context.request(),
        };
        let begun = match self.wait {
            None => context.call(op(None)).await,
            Some(limit) => context.call_with_progress(limit, op, wait_reason).await,
        };
        match begun {
            // Only this process knows the run, so only this process can retry.
            Err(error) if error.code() == Code::OutcomeUnknown => context.call(op(None)).await,
            begun => begun,
        }
    }
}

/// One attempt at the effect, under a claim.
struct Attempt<'a> {
    once: &'a Once,
    context: &'a Context,
    claim: Claim,
    database_file: Option<DatabaseFile>,
}

/// The end of a command, and the beginnings of what it wrote.
struct Ran {
    ended: Ended,
    stdout: Option<Output>,
    stderr: Option<Output>,
    forwarded: Forwarded,
}

impl Attempt<'_> {
    async fn run(&self, in_doubt: bool, signals: Signals) -> Result<ExitCode> {
        let mut signals = Some(signals);
        if let Some(check) = self.once.check.as_ref().filter(|_| in_doubt) {
            let words = [OsString::from("sh"), "-c".into(), check.clone()];
            let ran = self.supervise(&words, Tee::new(OUTPUT_KEPT, false), signals.take()).await?;
            if let Some(done) = self.checked(ran).await? {
                return Ok(done);
            }
        }
        let Ran { ended, stdout, stderr, forwarded } = self
            .supervise(&self.once.command, Tee::new(OUTPUT_KEPT, !self.context.json()), signals.take())
            .await?;
        let Ended::Exited(code) = ended else { return self.not_finished(ended, forwarded).await };
        let token = self.claim.token.clone();
        let finish = once::Finish { token, exit_code: i64::from(code), stdout, stderr };
        // Before the result is kept: somebody who sees it may send a signal at once.
        let signals = Signals::listen();
        let effect = self.record(finish).await.map_err(|e| self.not_recorded(&e))?.effect;
        let mut signals = signals?;
        // The result is kept: a reader may take its time, and a signal ends only this process.
        tokio::select! {
            () = forwarded.written() => {}
            _ = interrupted(&mut signals) => {}
        }
        if self.context.json() {
            self.context.print(&once::Changed { effect }, |_| String::new())?;
        } else if effect.status == Status::InDoubt {
            let key = &effect.key;
            self.context.warn(&Error::new(
                Code::NotReady,
                format!(
                    "effect `{key}` is in doubt: {}; fence once {key} shows it",
                    effect.reason.unwrap_or_default()
                ),
            ));
        }
        Ok(ExitCode::from(code))
    }

    /// Acts on the answer of a check. Returns an exit code if the command must not be run.
    async fn checked(&self, ran: Ran) -> Result<Option<ExitCode>> {
        let Ran { ended, stdout, stderr, forwarded } = ran;
        let code = match ended {
            Ended::Exited(code) => code,
            ended => return self.not_finished(ended, forwarded).await.map(Some),
        };
        let token = self.claim.token.clone();
        let resolve = once::Resolve { token, happened: code == HAPPENED, ..once::Resolve::default() };
        match code {
            HAPPENED => {
                let resolve = once::Resolve { stdout, stderr, ..resolve };
                let effect = self.record(resolve).await.map_err(|e| self.not_recorded(&e))?.effect;
                replay(self.context, effect).map(Some)
            }
            NOT_HAPPENED => self.record(resolve).await.map(|_| None),
            code => {
                if let Some(stderr) = &stderr {
                    streams::replay_error(&kept::bytes(stderr));
                }
                self.release().await;
                let key = self.key();
                let message = format!("effect `{key}` is still in doubt: its check exited with {code}");
                Err(Error::new(Code::NotReady, message).with("status", Status::InDoubt).hint(format!(
                    "a check says with exit 0 that it happened, with exit 1 that it did not; fence once {key} \
                     --happened or --not-happened says it by hand; --retry-in-doubt runs it again"
                )))
            }
        }
    }

    /// Runs a command under the claim. If it was not started, the claim is given back.
    async fn supervise(
        &self,
        words: &[OsString],
        tee: io::Result<Tee>,
        signals: Option<Signals>,
    ) -> Result<Ran> {
        let started = async {
            let mut command = supervise::command(words, &self.claim, self.context)?;
            // FENCE_RUN and FENCE_CLAIM stay those of the caller.
            command.env("FENCE_ONCE", &self.claim.token).env("FENCE_ONCE_KEY", self.key());
            let pipes = tee
                .and_then(|tee| Pipes::attach(&mut command, None, Captured::OutputAndError, tee))
                .map_err(|e| Error::unavailable(format!("a command cannot be given its pipes: {e}")))?;
            let signals = signals.map_or_else(Signals::listen, Ok)?;
            let renewer = LeaseRenewer::new(
                self.context.connection().await?,
                self.database_file.clone(),
                self.claim.clone(),
            );
            let terminal = TerminalAccess::Foreground;
            let job = Job { command, terminal, grace: self.once.grace, run: None };
            let ended = supervise::run(renewer, job, signals, std::future::pending(), &()).await;
            // A command that ran has ended, whether or not its output could be read.
            let tee = pipes.finish().await.unwrap_or_else(|_| Tee::keeping(0));
            Ok((ended?, tee))
        };
        match started.await {
            Ok((ended, tee)) => {
                let (stdout, stderr, forwarded) = tee.finish();
                Ok(Ran { ended, stdout: kept::output(stdout), stderr: kept::output(stderr), forwarded })
            }
            // The command was not started.
            Err(error) => {
                self.release().await;
                Err(error)
            }
        }
    }

    /// The command was not started, or its claim was lost.
    async fn not_finished(&self, ended: Ended, forwarded: Forwarded) -> Result<ExitCode> {
        if matches!(ended, Ended::NotStarted { .. }) {
            self.release().await;
        }
        forwarded.written().await;
        let key = self.key();
        match ended {
            Ended::Lost(error) => {
                let hint = format!("effect `{key}` is in doubt now: fence once {key} shows it");
                let code = if error.code() == Code::NotFound { Code::LeaseExpired } else { error.code() };
                Err(Error::new(code, error.message()).hint(hint))
            }
            ended => ended.code(),
        }
    }

    /// Records a result under the claim. While the database does not answer, it tries again until the lease is surely over.
    async fn record<O: Op>(&self, op: O) -> Result<O::Reply> {
        let mut backoff = Service::BACKOFF;
        let over = tokio::time::Instant::now() + self.once.ttl.into();
        loop {
            match self.context.call(op.clone()).await {
                Err(error) if Service::may_pass(&error) && tokio::time::Instant::now() < over => {
                    tokio::time::sleep(backoff.next()).await;
                }
                answer => return answer,
            }
        }
    }

    /// Gives the claim back: its command was never started.
    async fn release(&self) {
        let release = self.context.call(claim::Release::new(&self.claim.token));
        if let Ok(Err(error)) = tokio::time::timeout(GIVE_BACK, release).await
            && !error.ends_claim()
        {
            self.context.warn(&error);
        }
    }

    fn not_recorded(&self, error: &Error) -> Error {
        let key = self.key();
        let message = format!("the result of effect `{key}` could not be recorded: {}", error.message());
        Error::new(error.code(), message)
            .hint(format!("the effect is in doubt then: fence once {key} shows it"))
    }

    fn key(&self) -> &str {
        self.once.key.as_deref().unwrap_or_default()
    }
}

/// Prints a kept result as the command would have, and exits as it did.
fn replay(context: &Context, effect: Effect) -> Result<ExitCode> {
    let code = effect.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(0);
    if context.json() {
        context.print(&once::Changed { effect }, |_| String::new())?;
        return Ok(ExitCode::from(code));
    }
    if let Some(stdout) = &effect.stdout {
        streams::replay_output(&kept::bytes(stdout));
    }
    if let Some(stderr) = &effect.stderr {
        streams::replay_error(&kept::bytes(stderr));
    }
    if [&effect.stdout, &effect.stderr].into_iter().flatten().any(|output| output.cut) {
        let message = format!("only the first {} KiB of a stream are kept", OUTPUT_KEPT / 1024);
        context.warn(&Error::new(Code::TooLarge, message));
    }
    Ok(ExitCode::from(code))
}

/// Gives back what the run claimed, before it could be started.
async fn give_back(context: &Context, run: &str) {
    let both = async {
        for claim in context.call(claims::list(run)).await?.claims {
            context.call(claim::Release::new(&claim.token)).await?;
        }
        Ok::<_, Error>(())
    };
    let _ = tokio::time::timeout(GIVE_BACK, both).await;
    end_run(context, run).await;
}

/// Ends the run, which exists for this command alone, and holds nothing any more.
async fn end_run(context: &Context, run: &str) {
    let reason = Some("its command is over".into());
    let end = context.call(run::End { run: run.into(), reason, ..run::End::default() });
    // If it fails, the run's lease expires.
    let _ = tokio::time::timeout(GIVE_BACK, end).await;
}

/// Tells commands apart, also those that are no text.
fn digest(words: &[OsString]) -> String {
    let mut hash = Sha256::new();
    for word in words {
        // Lengths keep ("a", "b") and ("ab", "") apart.
        hash.update((word.len() as u64).to_be_bytes());
        hash.update(word.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The command for people, quoted as for a shell.
fn shown(words: &[OsString]) -> String {
    let text = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ").replace('\0', "\u{fffd}");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_would_take_it() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        for (given, says) in [
            (&["./send", "a-b", "x=1"][..], "./send a-b x=1"),
            (&["echo", "two words", ""], "echo 'two words' ''"),
            (&["echo", "it's", "$HOME", "*"], r"echo 'it'\''s' '$HOME' '*'"),
        ] {
            assert_eq!(shown(&words(given)), says);
        }
        assert_eq!(shown(&words(&[&"é".repeat(5000)])), "é".repeat(SHOWN) + "…");
    }

    #[test]
    fn the_words_decide_which_command_it_is() {
        let digest = |words: &[&str]| digest(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["ab", ""]));
        assert_ne!(digest(&["a", "b"]), digest(&["a b"]));
    }
}
