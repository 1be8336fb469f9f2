//! A query string as the JSON request that it stands for. The op's schema says which fields are numbers, booleans or lists.

use fencepost::{Error, Result};
use serde_json::{Map, Value};
use std::collections::{HashMap, hash_map};

/// The type of a field.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Text,
    Integer,
    Boolean,
    List(Box<Kind>),
}

/// The fields of an op's request.
#[derive(Debug)]
pub struct Fields(HashMap<String, Kind>);

impl Fields {
    pub fn of(schema: &Value) -> Self {
        let fields = schema["properties"].as_object().into_iter().flatten();
        Self(fields.map(|(name, field)| (name.clone(), Kind::of(schema, field))).collect())
    }

    /// `board=auth&limit=5&tasks=auth-1&tasks=auth-2`. Unknown fields are left to the op to refuse.
    pub fn read(&self, query: &str) -> Result<Value> {
        let mut given: HashMap<String, Vec<String>> = HashMap::new();
        let mut order = Vec::new();
        for (name, text) in form_urlencoded::parse(query.as_bytes()) {
            match given.entry(name.into_owned()) {
                hash_map::Entry::Occupied(mut texts) => texts.get_mut().push(text.into_owned()),
                hash_map::Entry::Vacant(entry) => {
                    order.push(entry.key().clone());
                    entry.insert(vec![text.into_owned()]);
                }
            }
        }
        let mut request = Map::new();
        for name in order {
            let texts = given.remove(&name).unwrap_or_default();
            let value = self.0.get(&name).unwrap_or(&Kind::Text).read(&name, texts)?;
            request.insert(name, value);
        }
        Ok(Value::Object(request))
    }
}

impl Kind {
    fn of(root: &Value, schema: &Value) -> Self {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            return Kind::of(root, &root["$defs"][name]);
        }
        // Schemas write "or null" as `anyOf`.
        let choices = schema["anyOf"].as_array().into_iter().flatten();
        if let Some(choice) = choices.into_iter().find(|choice| choice["type"] != "null") {
            return Kind::of(root, choice);
        }
        let is = |name: &str| {
            schema["type"] == name || schema["type"].as_array().is_some_and(|all| all.contains(&name.into()))
        };
        match () {
            () if is("integer") => Kind::Integer,
            () if is("boolean") => Kind::Boolean,
            () if is("array") => Kind::List(Box::new(Kind::of(root, &schema["items"]))),
            () => Kind::Text,
        }
    }

    fn read(&self, name: &str, mut texts: Vec<String>) -> Result<Value> {
        if let Kind::List(item) = self {
            return texts.into_iter().map(|text| item.read(name, vec![text])).collect();
        }
        if texts.len() > 1 {
            return Err(Error::invalid(name, format!("is given {} times and is not a list", texts.len())));
        }
        let text = texts.pop().unwrap_or_default();
        let wrong = |what| Error::invalid(name, format!("must be {what}, not `{text}`"));
        match self {
            Kind::Integer => text.parse::<i64>().map(Value::from).map_err(|_| wrong("a whole number")),
            Kind::Boolean => text.parse::<bool>().map(Value::from).map_err(|_| wrong("true or false")),
            Kind::Text | Kind::List(_) => Ok(Value::String(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields() -> Fields {
        Fields::of(&json!({
            "properties": {
                "board": { "type": ["string", "null"] },
                "limit": { "type": ["integer", "null"] },
                "wait_ms": { "anyOf": [{ "$ref": "#/$defs/Millis" }, { "type": "null" }] },
                "any": { "type": "boolean" },
                "tasks": { "type": "array", "items": { "type": "string" } },
                "fences": { "type": "array", "items": { "type": "integer" } },
            },
            "$defs": { "Millis": { "type": "integer" } },
        }))
    }

    #[test]
    fn the_schema_gives_each_field_its_type() {
        let read = fields().read("board=7&limit=5&wait_ms=100&any=true&tasks=a&tasks=7&fences=1&x=y%20z");
        let wanted = json!({
            "board": "7", "limit": 5, "wait_ms": 100, "any": true, "tasks": ["a", "7"], "fences": [1], "x": "y z"
        });
        assert_eq!(read.unwrap(), wanted);
        assert_eq!(fields().read("").unwrap(), json!({}));
    }

    #[test]
    fn an_error_names_its_field() {
        for (query, field, message) in [
            ("limit=five", "limit", "`limit` must be a whole number, not `five`"),
            ("limit=1&limit=2", "limit", "`limit` is given 2 times and is not a list"),
            ("any=yes", "any", "`any` must be true or false, not `yes`"),
            ("fences=1&fences=x", "fences", "`fences` must be a whole number, not `x`"),
        ] {
            let error = fields().read(query).unwrap_err();
            assert_eq!((error.field("field"), error.message()), (Some(&json!(field)), message));
        }
    }
}
