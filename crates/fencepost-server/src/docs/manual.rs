//! The description of each op, from its schema and its doc comments.

use fencepost::{Code, op::Entry};
use serde_json::Value;

/// An op as its users see it.
#[derive(Debug)]
pub struct Chapter {
    pub entry: Entry,
    pub request: Value,
    pub reply: Value,
}

/// A field of a request or a reply.
#[derive(Debug)]
pub struct Field<'a> {
    pub name: &'a str,
    pub kind: String,
    pub required: bool,
    pub about: &'a str,
    pub schema: &'a Value,
}

impl Chapter {
    pub fn new(entry: Entry) -> Self {
        Self { request: (entry.request)().to_value(), reply: (entry.reply)().to_value(), entry }
    }

    /// `task`
    pub fn noun(&self) -> &'static str {
        self.entry.name.split('/').next().unwrap_or_default()
    }

    pub fn path(&self) -> String {
        format!("/v1/{}", self.entry.name)
    }

    /// The doc comment, on one line.
    pub fn about(&self) -> String {
        self.request["description"].as_str().unwrap_or_default().replace('\n', " ")
    }

    /// Its first sentence.
    pub fn summary(&self) -> String {
        let about = self.about();
        about
            .split_once(". ")
            .map_or_else(|| about.trim_end_matches('.').to_owned(), |(first, _)| first.into())
    }

    pub fn access(&self) -> &'static str {
        self.entry.access.as_str()
    }

    pub fn fields(&self) -> Vec<Field<'_>> {
        fields(&self.request)
    }

    pub fn reply_fields(&self) -> Vec<Field<'_>> {
        fields(&self.reply)
    }

    /// A request as a person would write it.
    pub fn example(&self) -> Value {
        serde_json::from_str(self.entry.example).expect("a test of the engine reads every example")
    }

    /// The codes of its refusals and errors. An op that only reads has no unknown outcome.
    pub fn codes(&self) -> Vec<Code> {
        let mut codes: Vec<Code> =
            Code::OF_EVERY_OP.into_iter().chain(self.entry.refuses.iter().copied()).collect();
        codes.retain(|code| !(self.entry.reads && *code == Code::OutcomeUnknown));
        codes.sort_by_key(|code| (code.http_status(), code.as_str()));
        codes
    }
}

fn fields(schema: &Value) -> Vec<Field<'_>> {
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let all = schema["properties"].as_object().into_iter().flatten();
    all.map(|(name, field)| Field {
        name,
        kind: kind(field),
        required: required(name),
        about: field["description"].as_str().unwrap_or_default(),
        schema: field,
    })
    .collect()
}

/// `text`, `whole number`, `list of text`, `Task`.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return match name.rsplit('/').next().unwrap_or_default() {
            "Millis" => "milliseconds".into(),
            "Time" => "time".into(),
            name => name.into(),
        };
    }
    let choices = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(choice) = choices.into_iter().flatten().find(|choice| choice["type"] != "null") {
        return kind(choice);
    }
    let named =
        schema["type"].as_str().or_else(|| schema["type"].as_array()?.iter().find_map(|one| one.as_str()));
    match named {
        Some("string") => "text".into(),
        Some("integer") => "whole number".into(),
        Some("boolean") => "true or false".into(),
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") => "object".into(),
        _ => "any JSON".into(),
    }
}
