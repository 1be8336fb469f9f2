//! Runs one command of a story under its claim: a step, a check, the setup of a tree.

use super::{
    Chain,
    attempt::{Attempt, Halt},
};
use crate::{
    run_files::{Identified, LogWriter, RunFiles},
    supervise::{
        self, Captured, Ended, FirstBytes, Job, LastBytes, LeaseRenewer, Observer, Pipes, Signals, Sink,
        Stream, TerminalAccess,
    },
};
use fencepost::{Code, Error, Millis, Result};
use fencepost_client::renewal;
use std::{cell::Cell, process::Command};

/// The longest JSON that a step may print.
const OUTPUT: usize = 1024 * 1024;
/// The time between TERM and KILL. A chain that lost its claim must be gone within two seconds: another one has the story. It looks
/// every second, so with a grace of a second it took up to 2.0 s.
const GRACE: Millis = Millis(600);
/// How much of the end of both streams is kept as feedback.
const TAIL: usize = 8 * 1024;

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    pub end: End,
    /// The beginning of standard output, and the end of both streams.
    pub stdout: Vec<u8>,
    pub tail: String,
    pub took: Millis,
}

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Exited(u8),
    TimedOut(Millis),
}

impl Finished {
    pub fn is_success(&self) -> bool {
        self.end == End::Exited(0)
    }

    /// The reason, if the command ended because of this machine and not because of the story: it cannot be started, or asks to be
    /// tried later (75, a temporary failure).
    pub fn not_the_storys(&self) -> Option<&'static str> {
        match self.end {
            End::Exited(126 | 127) => Some("cannot be started"),
            End::Exited(75) => Some("exited with 75, a temporary failure"),
            _ => None,
        }
    }

    pub fn last_line(&self) -> &str {
        self.tail.lines().next_back().unwrap_or_default()
    }

    /// The reason of a failure, with the end of the output.
    pub fn reason(&self, what: &str) -> String {
        let how = match &self.end {
            End::Exited(code) => format!("{what} exited with {code}"),
            End::TimedOut(limit) => format!("{what} ran for more than {limit} and was ended"),
        };
        if self.tail.is_empty() { how } else { format!("{how}:\n{}", self.tail) }
    }
}

/// Keeps the output of a command: all of it in the log of the run, and the parts that a chain reads.
struct Kept {
    log: LogWriter,
    stdout: FirstBytes,
    tail: LastBytes,
}

impl Sink for Kept {
    fn take(&mut self, from: Stream, bytes: &[u8]) {
        // A full disk must not stop the command: its work counts, not its log.
        let _ = self.log.write(bytes);
        if from == Stream::Output {
            self.stdout.take(from, bytes);
        }
        self.tail.take(bytes);
    }
}

/// Remembers the processes of the command, for a chain that cleans up after this one.
struct Remember<'f>(&'f RunFiles);

impl Observer for Remember<'_> {
    fn started(&self, group: i32) {
        if let Some(mut state) = self.0.state() {
            state.child = Identified::of(group);
            // Without the file an orphan is found by its environment, or its lease ends.
            let _ = self.0.set_state(&state);
        }
    }
}

impl Attempt<'_> {
    /// Runs a command until it ends, its time is over, or a claim is lost.
    pub async fn execute(
        &self,
        renewer: LeaseRenewer,
        command: Command,
        input: Vec<u8>,
        timeout: Millis,
    ) -> Result<Finished, Halt> {
        match self.chain.execute(renewer, command, input, timeout).await {
            Err(Halt::Lost { at, status }) => Err(match self.guard(&at).await {
                Err(lost @ Halt::Lost { .. }) => lost,
                // The fleet did not answer in time, so the command was ended before the lease.
                _ => Halt::Lost { at, status },
            }),
            finished => finished,
        }
    }
}

impl Chain<'_> {
    /// Runs a command under these claims.
    pub async fn execute(
        &self,
        renewer: LeaseRenewer,
        mut command: Command,
        input: Vec<u8>,
        timeout: Millis,
    ) -> Result<Finished, Halt> {
        let (stop, began) = (&self.service.stop, renewal::now());
        let kept = Kept {
            log: self.files.log_writer()?,
            stdout: FirstBytes::up_to(OUTPUT),
            tail: LastBytes::up_to(TAIL),
        };
        let pipes = Pipes::attach(&mut command, Some(input), Captured::OutputAndError, kept)
            .map_err(|e| Error::unavailable(format!("a command cannot be started: {e}")))?;
        let (stopped, timed_out) = (Cell::new(false), Cell::new(false));
        let recall = async {
            tokio::select! {
                () = stop.ending() => stopped.set(true),
                () = tokio::time::sleep(timeout.into()) => timed_out.set(true),
            }
            Error::new(Code::Cancelled, "its chain ended it")
        };
        let job =
            Job { command, terminal: TerminalAccess::Background, grace: GRACE, run: Some(self.run.clone()) };
        let ended =
            supervise::run(renewer, job, Signals::of_children()?, recall, &Remember(&self.files)).await?;
        let kept = pipes.finish().await.map_err(|e| Error::internal(e.to_string()))?;
        let took = Millis(renewal::now() - began);
        let end = match ended {
            Ended::Lost(_) if stopped.get() => return Err(Halt::Stopped),
            Ended::Lost(_) if timed_out.get() => End::TimedOut(timeout),
            Ended::Lost(error) => {
                return Err(Halt::Lost { at: "claim".into(), status: error.code().as_str().to_owned() });
            }
            Ended::NotStarted { why, .. } => return Err(Error::unavailable(why).into()),
            Ended::Exited(code) if stop.is_draining() && supervise::Service::is_stop_signal(code) => {
                return Err(Halt::Stopped);
            }
            Ended::Exited(code) => End::Exited(code),
        };
        let mut stdout = kept.stdout.bytes;
        stdout.truncate(OUTPUT);
        Ok(Finished { end, stdout, tail: kept.tail.text(), took })
    }
}
