//! What a keeper does all day: it looks whether there is still a reason to keep the run, renews it, and sleeps.

use super::{
    Order, Owner, identity,
    post::{self, Post},
    watch::Watch,
};
use crate::{
    process::{self, Process},
    whose,
};
use fencepost::{Code, Error, Result, claim, run};
use fencepost_client::Connection;
use std::{path::Path, time::Duration};
// Real time, for supervision: the lease itself is decided by the fleet's clock.
use tokio::time::Instant;

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
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// All is well, or will be: look again after this long.
    Again(Duration),
    /// Nobody is there to keep it for, the run holds nothing or is over, or the fleet is gone.
    Stop,
}

impl Service {
    pub fn new(order: Order) -> Self {
        let lease = Instant::now() + Duration::from_millis(u64::try_from(order.lease.0).unwrap_or(0));
        Self { order, lease }
    }

    /// Leaves its post first and looks again after: who claimed meanwhile and found us there relies on us.
    pub async fn run(mut self, mut held: Post) {
        loop {
            self.keep(&mut held).await;
            let owners = held.leave();
            if owners.is_empty() || !matches!(self.renew().await, Ok(Some(_))) {
                return;
            }
            match Post::take(&self.order.post, &owners) {
                Ok(Some(again)) => held = again,
                // Another keeper is there by now. It is told for whom we kept.
                _ => {
                    for owner in &owners {
                        let _ = post::join(&self.order.post, owner);
                    }
                    return;
                }
            }
        }
    }

    async fn keep(&mut self, post: &mut Post) {
        let fleet = self.order.file.map(|_| Path::new(&self.order.url));
        let mut watch = Watch::new(post.path(), fleet);
        while let Look::Again(after) = self.look(post, &mut watch).await {
            // Meanwhile the connection of this look is closed; then nothing is left that needs the thread.
            tokio::time::sleep(PAUSE).await;
            watch.wait(after);
        }
    }

    async fn look(&mut self, post: &mut Post, watch: &mut Watch) -> Look {
        if !post.is_known() || !self.is_same_fleet() {
            return Look::Stop;
        }
        let owners = post.owners();
        watch.owners(&owners);
        if owners.is_empty() {
            return self.outlive(&post.all_owners()).await;
        }
        let renewed = tokio::time::timeout(LIMIT, self.renew()).await;
        match renewed.unwrap_or_else(|_| Err(Error::unavailable("no answer"))) {
            Ok(Some(ttl)) => {
                self.lease = Instant::now() + ttl;
                // Not all at once, where many were started together.
                Look::Again((ttl / 4).min(LOOK).mul_f64(0.8 + 0.2 * fastrand::f64()))
            }
            Ok(None) => Look::Stop,
            Err(e) if is_final(&e) || Instant::now() >= self.lease => Look::Stop,
            Err(_) => Look::Again(RETRY.mul_f64(0.5 + fastrand::f64())),
        }
    }

    /// Everyone it kept the run for is gone. What they left behind may still be at work under it: then the lease runs
    /// out, or that ends first. Otherwise nobody will come back to what the run holds.
    async fn outlive(&self, owners: &[Owner]) -> Look {
        if self.order.named || Instant::now() >= self.lease {
            return Look::Stop;
        }
        if left_behind(owners, &self.order.run) {
            return Look::Again(RETRY);
        }
        match tokio::time::timeout(LIMIT, self.end()).await {
            Ok(Ok(())) => Look::Stop,
            Ok(Err(e)) if is_final(&e) => Look::Stop,
            _ => Look::Again(RETRY),
        }
    }

    async fn end(&self) -> Result<()> {
        let fleet = self.fleet().await?;
        if self.is_same_fleet() {
            let reason = Some("its terminal or agent is gone".into());
            fleet.call(run::End { run: self.order.run.clone(), reason }).await?;
        }
        Ok(())
    }

    /// Renews the run and gives its ttl; `None` if it holds nothing. The fleet is opened anew each time: keepers
    /// sleep, and connections that do nothing are dear on a server.
    async fn renew(&self) -> Result<Option<Duration>> {
        let fleet = self.fleet().await?;
        if !self.is_same_fleet() {
            return Err(Error::new(Code::NotFound, "the fleet is gone"));
        }
        let list = claim::List { run: Some(self.order.run.clone()), limit: Some(1) };
        if fleet.call(list).await?.claims.is_empty() {
            return Ok(None);
        }
        let renewed = fleet.call(run::Renew { run: self.order.run.clone(), ttl_ms: None }).await?.run;
        Ok(Some(Duration::from_millis(u64::try_from(renewed.ttl_ms.0).unwrap_or(0))))
    }

    async fn fleet(&self) -> Result<Connection> {
        let fleet = Connection::open_existing(&self.order.url).await?;
        match &self.order.key {
            Some(key) => fleet.with_key(key),
            None => Ok(fleet),
        }
    }

    /// A file that is gone is not made again, and one that was put in its place is another fleet.
    fn is_same_fleet(&self) -> bool {
        self.order.file.is_none_or(|file| identity(Path::new(&self.order.url)) == Some(file))
    }
}

/// Is something of these sessions still there: in a session that one of them led, or told that it acts for the run?
fn left_behind(owners: &[Owner], run: &str) -> bool {
    let ours = Process::own_id();
    process::all(&whose::variables()).any(|process| {
        let led = owners.iter().any(|owner| owner.pid == process.session);
        Some(process.pid) != ours && (led || whose::is_told(&process, run))
    })
}

/// Asking again will not help.
fn is_final(error: &Error) -> bool {
    !matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown | Code::Internal)
}
