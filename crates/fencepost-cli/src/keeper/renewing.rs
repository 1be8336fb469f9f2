//! The loop of a keeper: it checks whether there is still a reason to keep the run, renews the run, and sleeps.

use super::{
    Instructions, Owner,
    file::{self, KeeperFile},
    sleep::Sleeper,
};
use crate::{
    identity::{
        self,
        process::{self, Process},
    },
    location::DatabaseFile,
    private_files::Directory,
};
use fencepost::{Code, Error, Result, claim, run};
use fencepost_client::Connection;
use std::{rc::Rc, time::Duration};
// Real time, for supervision: the lease itself is decided by the fleet's clock.
use tokio::time::Instant;

/// The longest sleep, also if the lease is long: a machine that was suspended must renew soon after.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The pause before a retry, when the database does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Time for the connection to close before the thread sleeps.
const CLOSE: Duration = Duration::from_millis(20);
/// The timeout of one renewal.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Renewing {
    instructions: Instructions,
    directory: Rc<Directory>,
    /// When the run expires, as far as this keeper knows.
    expires: Instant,
    /// The lease that the last renewal returned, and the shorter one since all owners are gone.
    renewed: Option<run::Lease>,
    suspected: Option<run::Lease>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Check again after this long.
    CheckAfter(Duration),
    /// No owner is left, the run holds nothing or is over, or the fleet is gone.
    Stop,
}

impl Renewing {
    pub fn new(instructions: Instructions, directory: Rc<Directory>) -> Self {
        let lease = Duration::from_millis(u64::try_from(instructions.lease.0).unwrap_or(0));
        Self { instructions, directory, expires: Instant::now() + lease, renewed: None, suspected: None }
    }

    /// Runs until there is no more reason to keep the run. It removes its file first and checks once more after that: a process
    /// that found this keeper meanwhile relies on it.
    pub async fn run(mut self, mut file: KeeperFile) {
        loop {
            self.keep(&mut file).await;
            let owners = file.remove();
            if owners.is_empty() || !matches!(self.renew().await, Ok(Some(_))) {
                return;
            }
            let name = file::file_name(&self.instructions.run);
            match KeeperFile::lock(&self.directory, &name, &owners) {
                Ok(Some(locked)) => file = locked,
                // Another keeper is there by now, and gets our owners.
                _ => {
                    for owner in &owners {
                        let _ = file::join(&self.directory, &name, owner);
                    }
                    return;
                }
            }
        }
    }

    async fn keep(&mut self, file: &mut KeeperFile) {
        let database = self.instructions.database_file.as_ref().map(DatabaseFile::path);
        let mut sleeper = Sleeper::new(&file.path(), database);
        while let Next::CheckAfter(after) = self.check(file, &mut sleeper).await {
            // The connection closes meanwhile. After that, nothing needs the thread.
            tokio::time::sleep(CLOSE).await;
            sleeper.sleep(after);
        }
    }

    async fn check(&mut self, file: &mut KeeperFile, sleeper: &mut Sleeper) -> Next {
        if !file.is_in_place() || !self.is_same_fleet() {
            return Next::Stop;
        }
        let owners = file.owners();
        sleeper.set_owners(&owners);
        if owners.is_empty() {
            return self.without_owners(&file.all_owners()).await;
        }
        let renewed = tokio::time::timeout(TIMEOUT, self.renew()).await;
        match renewed.unwrap_or_else(|_| Err(Error::unavailable("no answer"))) {
            Ok(Some(ttl)) => {
                self.expires = Instant::now() + ttl;
                self.suspected = None;
                // The jitter spreads keepers that were started together.
                Next::CheckAfter((ttl / 4).min(LONGEST_SLEEP).mul_f64(0.8 + 0.2 * fastrand::f64()))
            }
            Ok(None) => Next::Stop,
            Err(e) if is_final(&e) || Instant::now() >= self.expires => Next::Stop,
            Err(_) => Next::CheckAfter(RETRY.mul_f64(0.5 + fastrand::f64())),
        }
    }

    /// All owners are gone. A process that they left behind may still work under the run: then the lease expires, or that process
    /// ends first. Otherwise the run ends now, except if somebody renewed it: another process may have resumed the agent's
    /// session.
    async fn without_owners(&mut self, owners: &[Owner]) -> Next {
        if self.instructions.named || Instant::now() >= self.expires {
            return Next::Stop;
        }
        match tokio::time::timeout(TIMEOUT, self.end(owners)).await {
            Ok(Ok(Some(_))) => Next::Stop,
            Ok(Err(e)) if is_final(&e) => Next::Stop,
            _ => Next::CheckAfter(RETRY),
        }
    }

    /// Ends the run; `None` if a process may still work under it.
    async fn end(&mut self, owners: &[Owner]) -> Result<Option<run::Run>> {
        let (run, reason) = (self.instructions.run.clone(), Some("its terminal or agent is gone".into()));
        let lease = match self.suspected {
            Some(lease) => lease,
            // Before the search for processes: a renewal that comes during the search is noticed by this lease.
            None => {
                let suspect = run::Suspect { run: run.clone(), lease: self.renewed };
                self.fleet().await?.call(suspect).await?.run.lease()
            }
        };
        self.suspected = Some(lease);
        if left_behind(owners, &run) {
            return Ok(None);
        }
        let end = run::End { run, reason, lease: Some(lease), owner_gone: true };
        Ok(Some(self.fleet().await?.call(end).await?.run))
    }

    /// Opens the fleet. A keeper does it for each check: idle connections of many sleeping keepers would be dear for a server.
    async fn fleet(&self) -> Result<Connection> {
        let mut fleet = Connection::open_existing(&self.instructions.url).await?;
        if !self.is_same_fleet() {
            return Err(Error::new(Code::NotFound, "the fleet is gone"));
        }
        if let Some(authority) = &self.instructions.authority {
            fleet = fleet.with_authority(authority);
        }
        match &self.instructions.key {
            Some(key) => fleet.with_key(key),
            None => Ok(fleet),
        }
    }

    /// Renews the run and returns its ttl; `None` if it holds nothing.
    async fn renew(&mut self) -> Result<Option<Duration>> {
        let fleet = self.fleet().await?;
        let list = claim::List { run: Some(self.instructions.run.clone()), limit: Some(1) };
        if fleet.call(list).await?.claims.is_empty() {
            return Ok(None);
        }
        let renewed = fleet.call(run::Renew { run: self.instructions.run.clone(), ttl_ms: None }).await?.run;
        self.renewed = Some(renewed.lease());
        Ok(Some(Duration::from_millis(u64::try_from(renewed.ttl_ms.0).unwrap_or(0))))
    }

    /// Is the fleet still the one that this keeper was started for? A removed database must not be created again.
    fn is_same_fleet(&self) -> bool {
        self.instructions.database_file.as_ref().is_none_or(DatabaseFile::is_in_place)
    }
}

/// Does a process of these sessions still live: one in a session that an owner led, or one whose variables name the run?
fn left_behind(owners: &[Owner], run: &str) -> bool {
    let ours = Process::own_id();
    process::all(&identity::variables()).any(|process| {
        let led = owners.iter().any(|owner| owner.pid == process.session);
        Some(process.pid) != ours && (led || identity::acts_for(&process, run))
    })
}

/// A retry will not help.
fn is_final(error: &Error) -> bool {
    !matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown | Code::Internal)
}
