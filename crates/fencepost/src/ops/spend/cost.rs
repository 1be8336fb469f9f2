//! The parts of a run's cost that are counted.

use super::dollars::Dollars;
use crate::{
    db::Stmt,
    error::{Error, Result},
    params,
};
use serde_json::Value;

/// Limits on the cost of one run, so that no sum of a window overflows.
const USD_MAX: Dollars = Dollars::whole(1_000_000);
const TOKENS_MAX: i64 = 1_000_000_000_000;

/// The counted cost of a run. Parts that were not reported are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub usd: Dollars,
    pub tokens_in: i64,
    pub tokens_out: i64,
}

impl Cost {
    /// Reads `usd`, `tokens_in` and `tokens_out` of a JSON object. Other keys, and JSON that is no object, are not counted. More
    /// than six decimals of a dollar are rounded: clients report such costs, and their work must not be refused for it.
    pub fn of(cost: Option<&Value>) -> Result<Self> {
        let Some(Value::Object(fields)) = cost else { return Ok(Self::default()) };
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let tokens = |name: &str, field: &str| match given(name) {
            None => Ok(0),
            Some(value) => value.as_i64().filter(|n| (0..=TOKENS_MAX).contains(n)).ok_or_else(|| {
                Error::invalid(field, "is not a number of tokens: an integer from 0 to 10^12")
            }),
        };
        let usd = match given("usd") {
            None => Dollars(0),
            Some(value) => value
                .as_number()
                .and_then(Dollars::round)
                .map(|rounded| Dollars(rounded.millionths))
                .filter(|usd| *usd <= USD_MAX)
                .ok_or_else(|| {
                    Error::invalid("cost.usd", "is not an amount of dollars: a number from 0 to 1000000")
                })?,
        };
        Ok(Self {
            usd,
            tokens_in: tokens("tokens_in", "cost.tokens_in")?,
            tokens_out: tokens("tokens_out", "cost.tokens_out")?,
        })
    }

    /// Stores the cost with the trigger of this run. `None` if nothing was reported.
    pub fn store(&self, run: i64) -> Option<Stmt> {
        let sql = "update triggered set usd = ?2, tokens_in = ?3, tokens_out = ?4 where run = ?1";
        (*self != Self::default())
            .then(|| Stmt::write(sql, params![run, self.usd.0, self.tokens_in, self.tokens_out]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn three_fields_of_an_object_are_counted() {
        let cost = |usd, tokens_in, tokens_out| Cost { usd: Dollars(usd), tokens_in, tokens_out };
        for (given, expected) in [
            (json!({ "usd": 0.12, "tokens_in": 5, "tokens_out": 7, "session": "x" }), cost(120_000, 5, 7)),
            (json!({ "usd": 2 }), cost(2_000_000, 0, 0)),
            (json!({ "usd": 0.238_434_999_999_999_98 }), cost(238_435, 0, 0)),
            (json!({ "usd": null, "tokens_in": null }), cost(0, 0, 0)),
            (json!({ "dollars": "many", "nested": { "usd": "x" } }), cost(0, 0, 0)),
            (json!("two dollars"), cost(0, 0, 0)),
            (json!([{ "usd": "x" }]), cost(0, 0, 0)),
            (json!(null), cost(0, 0, 0)),
        ] {
            assert_eq!(Cost::of(Some(&given)).unwrap(), expected, "{given}");
        }
        assert_eq!(Cost::of(None).unwrap(), cost(0, 0, 0));
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (given, field) in [
            (json!({ "usd": "0.12" }), "cost.usd"),
            (json!({ "usd": -0.01 }), "cost.usd"),
            (json!({ "usd": 1_000_000.000_001 }), "cost.usd"),
            (json!({ "usd": {} }), "cost.usd"),
            (json!({ "tokens_in": 1.5 }), "cost.tokens_in"),
            (json!({ "tokens_in": -1 }), "cost.tokens_in"),
            (json!({ "tokens_out": "7" }), "cost.tokens_out"),
            (json!({ "tokens_out": u64::MAX }), "cost.tokens_out"),
        ] {
            let error = Cost::of(Some(&given)).unwrap_err();
            assert_eq!(error.field("field"), Some(&json!(field)), "{given}");
        }
    }
}
