//! The pure rule: what to do about each event of a command that runs under a claim.

use fencepost::{Code, Error, Millis};
use fencepost_client::renewal::{ConfirmedLease, Ticks};
use rustix::process::Signal;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The claim was renewed, and is alive for so long.
    Renewed(ConfirmedLease),
    /// Its holder finished it, most likely the command itself with `fence done`. Nobody else can claim it.
    Finished,
    /// The claim is over, and others may claim the item.
    Lost(Error),
    /// The fleet did not answer, or its answer says nothing about the claim.
    NoAnswer(Error),
    /// The command's first process ended, with this code.
    Exited(u8),
    /// The process group is empty.
    Gone,
    /// The command's first process was stopped by this signal.
    Stopped(Signal),
    /// This process got the signal.
    Signal(Signal),
    /// Time passed.
    Tick,
}

/// A command to the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Send the signal to the whole group.
    Send(Signal),
    /// Give the terminal to the command, if it is ours.
    GiveTerminal,
    /// Tell the watchdog to kill the group at this moment; with `None`, only if we die.
    KillAt(Option<Ticks>),
}

/// How a supervised command ended.
#[derive(Debug)]
pub enum Ended {
    Exited(u8),
    /// It does not exist or may not be executed, or this command line is too long. The code is the one that a shell exits with; the
    /// text says why.
    NotStarted {
        code: u8,
        why: String,
        too_long: bool,
    },
    /// It was stopped, or never started, because its claim is over.
    Lost(Error),
}

#[derive(Debug)]
pub struct Rule {
    token: String,
    grace: Millis,
    first: ConfirmedLease,
    /// How long before the end of the lease the group must be dead, and how long before that it gets TERM.
    margin: Millis,
    notice: Millis,
    /// `None` once the claim is finished: the command goes on without it.
    lease: Option<ConfirmedLease>,
    no_answer: Option<Error>,
    lost: Option<Error>,
    exited: Option<u8>,
    /// The group got TERM, and gets KILL at this moment.
    kill_at: Option<Ticks>,
    gone: bool,
}

impl Rule {
    /// A second covers the drift of two clocks during a lease, and the time that a kill takes on a busy machine.
    const MARGIN: Millis = Millis::seconds(1);

    pub fn new(token: &str, lease: ConfirmedLease, grace: Millis) -> Self {
        Self {
            token: token.into(),
            grace,
            first: lease,
            // Fractions of a short lease, so that a third of it is left for retries.
            margin: Self::MARGIN.min(Millis(lease.left.0 / 10)),
            notice: grace.min(Millis(lease.left.0 / 4)),
            lease: Some(lease),
            no_answer: None,
            lost: None,
            exited: None,
            kill_at: None,
            gone: false,
        }
    }

    pub fn on(&mut self, event: Event, now: Ticks) -> Vec<Act> {
        let mut acts = Vec::new();
        match event {
            Event::Renewed(lease) => {
                // Once lost, always lost: somebody may have claimed the item.
                if self.lost.is_none() && self.lease.is_some() {
                    (self.lease, self.no_answer) = (Some(lease), None);
                    acts.push(Act::KillAt(self.watchdog_kills_at()));
                }
            }
            Event::Finished => {
                if self.lost.is_none() && self.lease.take().is_some() {
                    acts.push(Act::KillAt(None));
                }
            }
            Event::Lost(error) => self.lose(error),
            Event::NoAnswer(error) => self.no_answer = Some(error),
            Event::Exited(code) => self.exited = Some(code),
            Event::Gone => self.gone = true,
            // The command used the terminal without having it, or somebody typed Ctrl-Z. We must go on, so the command goes on,
            // too. STOP is meant for the command alone.
            Event::Stopped(Signal::TSTP | Signal::TTIN | Signal::TTOU) | Event::Signal(Signal::CONT) => {
                acts.extend([Act::GiveTerminal, Act::Send(Signal::CONT)]);
            }
            // We ignore Ctrl-Z: a stopped process cannot renew a lease.
            Event::Stopped(_) | Event::Signal(Signal::TSTP) | Event::Tick => {}
            Event::Signal(signal) => acts.push(Act::Send(signal)),
        }
        if !self.gone {
            acts.extend(self.due(now));
        }
        acts
    }

    /// How the command ended; `None` while it runs. A claim that was lost before the group was empty counts as lost.
    pub fn ended(&self) -> Option<Ended> {
        match (&self.lost, self.exited) {
            _ if !self.gone => None,
            (Some(error), _) => Some(Ended::Lost(error.clone())),
            (None, Some(code)) => Some(Ended::Exited(code)),
            (None, None) => None,
        }
    }

    /// The next deadline; `None` if there is none.
    pub fn next(&self) -> Option<Ticks> {
        [self.kill_at, self.lease_due()].into_iter().flatten().min()
    }

    /// Has the group got TERM?
    pub fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }

    fn due(&mut self, now: Ticks) -> Vec<Act> {
        let has_term = self.kill_at.is_some();
        if self.lease_due().is_some_and(|at| now >= at) {
            let deadline = self.deadline();
            self.lose(self.unconfirmed());
            self.kill_at = self.kill_at.or(deadline).min(deadline);
        } else if !has_term && (self.lost.is_some() || self.exited.is_some()) {
            // The rest of a group whose first process has ended would run on without a claim.
            self.kill_at = Some(now.saturating_add(self.grace.0));
        }
        match self.kill_at {
            Some(at) if now >= at => vec![Act::Send(Signal::KILL)],
            // A stopped process gets TERM only after CONT.
            Some(_) if !has_term => vec![Act::Send(Signal::TERM), Act::Send(Signal::CONT)],
            _ => vec![],
        }
    }

    fn lose(&mut self, error: Error) {
        // The first reason counts.
        self.lost.get_or_insert(error);
    }

    /// When an unconfirmed lease counts as lost: early enough for TERM, if the group has not got it yet.
    fn lease_due(&self) -> Option<Ticks> {
        let notice = if self.kill_at.is_none() { self.notice.0 } else { 0 };
        self.deadline().map(|at| at - notice)
    }

    /// When the group must be dead; `None` if the lease does not count any more.
    fn deadline(&self) -> Option<Ticks> {
        self.lease.filter(|_| self.lost.is_none()).map(|lease| lease.ends() - self.margin.0)
    }

    /// When the watchdog kills the group: after our own deadline, so that it acts only if we do not.
    pub fn watchdog_kills_at(&self) -> Option<Ticks> {
        self.deadline().map(|at| at + self.margin.0 / 2)
    }

    fn unconfirmed(&self) -> Error {
        let token = &self.token;
        // Whether or not the database answered last, no answer could have extended the lease.
        if self.has_maximum() {
            return Error::new(Code::LeaseExpired, format!("the maximum time of claim `{token}` is over"))
                .hint("its command was stopped in time; a longer --max allows more time");
        }
        let (why, hint) = match &self.no_answer {
            Some(error) => (error.message(), error.hint_text()),
            None => ("the database has not answered yet", None),
        };
        let message = format!("claim `{token}` could not be renewed before its lease ended: {why}");
        Error::new(Code::LeaseExpired, message)
            .hint(hint.unwrap_or("its command was stopped in time; check why the database does not answer"))
    }

    /// Does the claim have a maximum? Then a renewal returns less and less, where at least three quarters of a lease are normal.
    /// The first renewal, after three tenths of the lease or more, shows it already. A short lease may have no second one.
    fn has_maximum(&self) -> bool {
        self.lease.is_some_and(|lease| lease.left.0 * 100 < self.first.left.0 * 74)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease of 60 s at 0 and a grace of 10 s: TERM at 49 s, KILL at 59 s.
    fn rule() -> Rule {
        Rule::new("lock/x@1", lease(0, 60), Millis::seconds(10))
    }
    fn lease(sent: Ticks, left: i64) -> ConfirmedLease {
        ConfirmedLease { sent: sent * 1000, left: Millis::seconds(left) }
    }
    fn lost() -> Event {
        Event::Lost(Error::new(Code::Cancelled, "cancelled"))
    }
    fn no_answer() -> Event {
        Event::NoAnswer(Error::unavailable("connection refused"))
    }

    /// The actions for these events, each with its second, and how the command ended.
    fn play(rule: &mut Rule, events: Vec<(i64, Event)>) -> String {
        let mut acts_and_end: Vec<String> = Vec::new();
        for (at, event) in events {
            let name = |act: &Act| match act {
                Act::Send(signal) => format!("{signal:?}").replace("Signal::", "").replace('"', ""),
                Act::GiveTerminal => "terminal".into(),
                Act::KillAt(Some(at)) => format!("watchdog {at}"),
                Act::KillAt(None) => "watchdog never".into(),
            };
            let acts: Vec<_> = rule.on(event, at * 1000).iter().map(name).collect();
            if !acts.is_empty() {
                acts_and_end.push(format!("{at}: {}", acts.join(" ")));
            }
        }
        acts_and_end.push(match rule.ended() {
            None => "runs".into(),
            Some(Ended::Exited(code) | Ended::NotStarted { code, .. }) => format!("exit {code}"),
            Some(Ended::Lost(error)) => format!("lost: {}", error.message()),
        });
        acts_and_end.join(", ")
    }

    #[test]
    fn every_case() {
        use Event::{Exited, Finished, Gone, Renewed, Signal as Got, Stopped, Tick};
        let cases = vec![
            ("it ends, and the group is empty", vec![(5, Gone), (5, Exited(7))], "exit 7"),
            (
                "it ends, and a process of the group is left",
                vec![(5, Exited(0)), (6, Tick), (15, Tick), (15, Gone)],
                "5: TERM CONT, 15: KILL, exit 0",
            ),
            (
                "it runs, and the claim is renewed",
                vec![(20, Renewed(lease(20, 60))), (60, Tick)],
                "20: watchdog 79500, runs",
            ),
            (
                "cancelled: TERM, then KILL, and KILL again",
                vec![(9, lost()), (10, Tick), (19, Tick), (20, Tick), (20, Gone)],
                "9: TERM CONT, 19: KILL, 20: KILL, lost: cancelled",
            ),
            (
                "it exits with 0, but only after TERM",
                vec![(9, lost()), (10, Exited(0)), (10, Gone)],
                "9: TERM CONT, lost: cancelled",
            ),
            (
                "lost while a process of the group is left",
                vec![(5, Exited(0)), (6, lost()), (7, Gone)],
                "5: TERM CONT, lost: cancelled",
            ),
            (
                "no answer: it runs as long as possible, and is dead before the lease ends",
                vec![(20, no_answer()), (48, no_answer()), (49, Tick), (58, Tick), (59, Tick), (59, Gone)],
                "49: TERM CONT, 59: KILL, lost: claim `lock/x@1` could not be renewed before its lease ended: connection refused",
            ),
            (
                "an answer after a while",
                vec![(20, no_answer()), (48, Renewed(lease(47, 60))), (60, Tick)],
                "48: watchdog 106500, runs",
            ),
            (
                "an answer that is too late does not bring the claim back",
                vec![(49, no_answer()), (50, Renewed(lease(49, 60))), (59, Tick)],
                "49: TERM CONT, 59: KILL, runs",
            ),
            (
                "the machine slept for an hour: no time for TERM",
                vec![(3600, Tick), (3600, Gone)],
                "3600: KILL, lost: claim `lock/x@1` could not be renewed before its lease ended: the database has not answered yet",
            ),
            (
                "the maximum of the claim is reached",
                vec![(20, Renewed(lease(20, 40))), (33, Renewed(lease(33, 27))), (49, Tick), (50, Gone)],
                "20: watchdog 59500, 33: watchdog 59500, 49: TERM CONT, lost: the maximum time of claim `lock/x@1` is over",
            ),
            (
                "the maximum is reached, and it was renewed only once",
                vec![(20, Renewed(lease(20, 40))), (49, Tick), (50, Gone)],
                "20: watchdog 59500, 49: TERM CONT, lost: the maximum time of claim `lock/x@1` is over",
            ),
            (
                "the maximum is reached, and it was renewed once, early",
                vec![(18, Renewed(lease(18, 43))), (50, Tick), (51, Gone)],
                "18: watchdog 60500, 50: TERM CONT, lost: the maximum time of claim `lock/x@1` is over",
            ),
            (
                "the maximum is reached, and the last check was not answered",
                vec![(20, Renewed(lease(20, 40))), (48, no_answer()), (49, Tick), (50, Gone)],
                "20: watchdog 59500, 49: TERM CONT, lost: the maximum time of claim `lock/x@1` is over",
            ),
            (
                "others renewed it before, so a renewal returns three quarters",
                vec![(20, Renewed(lease(20, 45))), (54, Tick), (55, Gone)],
                "20: watchdog 64500, 54: TERM CONT, lost: claim `lock/x@1` could not be renewed before its lease ended: the database has not answered yet",
            ),
            (
                "the rest of the group is killed in time if the fleet does not answer",
                vec![(45, Exited(0)), (55, no_answer()), (59, Tick)],
                "45: TERM CONT, 55: KILL, 59: KILL, runs",
            ),
            (
                "it completes its task, and takes its time to end",
                vec![(5, Finished), (600, Tick), (601, Gone), (601, Exited(0))],
                "5: watchdog never, exit 0",
            ),
            (
                "it fails its task, and somebody retries the task before it ends",
                vec![(5, Finished), (6, Finished), (600, lost()), (610, Tick), (610, Gone)],
                "5: watchdog never, 600: TERM CONT, 610: KILL, lost: cancelled",
            ),
            (
                "signals are passed on",
                vec![(1, Got(Signal::INT)), (2, Got(Signal::USR1))],
                "1: INT, 2: USR1, runs",
            ),
            (
                "signals are passed on after TERM",
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
        for (what, events, expected) in cases {
            assert_eq!(play(&mut rule(), events), expected, "{what}");
        }
    }

    #[test]
    fn a_short_lease_leaves_time_for_a_retry() {
        let rule = Rule::new("lock/x@1", ConfirmedLease { sent: 0, left: Millis(2000) }, Millis::seconds(10));
        assert_eq!(rule.next(), Some(1300), "asked at 667, again until 1300, killed at 1800");
    }

    #[test]
    fn the_next_deadline_is_the_earliest() {
        let mut rule = rule();
        assert_eq!(rule.next(), Some(49_000));
        rule.on(lost(), 20_000);
        assert_eq!(rule.next(), Some(30_000));
        let mut rule = self::rule();
        rule.on(Event::Finished, 20_000);
        assert_eq!(rule.next(), None);
        let mut rule = self::rule();
        rule.on(Event::Exited(0), 20_000);
        assert_eq!(rule.next(), Some(30_000));
        rule.on(Event::Exited(0), 20_000);
    }
}
