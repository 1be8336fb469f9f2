//! A process that runs commands for others until it is told to stop: what `mail work` and `work` have in common.

use super::{Signals, Stop};
use crate::{context::Context, output::streams};
use fencepost::{Backoff, Code, Error, Op, Result};
use fencepost_client::Connection;
use rustix::process::Signal;
use std::{rc::Rc, time::Duration};

#[derive(Clone)]
pub struct Service<'c> {
    pub context: &'c Context,
    pub connection: Connection,
    pub stop: Rc<Stop>,
    /// Lines for the user go here instead of to standard error, if a view has the terminal.
    notices: Option<Notices<'c>>,
}

type Notices<'c> = Rc<dyn Fn(&str) + 'c>;

impl<'c> Service<'c> {
    /// The pauses while the database does not answer.
    pub const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(15));

    pub async fn new(context: &'c Context) -> Result<Self> {
        let connection = context.connection().await?.clone();
        Ok(Self { context, connection, stop: Rc::default(), notices: None })
    }

    /// The same service, with its lines for the user given to this function.
    #[must_use]
    pub fn telling(self, notices: impl Fn(&str) + 'c) -> Self {
        Self { notices: Some(Rc::new(notices)), ..self }
    }

    /// The same service, acting for this agent.
    #[must_use]
    pub fn as_agent(&self, agent: &str) -> Self {
        Self { connection: self.connection.as_agent(agent), ..self.clone() }
    }

    /// The same service, whose posts are caused by this run.
    #[must_use]
    pub fn in_run(&self, run: &str) -> Self {
        Self { connection: self.connection.in_run(run), ..self.clone() }
    }

    /// Signals that stop a service.
    pub fn signals() -> Result<Signals> {
        Signals::listen_to(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])
    }

    /// The first signal stops claiming, the second one ends running commands. QUIT does both at once.
    pub async fn listen(&self, signals: &mut Signals) -> std::convert::Infallible {
        loop {
            let signal = signals.next().await;
            match (signal, self.stop.is_draining()) {
                (Signal::QUIT, _) | (_, true) => self.stop.end(Some(signal)),
                (_, false) => {
                    self.stop.drain();
                    self.note("finishing running commands; another signal ends them");
                }
            }
        }
    }

    /// Writes a line for the user.
    pub fn note(&self, line: &str) {
        match &self.notices {
            Some(tell) => tell(line),
            None if self.context.json() => {}
            None => streams::print_error(line),
        }
    }

    /// Warns of a problem that does not stop the service.
    pub fn warn(&self, error: &Error) {
        match &self.notices {
            Some(tell) => tell(error.message()),
            None => self.context.warn(error),
        }
    }

    /// Repeats a call until there is a reply, which is safe for results. It gives up when the service is ended.
    pub async fn call_until_answered<O: Op>(&self, op: O) -> Result<O::Reply> {
        let mut backoff = Self::BACKOFF;
        loop {
            match self.connection.call(op.clone()).await {
                Err(error) if Self::may_pass(&error) && !self.stop.is_ending() => {
                    self.back_off(&error, &mut backoff).await;
                }
                answer => return answer,
            }
        }
    }

    /// Warns of a retry, and waits for its time.
    pub async fn back_off(&self, error: &Error, backoff: &mut Backoff) {
        let pause = backoff.next();
        self.warn(&Error::unavailable(format!("{}; trying again in {pause:.1?}", error.message())));
        tokio::select! {
            // Real time: the database is a real one.
            () = tokio::time::sleep(pause) => {}
            () = self.stop.ending() => {}
        }
    }

    /// A retry may succeed. A service waits out a limit on its rate, and it must not end because of one internal error.
    pub fn may_pass(error: &Error) -> bool {
        error.is_transient() || matches!(error.code(), Code::RateLimited | Code::Internal)
    }

    /// Is this the exit code of a command that died of a signal that stops a service? A service manager sends TERM to all
    /// processes of a service, so a command gets it, too.
    pub fn is_stop_signal(code: u8) -> bool {
        [Signal::TERM, Signal::INT, Signal::HUP].iter().any(|signal| i32::from(code) == 128 + signal.as_raw())
    }
}
