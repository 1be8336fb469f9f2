//! The rule: whether a limit refuses work, and until when.

use super::dollars::Dollars;
use crate::{
    clock::{Millis, Time},
    error::{Code, Error},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::fmt;

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Triggers of polls.
    Runs,
    /// Tokens, in and out.
    Tokens,
    /// Dollars.
    Usd,
}

impl What {
    pub const ALL: [What; 3] = [What::Runs, What::Tokens, What::Usd];

    pub fn as_str(self) -> &'static str {
        match self {
            What::Runs => "runs",
            What::Tokens => "tokens",
            What::Usd => "usd",
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.as_str() == text)
    }

    /// A stored amount as JSON has it.
    pub(super) fn number(self, amount: i64) -> Number {
        match self {
            What::Runs | What::Tokens => amount.into(),
            What::Usd => Dollars(amount).number(),
        }
    }

    /// Stored amounts for people: `$1.25 of $5.00`, `3 of 5 runs`.
    fn used_of(self, used: i64, limit: i64) -> String {
        match self {
            What::Runs | What::Tokens => format!("{used} of {limit} {}", self.as_str()),
            What::Usd => format!("{} of {}", Dollars(used), Dollars(limit)),
        }
    }
}

/// Whose work a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    Fleet,
    Agent(String),
    Board(String),
}

impl Scope {
    /// Reads the stored form.
    pub fn read(text: &str) -> Self {
        match text.split_once('/') {
            Some(("agent", name)) => Scope::Agent(name.into()),
            Some(("board", name)) => Scope::Board(name.into()),
            _ => Scope::Fleet,
        }
    }

    fn option(&self) -> String {
        match self {
            Scope::Fleet => String::new(),
            Scope::Agent(name) => format!(" --agent {name}"),
            Scope::Board(name) => format!(" --board {name}"),
        }
    }
}

/// The stored form.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Fleet => f.write_str("fleet"),
            Scope::Agent(name) => write!(f, "agent/{name}"),
            Scope::Board(name) => write!(f, "board/{name}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub scope: Scope,
    pub what: What,
    /// Runs, tokens, or millionths of a dollar.
    pub amount: i64,
    pub window: Millis,
}

/// The use of a limit: the sum over the triggers of its window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub limit: Limit,
    pub amount: i64,
    /// Counted from the newest trigger back, the limit is reached with the trigger of this time.
    pub reached_at: Option<Time>,
}

impl Used {
    /// A limit is reached at exactly its amount.
    pub fn is_reached(&self) -> bool {
        self.amount >= self.limit.amount
    }

    /// The time at which the limit allows work again, if nothing more is used: the trigger with which it is reached leaves the
    /// window. `None` if it is not reached, or if it allows nothing.
    pub fn frees_at(&self) -> Option<Time> {
        let reached_at = self.reached_at.filter(|_| self.is_reached() && self.limit.amount > 0)?;
        Some(reached_at.plus(self.limit.window))
    }
}

/// A reached limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub limit: Limit,
    pub used: i64,
    /// The time at which it allows work again; `None` if a person has to raise it.
    pub until: Option<Time>,
}

/// The rule. Of several reached limits it names the one that frees last: work is refused until then.
pub(crate) fn refused<'u>(used: impl IntoIterator<Item = &'u Used>, now: Time) -> Option<Refusal> {
    let reached = used.into_iter().filter(|used| used.is_reached());
    // A time that has passed means now.
    let until = |used: &Used| used.frees_at().map(|at| at.max(now));
    let last = reached.max_by_key(|used| until(used).map_or(i64::MAX, |at| at.0))?;
    Some(Refusal { limit: last.limit.clone(), used: last.amount, until: until(last) })
}

/// Of several places that hold work back, the one that frees first.
pub(crate) fn frees_first(refusals: impl IntoIterator<Item = Refusal>) -> Option<Refusal> {
    refusals.into_iter().min_by_key(|refusal| refusal.until.map_or(i64::MAX, |at| at.0))
}

impl Refusal {
    pub fn error(&self, now: Time) -> Error {
        let Limit { scope, what, amount, window } = &self.limit;
        let who = match scope {
            Scope::Fleet => "the fleet".to_owned(),
            Scope::Agent(name) => format!("agent `{name}`"),
            Scope::Board(name) => format!("board `{name}`"),
        };
        let used = what.used_of(self.used, *amount);
        let until = self.until.map_or(String::new(), |until| format!(" (until {until})"));
        let message = format!("{who} is at its spend limit: {used} in {window}{until}");
        let mut error = Error::new(Code::BudgetRefused, message)
            .with("scope", scope.to_string())
            .with("what", what)
            .with("limit", what.number(*amount))
            .with("used", what.number(self.used))
            .with("window_ms", window)
            .hint(format!(
                "the work waits and is not lost; fence spend set{} --{} AMOUNT raises the limit",
                scope.option(),
                what.as_str()
            ));
        if let Some(until) = self.until {
            error = error.with("until", until).with("retry_after_ms", until.since(now));
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(amount: i64, limit: i64, reached_at: Option<i64>) -> Used {
        let limit = Limit { scope: Scope::Fleet, what: What::Runs, amount: limit, window: Millis(1000) };
        Used { limit, amount, reached_at: reached_at.map(Time) }
    }

    #[test]
    fn a_limit_refuses_at_exactly_its_amount() {
        let now = Time(5000);
        let until = |used: &[Used]| refused(used, now).map(|refusal| refusal.until);
        for (limits, expected) in [
            (vec![], None),
            (vec![used(0, 1, None)], None),
            (vec![used(2, 3, None)], None),
            (vec![used(3, 3, Some(4500))], Some(Some(Time(5500)))),
            (vec![used(9, 3, Some(4999))], Some(Some(Time(5999)))),
            // A limit of nothing never frees by itself.
            (vec![used(0, 0, None)], Some(None)),
            (vec![used(5, 0, Some(4999))], Some(None)),
            // The last to free decides.
            (vec![used(1, 1, Some(4500)), used(2, 9, None), used(2, 2, Some(4600))], Some(Some(Time(5600)))),
            (vec![used(0, 0, None), used(2, 2, Some(4600))], Some(None)),
        ] {
            assert_eq!(until(&limits), expected, "{limits:?}");
        }
    }

    #[test]
    fn of_several_places_the_first_to_free_counts() {
        let now = Time(5000);
        let at = |used: Used| refused([&used], now).expect("reached");
        let (early, late, never) =
            (at(used(1, 1, Some(4100))), at(used(1, 1, Some(4900))), at(used(0, 0, None)));
        assert_eq!(frees_first([never.clone(), late, early.clone()]), Some(early));
        assert_eq!(frees_first([never.clone()]), Some(never));
        assert_eq!(frees_first([]), None);
    }

    #[test]
    fn a_refusal_says_who_how_much_and_until_when() {
        let limit = Limit {
            scope: Scope::Agent("bob".into()),
            what: What::Usd,
            amount: 1_000_000,
            window: Millis::days(1),
        };
        let error = Refusal { limit, used: 1_250_000, until: Some(Time(86_400_000)) }.error(Time(86_399_000));
        assert_eq!(
            error.message(),
            "agent `bob` is at its spend limit: $1.25 of $1.00 in 1d (until 1970-01-02T00:00:00.000Z)"
        );
        assert_eq!(
            error.hint_text(),
            Some("the work waits and is not lost; fence spend set --agent bob --usd AMOUNT raises the limit")
        );
        let fields = ["scope", "what", "limit", "used", "window_ms", "until", "retry_after_ms"];
        let fields = fields.map(|field| error.field(field).cloned().unwrap_or_default().to_string());
        assert_eq!(
            fields.join(" "),
            r#""agent/bob" "usd" 1.0 1.25 86400000 "1970-01-02T00:00:00.000Z" 1000"#
        );
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for scope in [Scope::Fleet, Scope::Agent("bob".into()), Scope::Board("auth".into())] {
            assert_eq!(Scope::read(&scope.to_string()), scope);
        }
        for what in What::ALL {
            assert_eq!(What::read(what.as_str()), Some(what));
            assert_eq!(serde_json::json!(what), what.as_str());
        }
    }
}
