//! What to do now: a pure rule over all that can happen to a command that runs under a claim.

use fencepost::{Code, Error, Millis};
use rustix::process::Signal;

/// Milliseconds since boot, sleep included. Nobody can set them back.
pub type Ticks = i64;

/// A claim as it was last confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Before it was asked for: whatever the answer took is not ours.
    pub asked: Ticks,
    pub left: Millis,
}

impl Lease {
    pub fn ends(self) -> Ticks {
        self.asked.saturating_add(self.left.0)
    }
}

/// Something that happened, in the order in which it was noticed.
#[derive(Debug, Clone)]
pub enum Event {
    /// The claim is alive for so long.
    Kept(Lease),
    /// Its holder finished it, most likely the command itself, by `fence done`: nobody else can claim it.
    HandedIn,
    /// It is somebody else's, or nobody's.
    Lost(Error),
    /// No answer, or none that says anything about the claim.
    Silent(Error),
    /// The command's first process ended, with this code.
    Exited(u8),
    /// Nothing of its group is left.
    Gone,
    /// The command's first process was stopped by this signal.
    Stopped(Signal),
    /// We got this signal.
    Signal(Signal),
    /// Nothing but time.
    Tick,
}

/// What the executor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// To the whole group.
    Send(Signal),
    /// The terminal is the command's, if it is ours to give.
    GiveTerminal,
    /// The watchdog kills the group at this moment; with `None` only if we die.
    KillAt(Option<Ticks>),
}

/// How a supervised command ended.
#[derive(Debug)]
pub enum Ended {
    Exited(u8),
    /// It is not there or may not be run; this is how a shell would say so.
    NotStarted(u8),
    /// It was stopped, or never started, because its claim is over. The reason is for people.
    Lost(Error),
}

#[derive(Debug)]
pub struct Rule {
    token: String,
    grace: Millis,
    first: Lease,
    /// How long before the lease's end all must be over, and how long before that it is asked nicely.
    margin: Millis,
    notice: Millis,
    /// `None` once it was handed in: the command goes on without it.
    lease: Option<Lease>,
    silence: Option<Error>,
    lost: Option<Error>,
    exited: Option<u8>,
    /// The group was told to end, and is killed at this moment.
    kill_at: Option<Ticks>,
    gone: bool,
}

impl Rule {
    /// A second covers what two clocks drift apart in a lease, and the time a kill takes on a busy machine.
    const MARGIN: Millis = Millis::seconds(1);

    pub fn new(token: &str, lease: Lease, grace: Millis) -> Self {
        Self {
            token: token.into(),
            grace,
            first: lease,
            // Parts of a short lease, so that a third of it is left for asking again.
            margin: Self::MARGIN.min(Millis(lease.left.0 / 10)),
            notice: grace.min(Millis(lease.left.0 / 4)),
            lease: Some(lease),
            silence: None,
            lost: None,
            exited: None,
            kill_at: None,
            gone: false,
        }
    }

    pub fn on(&mut self, event: Event, now: Ticks) -> Vec<Act> {
        let mut acts = Vec::new();
        match event {
            Event::Kept(lease) => {
                // Somebody has it already: there is no way back.
                if self.lost.is_none() && self.lease.is_some() {
                    (self.lease, self.silence) = (Some(lease), None);
                    acts.push(Act::KillAt(self.watchdog_kills_at()));
                }
            }
            Event::HandedIn => {
                if self.lost.is_none() && self.lease.take().is_some() {
                    acts.push(Act::KillAt(None));
                }
            }
            Event::Lost(error) => self.lose(error),
            Event::Silent(error) => self.silence = Some(error),
            Event::Exited(code) => self.exited = Some(code),
            Event::Gone => self.gone = true,
            // The terminal was not its own when it asked for it, or somebody typed Ctrl-Z: we must go on, so it
            // goes on too. Only STOP is meant for it alone.
            Event::Stopped(Signal::TSTP | Signal::TTIN | Signal::TTOU) | Event::Signal(Signal::CONT) => {
                acts.extend([Act::GiveTerminal, Act::Send(Signal::CONT)]);
            }
            // Whoever types Ctrl-Z at us: a lease is not kept by a stopped process.
            Event::Stopped(_) | Event::Signal(Signal::TSTP) | Event::Tick => {}
            Event::Signal(signal) => acts.push(Act::Send(signal)),
        }
        if !self.gone {
            acts.extend(self.due(now));
        }
        acts
    }

    /// It is over: this is how. A claim that was lost while anything of the command ran is what counts.
    pub fn ended(&self) -> Option<Ended> {
        match (&self.lost, self.exited) {
            _ if !self.gone => None,
            (Some(error), _) => Some(Ended::Lost(error.clone())),
            (None, Some(code)) => Some(Ended::Exited(code)),
            (None, None) => None,
        }
    }

    /// When to look again, if nothing happens before. `None`: there is nothing to wait for.
    pub fn next(&self) -> Option<Ticks> {
        [self.kill_at, self.lease_due()].into_iter().flatten().min()
    }

    /// Has the group been told to end?
    pub fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }

    fn due(&mut self, now: Ticks) -> Vec<Act> {
        let was_told = self.kill_at.is_some();
        if self.lease_due().is_some_and(|at| now >= at) {
            let deadline = self.deadline();
            self.lose(self.unconfirmed());
            self.kill_at = self.kill_at.or(deadline).min(deadline);
        } else if !was_told && (self.lost.is_some() || self.exited.is_some()) {
            // What is left of a command whose first process is over would work on without a claim.
            self.kill_at = Some(now.saturating_add(self.grace.0));
        }
        match self.kill_at {
            Some(at) if now >= at => vec![Act::Send(Signal::KILL)],
            // A stopped process hears it only when it goes on.
            Some(_) if !was_told => vec![Act::Send(Signal::TERM), Act::Send(Signal::CONT)],
            _ => vec![],
        }
    }

    fn lose(&mut self, error: Error) {
        // The first reason is the reason.
        self.lost.get_or_insert(error);
    }

    /// When an unconfirmed lease counts as lost: early enough to ask nicely, unless that was done.
    fn lease_due(&self) -> Option<Ticks> {
        let notice = if self.kill_at.is_none() { self.notice.0 } else { 0 };
        self.deadline().map(|at| at - notice)
    }

    /// By when all must be over; `None` if the lease says nothing any more.
    fn deadline(&self) -> Option<Ticks> {
        self.lease.filter(|_| self.lost.is_none()).map(|lease| lease.ends() - self.margin.0)
    }

    /// After us, if we are there to do it.
    pub fn watchdog_kills_at(&self) -> Option<Ticks> {
        self.deadline().map(|at| at + self.margin.0 / 2)
    }

    fn unconfirmed(&self) -> Error {
        let token = &self.token;
        if self.silence.is_none() && self.has_a_cap() {
            return Error::new(Code::LeaseExpired, format!("the time of claim `{token}` is up"))
                .hint("its command was stopped in time; a longer --max gives it more");
        }
        let (why, hint) = match &self.silence {
            Some(error) => (error.message(), error.hint_text()),
            None => ("the database has not answered yet", None),
        };
        let message = format!("claim `{token}` could not be renewed before its lease's end: {why}");
        Error::new(Code::LeaseExpired, message).hint(
            hint.unwrap_or("its command was stopped in time; find out why the database does not answer"),
        )
    }

    /// Renewing it brings less and less, where it should bring three quarters of a lease at least. The first renewal
    /// comes after a third, so it shows already: before a short one's end there may be time for no other.
    fn has_a_cap(&self) -> bool {
        self.lease.is_some_and(|lease| lease.left.0 * 10 < self.first.left.0 * 7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease of 60 s at 0 and a grace of 10 s: told to end at 49 s, killed at 59 s.
    fn rule() -> Rule {
        Rule::new("lock/x@1", kept(0, 60), Millis::seconds(10))
    }
    fn kept(asked: Ticks, left: i64) -> Lease {
        Lease { asked: asked * 1000, left: Millis::seconds(left) }
    }
    fn lost() -> Event {
        Event::Lost(Error::new(Code::Cancelled, "cancelled"))
    }
    fn silent() -> Event {
        Event::Silent(Error::unavailable("nobody there"))
    }

    /// Seconds and events on one side, what is done about it and how it ended on the other.
    fn tell(rule: &mut Rule, story: Vec<(i64, Event)>) -> String {
        let mut told: Vec<String> = Vec::new();
        for (at, event) in story {
            let name = |act: &Act| match act {
                Act::Send(signal) => format!("{signal:?}").replace("Signal::", "").replace('"', ""),
                Act::GiveTerminal => "terminal".into(),
                Act::KillAt(Some(at)) => format!("watchdog {at}"),
                Act::KillAt(None) => "watchdog never".into(),
            };
            let acts: Vec<_> = rule.on(event, at * 1000).iter().map(name).collect();
            if !acts.is_empty() {
                told.push(format!("{at}: {}", acts.join(" ")));
            }
        }
        told.push(match rule.ended() {
            None => "runs".into(),
            Some(Ended::Exited(code) | Ended::NotStarted(code)) => format!("exit {code}"),
            Some(Ended::Lost(error)) => format!("lost: {}", error.message()),
        });
        told.join(", ")
    }

    #[test]
    fn every_case() {
        use Event::{Exited, Gone, HandedIn, Kept, Signal as Got, Stopped, Tick};
        let cases = vec![
            ("it ends, and nothing is left", vec![(5, Gone), (5, Exited(7))], "exit 7"),
            (
                "it ends, and something is left",
                vec![(5, Exited(0)), (6, Tick), (15, Tick), (15, Gone)],
                "5: TERM CONT, 15: KILL, exit 0",
            ),
            ("it runs, and is kept", vec![(20, Kept(kept(20, 60))), (60, Tick)], "20: watchdog 79500, runs"),
            (
                "cancelled: told, then killed, and killed again",
                vec![(9, lost()), (10, Tick), (19, Tick), (20, Tick), (20, Gone)],
                "9: TERM CONT, 19: KILL, 20: KILL, lost: cancelled",
            ),
            (
                "it ends well, but only after it was told to",
                vec![(9, lost()), (10, Exited(0)), (10, Gone)],
                "9: TERM CONT, lost: cancelled",
            ),
            (
                "lost while something is left",
                vec![(5, Exited(0)), (6, lost()), (7, Gone)],
                "5: TERM CONT, lost: cancelled",
            ),
            (
                "no answer: nothing before it must be, and over before the lease",
                vec![(20, silent()), (48, silent()), (49, Tick), (58, Tick), (59, Tick), (59, Gone)],
                "49: TERM CONT, 59: KILL, lost: claim `lock/x@1` could not be renewed before its lease's end: nobody there",
            ),
            (
                "an answer at last",
                vec![(20, silent()), (48, Kept(kept(47, 60))), (60, Tick)],
                "48: watchdog 106500, runs",
            ),
            (
                "an answer too late does not bring it back",
                vec![(49, silent()), (50, Kept(kept(49, 60))), (59, Tick)],
                "49: TERM CONT, 59: KILL, runs",
            ),
            (
                "the lid was closed for an hour: no time to ask nicely",
                vec![(3600, Tick), (3600, Gone)],
                "3600: KILL, lost: claim `lock/x@1` could not be renewed before its lease's end: the database has not answered yet",
            ),
            (
                "its time is up",
                vec![(20, Kept(kept(20, 40))), (33, Kept(kept(33, 27))), (49, Tick), (50, Gone)],
                "20: watchdog 59500, 33: watchdog 59500, 49: TERM CONT, lost: the time of claim `lock/x@1` is up",
            ),
            (
                "its time is up, and it was renewed only once",
                vec![(20, Kept(kept(20, 40))), (49, Tick), (50, Gone)],
                "20: watchdog 59500, 49: TERM CONT, lost: the time of claim `lock/x@1` is up",
            ),
            (
                "it was renewed by others before, so renewing it brought three quarters",
                vec![(20, Kept(kept(20, 45))), (54, Tick), (55, Gone)],
                "20: watchdog 64500, 54: TERM CONT, lost: claim `lock/x@1` could not be renewed before its lease's end: the database has not answered yet",
            ),
            (
                "what is left is killed in time if nobody answers",
                vec![(45, Exited(0)), (55, silent()), (59, Tick)],
                "45: TERM CONT, 55: KILL, 59: KILL, runs",
            ),
            (
                "it says itself that it is done, and takes its time to end",
                vec![(5, HandedIn), (600, Tick), (601, Gone), (601, Exited(0))],
                "5: watchdog never, exit 0",
            ),
            (
                "what it failed at is retried before it ends",
                vec![(5, HandedIn), (6, HandedIn), (600, lost()), (610, Tick), (610, Gone)],
                "5: watchdog never, 600: TERM CONT, 610: KILL, lost: cancelled",
            ),
            (
                "signals are passed on",
                vec![(1, Got(Signal::INT)), (2, Got(Signal::USR1))],
                "1: INT, 2: USR1, runs",
            ),
            (
                "also when it is told to end",
                vec![(1, lost()), (2, Got(Signal::QUIT))],
                "1: TERM CONT, 2: QUIT, runs",
            ),
            (
                "it wants the terminal",
                vec![(1, Stopped(Signal::TTIN)), (2, Stopped(Signal::TSTP)), (3, Got(Signal::CONT))],
                "1: terminal CONT, 2: terminal CONT, 3: terminal CONT, runs",
            ),
            ("it was stopped on purpose", vec![(1, Stopped(Signal::STOP)), (2, Got(Signal::TSTP))], "runs"),
        ];
        for (what, story, expected) in cases {
            assert_eq!(tell(&mut rule(), story), expected, "{what}");
        }
    }

    #[test]
    fn a_short_lease_leaves_time_to_ask_again() {
        let rule = Rule::new("lock/x@1", Lease { asked: 0, left: Millis(2000) }, Millis::seconds(10));
        assert_eq!(rule.next(), Some(1300), "asked at 667, again until 1300, killed at 1800");
    }

    #[test]
    fn the_next_look_is_when_something_is_due() {
        let mut rule = rule();
        assert_eq!(rule.next(), Some(49_000));
        rule.on(lost(), 20_000);
        assert_eq!(rule.next(), Some(30_000));
        let mut rule = self::rule();
        rule.on(Event::HandedIn, 20_000);
        assert_eq!(rule.next(), None);
        let mut rule = self::rule();
        rule.on(Event::Exited(0), 20_000);
        assert_eq!(rule.next(), Some(30_000));
        rule.on(Event::Exited(0), 20_000);
    }
}
