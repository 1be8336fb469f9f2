//! JSON that the engine stores without reading it: the text is checked once, on arrival, and kept as it is.

use crate::error::{Code, Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// How deep JSON may nest. Common parsers stop at 128 levels, and a reply wraps the JSON in some of its own.
const DEPTH_MAX: usize = 100;

/// Any JSON, kept as the text it was written in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// The JSON of a value.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        serde_json::value::to_raw_value(value).map(Self).map_err(Error::internal)
    }
    /// Checks that every program can read the text: no half of a surrogate pair (a cut emoji), no number out of range,
    /// at most 100 levels. Requests with other JSON are refused.
    pub fn parse(text: &str) -> Result<Self> {
        check_readable(text)
            .map_err(|e| Error::new(Code::Invalid, format!("the JSON cannot be read: {e}")))?;
        Self::stored(text.into())
    }
    /// Deserializes it into a value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.text())
            .map_err(|e| Error::new(Code::Invalid, format!("the JSON does not have the expected form: {e}")))
    }
    /// The text that it was written in.
    pub fn text(&self) -> &str {
        self.0.get()
    }
    pub(crate) fn stored(text: String) -> Result<Self> {
        RawValue::from_string(text).map(Self).map_err(Error::internal)
    }
}

/// Reads the whole text and keeps nothing of it.
pub(crate) fn check_readable(json: &str) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_str(json);
    LevelsLeft(DEPTH_MAX).deserialize(&mut reader)?;
    reader.end()
}

/// How many levels deeper the JSON may nest.
#[derive(Clone, Copy)]
struct LevelsLeft(usize);

impl LevelsLeft {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        let left = self.0.checked_sub(1);
        left.map(Self).ok_or_else(|| E::custom(format!("it nests deeper than {DEPTH_MAX} levels")))
    }
}

impl<'de> DeserializeSeed<'de> for LevelsLeft {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LevelsLeft {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while list.next_element_seed(inner)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while map.next_key_seed(self)?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::from(serde_json::Value::from(text))
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        let text = value.to_string();
        Self(RawValue::from_string(text).expect("a value's text is JSON"))
    }
}

impl JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        true.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_taken_if_every_program_can_read_it() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        for good in [
            "null",
            "-0.0",
            "1e308",
            "123456789012345678901234567890",
            r#"{"a": [true, "\ud83d\ude00"], "a": {}}"#,
            &nested(DEPTH_MAX),
        ] {
            assert_eq!(Json::parse(good).unwrap().text(), good);
        }
        for (bad, why) in [
            (r#""\ud83d""#, "hex escape"),
            (r#"["\ude00\ud83d"]"#, "surrogate"),
            (r#"{"\ud83dx": 1}"#, "hex escape"),
            ("1e999", "out of range"),
            ("[-1e999]", "out of range"),
            (&nested(DEPTH_MAX + 1), "nests deeper than 100 levels"),
            (&"[".repeat(100_000), "nests deeper than 100 levels"),
            (&r#"{"a":"#.repeat(100_000), "nests deeper than 100 levels"),
            ("{} {}", "trailing"),
            ("", "EOF"),
        ] {
            let error = Json::parse(bad).expect_err(why);
            assert!(error.message().contains(why), "{error}");
        }
    }
}
