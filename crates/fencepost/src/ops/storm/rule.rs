//! The rules: whether unread posts wake an agent now, and when the breaker is open.

use super::settings::Limits;
use crate::clock::{Millis, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why the scheduler did not wake an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Wake-ups are switched off, in the fleet or in the channel.
    Disabled,
    /// The agent is offline, has left, or never joined.
    Offline,
    /// No poll of the agent accepts wake-ups.
    NotAccepted,
    /// It had as many wake-ups in this window as it may have.
    Budget,
    /// Its last wake-up was too short a time ago.
    Interval,
    /// The breaker is open: too many wake-ups are pending and running.
    Breaker,
    /// The chain of causes is too long.
    Depth,
    /// The root of the posts has triggered too many runs in this window.
    Fanout,
    /// A wake-up is pending or running, or the agent's mentions in the channel wait or are held.
    Busy,
}

impl Why {
    pub const ALL: [Why; 9] = [
        Why::Disabled,
        Why::Offline,
        Why::NotAccepted,
        Why::Budget,
        Why::Interval,
        Why::Breaker,
        Why::Depth,
        Why::Fanout,
        Why::Busy,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Why::Disabled => "disabled",
            Why::Offline => "offline",
            Why::NotAccepted => "not_accepted",
            Why::Budget => "budget",
            Why::Interval => "interval",
            Why::Breaker => "breaker",
            Why::Depth => "depth",
            Why::Fanout => "fanout",
            Why::Busy => "busy",
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.as_str() == text)
    }

    /// The counter of such suppressions.
    pub(super) fn counter(self) -> Option<&'static str> {
        match self {
            Why::Budget | Why::Interval => Some("suppressed_budget"),
            Why::Breaker => Some("suppressed_breaker"),
            Why::Depth | Why::Fanout => Some("suppressed_cause"),
            Why::Disabled | Why::Offline | Why::NotAccepted | Why::Busy => None,
        }
    }
}

/// An unread post that may wake the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waker {
    pub n: i64,
    pub cause: String,
    pub root: String,
    pub depth: i64,
}

/// The triggers of a root within the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fanout {
    pub count: i64,
    /// The oldest of them that has begun.
    pub first: Option<Time>,
}

/// The facts about an agent in a channel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pair {
    pub online: bool,
    /// Its polls accept wake-ups.
    pub accepts: bool,
    /// See [`Why::Busy`].
    pub busy: bool,
    /// Times of its wake-ups, newest first. Those that no longer count may be missing.
    pub woken: Vec<Time>,
    /// The last post that a wake-up was scheduled for.
    pub woken_for: i64,
    /// The unread posts of others that are not quiet.
    pub wakers: Vec<Waker>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Wake the agent, because of this post.
    Wake(Waker),
    /// Not now. `until`: look again at this time; `None` if something else has to change first.
    Suppress { why: Why, until: Option<Time> },
    /// Nothing is unread.
    Nothing,
}

/// A pair whose wake-up or mentions are under way is looked at again after this time, in case their end was not noticed.
const BUSY_AGAIN: Millis = Millis::seconds(30);

/// The rule. The caller applies the breaker to [`Decision::Wake`].
pub(crate) fn decide(pair: &Pair, limits: &Limits, fanout: impl Fn(&str) -> Fanout, now: Time) -> Decision {
    let suppress = |why, until| Decision::Suppress { why, until };
    let Some(last) = pair.wakers.iter().map(|waker| waker.n).max() else { return Decision::Nothing };
    if !pair.busy && last <= pair.woken_for {
        return Decision::Nothing;
    }
    if !pair.online {
        return suppress(Why::Offline, None);
    }
    if !pair.accepts {
        return suppress(Why::NotAccepted, None);
    }
    if pair.busy {
        return suppress(Why::Busy, Some(now.plus(BUSY_AGAIN)));
    }
    if !limits.enabled {
        return suppress(Why::Disabled, None);
    }
    let cause = match cause(&pair.wakers, limits, fanout, now) {
        Ok(cause) => cause,
        Err((why, until)) => return suppress(why, until),
    };
    match budget(&pair.woken, limits, now) {
        Ok(_) => Decision::Wake(Waker { n: last, ..cause.clone() }),
        Err((why, until)) => suppress(why, until),
    }
}

/// The post that a run is caused by: the deepest that may cause one. So a chain never becomes shorter by mixing posts.
pub(crate) fn cause<'w>(
    wakers: &'w [Waker],
    limits: &Limits,
    fanout: impl Fn(&str) -> Fanout,
    now: Time,
) -> Result<&'w Waker, (Why, Option<Time>)> {
    let short: Vec<&Waker> = wakers.iter().filter(|waker| waker.depth < limits.max_depth).collect();
    if short.is_empty() {
        return Err((Why::Depth, None));
    }
    let free = short.iter().filter(|waker| fanout(&waker.root).count < limits.max_fanout);
    free.max_by_key(|waker| (waker.depth, waker.n)).copied().ok_or_else(|| {
        let frees = short.iter().filter_map(|waker| fanout(&waker.root).first);
        let frees = frees.min().map(|first| first.plus(limits.fanout_window)).filter(|at| *at > now);
        // None of them has begun yet.
        (Why::Fanout, Some(frees.unwrap_or_else(|| now.plus(limits.fanout_window))))
    })
}

/// How many wake-ups the pair may have now, or why none and until when. At exactly the end of the window a wake-up no longer
/// counts.
pub(crate) fn budget(woken: &[Time], limits: &Limits, now: Time) -> Result<usize, (Why, Option<Time>)> {
    let in_window: Vec<Time> = woken.iter().copied().filter(|at| at.plus(limits.window) > now).collect();
    let rests = woken.first().map(|last| last.plus(limits.min_interval)).filter(|until| *until > now);
    let left = limits.max_triggers.saturating_sub(in_window.len());
    if left == 0 {
        // The wake-up whose end makes room for one more.
        let frees = limits.max_triggers.checked_sub(1).and_then(|nth| in_window.get(nth));
        let until = frees.map(|at| at.plus(limits.window)).max(rests);
        return Err((Why::Budget, until.filter(|_| limits.max_triggers > 0)));
    }
    match rests {
        Some(until) => Err((Why::Interval, Some(until))),
        None => Ok(left),
    }
}

/// The breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Breaker {
    pub opened_at: Option<Time>,
    /// It may close at this time. `None` while it is open: a person closes it.
    pub open_until: Option<Time>,
}

impl Breaker {
    pub fn is_open(&self) -> bool {
        self.opened_at.is_some()
    }

    /// The rule, with this backlog. After its cooldown the breaker closes if the backlog is below the threshold, and else stays
    /// open for another cooldown.
    pub fn after(self, backlog: i64, threshold: i64, cooldown: Millis, now: Time) -> Self {
        let is_full = backlog >= threshold;
        let open = Self { opened_at: self.opened_at.or(Some(now)), open_until: Some(now.plus(cooldown)) };
        match (self.opened_at, self.open_until) {
            (None, _) if is_full => open,
            (Some(_), Some(until)) if until <= now => {
                if is_full {
                    open
                } else {
                    Self::default()
                }
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            enabled: true,
            max_triggers: 3,
            window: Millis(300_000),
            min_interval: Millis(30_000),
            max_depth: 20,
            max_fanout: 100,
            fanout_window: Millis(300_000),
        }
    }

    fn waker(n: i64, root: &str, depth: i64) -> Waker {
        Waker { n, cause: format!("post/c/{n}"), root: root.into(), depth }
    }

    fn none(_: &str) -> Fanout {
        Fanout::default()
    }

    #[test]
    fn a_budget_is_exact_to_the_millisecond() {
        let t = |times: &[i64]| times.iter().rev().map(|at| Time(*at)).collect::<Vec<_>>();
        let at = |times: &[i64], now| budget(&t(times), &limits(), Time(now));
        assert_eq!(at(&[], 0), Ok(3));
        assert_eq!(at(&[0], 29_999), Err((Why::Interval, Some(Time(30_000)))));
        assert_eq!(at(&[0], 30_000), Ok(2));
        let three = [0, 30_000, 60_000];
        assert_eq!(at(&three, 90_000), Err((Why::Budget, Some(Time(300_000)))));
        assert_eq!(at(&three, 299_999), Err((Why::Budget, Some(Time(300_000)))));
        assert_eq!(at(&three, 300_000), Ok(1));
        // The interval is longer than the rest of the window.
        assert_eq!(at(&[0, 30_000, 290_000], 299_999), Err((Why::Budget, Some(Time(320_000)))));
        assert_eq!(at(&[0, 30_000, 290_000], 300_000), Err((Why::Interval, Some(Time(320_000)))));
        let never = Limits { max_triggers: 0, ..limits() };
        assert_eq!(budget(&[], &never, Time(0)), Err((Why::Budget, None)));
    }

    #[test]
    fn the_breaker_opens_at_the_threshold_and_closes_after_its_cooldown() {
        let step = |breaker: Breaker, backlog, now| breaker.after(backlog, 50, Millis(60_000), Time(now));
        let closed = Breaker::default();
        assert_eq!(step(closed, 49, 0), closed);
        let open = step(closed, 50, 0);
        assert_eq!(open, Breaker { opened_at: Some(Time(0)), open_until: Some(Time(60_000)) });
        assert_eq!(step(open, 0, 59_999), open);
        assert_eq!(step(open, 49, 60_000), closed);
        // The backlog did not fall: another cooldown.
        let again = Breaker { opened_at: Some(Time(0)), open_until: Some(Time(120_000)) };
        assert_eq!(step(open, 50, 60_000), again);
        // A person opened it.
        let by_hand = Breaker { opened_at: Some(Time(0)), open_until: None };
        assert_eq!(step(by_hand, 0, 1_000_000), by_hand);
    }

    #[test]
    fn every_decision() {
        let now = Time(1_000_000);
        let pair =
            Pair { online: true, accepts: true, wakers: vec![waker(7, "post/c/1", 2)], ..Pair::default() };
        let decided = |pair: &Pair, limits: &Limits| decide(pair, limits, none, now);
        let why = |pair: Pair, limits: Limits| match decided(&pair, &limits) {
            Decision::Suppress { why, .. } => why.as_str(),
            Decision::Wake(_) => "wake",
            Decision::Nothing => "nothing",
        };
        assert_eq!(decided(&pair, &limits()), Decision::Wake(waker(7, "post/c/1", 2)));
        assert_eq!(why(Pair { wakers: vec![], ..pair.clone() }, limits()), "nothing");
        assert_eq!(why(Pair { woken_for: 7, ..pair.clone() }, limits()), "nothing");
        assert_eq!(why(Pair { woken_for: 6, ..pair.clone() }, limits()), "wake");
        assert_eq!(why(Pair { busy: true, woken_for: 7, ..pair.clone() }, limits()), "busy");
        assert_eq!(why(pair.clone(), Limits { enabled: false, ..limits() }), "disabled");
        assert_eq!(why(Pair { online: false, accepts: false, ..pair.clone() }, limits()), "offline");
        assert_eq!(why(Pair { accepts: false, ..pair.clone() }, limits()), "not_accepted");
        assert_eq!(why(pair.clone(), Limits { max_depth: 3, ..limits() }), "wake");
        assert_eq!(why(pair.clone(), Limits { max_depth: 2, ..limits() }), "depth");
        assert_eq!(why(Pair { woken: vec![Time(now.0 - 1)], ..pair }, limits()), "interval");
    }

    #[test]
    fn the_deepest_allowed_post_is_the_cause() {
        let fanout = |root: &str| Fanout { count: if root == "b" { 100 } else { 99 }, first: Some(Time(5)) };
        let wakers = [waker(1, "a", 3), waker(2, "b", 9), waker(3, "a", 1), waker(4, "a", 20)];
        let cause = |wakers| cause(wakers, &limits(), fanout, Time(10));
        assert_eq!(cause(&wakers), Ok(&wakers[0]));
        assert_eq!(cause(&wakers[1..2]), Err((Why::Fanout, Some(Time(300_005)))));
        assert_eq!(cause(&wakers[3..]), Err((Why::Depth, None)));
        // Those that count have not begun, or the oldest no longer counts.
        for first in [None, Some(Time(0))] {
            let fanout = |_: &str| Fanout { count: 100, first };
            let suppressed = super::cause(&wakers[..1], &limits(), fanout, Time(300_000));
            assert_eq!(suppressed, Err((Why::Fanout, Some(Time(600_000)))));
        }
        // The wake-up brings all posts, also those that could not cause it.
        let pair = Pair { online: true, accepts: true, wakers: wakers.to_vec(), ..Pair::default() };
        let Decision::Wake(woken) = decide(&pair, &limits(), fanout, Time(0)) else { panic!("not woken") };
        assert_eq!((woken.n, woken.cause.as_str(), woken.depth), (4, "post/c/1", 3));
    }
}
