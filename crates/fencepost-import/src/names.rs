//! Names and times of other systems, in the form that the engine accepts.

use crate::is_board;
use fencepost::Time;
use serde_json::Value;
use std::collections::HashSet;

/// This name, or the first of `NAME-2`, `NAME-3`, … that is not taken.
pub fn free(base: &str, taken: &HashSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{base}-{n}"));
    let mut names = std::iter::once(base.to_owned()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or_else(|| base.into())
}

/// Gives each thing of the source a name of its own. A name that is valid already is kept, even if a thing that comes
/// earlier would get the same one.
#[derive(Debug)]
pub struct Names {
    taken: HashSet<String>,
    valid: HashSet<String>,
}

impl Names {
    pub fn of<'r>(names: impl Iterator<Item = &'r Value>) -> Self {
        let valid =
            names.map(|name| plain(Some(name))).filter(|name| slug(name, NAME) == *name && !name.is_empty());
        Self { taken: HashSet::new(), valid: valid.collect() }
    }

    /// A name that nothing else has. `fallback` replaces one without a usable character.
    pub fn take(&mut self, original: &str, fallback: &str) -> String {
        let base =
            Some(slug(original, NAME)).filter(|name| !name.is_empty()).unwrap_or_else(|| fallback.into());
        let others = if base == original { self.taken.clone() } else { &self.taken | &self.valid };
        let name = free(&base, &others);
        self.taken.insert(name.clone());
        name
    }
}

/// Leaves room for a number behind the name.
const NAME: usize = 100;

/// A name made of any text: `Billing Sprint 2` becomes `billing-sprint-2`. A valid name stays as it is.
pub fn slug(text: &str, max: usize) -> String {
    if text.len() <= max && is_board(text) {
        return text.into();
    }
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.collect::<Vec<_>>().join("-");
    name.truncate(max);
    name.trim_end_matches('-').into()
}

/// A value as text; empty for null.
pub fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Parses `2026-01-10 09:00:00` as SQLite writes it, in UTC, a time with a zone, or seconds since 1970.
pub fn time(value: &Value) -> Option<Time> {
    if let Some(seconds) = value.as_i64() {
        return jiff::Timestamp::from_second(seconds).ok().map(|at| Time(at.as_millisecond()));
    }
    let text = value.as_str()?.trim();
    let zoned = || text.parse::<jiff::Timestamp>().ok();
    let utc = || {
        Some(text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    zoned().or_else(utc).map(|at| Time(at.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_as_sqlite_writes_them() {
        let at = |value| time(&value).map(|at| at.to_string()).unwrap_or_default();
        assert_eq!(at(json!("2026-01-10 09:00:00")), "2026-01-10T09:00:00.000Z");
        assert_eq!(at(json!("2026-01-10 09:00:00.250")), "2026-01-10T09:00:00.250Z");
        assert_eq!(at(json!("2026-01-12T10:00:00+01:00")), "2026-01-12T09:00:00.000Z");
        assert_eq!(at(json!("2026-01-10")), "2026-01-10T00:00:00.000Z");
        assert_eq!(at(json!(1_767_000_000)), "2025-12-29T09:20:00.000Z");
        assert_eq!(at(json!("yesterday")), "");
        assert_eq!(at(json!(1.5)), "");
    }

    #[test]
    fn names_of_any_text() {
        for (text, name) in [
            ("auth", "auth"),
            ("Auth.2_b", "Auth.2_b"),
            ("Billing Sprint 2", "billing-sprint-2"),
            ("-- a --", "a"),
            ("c++", "c"),
            ("\u{1F600}", ""),
        ] {
            assert_eq!(slug(text, 64), name);
        }
        assert_eq!(slug(&"ab ".repeat(40), 6), "ab-ab");
    }
}
