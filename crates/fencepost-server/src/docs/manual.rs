//! The description of each op, from its schema and its doc comments.

use fencepost::{Code, op::Entry};
use serde_json::{Map, Value, json};

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

    /// The smallest valid request, with realistic values.
    pub fn example(&self) -> Value {
        let mut example = Samples { noun: self.noun(), root: &self.request }.least(&self.request);
        // Some ops need one of several optional fields, and some examples are clearer with an optional field.
        let more = match self.entry.name {
            "task/add" | "task/claim" | "task/list" | "task/ready" => json!({ "board": "auth" }),
            "task/wait" => json!({ "tasks": ["auth-3"] }),
            "mail/reset" | "mail/redrive" => json!({ "mailbox": "builds" }),
            "task/edit" => json!({ "title": "write the parser" }),
            _ => json!({}),
        };
        for (name, value) in more.as_object().into_iter().flatten() {
            example[name] = value.clone();
        }
        example
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

/// Realistic values for the fields of one op.
struct Samples<'a> {
    noun: &'a str,
    /// The schema whose `$defs` others refer to.
    root: &'a Value,
}

impl Samples<'_> {
    /// Only the required fields.
    fn least(&self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let fields = required.map(|name| (name.to_owned(), self.of(name, &schema["properties"][name])));
        Value::Object(fields.collect::<Map<_, _>>())
    }

    fn of(&self, name: &str, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
            return first.clone();
        }
        if let Some(first) = schema["oneOf"].as_array().and_then(|all| all.first()) {
            return first.get("const").cloned().unwrap_or_else(|| self.of(name, first));
        }
        match schema["type"].as_str() {
            Some("integer") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([self.of(name, &schema["items"])]),
            Some("object") => self.least(schema),
            _ => json!(self.text(name)),
        }
    }

    fn text(&self, name: &str) -> &'static str {
        match name {
            "token" | "tokens" if self.noun == "mail" => "message/812@1",
            "token" | "tokens" => "task/auth-3@1",
            "message" => "812",
            "source" => "slack",
            "delivery" => "Ev0PV52K21",
            "channel" => "general",
            "body" => "@codex-1 the build is green again",
            "resource" => "task/auth-3",
            "task" | "tasks" | "id" => "auth-3",
            "depends_on" | "after" | "on" => "auth-2",
            "board" => "auth",
            "mailbox" | "mailboxes" => "builds",
            "title" => "write the parser",
            "run" => "r-1",
            "agent" | "to" => "codex-1",
            "name" => "deploy",
            "request" => "9f1c",
            _ => "as it was agreed",
        }
    }

    fn resolve<'v>(&'v self, schema: &'v Value) -> &'v Value {
        match schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            Some(name) => &self.root["$defs"][name],
            None => schema,
        }
    }
}
