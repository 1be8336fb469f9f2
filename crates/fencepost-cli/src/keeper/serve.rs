//! What a keeper does all day: it looks whether there is still a reason to keep the run, renews it, and sleeps.

use super::{
    Order, Owner,
    post::{self, Post},
    watch::Watch,
};
use crate::{
    own::Directory,
    place::Footing,
    process::{self, Process},
    whose,
};
use fencepost::{Code, Error, Result, claim, run};
use fencepost_client::Connection;
use std::{rc::Rc, time::Duration};
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
    directory: Rc<Directory>,
    /// The run is good until then, as far as we know.
    lease: Instant,
    /// Its lease as the last renewal showed it, and as it is since everyone we keep it for is gone.
    renewed: Option<run::Lease>,
    doubted: Option<run::Lease>,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// All is well, or will be: look again after this long.
    Again(Duration),
    /// Nobody is there to keep it for, the run holds nothing or is over, or the fleet is gone.
    Stop,
}

impl Service {
    pub fn new(order: Order, directory: Rc<Directory>) -> Self {
        let lease = Instant::now() + Duration::from_millis(u64::try_from(order.lease.0).unwrap_or(0));
        Self { order, directory, lease, renewed: None, doubted: None }
    }

    /// Leaves its post first and looks again after: who claimed meanwhile and found us there relies on us.
    pub async fn run(mut self, mut held: Post) {
        loop {
            self.keep(&mut held).await;
            let owners = held.leave();
            if owners.is_empty() || !matches!(self.renew().await, Ok(Some(_))) {
                return;
            }
            let name = post::file_name(&self.order.run);
            match Post::take(&self.directory, &name, &owners) {
                Ok(Some(again)) => held = again,
                // Another keeper is there by now. It is told for whom we kept.
                _ => {
                    for owner in &owners {
                        let _ = post::join(&self.directory, &name, owner);
                    }
                    return;
                }
            }
        }
    }

    async fn keep(&mut self, post: &mut Post) {
        let fleet = self.order.footing.as_ref().map(Footing::path);
        let mut watch = Watch::new(&post.path(), fleet);
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
                self.doubted = None;
                // Not all at once, where many were started together.
                Look::Again((ttl / 4).min(LOOK).mul_f64(0.8 + 0.2 * fastrand::f64()))
            }
            Ok(None) => Look::Stop,
            Err(e) if is_final(&e) || Instant::now() >= self.lease => Look::Stop,
            Err(_) => Look::Again(RETRY.mul_f64(0.5 + fastrand::f64())),
        }
    }

    /// Everyone it kept the run for is gone. What they left behind may still be at work under it: then the lease runs
    /// out, or that ends first. Otherwise nobody will come back to what the run holds, unless an agent's session was
    /// resumed by another process: whoever is heard under the run is left alone with it.
    async fn outlive(&mut self, owners: &[Owner]) -> Look {
        if self.order.named || Instant::now() >= self.lease {
            return Look::Stop;
        }
        match tokio::time::timeout(LIMIT, self.end(owners)).await {
            Ok(Ok(Some(_))) => Look::Stop,
            Ok(Err(e)) if is_final(&e) => Look::Stop,
            _ => Look::Again(RETRY),
        }
    }

    /// Ends the run; `None` if somebody may still be at work under it.
    async fn end(&mut self, owners: &[Owner]) -> Result<Option<run::Run>> {
        let (run, reason) = (self.order.run.clone(), Some("its terminal or agent is gone".into()));
        let lease = match self.doubted {
            Some(lease) => lease,
            // First, so that nobody is heard unseen while what was left behind comes to its end.
            None => {
                let doubt = run::Suspect { run: run.clone(), lease: self.renewed };
                self.fleet().await?.call(doubt).await?.run.lease()
            }
        };
        self.doubted = Some(lease);
        if left_behind(owners, &run) {
            return Ok(None);
        }
        let end = run::End { run, reason, lease: Some(lease), owner_gone: true };
        Ok(Some(self.fleet().await?.call(end).await?.run))
    }

    /// The fleet is opened anew each time: keepers sleep, and connections that do nothing are dear on a server.
    async fn fleet(&self) -> Result<Connection> {
        let mut fleet = Connection::open_existing(&self.order.url).await?;
        if !self.is_same_fleet() {
            return Err(Error::new(Code::NotFound, "the fleet is gone"));
        }
        if let Some(authority) = &self.order.authority {
            fleet = fleet.with_authority(authority);
        }
        match &self.order.key {
            Some(key) => fleet.with_key(key),
            None => Ok(fleet),
        }
    }

    /// Renews the run and gives its ttl; `None` if it holds nothing.
    async fn renew(&mut self) -> Result<Option<Duration>> {
        let fleet = self.fleet().await?;
        let list = claim::List { run: Some(self.order.run.clone()), limit: Some(1) };
        if fleet.call(list).await?.claims.is_empty() {
            return Ok(None);
        }
        let renewed = fleet.call(run::Renew { run: self.order.run.clone(), ttl_ms: None }).await?.run;
        self.renewed = Some(renewed.lease());
        Ok(Some(Duration::from_millis(u64::try_from(renewed.ttl_ms.0).unwrap_or(0))))
    }

    /// A file that is gone is not made again.
    fn is_same_fleet(&self) -> bool {
        self.order.footing.as_ref().is_none_or(Footing::holds)
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
