//! Notifications between nodes: there may be news in the log.
//!
//! After a commit that wrote an event, a node sends one NOTIFY for all its commits of a few milliseconds. A NOTIFY in
//! each transaction was measured 4 to 10 times slower, because they all queue for one lock. A node with waiting calls
//! listens, on a connection of its own.
//!
//! A notification says only that there is news; a commit of the same node says so without one. The watcher (`engine/waiting.rs`)
//! then reads the topics of the new events (`news.rs` beside this file) and wakes the first waiting call of each subscription that
//! matches (`engine/waiting/queue.rs`). A lost notification costs the time until the watcher's next poll, and a superfluous one
//! costs a question.

use super::{Target, postgres_error, quote, tls};
use crate::{
    backoff::Backoff,
    db::stats::Stats,
    error::{Error, Result},
    sync::lock,
};
use deadpool_postgres::Pool;
use futures_util::{StreamExt, stream::poll_fn};
use sha2::{Digest, Sha256};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client};

/// After a notification, the commits of this time share the next one. After a quiet time a commit is announced at once.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Between attempts to connect again.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// The longest wait for an answer on the listening connection, and for a flush.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// PostgreSQL's limit on names.
pub(super) const NAME_MAX: usize = 63;

pub(super) struct Notifier {
    target: Target,
    pool: Pool,
    channel: String,
    /// The payload of this node's own notifications, so that it can ignore them.
    node: String,
    stats: Arc<Stats>,
    /// There may be news: a commit here, a notification, or a new connection after one that may have missed some.
    news: Notify,
    announcements: watch::Sender<Announcements>,
    listen_task: Mutex<Option<JoinHandle<()>>>,
    /// The connection that listens, while it is connected.
    listening: Mutex<Option<Arc<Client>>>,
}

/// The commits to announce, and those that were announced.
#[derive(Debug, Default)]
struct Announcements {
    commits: u64,
    announced: u64,
    /// A task is sending notifications.
    is_sending: bool,
}

/// The task that sends notifications. If its runtime ends before it is done, another may begin.
struct Sender {
    notifier: Arc<Notifier>,
    done: bool,
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.done {
            self.notifier.announcements.send_modify(|announcements| announcements.is_sending = false);
        }
    }
}

impl Notifier {
    pub fn new(target: Target, pool: Pool, stats: Arc<Stats>) -> Arc<Self> {
        Arc::new(Self {
            channel: channel(&target.schema),
            target,
            pool,
            node: format!("{:016x}", fastrand::u64(..)),
            stats,
            news: Notify::new(),
            announcements: watch::Sender::default(),
            listen_task: Mutex::default(),
            listening: Mutex::default(),
        })
    }

    /// Returns when there may be news.
    pub async fn notified(&self) {
        self.news.notified().await;
    }

    /// A commit wrote to the log: the waiters here and the other nodes are notified.
    pub fn announce(self: &Arc<Self>) {
        self.news.notify_one();
        let mut start = false;
        self.announcements.send_if_modified(|announcements| {
            announcements.commits += 1;
            start = !std::mem::replace(&mut announcements.is_sending, true);
            false
        });
        if start {
            tokio::spawn(send_all(Sender { notifier: self.clone(), done: false }));
        }
    }

    /// Returns when all earlier commits are announced, or cannot be.
    pub async fn flush(&self) {
        let commits = self.announcements.borrow().commits;
        let mut announcements = self.announcements.subscribe();
        let sent = announcements.wait_for(|now| now.announced >= commits || !now.is_sending);
        if timeout(ANSWER_LIMIT, sent).await.is_err() {
            tracing::debug!("other nodes could not be notified in time: they will poll");
        }
    }

    async fn send(&self) -> Result<()> {
        // As plain text it takes one round trip, also on a connection that has not prepared it.
        let notify = format!("notify {}, '{}'", quote(&self.channel), self.node);
        self.stats.notification();
        let listening = self.listening().clone();
        if let Some(client) = listening
            && let Ok(Ok(())) = timeout(ANSWER_LIMIT, client.batch_execute(&notify)).await
        {
            return Ok(());
        }
        let client = self.pool.get().await.map_err(super::pool_error)?;
        client.batch_execute(&notify).await.map_err(postgres_error)
    }

    fn listening(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        lock(&self.listening)
    }

    pub fn is_listening(&self) -> bool {
        self.listening().is_some()
    }

    /// Listens from now on.
    pub fn listen(self: &Arc<Self>) {
        let mut task = lock(&self.listen_task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *self.listening() = None;
            *task = Some(tokio::spawn(keep_listening(self.clone())));
        }
    }

    pub fn stop(&self) {
        if let Some(task) = lock(&self.listen_task).take() {
            task.abort();
        }
    }

    /// Connects, and listens until the connection breaks.
    async fn listen_once(&self) -> Result<()> {
        // The name tells an operator the purpose of this idle connection.
        let mut config = self.target.config.clone();
        let connecting = config.application_name(&self.channel).connect(tls::connector(&self.target)?);
        let (client, mut connection) = timeout(ANSWER_LIMIT * 10, connecting)
            .await
            .map_err(|_| Error::unavailable("PostgreSQL did not answer"))?
            .map_err(postgres_error)?;
        let client = Arc::new(client);
        let mut messages = poll_fn(move |cx| connection.poll_message(cx));
        let listen = format!("listen {}", quote(&self.channel));
        self.stats.statement();
        let mut started = std::pin::pin!(client.batch_execute(&listen));
        loop {
            tokio::select! {
                started = &mut started => break started.map_err(postgres_error)?,
                Some(message) = messages.next() => drop(message.map_err(postgres_error)?),
            }
        }
        *self.listening() = Some(client.clone());
        // Earlier notifications were missed.
        self.news.notify_one();
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message.map_err(postgres_error)?
                && notification.payload() != self.node
            {
                self.news.notify_one();
            }
        }
        Ok(())
    }
}

/// The name of the channel. It contains the schema: fleets in one database do not wake each other.
fn channel(schema: &str) -> String {
    let name = format!("fence_{schema}");
    if name.len() <= NAME_MAX {
        return name;
    }
    let digest = Sha256::digest(schema);
    format!("fence_{}", digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Sends notifications until every commit is announced.
async fn send_all(mut sender: Sender) {
    let notifier = sender.notifier.clone();
    while !sender.done {
        let upto = notifier.announcements.borrow().commits;
        if let Err(e) = notifier.send().await {
            tracing::debug!("other nodes could not be notified of news: {e}");
        }
        notifier.announcements.send_modify(|announcements| announcements.announced = upto);
        sleep(DEBOUNCE).await;
        notifier.announcements.send_if_modified(|announcements| {
            sender.done = announcements.commits == announcements.announced;
            announcements.is_sending = !sender.done;
            false
        });
    }
}

async fn keep_listening(notifier: Arc<Notifier>) {
    let mut backoff = RECONNECT;
    loop {
        let ended = notifier.listen_once().await;
        if notifier.listening().take().is_some() {
            backoff.reset();
        }
        // From here on the watcher must poll: wake it, so that it does.
        notifier.news.notify_one();
        tracing::debug!("not listening for news from other nodes: {ended:?}");
        // Real time: it paces attempts, and decides no lease.
        sleep(backoff.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_named_after_its_schema_and_fits() {
        assert_eq!(channel("work"), "fence_work");
        let (long, other) = ("x".repeat(63), format!("{}y", "x".repeat(62)));
        assert!(channel(&long).len() <= NAME_MAX && channel(&long) != channel(&other));
    }
}
