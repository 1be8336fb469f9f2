//! `GET /v1/openapi.json`: the ops as OpenAPI 3.1, from the registry.

use super::manual::{Chapter, Field};
use crate::http::path;
use fencepost::{Code, op};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths = other_paths();
    for chapter in op::registry().into_iter().map(Chapter::new) {
        let path = chapter.path();
        paths.insert(path, methods(&chapter, &mut schemas));
    }
    // Not `Error`: that is the name of the object inside it, which also occurs in replies.
    schemas.components.insert("Refusal".into(), refusal());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Fencepost",
            "summary": "Exactly-once work for fleets of AI agents",
            "description": "At-least-once execution, at most one accepted completion. A claim is held under a lease \
                and a fencing token, and every write checks it. A request with a `request` id may be retried and is \
                carried out once.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        // A loopback server whose fleet has no key needs none.
        "security": [{ "key": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "description": "`fence key add` makes one." } },
            "schemas": schemas.components,
        },
    })
}

fn methods(chapter: &Chapter, schemas: &mut Schemas) -> Value {
    let id = chapter.entry.name.replace('/', "_");
    let title = camel(chapter.entry.name);
    let request = schemas.add(&format!("{title}Request"), chapter.noun(), &chapter.request);
    let reply = schemas.add(&format!("{title}Reply"), chapter.noun(), &chapter.reply);
    let about = |id: &str| {
        json!({
            "operationId": id,
            "tags": [chapter.noun()],
            "summary": chapter.summary(),
            "description": format!("{}\n\nNeeds the role `{}`.", chapter.about(), chapter.access()),
            "responses": responses(chapter, &reply),
        })
    };
    let mut post = about(&id);
    post["requestBody"] = json!({
        // No body at all is an empty request.
        "required": chapter.fields().iter().any(|field| field.required),
        "content": { "application/json": { "schema": request, "example": chapter.example() } },
    });
    let mut methods = json!({ "post": post });
    if chapter.entry.reads {
        let mut get = about(&format!("{id}_get"));
        get["parameters"] = chapter.fields().iter().map(|field| parameter(field, chapter, schemas)).collect();
        methods["get"] = get;
    }
    methods
}

fn parameter(field: &Field<'_>, chapter: &Chapter, schemas: &mut Schemas) -> Value {
    let names = schemas.names(chapter.noun(), &chapter.request);
    json!({
        "name": field.name,
        "in": "query",
        "required": field.required,
        "description": field.about,
        // A query string cannot carry null, so null is removed from the schema.
        "schema": without_null(with_component_refs(field.schema, &names)),
    })
}

fn without_null(mut schema: Value) -> Value {
    if let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| kind != "null");
    }
    if let Some(choices) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        choices.retain(|choice| choice["type"] != "null");
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.retain(|name, value| name != "default" || !value.is_null());
    }
    schema
}

/// The reply, and each refusal under its status.
fn responses(chapter: &Chapter, reply: &Value) -> Value {
    let mut responses = Map::new();
    let done = json!({ "description": "Done.", "content": { "application/json": { "schema": reply } } });
    responses.insert("200".into(), done);
    let mut by_status: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for code in chapter.codes() {
        by_status.entry(code.http_status()).or_default().insert(code.as_str());
    }
    // Errors that HTTP has its own status for.
    for status in [405, 408, 415] {
        by_status.entry(status).or_default().insert(Code::Invalid.as_str());
    }
    for (status, codes) in by_status {
        let codes: Vec<_> = codes.iter().map(|code| format!("`{code}`")).collect();
        let refused = json!({
            "description": format!("Refused: {}.", codes.join(", ")),
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
        });
        responses.insert(status.to_string(), refused);
    }
    Value::Object(responses)
}

fn refusal() -> Value {
    let codes: BTreeSet<_> =
        op::registry().into_iter().map(Chapter::new).flat_map(|c| c.codes()).map(Code::as_str).collect();
    json!({
        "type": "object",
        "description": "An error or a refusal: a code, a message, and a hint what to do next.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "description": "More fields depend on the code, such as `holder`, `expires_at`, `fence`, `field`, `retry_after_ms`.",
                "required": ["code", "message"],
                "properties": {
                    "code": { "type": "string", "enum": codes },
                    "message": { "type": "string" },
                    "hint": { "type": "string", "description": "The next step." },
                },
                "additionalProperties": true,
            },
        },
    })
}

/// The paths beside those of the ops.
fn other_paths() -> Map<String, Value> {
    let get = |id: &str, summary: &str, kind: &str| {
        let done = json!({ "description": "Done.", "content": { kind: {} } });
        let refused = json!({
            "description": "Refused.",
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
        });
        json!({ "get": {
            "operationId": id, "tags": ["server"], "summary": summary,
            "responses": { "200": done, "default": refused },
        } })
    };
    let mut events = get("events", "Follow the log as server-sent events", "text/event-stream");
    let text = |name: &str, location: &str, about: &str| json!({ "name": name, "in": location, "description": about, "schema": { "type": "string" } });
    events["get"]["parameters"] = json!([
        text(
            "since",
            "query",
            "Only events after this position; `start` for the oldest event; default: events from now on."
        ),
        text(
            "kind",
            "query",
            "Only events of this kind, such as `task.completed`, or of a noun, such as `task`."
        ),
        text("resource", "query", "Only events of this resource, such as `task/auth-3`."),
        text("Last-Event-ID", "header", "The same as `since`. Browsers send it by themselves."),
    ]);
    let hook = |id: &str, provider: &str, signature: &str| {
        let reply = json!({ "description": "Routed, stored as unmatched, or dropped as a repeat; or the reply to a handshake.",
            "content": { "application/json": {} } });
        let refused = json!({
            "description": "Refused: the signature is wrong, or the server has no secret for this provider.",
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
        });
        json!({ "post": {
            "operationId": id, "tags": ["hooks"], "summary": format!("Webhook for events of {provider}"),
            "description": format!("Needs no key: the header `{signature}` is checked. The same event is accepted once."),
            "security": [],
            "requestBody": { "required": true, "content": { "application/json": { "schema": { "type": "object" } } } },
            "responses": { "200": reply, "default": refused },
        } })
    };
    let mut paths = Map::new();
    paths.insert(path::SLACK.into(), hook("hooks_slack", "Slack", "X-Slack-Signature"));
    paths.insert(path::GITHUB.into(), hook("hooks_github", "GitHub", "X-Hub-Signature-256"));
    paths.insert(path::HEALTH.into(), get("healthz", "The process answers", "application/json"));
    paths.insert(path::READINESS.into(), get("readyz", "The database answers", "application/json"));
    paths.insert(
        path::METRICS.into(),
        get("metrics", "Metrics for Prometheus", "application/openmetrics-text"),
    );
    paths.insert(path::EVENTS.into(), events);
    paths
}

/// The schemas of all ops. If two ops use one name for different schemas, the noun is put before it.
#[derive(Debug, Default)]
struct Schemas {
    components: BTreeMap<String, Value>,
    /// The schema behind each name, with all schemas that it refers to.
    resolved: BTreeMap<String, Value>,
}

impl Schemas {
    /// Adds a schema and the schemas that it refers to. Returns a reference to it.
    fn add(&mut self, name: &str, noun: &str, schema: &Value) -> Value {
        let names = self.names(noun, schema);
        for (from, to) in &names {
            if !self.components.contains_key(to) {
                self.components.insert(to.clone(), with_component_refs(&schema["$defs"][from], &names));
            }
        }
        let mut own = with_component_refs(schema, &names);
        if let Some(fields) = own.as_object_mut() {
            fields.retain(|name, _| !["$defs", "$schema", "title"].contains(&name.as_str()));
        }
        self.components.insert(name.into(), own);
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// The names of a schema's definitions in this document.
    fn names(&mut self, noun: &str, schema: &Value) -> BTreeMap<String, String> {
        let parts = schema["$defs"].as_object().into_iter().flatten();
        parts.map(|(name, _)| (name.clone(), self.name(noun, name, &resolve(schema, name)))).collect()
    }

    fn name(&mut self, noun: &str, name: &str, resolved: &Value) -> String {
        let mut candidate = name.to_owned();
        while self.resolved.get(&candidate).is_some_and(|known| known != resolved) {
            candidate = format!("{}{candidate}", camel(noun));
        }
        self.resolved.insert(candidate.clone(), resolved.clone());
        candidate
    }
}

/// A definition with all definitions that it refers to.
fn resolve(schema: &Value, name: &str) -> Value {
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    let mut todo = vec![name.to_owned()];
    while let Some(name) = todo.pop() {
        let part = schema["$defs"][&name].clone();
        collect(&part, &mut todo, &found);
        found.insert(name, part);
    }
    json!(found)
}

fn collect(value: &Value, todo: &mut Vec<String>, found: &BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            if let Some(name) =
                fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"))
                && !found.contains_key(name)
            {
                todo.push(name.into());
            }
            fields.values().for_each(|value| collect(value, todo, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, todo, found)),
        _ => {}
    }
}

/// The same schema with references to the components of this document.
fn with_component_refs(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let part = value.as_str().and_then(|path| path.strip_prefix("#/$defs/"));
                let value = match part.filter(|_| name == "$ref") {
                    Some(part) => {
                        let part = names.get(part).map_or(part, String::as_str);
                        format!("#/components/schemas/{part}").into()
                    }
                    None => with_component_refs(value, names),
                };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(items) => items.iter().map(|item| with_component_refs(item, names)).collect(),
        other => other.clone(),
    }
}

/// `task/claim_many` is `TaskClaimMany`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split(['/', '_']).filter(|part| !part.is_empty()).map(word).collect()
}
