//! A client's session: the claims that it holds, those that it lost, and whether it acknowledged that. One file per run, beside the records
//! of `identity`. The hooks of the client and of git read it and write it; so do the keeper and the commands that claim.

mod ends;
mod file;
mod fleet;
mod standing;

pub use ends::{Sessions, ends, of_call, texts};
use fencepost::{Millis, Time, claim, claim::Verdict};
pub use file::{Known, Locked, acknowledge, forget_old, given_back, known, lift, read, renewed, unanswered};
pub use fleet::{Deadline, Fleet};
use serde::{Deserialize, Serialize};
pub use standing::Standing;
use std::collections::BTreeMap;

/// What is known about a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The address of the fleet in which the session last held a claim. The file is this user's own.
    pub fleet: Option<String>,
    /// When a hook last renewed the run.
    pub renewed_at: Option<Time>,
    /// Its claims at the last look, and those that it made since, also for other runs.
    pub held: Vec<Held>,
    /// Claims that it lost, and has not acknowledged.
    pub lost: Vec<Lost>,
    /// The losses that it acknowledged last.
    pub acknowledged: Vec<Lost>,
    /// How its last claim ended that it did not lose, or of which it acknowledged the loss.
    pub ended: Option<Ended>,
    /// The number of notes that the session knows, by task.
    pub notes: BTreeMap<String, usize>,
    /// The last message of its agent's inbox, and the number of its unread mentions, that the session was told of.
    pub mail: Option<(i64, i64)>,
    /// The fleet did not answer: until then, no hook asks it only to renew and to look for news.
    pub silent_until: Option<Time>,
    /// Tasks that the session was offered when it was idle.
    pub offered: Vec<String>,
    /// A stop was refused while these claims were held.
    pub stop_refused: Vec<String>,
    /// Its run is marked as waiting for a person.
    pub is_waiting: bool,
    /// A person lifted the guard.
    pub lift: Option<Lift>,
    /// When the file was last written, by the clock of this machine.
    pub written_at: Option<Time>,
}

/// A claim, as the fleet last confirmed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub token: String,
    /// The address of its fleet. Two fleets can have claims with the same token.
    #[serde(default)]
    pub fleet: String,
    pub run: String,
    /// The end of its lease, unless it is renewed. After it the fleet is asked.
    pub until: Time,
    /// The end of its own time (`--max`), which a renewal does not extend.
    #[serde(default)]
    pub limit: Option<Time>,
}

/// A claim that the session did not end itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub token: String,
    #[serde(default)]
    pub fleet: String,
    pub how: Loss,
    /// When this was noticed.
    pub at: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Its lease ended by the clock of this machine, and the fleet could not be asked.
    Unconfirmed,
    /// Another run has the item.
    Taken,
    /// Another run finished it.
    Finished,
    Cancelled,
    /// Its lease ended, or an operator took it away; or a newer version of fence wrote another reason.
    #[serde(other)]
    Over,
}

/// How a session ended its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Completed,
    /// Released, failed, or lost and acknowledged.
    GivenUp,
}

/// A guard that a person lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lift {
    pub until: Time,
    pub reason: Option<String>,
}

/// The most losses that a record keeps. A session holds few claims.
const LOST_MAX: usize = 50;

/// How long a fleet that did not answer is left alone.
pub const SILENT_FOR: Millis = Millis::seconds(60);

/// How long a claim that the fleet confirmed counts as alive, if the clock of this machine says that its lease is over.
const CONFIRMED: Millis = Millis::seconds(1);

impl Held {
    /// A claim that the fleet just confirmed. Its clock may be behind ours.
    pub fn confirmed(claim: &claim::Claim, fleet: &str, now: Time) -> Self {
        let until = claim.expires_at.max(now.plus(CONFIRMED));
        let limit = claim.limit_at;
        Self { token: claim.token.clone(), fleet: fleet.to_owned(), run: claim.run.clone(), until, limit }
    }

    fn is(&self, fleet: &str, token: &str) -> bool {
        self.fleet == fleet && self.token == token
    }
}

impl Session {
    /// That fleet is gone, and all claims in it.
    pub fn forget(&mut self, fleet: &str) {
        self.held.retain(|held| held.fleet != fleet);
        self.lost.retain(|lost| lost.fleet != fleet || lost.how != Loss::Unconfirmed);
    }

    /// Records claims that their fleet says are alive. A new one acknowledges what was lost before.
    pub fn hold(&mut self, claims: Vec<Held>) {
        for claim in claims {
            self.fleet = Some(claim.fleet.clone());
            // Its lease seemed to be over when the fleet could not be asked.
            let seemed_lost = self.lost.iter().position(|lost| lost.is(&claim.fleet, &claim.token));
            match (self.held.iter_mut().find(|held| held.is(&claim.fleet, &claim.token)), seemed_lost) {
                (Some(held), _) => *held = claim,
                (None, Some(place)) => {
                    self.lost.remove(place);
                    self.held.push(claim);
                }
                (None, None) => {
                    self.acknowledge();
                    self.acknowledged.clear();
                    // An earlier claim of the same item, of whose loss nobody knew yet.
                    let is_same = |held: &Held| {
                        held.fleet == claim.fleet && resource(&held.token) == resource(&claim.token)
                    };
                    self.held.retain(|held| !is_same(held));
                    self.held.push(claim);
                }
            }
        }
    }

    /// The run was renewed until then.
    pub fn renew(&mut self, fleet: &str, run: &str, until: Time) {
        for held in self.held.iter_mut().filter(|held| held.fleet == fleet && held.run == run) {
            held.until = held.limit.map_or(until, |limit| until.min(limit));
        }
    }

    /// The session ended this claim, by this verb.
    pub fn end(&mut self, fleet: &str, token: &str, verb: &str) {
        self.held.retain(|held| !held.is(fleet, token));
        self.lost.retain(|lost| !lost.is(fleet, token));
        match verb {
            // The answer to an offer is no work.
            "accept" | "reject" => {}
            "done" | "done_many" | "respond" | "settle" | "verdict" => self.ended = Some(Ended::Completed),
            _ => self.ended = Some(Ended::GivenUp),
        }
    }

    /// The claim is over, and the session did not end it.
    pub fn lose(&mut self, fleet: &str, token: &str, how: Loss, now: Time) -> Lost {
        self.held.retain(|held| !held.is(fleet, token));
        let lost = Lost { token: token.to_owned(), fleet: fleet.to_owned(), how, at: now };
        self.lost.retain(|lost| !lost.is(fleet, token));
        self.lost.truncate(LOST_MAX - 1);
        self.lost.push(lost.clone());
        lost
    }

    /// The session knows what it lost. Returns that.
    pub fn acknowledge(&mut self) -> &[Lost] {
        if !self.lost.is_empty() {
            self.acknowledged = std::mem::take(&mut self.lost);
            self.ended = Some(Ended::GivenUp);
        }
        &self.acknowledged
    }

    /// The fleet cannot be asked: claims whose lease is over count as lost.
    pub fn lapse(&mut self, now: Time) {
        let over: Vec<Held> = self.held.iter().filter(|held| held.until <= now).cloned().collect();
        for held in over {
            self.lose(&held.fleet, &held.token, Loss::Unconfirmed, now);
        }
    }

    /// The tokens of claims in this fleet that it may hold.
    pub fn may_hold_in(&self, fleet: &str) -> Vec<String> {
        self.may_hold().filter(|(of, _)| *of == fleet).map(|(_, token)| token.to_owned()).collect()
    }

    /// The fleets and tokens of claims that it may hold: after a lease ended while the fleet could not be asked, the claim may be alive.
    pub fn may_hold(&self) -> impl Iterator<Item = (&str, &str)> {
        let held = self.held.iter().map(|held| (held.fleet.as_str(), held.token.as_str()));
        let unconfirmed = self.lost.iter().filter(|lost| lost.how == Loss::Unconfirmed);
        held.chain(unconfirmed.map(|lost| (lost.fleet.as_str(), lost.token.as_str())))
    }

    fn knows(&self, fleet: &str, token: &str) -> bool {
        self.may_hold().any(|known| known == (fleet, token))
    }

    /// Is the lease of a claim over, as far as this record knows?
    pub fn is_stale(&self, now: Time) -> bool {
        self.held.iter().any(|held| held.until <= now)
    }

    /// Was the fleet silent a moment ago?
    pub fn is_silent(&self, now: Time) -> bool {
        // Not for hours, if the clock was ahead when this was written.
        self.silent_until.is_some_and(|until| now < until && until.since(now) <= SILENT_FOR)
    }

    /// Must the fleet be asked before the next tool? After a loss, too: the session may have claimed since where its hooks do not look.
    pub fn is_in_doubt(&self, now: Time) -> bool {
        let may_live = self.lost.iter().any(|lost| lost.how == Loss::Unconfirmed);
        self.is_stale(now) || may_live || !self.lost.is_empty() && !self.is_silent(now)
    }

    /// Did it never hold a claim?
    pub fn is_blank(&self) -> bool {
        self.held.is_empty() && self.lost.is_empty() && self.ended.is_none()
    }

    /// Did the session hold its last claim in another fleet?
    pub fn is_elsewhere(&self, fleet: &str) -> bool {
        self.fleet.as_deref().is_some_and(|own| own != fleet)
    }

    /// Did a person lift the guard, and is it not yet over?
    pub fn is_lifted(&self, now: Time) -> bool {
        self.lift.as_ref().is_some_and(|lift| lift.until > now)
    }
}

/// `task/auth-3` of `task/auth-3@42`.
pub fn resource(token: &str) -> &str {
    token.rsplit_once('@').map_or(token, |(resource, _)| resource)
}

impl Loss {
    /// The reason why a claim is over that its holder did not end.
    pub fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::AlreadyClaimed => Loss::Taken,
            Verdict::AlreadyFinished => Loss::Finished,
            Verdict::Cancelled => Loss::Cancelled,
            Verdict::Ok | Verdict::LeaseExpired | Verdict::NotFound => Loss::Over,
        }
    }
}

impl Lost {
    fn is(&self, fleet: &str, token: &str) -> bool {
        self.fleet == fleet && self.token == token
    }

    /// What happened to the claim: a clause after its token.
    pub fn describe(&self) -> &'static str {
        match self.how {
            Loss::Over => {
                "its lease ended (the machine slept, or nothing renewed it), or an operator took it away"
            }
            Loss::Unconfirmed => {
                "its lease ended (the machine slept, or nothing renewed it), and the fleet cannot be asked now"
            }
            Loss::Taken => "its lease ended or it was taken away, and another run has the task",
            Loss::Finished => "another run finished the task",
            Loss::Cancelled => "the task was cancelled",
        }
    }
}
