//! `GET /docs`: every op on one page that loads nothing else.

use super::manual::{Chapter, Field};
use fencepost::op;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Lets the page load nothing from elsewhere.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const BEGIN: &str = r#"<h1>Fencepost</h1>
<p>Exactly-once work for fleets of AI agents: at-least-once execution, at most one accepted completion. A claim is held
under a lease and a fencing token, such as <code>task/auth-3@1</code>, and every write checks it.</p>
<p>Each op is <code>POST /v1/noun/verb</code> with JSON; those that only read also take
<code>GET</code> with a query string. Durations are whole milliseconds in fields that end in <code>_ms</code>, times are
RFC 3339. A refusal is a status and <code>{"error": {"code", "message", "hint"}}</code>. Give each request that writes
a <code>request</code> id of its own: a retry with the same id returns the first reply and acts once.
<a href="/v1/openapi.json">OpenAPI</a> · <code>GET /v1/events</code> follows the log as server-sent events.</p>
<p>If the fleet has keys, each command needs <code>-H "Authorization: Bearer $FENCE_KEY"</code>.
<label hidden><input type="checkbox"> Add it to the commands below</label></p>
<p>Slack's Events API and GitHub's webhooks can be pointed at <code>/hooks/slack</code> and <code>/hooks/github</code>. Events
signed with the secret that <code>fence serve</code> was given go to an agent's inbox by the rules of <code>route/add</code>,
once; events that match no rule are kept for <code>route/unmatched</code>.</p>
<h2>A task's life</h2>
<p>On a fleet without a board <code>demo</code> these commands work as they stand. Otherwise replace the id and the token
by those in the replies.</p>
"#;

/// The steps of a task's life, each with its op and request.
const LIFE: [(&str, &str, &str); 8] = [
    ("Somebody adds a task.", "task/add", r#"{"board":"demo","title":"write the parser","request":"add-1"}"#),
    (
        "You claim it. The run is your name for this session, and the reply has your token: <code>task/demo-1@1</code>. \
         The lease is one minute: renew it before it expires.",
        "task/claim",
        r#"{"board":"demo","run":"r-1","ttl_ms":60000,"request":"claim-1"}"#,
    ),
    (
        "Nobody else can claim it now: <code>409</code> with the holder and the end of its lease. \
         (With <code>\"wait_ms\":30000</code> the call waits until something is ready.)",
        "task/claim",
        r#"{"task":"demo-1","run":"r-2","request":"claim-2"}"#,
    ),
    ("You renew the lease while you work.", "claim/renew", r#"{"token":"task/demo-1@1"}"#),
    (
        "Before anything that cannot be undone, check that the claim is still yours: <code>\"ok\":true</code>.",
        "claim/guard",
        r#"{"token":"task/demo-1@1"}"#,
    ),
    (
        "You complete it. A holder that lost its claim is refused here: <code>409</code>, <code>lease_expired</code>.",
        "task/done",
        r#"{"token":"task/demo-1@1","output":"it parses"}"#,
    ),
    ("You read the result.", "task/show", r#"{"task":"demo-1"}"#),
    ("You read its history.", "event/list", r#"{"resource":"task/demo-1"}"#),
];

const FIND: &str = "<input type=\"search\" placeholder=\"Find an op\" aria-label=\"Find an op\" hidden>\n";

pub fn html() -> String {
    let chapters: Vec<_> = op::registry().into_iter().map(Chapter::new).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Fencepost: every op</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{BEGIN}{life}{FIND}",
        life = life(),
    );
    for noun in chapters.chunk_by(|a, b| a.noun() == b.noun()) {
        let name = noun[0].noun();
        let ops: String = noun.iter().map(chapter).collect();
        let _ = write!(page, "<section>\n<h2>{name}</h2>\n{ops}</section>\n");
    }
    page + "<script>\n" + SCRIPT + "</script>\n</body>\n</html>\n"
}

fn life() -> String {
    let step = |(what, op, body): &(&str, &str, &str)| {
        format!("<li>{what}\n{}</li>\n", copyable(&curl(&format!("/v1/{op}"), body)))
    };
    format!("<ol>\n{}</ol>\n", LIFE.iter().map(step).collect::<String>())
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
         <h3>Request</h3>\n{request}<h3>Example</h3>\n{curl}\
         <h3>Reply</h3>\n{reply}<h3>Errors</h3>\n<p>{codes}</p>\n</div>\n</details>\n",
        id = name.replace('/', "-"),
        summary = escaped(&chapter.summary()),
        about = prose(&chapter.about()),
        role = chapter.access(),
        request = fields(&chapter.fields(), "required"),
        reply = fields(&chapter.reply_fields(), "always"),
        curl = copyable(&curl(&chapter.path(), &chapter.example().to_string())),
        codes = codes.join(" · "),
    )
}

/// A command that can be pasted into a shell.
fn curl(path: &str, body: &str) -> String {
    format!("curl -s --json '{}' http://127.0.0.1:7373{path}", body.replace('\'', r"'\''"))
}

fn copyable(line: &str) -> String {
    format!("<div class=\"copy\"><pre>{}</pre></div>\n", escaped(line))
}

/// `needed` marks the fields that are required in a request or always present in a reply.
fn fields(fields: &[Field<'_>], needed: &str) -> String {
    if fields.is_empty() {
        return "<p class=\"kind\">no fields</p>\n".into();
    }
    let line = |field: &Field<'_>| {
        let needed = match field.required {
            true => format!(" <span class=\"needed\">{needed}</span>"),
            false => String::new(),
        };
        format!(
            "<dt><code>{}</code> <span class=\"kind\">{}</span>{needed}</dt><dd>{}</dd>\n",
            escaped(field.name),
            escaped(&field.kind),
            prose(field.about),
        )
    };
    format!("<dl>\n{}</dl>\n", fields.iter().map(line).collect::<String>())
}

/// Doc comments mark code with backticks.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escaped(part)) } else { escaped(part) })
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
