//! A mailbox as a stream: a queue that survives its worker.
//!
//! A [`Consumer`] claims messages when it is asked for one, keeps what is in hand alive, and gives back what is not
//! worked on. Each message comes as a [`Letter`]: complete it, fail it or give it back.
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
//! while let Some(letter) = consumer.next().await {
//!     let letter = letter?;
//!     let command: String = letter.payload()?;
//!     letter.complete([Json::from(format!("saw {command}").as_str())]).await?; // stored and completed at once
//! #   break;
//! }
//! consumer.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! - **Stopping.** [`Stop::when`] is asked before each claim, and again before a message is handed over. When it says
//!   yes, the stream ends, and everything that was not started is pending again by then. [`Consumer::progress`] tells
//!   who waits for it when a restart is safe: idle, and nothing in flight; the queue may be full.
//! - **Leases.** A consumer has a run of its own, with a lease of 60 s that is renewed every 20 s while anything is in
//!   flight. A letter whose claim is lost says so ([`Letter::lost`]), and its completion is refused.
//! - **Errors of the database** are waited out, here and in every letter's verbs, for as long as the lease lasts. A
//!   mailbox that is paused is waited for. What no waiting can mend (a key that may not do this, a malformed name) is
//!   the stream's last item.
//! - **Dropping.** A letter that is dropped unfinished is given back, and its attempt does not count: who started it
//!   may be restarting. If a panic drops it, or its completion is refused (too large, an error of your own
//!   transaction), it has failed and is tried again later: it would go round for ever. Dropping the consumer, or [`Consumer::close`], gives back what was claimed
//!   and not handed over; letters that are in hand live on until they are finished.
//!
//! # In your own transaction
//!
//! With a fleet that is opened in this process, your rows and the completion commit together or not at all:
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
//! let letter = consumer.next().await.expect("a message")?;
//! let what: String = letter.payload()?;
//! letter
//!     .complete_in(move |tx| {
//!         let what = what.clone();
//!         Box::pin(async move { tx.execute("insert into seen(what) values (?1)", params![what]).await.map(drop) })
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! That is [`Fleet::transaction`](fencepost::Fleet::transaction) with `tx.call(mail::Done::new(token))` at its end, asked
//! again where that is safe. Whoever wants to write it out has [`Letter::token`] and [`Letter::settled`].

mod claiming;
mod hands;
mod letter;
mod pairing;

use crate::Connection;
use claiming::Claiming;
use fencepost::Result;
use futures_util::Stream;
use hands::Hands;
pub use hands::{Activity, Progress};
pub use letter::Letter;
pub use pairing::{Mispaired, Pairing};
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

/// How a consumer works. The defaults are meant to be right.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of its run: a fresh one (`consumer-1f03a7c2`) unless given, which ends with the consumer. One that is
    /// given may be shared, and is left to lapse.
    pub run: Option<String>,
    /// The agent that the run belongs to.
    pub agent: Option<String>,
    /// How long after a crash its messages come back. Renewed every third of it.
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

/// Whether a consumer is to stop before it claims anything more. Never, unless said.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Stop {
    /// Asked before each claim, before a message is handed over, and every 50 ms while there is nothing to do.
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
/// It claims only when it is asked for a message, up to its `prefetch` at once. Asking can be given up at any
/// moment (`select!`, a timeout): what was claimed meanwhile is handed over by the next ask.
pub struct Consumer {
    claiming: Arc<Claiming>,
    /// Claimed, and not handed over yet.
    ready: VecDeque<Letter>,
    step: Option<Pin<Box<dyn Future<Output = Step> + Send>>>,
    /// An error that no waiting mends was told.
    failed: bool,
    keeper: Option<JoinHandle<()>>,
}

/// What the consumer awaits between two messages.
enum Step {
    Claimed(Result<Vec<Letter>>),
    Stopped,
}

impl Consumer {
    /// Takes messages of these mailboxes, within a tokio runtime. Nothing is claimed until a message is asked for.
    pub fn start<M: Into<String>>(
        fleet: &Connection,
        mailboxes: impl IntoIterator<Item = M>,
        options: Options,
    ) -> Self {
        let mailboxes = mailboxes.into_iter().map(Into::into).collect();
        let claiming = Arc::new(Claiming::new(fleet, mailboxes, options));
        let keeper = tokio::spawn(claiming.hands.clone().keep());
        Self { claiming, ready: VecDeque::new(), step: None, failed: false, keeper: Some(keeper) }
    }

    /// The next message; `None` once it is told to stop.
    pub async fn next(&mut self) -> Option<Result<Letter>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// The run that holds what is in flight.
    pub fn run(&self) -> &str {
        &self.hands().run
    }

    /// Idle or busy, and how much is in flight: now, and whenever it changes.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.hands().progress()
    }

    /// Idle, and nothing is in flight. Whatever is pending stays so.
    pub fn safe_to_restart(&self) -> bool {
        self.progress().borrow().safe_to_restart()
    }

    /// Says now that it is there, and looks whether what is in flight is still its own. This is done by itself every
    /// third of the lease.
    pub async fn renew(&self) -> Result<()> {
        self.hands().renew().await
    }

    /// Claims nothing more, and returns when what was not handed over is pending again. Letters that are in hand
    /// stay alive until they are finished; the run ends with the last of them.
    pub async fn close(mut self) {
        self.step = None;
        hands::give_back(take(&mut self.ready)).await;
        let keeper = self.keeper.take();
        let in_flight = self.hands().close();
        if let (0, Some(keeper)) = (in_flight, keeper) {
            let _ = keeper.await;
        }
    }

    fn hands(&self) -> &Arc<Hands> {
        &self.claiming.hands
    }

    /// What to await next, if no message is ready or it is to stop.
    fn step(&mut self, stop: bool) -> Pin<Box<dyn Future<Output = Step> + Send>> {
        let claiming = self.claiming.clone();
        if !stop {
            return Box::pin(async move { Step::Claimed(claiming.next().await) });
        }
        let unstarted = take(&mut self.ready);
        Box::pin(async move {
            hands::give_back(unstarted).await;
            claiming.hands.sweep().await;
            claiming.hands.turn(Activity::Idle);
            Step::Stopped
        })
    }
}

impl Stream for Consumer {
    type Item = Result<Letter>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Letter>>> {
        while !self.failed {
            if let Some(step) = &mut self.step {
                let done = ready!(step.as_mut().poll(cx));
                self.step = None;
                match done {
                    Step::Claimed(Ok(letters)) => self.ready.extend(letters),
                    Step::Claimed(Err(error)) => {
                        self.failed = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Step::Stopped => return Poll::Ready(None),
                }
            }
            // What was claimed while the answer changed is not started: it goes back, too.
            let stop = self.claiming.stop.is_due();
            if let Some(letter) = self.ready.pop_front_if(|_| !stop) {
                return Poll::Ready(Some(Ok(letter)));
            }
            self.step = Some(self.step(stop));
        }
        Poll::Ready(None)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The letters that are left give themselves back.
        self.hands().close();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("claiming", &self.claiming)
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
