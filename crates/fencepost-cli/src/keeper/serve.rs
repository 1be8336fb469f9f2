//! What a keeper does all day: it looks whether there is still a reason to keep the run, renews it, and sleeps.

use super::{Order, Post, identity, watch};
use crate::keeper::Owner;
use fencepost::{Code, Error, Result, claim, run};
use fencepost_client::Connection;
use std::{path::Path, sync::Arc, time::Duration};
// Real time, for supervision: the lease itself is decided by the fleet's clock.
use tokio::{sync::Notify, time::Instant};

/// It looks at least this often, also if the lease is long: a machine that slept must be heard soon after.
const LOOK: Duration = Duration::from_secs(30);
/// When the database is away, and the least between two looks.
const RETRY: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
/// One renewal takes no longer.
const LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Service {
    order: Order,
    /// The run is good until then, as far as we know.
    lease: Instant,
    /// Something happened: an owner is gone, a file was touched.
    news: Arc<Notify>,
    watched: Vec<Owner>,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// All is well, or will be: look again after this long.
    Again(Duration),
    /// The run holds nothing, or nobody is there to keep it for. That may have changed by now.
    Idle,
    /// There is no such fleet or run any more.
    Over,
}

impl Service {
    pub fn new(order: Order) -> Self {
        let lease = Instant::now() + Duration::from_millis(u64::try_from(order.lease.0).unwrap_or(0));
        Self { order, lease, news: Arc::default(), watched: Vec::new() }
    }

    /// Leaves its post first and looks again after: who claimed meanwhile and found us there relies on us.
    pub async fn run(mut self, mut post: Post) {
        loop {
            let end = self.keep(&mut post).await;
            let mut owners = post.leave();
            if end == Look::Over || owners.is_empty() || !matches!(self.renew().await, Ok(Some(_))) {
                return;
            }
            owners.dedup();
            match Post::take(&self.order.post, &owners) {
                Ok(Some(again)) => post = again,
                // Another keeper is there by now. Whoever was added to us last must be told to it.
                _ => return drop(owners.iter().map(|owner| super::post::join(&self.order.post, owner)).count()),
            }
        }
    }

    async fn keep(&mut self, post: &mut Post) -> Look {
        let files = [Some(post.path()), self.order.file.map(|_| Path::new(&self.order.url))];
        let watch = watch::files(files.into_iter().flatten(), self.news.clone());
        let end = loop {
            match self.look(post).await {
                Look::Again(after) => {
                    let _ = tokio::time::timeout(after, self.news.notified()).await;
                    tokio::time::sleep(PAUSE).await;
                }
                end => break end,
            }
        };
        watch.abort();
        end
    }

    async fn look(&mut self, post: &mut Post) -> Look {
        if !post.is_known() || !self.is_same_fleet() {
            return Look::Over;
        }
        let owners = post.owners();
        for owner in &owners {
            if !self.watched.contains(owner) {
                self.watched.push(owner.clone());
                watch::end_of(owner.clone(), self.news.clone());
            }
        }
        if owners.is_empty() {
            return Look::Idle;
        }
        let renewed = tokio::time::timeout(LIMIT, self.renew()).await;
        match renewed.unwrap_or_else(|_| Err(Error::unavailable("no answer"))) {
            Ok(Some(ttl)) => {
                self.lease = Instant::now() + ttl;
                // Not all at once, where many were started together.
                Look::Again((ttl / 4).min(LOOK).mul_f64(0.8 + 0.2 * fastrand::f64()))
            }
            Ok(None) => Look::Idle,
            Err(e) if is_final(&e) || Instant::now() >= self.lease => Look::Over,
            Err(_) => Look::Again(RETRY.mul_f64(0.5 + fastrand::f64())),
        }
    }

    /// Renews the run and gives its ttl; `None` if it holds nothing. The fleet is opened anew each time: keepers
    /// sleep, and connections that do nothing are dear on a server.
    async fn renew(&self) -> Result<Option<Duration>> {
        let gone = || Error::new(Code::NotFound, "the fleet is gone");
        let fleet = Connection::open_existing(&self.order.url).await?;
        if !self.is_same_fleet() {
            return Err(gone());
        }
        let list = claim::List { run: Some(self.order.run.clone()), limit: Some(1) };
        if fleet.call(list).await?.claims.is_empty() {
            return Ok(None);
        }
        let renewed = fleet.call(run::Renew { run: self.order.run.clone(), ttl_ms: None }).await?.run;
        Ok(Some(Duration::from_millis(u64::try_from(renewed.ttl_ms.0).unwrap_or(0))))
    }

    /// A file that is gone is not made again, and one that was put in its place is another fleet.
    fn is_same_fleet(&self) -> bool {
        self.order.file.is_none_or(|file| identity(Path::new(&self.order.url)) == Some(file))
    }
}

/// Asking again will not help.
fn is_final(error: &Error) -> bool {
    !matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown | Code::Internal)
}
