//! The arguments of a tool: one list of fields makes the schema that clients see, and checks what they send.

use fencepost::{Error, Millis, Result};
use serde_json::{Map, Value, json};

/// One argument.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Number,
    Flag,
    Texts,
    /// Any JSON.
    Any,
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Field {
    pub const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, about }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({ "type": "string" }),
            Kind::Number => json!({ "type": "integer" }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Kind::Any => json!({}),
            Kind::Word(words) => json!({ "type": "string", "enum": words }),
        };
        if !self.about.is_empty() {
            schema["description"] = self.about.into();
        }
        schema
    }

    fn fits(&self, value: &Value) -> Result<(), String> {
        let (fits, wanted) = match self.kind {
            Kind::Text => (value.is_string(), "a text".to_owned()),
            Kind::Number => (value.is_i64(), "a whole number".to_owned()),
            Kind::Flag => (value.is_boolean(), "true or false".to_owned()),
            Kind::Texts => {
                let texts = value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
                (texts, "a list of texts".to_owned())
            }
            Kind::Any => (true, String::new()),
            Kind::Word(words) => (
                value.as_str().is_some_and(|word| words.contains(&word)),
                format!("one of {}", words.join(", ")),
            ),
        };
        if fits { Ok(()) } else { Err(wanted) }
    }
}

/// The JSON Schema of these fields.
pub fn schema(fields: &[Field], required: &[&str]) -> Map<String, Value> {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field.schema())).collect();
    let mut schema = Map::from_iter([
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), properties.into()),
        ("additionalProperties".to_owned(), false.into()),
    ]);
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

/// The arguments of one call, which fit the fields of its tool.
#[derive(Debug)]
pub struct Arguments {
    given: Map<String, Value>,
    fields: Vec<Field>,
}

impl Arguments {
    /// Checks the arguments; an error names the one that does not fit. Models send `null` for what they leave out.
    pub fn read(given: Map<String, Value>, fields: Vec<Field>, required: &[&str]) -> Result<Self> {
        let given: Map<String, Value> = given.into_iter().filter(|(_, value)| !value.is_null()).collect();
        for (name, value) in &given {
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let known: Vec<_> = fields.iter().map(|field| field.name).collect();
                return Err(Error::invalid(name, "is not an argument of this tool")
                    .hint(format!("its arguments are {}", known.join(", "))));
            };
            field.fits(value).map_err(|wanted| Error::invalid(name, format!("is not {wanted}")))?;
        }
        match required.iter().find(|name| !given.contains_key(**name)) {
            Some(missing) => Err(Error::invalid(missing, "is missing")),
            None => Ok(Self { given, fields }),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        debug_assert!(self.fields.iter().any(|field| field.name == name), "`{name}` is no argument");
        self.given.get(name)
    }

    pub fn text(&self, name: &str) -> Option<String> {
        Some(self.get(name)?.as_str()?.to_owned())
    }

    pub fn required(&self, name: &'static str, why: &str) -> Result<String> {
        self.text(name).ok_or_else(|| Error::invalid(name, format!("is missing{why}")))
    }

    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    pub fn seconds(&self, name: &str) -> Option<Millis> {
        Some(Millis(self.number(name)?.saturating_mul(1000)))
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        let list = self.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    }

    pub fn any(&self, name: &str) -> Option<Value> {
        self.get(name).cloned()
    }

    /// The task of an argument, which may be given as a resource or as a token: `auth-3` for `task/auth-3@42`.
    pub fn task(&self, name: &str) -> Option<String> {
        let given = self.text(name)?;
        let id = given.split_once('@').map_or(given.as_str(), |(id, _)| id);
        Some(id.strip_prefix("task/").unwrap_or(id).to_owned())
    }

    /// Refuses arguments that have no meaning beside what this call does.
    pub fn only(&self, what: &str, allowed: &[&str]) -> Result<()> {
        let other = self.given.keys().find(|name| *name != "run" && !allowed.contains(&name.as_str()));
        other.map_or(Ok(()), |name| Err(Error::invalid(name, format!("has no meaning here: {what}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: Value) -> Result<Arguments> {
        let fields = vec![
            Field::new("task", Kind::Text, ""),
            Field::new("wait_seconds", Kind::Number, ""),
            Field::new("retry", Kind::Flag, ""),
            Field::new("how", Kind::Word(&["done", "fail"]), ""),
            Field::new("after", Kind::Texts, ""),
            Field::new("run", Kind::Text, ""),
        ];
        let Value::Object(given) = given else { panic!("an object") };
        Arguments::read(given, fields, &["how"])
    }

    #[test]
    fn a_wrong_argument_is_named() {
        for (given, message) in [
            (json!({"how": "done", "id": "x"}), "`id` is not an argument of this tool"),
            (json!({"how": "won"}), "`how` is not one of done, fail"),
            (json!({"how": "done", "wait_seconds": 1.5}), "`wait_seconds` is not a whole number"),
            (json!({"how": "done", "retry": "yes"}), "`retry` is not true or false"),
            (json!({"how": "done", "after": ["x", 1]}), "`after` is not a list of texts"),
            (json!({"how": null}), "`how` is missing"),
        ] {
            let error = read(given).expect_err("refused");
            assert_eq!(error.message(), message);
            assert!(error.field("field").is_some());
        }
        let args = read(json!({"how": "done", "task": "task/auth-3@42", "after": null})).expect("they fit");
        assert_eq!((args.task("task").as_deref(), args.texts("after").len()), (Some("auth-3"), 0));
        assert!(args.only("it is done", &["how"]).is_err());
        args.only("it is done", &["how", "task"]).expect("allowed");
    }
}
