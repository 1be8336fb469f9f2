//! The signals that we are sent, one after the other.

use fencepost::{Error, Result};
use rustix::process::Signal;
use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
};
use tokio::signal::unix::{self, SignalKind};

/// What is passed on to the command, what wakes or would stop us, and the news of a child.
const HEARD: [Signal; 9] = [
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
    /// From here on they do not end us.
    ///
    /// What we were started to ignore (`nohup`, a job in the background of a plain `sh`) we go on ignoring: the
    /// command inherits it only as long as we do not listen.
    pub fn listen() -> Result<Self> {
        Self::listen_to(&HEARD)
    }

    /// For one of several commands: signals are for all of them, and somebody else hears those.
    pub fn of_children() -> Result<Self> {
        Self::listen_to(&[Signal::CHILD])
    }

    /// The same, of these; the others do with us what they always do.
    pub fn listen_to(signals: &[Signal]) -> Result<Self> {
        let ignored = ignored();
        let heard = signals.iter().copied().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        heard
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
            .map_err(|e| Error::internal(format!("signals cannot be heard: {e}")))
    }

    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Signal> {
        // Everyone is polled, so that everyone wakes us.
        let mut heard = self.0.iter_mut().filter_map(|(signal, stream)| {
            matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*signal)
        });
        heard.next().map_or(Poll::Pending, Poll::Ready)
    }
}

/// One bit for each signal.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
