//! A mailbox as a stream: a queue that survives its worker.
//!
//! A [`Consumer`] claims messages when it is asked for one, renews the claims of messages in flight, and gives back
//! messages that nobody works on. Each comes as a [`Message`]: complete it, fail it or give it back.
//!
//! ```
//! use fencepost::{Json, Result, mail};
//! use fencepost_client::{Connection, consumer::{Consumer, Options}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = dir.path().join("fence.db").display().to_string();
//! let fleet = Connection::open(&url).await?; // or http://…
//! fleet.call(mail::Push::new("session/42", "ls -l")).await?;
//!
//! let mut consumer = Consumer::start(&fleet, ["session/42"], Options::default());
//! while let Some(message) = consumer.next().await {
//!     let message = message?;
//!     let command: String = message.payload()?;
//!     // The output and the completion are stored in one transaction.
//!     message.complete([Json::from(format!("saw {command}").as_str())]).await?;
//! #   break;
//! }
//! consumer.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! - **Stopping.** The consumer checks [`Stop::when`] before each claim, and again before it returns a message. When the
//!   condition holds, the stream ends; by then every message that was not started is pending again.
//!   [`Consumer::progress`] shows when a restart is safe: idle, with nothing in flight. The queue may be full.
//! - **Leases.** A consumer has a run of its own with a lease of 60 s, renewed every 20 s while messages are in flight. A
//!   message reports when its claim is lost ([`Message::lost`]), and its completion is then refused.
//! - **Outages.** The consumer and the methods of its messages retry while the database fails, for as long as the lease
//!   lasts. They also wait while a mailbox is paused. An error that no retry can change (a key without the right, a
//!   malformed name) is the stream's last item.
//! - **Dropping.** Dropping an unfinished message gives it back, and its attempt does not count: its worker may be
//!   restarting. If a panic drops it, or its completion was refused (too large, an error of your own transaction), the
//!   attempt counts as failed and the message is retried later, so that a poison message does not go round for ever.
//!   Dropping the consumer, or [`Consumer::close`], gives back claimed messages that it did not return yet. Messages
//!   that it returned stay claimed until they are finished.
//!
//! # In your own transaction
//!
//! On a fleet that this process opened, your rows and the completion commit together or not at all:
//!
//! ```
//! # use fencepost::{Fleet, Result, mail, params};
//! # use fencepost_client::{Connection, consumer::{Consumer, Options}};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = dir.path().join("fence.db").display().to_string();
//! let fleet = Fleet::open(&url).await?;
//! # fleet.transaction(|tx| Box::pin(async move {
//! #     tx.execute("create table seen(what text)", params![]).await })).await?;
//! # fleet.call(mail::Push::new("session/42", "ls -l")).await?;
//! let mut consumer = Consumer::start(&fleet.clone().into(), ["session/42"], Options::default());
//! let message = consumer.next().await.expect("a message")?;
//! let what: String = message.payload()?;
//! message
//!     .complete_in(move |tx| {
//!         let what = what.clone();
//!         Box::pin(async move { tx.execute("insert into seen(what) values (?1)", params![what]).await.map(drop) })
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Message::complete_in`] is [`Fleet::transaction`](fencepost::Fleet::transaction) with
//! `tx.call(mail::Done::new(token))` at its end, retried where that is safe. To write your own, use [`Message::token`]
//! and [`Message::mark_finished`].

mod claimer;
mod in_flight;
mod message;
mod prompts;

use crate::connection::Connection;
use claimer::Claimer;
use fencepost::Result;
use futures_util::Stream;
use in_flight::InFlight;
pub use in_flight::{Activity, Progress};
pub use message::Message;
pub use prompts::{Mismatch, Prompts};
use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    mem::take,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};

/// How a consumer works. The defaults fit most workers.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of its run. `None` makes up a name (`consumer-1f03a7c2`), and the run ends with the consumer. A run that
    /// you name may have other users, so the consumer lets it lapse.
    pub run: Option<String>,
    /// The agent that the run belongs to.
    pub agent: Option<String>,
    /// The lease: how long after a crash its messages are claimed by others. Renewed every third of it.
    pub ttl: Duration,
    /// How many messages may be in flight, 1 to 1000.
    pub prefetch: usize,
    /// When to stop claiming.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self { run: None, agent: None, ttl: Duration::from_secs(60), prefetch: 1, stop: Stop::default() }
    }
}

/// When a consumer stops claiming. The default is never.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Stop {
    /// Stops when the condition holds. It is checked before each claim, before a message is returned, and every 50 ms
    /// while there is nothing to do.
    pub fn when(condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(condition)))
    }

    fn is_never(&self) -> bool {
        self.0.is_none()
    }

    fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|condition| condition())
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Stop::when(…)" } else { "Stop::default()" })
    }
}

/// The messages of one or several mailboxes, as a stream.
///
/// It claims only when it is polled for a message, up to its `prefetch` at once. [`Self::next`] is cancel safe
/// (`select!`, a timeout): the next call returns the messages that were claimed meanwhile.
pub struct Consumer {
    claimer: Arc<Claimer>,
    /// Claimed and not returned yet.
    ready: VecDeque<Message>,
    step: Option<Pin<Box<dyn Future<Output = Step> + Send>>>,
    /// The stream returned an error that no retry can change.
    failed: bool,
    renewals: Option<JoinHandle<()>>,
}

/// How the work between two messages ended.
enum Step {
    Claimed(Result<Vec<Message>>),
    Stopped,
}

impl Consumer {
    /// A consumer of these mailboxes; needs a tokio runtime. It claims nothing until it is polled for a message.
    pub fn start<M: Into<String>>(
        fleet: &Connection,
        mailboxes: impl IntoIterator<Item = M>,
        options: Options,
    ) -> Self {
        let mailboxes = mailboxes.into_iter().map(Into::into).collect();
        let claimer = Arc::new(Claimer::new(fleet, mailboxes, options));
        let renewals = tokio::spawn(claimer.in_flight.clone().run_renewals());
        Self { claimer, ready: VecDeque::new(), step: None, failed: false, renewals: Some(renewals) }
    }

    /// The next message; `None` once the stop condition holds.
    pub async fn next(&mut self) -> Option<Result<Message>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// The run that holds the messages in flight.
    pub fn run(&self) -> &str {
        &self.in_flight().run
    }

    /// Idle or busy, and how many messages are in flight: now, and at every change.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.in_flight().progress()
    }

    /// Idle, with nothing in flight. Messages may still be pending.
    pub fn safe_to_restart(&self) -> bool {
        self.progress().borrow().safe_to_restart()
    }

    /// Renews the lease now and checks whether the messages in flight are still claimed by this consumer. The consumer
    /// does the same every third of the lease.
    pub async fn renew(&self) -> Result<()> {
        self.in_flight().renew().await
    }

    /// Stops claiming, and returns when the claimed messages that it did not return are pending again. Returned messages
    /// stay claimed until they are finished; the run ends with the last of them.
    pub async fn close(mut self) {
        self.step = None;
        in_flight::release_all(take(&mut self.ready)).await;
        let renewals = self.renewals.take();
        let in_flight = self.in_flight().close();
        if let (0, Some(renewals)) = (in_flight, renewals) {
            let _ = renewals.await;
        }
    }

    fn in_flight(&self) -> &Arc<InFlight> {
        &self.claimer.in_flight
    }

    /// The next step, if no message is ready or the consumer stops.
    fn step(&mut self, stop: bool) -> Pin<Box<dyn Future<Output = Step> + Send>> {
        let claimer = self.claimer.clone();
        if !stop {
            return Box::pin(async move { Step::Claimed(claimer.next().await) });
        }
        let unstarted = take(&mut self.ready);
        Box::pin(async move {
            in_flight::release_all(unstarted).await;
            claimer.in_flight.release_unknown().await;
            claimer.in_flight.set_activity(Activity::Idle);
            Step::Stopped
        })
    }
}

impl Stream for Consumer {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        while !self.failed {
            if let Some(step) = &mut self.step {
                let done = ready!(step.as_mut().poll(cx));
                self.step = None;
                match done {
                    Step::Claimed(Ok(messages)) => self.ready.extend(messages),
                    Step::Claimed(Err(error)) => {
                        self.failed = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Step::Stopped => return Poll::Ready(None),
                }
            }
            // Checked again: messages claimed before the condition held are given back, not started.
            let stop = self.claimer.stop.is_due();
            if let Some(message) = self.ready.pop_front_if(|_| !stop) {
                return Poll::Ready(Some(Ok(message)));
            }
            self.step = Some(self.step(stop));
        }
        Poll::Ready(None)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Dropping the messages in `ready` gives them back.
        self.in_flight().close();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("claimer", &self.claimer)
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
