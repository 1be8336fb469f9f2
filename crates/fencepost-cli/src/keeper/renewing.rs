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
    session,
};
use fencepost::{Clock, Code, Error, Millis, Result, claim, run};
use fencepost_client::{
    Connection,
    renewal::{self, ConfirmedLease, Renewal, Ticks, Verdict},
};
use std::{rc::Rc, time::Duration};

/// The longest sleep, also if the lease is long: a machine that was suspended must renew soon after.
const LONGEST_SLEEP: Millis = Millis::seconds(30);
/// How often to look whether the processes that the owners left behind have ended.
const LEFT_BEHIND: Millis = Millis::seconds(1);
/// An owner that was alive this short a time ago has just ended, and nobody has resumed its session yet. So its run may have a
/// lease that this keeper does not know: the owner's own commands also renew the run.
const JUST_ENDED: Millis = Millis(2 * LONGEST_SLEEP.0);
/// Time for the connection to close before the thread sleeps.
const CLOSE: Duration = Duration::from_millis(20);
/// The timeout of a check, which opens the fleet first. It does not depend on the lease: a keeper that wakes up after the end
/// of the lease that it knows asks once more, because its owner may have renewed the run.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Renewing {
    instructions: Instructions,
    directory: Rc<Directory>,
    renewal: Renewal,
    /// The lease that the last renewal returned, and the shorter one since all owners are gone.
    renewed: Option<run::Lease>,
    suspected: Option<run::Lease>,
    /// When an owner was last seen alive.
    owned_at: Ticks,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    CheckAt(Ticks),
    /// No owner is left, the run holds nothing or is over, or the fleet is gone.
    Stop,
}

impl Renewing {
    pub fn new(instructions: Instructions, directory: Rc<Directory>) -> Self {
        let mut renewal = Renewal::new(instructions.lease).at_least_every(LONGEST_SLEEP);
        renewal.renewed(ConfirmedLease { sent: renewal::now(), left: instructions.lease });
        let owned_at = renewal::now();
        Self { instructions, directory, renewal, renewed: None, suspected: None, owned_at }
    }

    /// Runs until there is no more reason to keep the run. It removes its file first and checks once more after that: a process
    /// that found this keeper meanwhile relies on it.
    pub async fn run(mut self, mut file: KeeperFile) {
        loop {
            self.keep(&mut file).await;
            let owners = file.remove();
            if owners.is_empty() {
                return;
            }
            let is_over = match renewal::within(TIMEOUT, self.renew()).await {
                Ok(renewed) => renewed.is_none(),
                // Without an answer the run may still hold something, until its lease is over.
                Err(e) => is_final(&e) || renewal::now() >= self.renewal.ends_at(),
            };
            if is_over {
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
        while let Next::CheckAt(at) = self.check(file, &mut sleeper).await {
            // The connection closes meanwhile. After that, nothing needs the thread.
            tokio::time::sleep(CLOSE).await;
            sleeper.sleep(Millis(at - renewal::now()).into());
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
        self.owned_at = renewal::now();
        let renewed = renewal::within(TIMEOUT, self.renew()).await;
        let now = renewal::now();
        match renewed {
            Ok(Some(left)) => {
                // Counted from the answer and not from the request: a keeper that gives up too early loses the run, and one that
                // asks too late is only refused.
                self.renewal.renewed(ConfirmedLease { sent: now, left });
                self.suspected = None;
                self.record(left);
            }
            // The next tool of the session asks the fleet what became of its claims.
            Ok(None) => {
                self.record(Millis(0));
                return Next::Stop;
            }
            Err(e) if is_final(&e) || self.renewal.unanswered(now) == Verdict::Over => return Next::Stop,
            Err(_) => {}
        }
        Next::CheckAt(self.renewal.next_at())
    }

    /// Records in the sessions that hold this run's claims how long those last, so that their hooks need not ask.
    fn record(&self, left: Millis) {
        let now = Clock::System.read();
        for record in &self.instructions.records {
            let Instructions { url, run, .. } = &self.instructions;
            session::renewed(record, url, run, now.plus(left), now);
        }
    }

    /// All owners are gone. A process that they left behind may still work under the run: then the lease expires, or that process
    /// ends first. Otherwise the run ends now, except if somebody renewed it: another process may have resumed the agent's
    /// session.
    async fn without_owners(&mut self, owners: &[Owner]) -> Next {
        if self.instructions.named || renewal::now() >= self.renewal.ends_at() {
            return Next::Stop;
        }
        match renewal::within(TIMEOUT, self.end(owners)).await {
            Ok(Some(_)) => Next::Stop,
            Err(e) if is_final(&e) => Next::Stop,
            _ => Next::CheckAt(renewal::now() + LEFT_BEHIND.0),
        }
    }

    /// Ends the run; `None` if a process may still work under it.
    async fn end(&mut self, owners: &[Owner]) -> Result<Option<run::Run>> {
        let (run, reason) = (self.instructions.run.clone(), Some("its terminal or agent is gone".into()));
        let lease = match self.suspected {
            Some(lease) => lease,
            // Before the search for processes: a renewal that comes during the search is noticed by this lease.
            None => {
                let just_ended = renewal::now() - self.owned_at <= JUST_ENDED.0;
                let lease = self.renewed.filter(|_| !just_ended);
                let suspect = run::Suspect { run: run.clone(), lease };
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
    async fn renew(&mut self) -> Result<Option<Millis>> {
        let fleet = self.fleet().await?;
        let list = claim::List { run: Some(self.instructions.run.clone()), limit: Some(1) };
        if fleet.call(list).await?.claims.is_empty() {
            return Ok(None);
        }
        let renewed = fleet.call(run::Renew { run: self.instructions.run.clone(), ttl_ms: None }).await?.run;
        self.renewed = Some(renewed.lease());
        Ok(Some(renewed.ttl_ms))
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

/// A retry will not help. An internal error may pass, and a keeper that gives up too early loses the run.
fn is_final(error: &Error) -> bool {
    !error.is_transient() && error.code() != Code::Internal
}
