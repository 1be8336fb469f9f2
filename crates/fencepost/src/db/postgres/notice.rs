//! How nodes tell each other that there is something new in the log.
//!
//! After a commit that wrote an event a node says so, once for all its commits within a few milliseconds: a NOTIFY in
//! each transaction was measured 4 to 10 times slower, because they queue for one lock. Who waits listens, on a
//! connection of its own. A notice says nothing but "look": one that is lost costs the time until the next poll, and
//! one too many costs a question.

use super::{Target, postgres_error, quote, tls};
use crate::{
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

/// After a notice, the commits of this long share the next. The first of a while is told at once.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Between tries to be connected again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A connection that does not answer in this time is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// PostgreSQL's limit on names.
pub(super) const NAME_MAX: usize = 63;

pub(super) struct Notices {
    target: Target,
    pool: Pool,
    channel: String,
    /// What this node's own notices carry, so that it does not hear itself.
    node: String,
    stats: Arc<Stats>,
    /// There may be news: a commit here, a notice, or a connection after one that may have missed some.
    news: Notify,
    said: watch::Sender<Said>,
    listener: Mutex<Option<JoinHandle<()>>>,
    /// The connection that listens, while it does.
    ear: Mutex<Option<Arc<Client>>>,
}

/// How many commits there were to tell of, and how many were told.
#[derive(Debug, Default)]
struct Said {
    wanted: u64,
    sent: u64,
    speaking: bool,
}

/// Who speaks. If its runtime ends before it is done, another may begin.
struct Speaking {
    notices: Arc<Notices>,
    done: bool,
}

impl Drop for Speaking {
    fn drop(&mut self) {
        if !self.done {
            self.notices.said.send_modify(|said| said.speaking = false);
        }
    }
}

impl Notices {
    pub fn new(target: Target, pool: Pool, stats: Arc<Stats>) -> Arc<Self> {
        Arc::new(Self {
            channel: channel(&target.schema),
            target,
            pool,
            node: format!("{:016x}", fastrand::u64(..)),
            stats,
            news: Notify::new(),
            said: watch::Sender::default(),
            listener: Mutex::default(),
            ear: Mutex::default(),
        })
    }

    /// Until there may be news.
    pub async fn notified(&self) {
        self.news.notified().await;
    }

    /// A commit wrote to the log.
    pub fn announce(self: &Arc<Self>) {
        self.news.notify_one();
        let mut start = false;
        self.said.send_if_modified(|said| {
            said.wanted += 1;
            start = !std::mem::replace(&mut said.speaking, true);
            false
        });
        if start {
            tokio::spawn(speak(Speaking { notices: self.clone(), done: false }));
        }
    }

    /// What was committed before this is told, or cannot be.
    pub async fn flush(&self) {
        let wanted = self.said.borrow().wanted;
        let mut said = self.said.subscribe();
        let told = timeout(PATIENCE, said.wait_for(|said| said.sent >= wanted || !said.speaking)).await;
        if told.is_err() {
            tracing::debug!("other nodes could not be told in time: they will find out by themselves");
        }
    }

    async fn tell(&self) -> Result<()> {
        // As plain text it is one round trip, also on a connection that never said it before.
        let tell = format!("notify {}, '{}'", quote(&self.channel), self.node);
        self.stats.notification();
        let ear = self.ear().clone();
        if let Some(ear) = ear
            && let Ok(Ok(())) = timeout(PATIENCE, ear.batch_execute(&tell)).await
        {
            return Ok(());
        }
        let client = self.pool.get().await.map_err(super::pool_error)?;
        client.batch_execute(&tell).await.map_err(postgres_error)
    }

    fn ear(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        lock(&self.ear)
    }

    pub fn is_listening(&self) -> bool {
        self.ear().is_some()
    }

    /// Listens from now on.
    pub fn listen(self: &Arc<Self>) {
        let mut listener = lock(&self.listener);
        if listener.as_ref().is_none_or(JoinHandle::is_finished) {
            *self.ear() = None;
            *listener = Some(tokio::spawn(keep_listening(self.clone())));
        }
    }

    pub fn stop(&self) {
        if let Some(listener) = lock(&self.listener).take() {
            listener.abort();
        }
    }

    /// Connects, and hears until the connection breaks.
    async fn hear(&self) -> Result<()> {
        // So that who looks at the server's connections knows what this idle one is for.
        let mut config = self.target.config.clone();
        let connecting = config.application_name(&self.channel).connect(tls::connector(&self.target)?);
        let (client, mut connection) = timeout(PATIENCE * 10, connecting)
            .await
            .map_err(|_| Error::unavailable("PostgreSQL did not answer"))?
            .map_err(postgres_error)?;
        let client = Arc::new(client);
        let mut messages = poll_fn(move |cx| connection.poll_message(cx));
        let listen = format!("listen {}", quote(&self.channel));
        self.stats.statement();
        let mut listening = std::pin::pin!(client.batch_execute(&listen));
        loop {
            tokio::select! {
                listening = &mut listening => break listening.map_err(postgres_error)?,
                Some(message) = messages.next() => drop(message.map_err(postgres_error)?),
            }
        }
        *self.ear() = Some(client.clone());
        // Whatever was told before this was told to nobody.
        self.news.notify_one();
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notice) = message.map_err(postgres_error)?
                && notice.payload() != self.node
            {
                self.news.notify_one();
            }
        }
        Ok(())
    }
}

/// The schema is in the name: fleets in one database do not wake each other.
fn channel(schema: &str) -> String {
    let name = format!("fence_{schema}");
    if name.len() <= NAME_MAX {
        return name;
    }
    let digest = Sha256::digest(schema);
    format!("fence_{}", digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

async fn speak(mut speaking: Speaking) {
    let notices = speaking.notices.clone();
    while !speaking.done {
        let upto = notices.said.borrow().wanted;
        if let Err(e) = notices.tell().await {
            tracing::debug!("other nodes could not be told of news: {e}");
        }
        notices.said.send_modify(|said| said.sent = upto);
        sleep(DEBOUNCE).await;
        notices.said.send_if_modified(|said| {
            speaking.done = said.wanted == said.sent;
            said.speaking = !speaking.done;
            false
        });
    }
}

async fn keep_listening(notices: Arc<Notices>) {
    let mut pause = BACKOFF.0;
    loop {
        let broken = notices.hear().await;
        if notices.ear().take().is_some() {
            pause = BACKOFF.0;
        }
        // From here on the watcher polls, and it does not know yet.
        notices.news.notify_one();
        tracing::debug!("not listening for news from other nodes: {broken:?}");
        // Real time: it paces tries, and decides nothing.
        sleep(pause.mul_f64(0.8 + fastrand::f64() / 2.5)).await;
        pause = (pause * 2).min(BACKOFF.1);
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
