//! The standing of a session, by its record. `hook/rule.rs` says what follows from it for a tool, and `git/session.rs` for a push.

use super::{Ended, Lost, Session};
use fencepost::Time;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It lost claims that it has not acknowledged, and holds no other.
    Lost(Vec<Lost>),
    /// The same, but it holds another one.
    LostOne(Vec<Lost>),
    Holds,
    /// It gave its work back, or acknowledged a loss, and holds nothing since.
    GaveUp,
    Completed,
    NeverClaimed,
}

impl Session {
    pub fn standing(&self, now: Time) -> Standing {
        let holds = self.held.iter().any(|held| held.until > now);
        match (self.lost.is_empty(), holds, self.ended) {
            (false, false, _) => Standing::Lost(self.lost.clone()),
            (false, true, _) => Standing::LostOne(self.lost.clone()),
            (true, true, _) => Standing::Holds,
            (true, false, Some(Ended::GivenUp)) => Standing::GaveUp,
            (true, false, Some(Ended::Completed)) => Standing::Completed,
            (true, false, None) => Standing::NeverClaimed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Held, Loss},
        *,
    };

    /// `a` in fleet 1, or `2:a` in another one.
    fn of(token: &str) -> (String, String) {
        let (fleet, token) = token.split_once(':').unwrap_or(("1", token));
        (fleet.to_owned(), token.to_owned())
    }

    /// The standing after these steps. A claim lasts for ten units of time.
    fn after(steps: &str) -> &'static str {
        let mut session = Session::default();
        let mut now = Time(0);
        for step in steps.split("; ") {
            let (verb, token) = step.split_once(' ').unwrap_or((step, ""));
            match verb {
                "claim" => {
                    let until = now.plus(fencepost::Millis(10));
                    // `claim b max`: no renewal extends it.
                    let (token, is_limited) =
                        token.strip_suffix(" max").map_or((token, false), |token| (token, true));
                    let limit = is_limited.then_some(until);
                    let (fleet, token) = of(token);
                    session.hold(vec![Held { token, fleet, run: "r".into(), until, limit }]);
                }
                "lose" => drop(session.lose(&of(token).0, &of(token).1, Loss::Taken, now)),
                "ack" => drop(session.acknowledge().len()),
                "at" => now = Time(token.parse().expect("a time")),
                "offline" => session.lapse(now),
                "renew" => session.renew(&of(token).0, "r", now.plus(fencepost::Millis(10))),
                verb => session.end(&of(token).0, &of(token).1, verb),
            }
        }
        match session.standing(now) {
            Standing::Lost(_) => "lost",
            Standing::LostOne(_) => "lost one",
            Standing::Holds => "holds",
            Standing::GaveUp => "gave up",
            Standing::Completed => "completed",
            Standing::NeverClaimed => "never claimed",
        }
    }

    #[test]
    fn standings() {
        for (steps, expected) in [
            ("at 1", "never claimed"),
            ("claim a", "holds"),
            ("claim a; lose a", "lost"),
            ("claim a; claim b; lose a", "lost one"),
            ("claim a; claim b; lose a; done b", "lost"),
            ("claim a; claim b; lose a; lose b; ack", "gave up"),
            ("claim a; claim b; lose a; ack", "holds"),
            ("claim a; claim b; lose a; ack; done b", "completed"),
            ("claim a; lose a; claim b", "holds"),
            ("claim a; lose a; claim b; release b", "gave up"),
            ("claim a; lose a; ack; ack", "gave up"),
            ("claim a; done a", "completed"),
            ("claim a; verdict a", "completed"),
            ("claim a; fail a", "gave up"),
            ("claim a; release a; claim b; done b", "completed"),
            ("claim a; at 9; offline", "holds"),
            ("claim a; at 10; offline", "lost"),
            ("claim a; at 5; claim b; at 10; offline", "lost one"),
            ("claim a; at 9; renew; at 10; offline", "holds"),
            ("claim a max; at 9; renew; at 10; offline", "lost"),
            ("claim a; someday a", "gave up"),
            // The answer to an offer is no work.
            ("claim a; release a; claim b; accept b", "gave up"),
            ("claim a; done a; claim b; reject b", "completed"),
            ("claim a; accept a", "never claimed"),
            // It was renewed all the same.
            ("claim a; at 10; offline; claim a", "holds"),
            ("ack", "never claimed"),
            // Of the same item, before anybody noticed the loss.
            ("claim a@1; claim a@2; done a@2", "completed"),
            ("claim a@1; claim a@2; lose a@2", "lost"),
            // In two fleets.
            ("claim a; claim 2:a; lose a", "lost one"),
            ("claim a; claim 2:a; lose a; done 2:a", "lost"),
            ("claim a; claim 2:a; done 2:a", "holds"),
        ] {
            assert_eq!(after(steps), expected, "{steps}");
        }
    }

    /// A record that was written while the clock was hours ahead.
    #[test]
    fn a_fleet_is_left_alone_for_a_minute_at_most() {
        let silent_at = |until: i64| {
            Session { silent_until: Some(Time(until)), ..Session::default() }.is_silent(Time(1_000))
        };
        assert!(silent_at(1_001) && silent_at(61_000));
        assert!(!silent_at(1_000) && !silent_at(61_001));
    }

    #[test]
    fn a_new_claim_ends_what_was_acknowledged_before() {
        let held = |token: &str| {
            vec![Held {
                token: token.into(),
                fleet: "1".into(),
                run: "r".into(),
                until: Time(9),
                limit: None,
            }]
        };
        let mut session = Session::default();
        session.hold(held("a"));
        session.lose("1", "a", Loss::Taken, Time(0));
        assert_eq!(session.acknowledge().len(), 1);
        assert_eq!(session.acknowledge().len(), 1, "the command says what its hook acknowledged");
        session.hold(held("b"));
        assert!(session.acknowledge().is_empty());
    }
}
