//! Dollars, exact to a millionth. Inside they are integers of millionths; in JSON they are decimal numbers.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Number;
use std::{borrow::Cow, fmt};

const MILLION: i64 = 1_000_000;
/// Decimals of a dollar that are counted.
const DECIMALS: i64 = 6;

/// An amount in millionths of a dollar. In JSON: a number of dollars, such as 0.25.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dollars(pub i64);

/// A decimal number in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounded {
    /// Rounded to the nearest millionth.
    pub millionths: i64,
    /// Nothing was rounded.
    pub is_exact: bool,
}

impl Dollars {
    pub const fn whole(dollars: i64) -> Self {
        Dollars(dollars * MILLION)
    }

    /// Reads the text of a JSON number, digit by digit: no binary fraction is involved. `None` if the amount is negative or too
    /// large to count.
    pub(crate) fn round(number: &Number) -> Option<Rounded> {
        let text = number.to_string();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_negative = whole.starts_with('-');
        let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
        let is_zero = digits.bytes().all(|digit| digit == b'0');
        if is_negative && !is_zero {
            return None;
        }
        let shift = exponent.parse::<i64>().ok()?.saturating_add(DECIMALS);
        let kept = i64::try_from(digits.len() - fraction.len()).ok()?.saturating_add(shift);
        if is_zero || kept < 0 {
            return Some(Rounded { millionths: 0, is_exact: is_zero });
        }
        let kept = usize::try_from(kept).ok().filter(|kept| *kept < 64)?;
        let (head, rest) = digits.split_at(kept.min(digits.len()));
        let millionths: i64 = format!("0{head:0<kept$}").parse().ok()?;
        let up = rest.bytes().next().is_some_and(|digit| digit >= b'5');
        let is_exact = rest.bytes().all(|digit| digit == b'0');
        Some(Rounded { millionths: millionths.checked_add(i64::from(up))?, is_exact })
    }

    /// The decimal number. A double has enough digits for a billion dollars.
    pub(crate) fn number(self) -> Number {
        Number::from_f64(self.as_f64()).unwrap_or_else(|| 0.into())
    }

    fn as_f64(self) -> f64 {
        self.0 as f64 / MILLION as f64
    }
}

/// `$5.00`, with as many of six decimals as it needs.
impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, fraction) =
            (self.0.unsigned_abs() / MILLION as u64, self.0.unsigned_abs() % MILLION as u64);
        let fraction = format!("{fraction:06}");
        let fraction = fraction.trim_end_matches('0');
        write!(f, "{sign}${whole}.{fraction:0<2}")
    }
}

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let rounded = Dollars::round(&number)
            .ok_or_else(|| de::Error::custom(format!("{number} is not an amount of dollars")))?;
        Ok(Dollars(rounded.millionths))
    }
}

impl JsonSchema for Dollars {
    fn schema_name() -> Cow<'static, str> {
        "Dollars".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_digit_by_digit() {
        let exact = |millionths| Some(Rounded { millionths, is_exact: true });
        let rounded = |millionths| Some(Rounded { millionths, is_exact: false });
        for (text, expected) in [
            ("0", exact(0)),
            ("-0.0", exact(0)),
            ("5", exact(5_000_000)),
            ("5.00", exact(5_000_000)),
            ("0.1", exact(100_000)),
            ("0.333333", exact(333_333)),
            ("1.005", exact(1_005_000)),
            ("1e-6", exact(1)),
            ("1.5e3", exact(1_500_000_000)),
            ("999999999.999999", exact(999_999_999_999_999)),
            ("0.0000004", rounded(0)),
            ("0.0000005", rounded(1)),
            ("1e-7", rounded(0)),
            ("5e-7", rounded(1)),
            ("1e-300", rounded(0)),
            ("0.30000000000000004", rounded(300_000)),
            ("0.9999995", rounded(1_000_000)),
            ("-0.000001", None),
            ("-1", None),
            ("1e30", None),
            ("1e300", None),
        ] {
            let number: Number = serde_json::from_str(text).unwrap();
            assert_eq!(Dollars::round(&number), expected, "{text}");
        }
    }

    #[test]
    fn dollars_survive_json() {
        for millionths in [0, 1, 333_333, 999_999, 1_000_000, 1_005_000, 999_999_999_999_999] {
            let text = serde_json::to_string(&Dollars(millionths)).unwrap();
            assert_eq!(serde_json::from_str::<Dollars>(&text).unwrap(), Dollars(millionths), "{text}");
            let number = Dollars::round(&Dollars(millionths).number()).unwrap();
            assert_eq!(number, Rounded { millionths, is_exact: true }, "{text}");
        }
    }

    #[test]
    fn dollars_as_people_read_them() {
        let shown = [0, 1, 250_000, 5_000_000, 1_234_567].map(|millionths| Dollars(millionths).to_string());
        assert_eq!(shown, ["$0.00", "$0.000001", "$0.25", "$5.00", "$1.234567"]);
    }
}
