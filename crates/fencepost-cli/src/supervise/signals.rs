//! The signals that this process gets, one after the other.

use fencepost::{Error, Result};
use rustix::process::Signal;
use std::{
    future::poll_fn,
    io,
    process::ExitCode,
    task::{Context, Poll},
};
use tokio::signal::unix::{self, SignalKind};

/// Signals for the command, signals that would stop or wake us, and CHLD.
const HANDLED: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
    Signal::CHILD,
];

#[derive(Debug)]
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Handles all these signals, so that they do not end this process.
    ///
    /// Signals that are ignored already (by `nohup`, or in a background job of a plain `sh`) stay ignored: the command inherits
    /// that only if this process installs no handler.
    pub fn listen() -> Result<Self> {
        Self::listen_to(&HANDLED)
    }

    /// Handles CHLD only, for one of several commands: the caller handles the other signals for all of them.
    pub fn of_children() -> Result<Self> {
        Self::listen_to(&[Signal::CHILD])
    }

    /// Handles these signals. The others keep their default action.
    pub fn listen_to(signals: &[Signal]) -> Result<Self> {
        let ignored = ignored();
        let handled = signals.iter().copied().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        handled
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
            .map_err(|e| Error::internal(format!("signals cannot be handled: {e}")))
    }

    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        // Polls all streams, so that each of them wakes this task.
        let mut ready = self.0.iter_mut().filter_map(|(signal, stream)| {
            matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*signal)
        });
        ready.next().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The exit code of a process that ends because of a signal, as a shell reports it.
pub fn exit_code(signal: Signal) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal.as_raw()).unwrap_or(1))
}

/// The ignored signals, one bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
