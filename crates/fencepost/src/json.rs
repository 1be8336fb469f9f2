//! JSON that is only carried: kept as the text it came as, and not looked into.

use crate::error::{Code, Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Any JSON, as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// The JSON of a value.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        serde_json::value::to_raw_value(value).map(Self).map_err(Error::internal)
    }
    /// Reads it as a value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.text())
            .map_err(|e| Error::new(Code::Invalid, format!("the JSON is not what it is read as: {e}")))
    }
    /// As it was written.
    pub fn text(&self) -> &str {
        self.0.get()
    }
    pub(crate) fn stored(text: String) -> Result<Self> {
        RawValue::from_string(text).map(Self).map_err(Error::internal)
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
