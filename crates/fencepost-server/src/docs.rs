//! `GET /docs`: every op on one page that needs nothing but itself.

use crate::manual::{Chapter, Field};
use fencepost::op;
use std::fmt::Write;

const STYLE: &str = include_str!("docs.css");
const SCRIPT: &str = include_str!("docs.js");

/// What the page may load: nothing that is not in it.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const BEGIN: &str = r#"<h1>Fencepost</h1>
<p>Exactly-once work for fleets of AI agents: at-least-once execution, at most one accepted completion. A claim is held
under a lease and a fencing token, such as <code>task/auth-3@1</code>, and every write checks it.</p>
<p>Each op is <code>POST /v1/noun/verb</code> with JSON; those that only read also take
<code>GET</code> with a query string. Durations are whole milliseconds in fields that end in <code>_ms</code>, times are
RFC 3339. A no is a status and <code>{"error": {"code", "message", "hint"}}</code>. Where the fleet has keys, send
<code>Authorization: Bearer …</code>. Give each request that changes something a <code>request</code> id of its own:
asked again with the same id, it is answered and not done twice.
<a href="/v1/openapi.json">OpenAPI</a> · <code>GET /v1/events</code> follows the log as server-sent events.</p>
<h2>A task's life</h2>
<div class="copy"><pre>curl -s http://127.0.0.1:7373/v1/task/add -H 'Content-Type: application/json' -d '{"board":"auth","title":"write the parser"}'
curl -s http://127.0.0.1:7373/v1/task/claim -H 'Content-Type: application/json' -d '{"board":"auth","run":"r-1","ttl_ms":60000}'
curl -s http://127.0.0.1:7373/v1/claim/renew -H 'Content-Type: application/json' -d '{"token":"task/auth-1@1"}'
curl -s http://127.0.0.1:7373/v1/task/done -H 'Content-Type: application/json' -d '{"token":"task/auth-1@1","summary":"it parses"}'
curl -s 'http://127.0.0.1:7373/v1/task/show?task=auth-1'</pre></div>
<input type="search" placeholder="Find an op" aria-label="Find an op" hidden>
"#;

pub fn page() -> String {
    let chapters: Vec<_> = op::registry().into_iter().map(Chapter::new).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Fencepost: every op</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{BEGIN}"
    );
    for noun in chapters.chunk_by(|a, b| a.noun() == b.noun()) {
        let name = noun[0].noun();
        let ops: String = noun.iter().map(chapter).collect();
        let _ = write!(page, "<section>\n<h2>{name}</h2>\n{ops}</section>\n");
    }
    page + "<script>\n" + SCRIPT + "</script>\n</body>\n</html>\n"
}

fn chapter(chapter: &Chapter) -> String {
    let name = chapter.entry.name;
    let methods = if chapter.entry.reads { "GET or POST" } else { "POST" };
    let codes: Vec<_> = chapter
        .codes()
        .iter()
        .map(|code| format!("<code>{code}</code>&nbsp;<span class=\"kind\">{}</span>", code.http_status()))
        .collect();
    format!(
        "<details id=\"{id}\">\n<summary><span class=\"path\">{name}</span><span class=\"about\">{summary}</span>\
         <span class=\"role\">{role}</span></summary>\n<div>\n<p>{about}</p>\n\
         <p class=\"kind\">{methods} <code>/v1/{name}</code> · needs the role {role}</p>\n\
         <h3>Request</h3>\n{request}<h3>Example</h3>\n<div class=\"copy\"><pre>{curl}</pre></div>\n\
         <h3>Reply</h3>\n{reply}<h3>Instead of it</h3>\n<p>{codes}</p>\n</div>\n</details>\n",
        id = name.replace('/', "-"),
        summary = escaped(&chapter.summary()),
        about = prose(&chapter.about()),
        role = chapter.access(),
        request = fields(&chapter.fields()),
        reply = fields(&chapter.reply_fields()),
        curl = escaped(&curl(chapter)),
        codes = codes.join(" · "),
    )
}

/// A line that can be pasted into a shell.
pub fn curl(chapter: &Chapter) -> String {
    let body = chapter.example().to_string().replace('\'', r"'\''");
    format!("curl -s http://127.0.0.1:7373{} -H 'Content-Type: application/json' -d '{body}'", chapter.path())
}

fn fields(fields: &[Field<'_>]) -> String {
    if fields.is_empty() {
        return "<p class=\"kind\">no fields</p>\n".into();
    }
    let line = |field: &Field<'_>| {
        let needed = if field.required { " <span class=\"needed\">required</span>" } else { "" };
        format!(
            "<dt><code>{}</code> <span class=\"kind\">{}</span>{needed}</dt><dd>{}</dd>\n",
            escaped(field.name),
            escaped(&field.kind),
            prose(field.about),
        )
    };
    format!("<dl>\n{}</dl>\n", fields.iter().map(line).collect::<String>())
}

/// Doc comments say `code` with backticks.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escaped(part)) } else { escaped(part) })
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
