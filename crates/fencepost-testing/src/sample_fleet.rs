//! A fleet that holds every kind of thing, in every state.

/// A text with control characters, a change of direction, line breaks and quotes.
pub const ODD_TEXT: &str = "x\u{1b}[2J\u{202e}\u{2028}\u{e0041}\t\"\\ \u{1F600}\nerror: forged";
/// JSON whose bytes carry more than its value: order, spaces, lines, numbers, escapes.
pub const ODD_JSON: &str =
    "{\"b\":  1.0e+02,\n \"a\" : [12345678901234567890123, -0.0,1E5 ], \"a\": \"\\u00e9\\/\u{202e}\" }";

/// The calls that create it, in order: an op and its request. All leases are long.
pub fn calls() -> Vec<(&'static str, String)> {
    let text = serde_json::Value::from(ODD_TEXT).to_string();
    let mut calls: Vec<(&'static str, String)> = Vec::new();
    let mut lines = |of: &str| {
        for line in of.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, request) = line.split_once(' ').expect("an op and its request");
            let name = fencepost::op::find(name).expect("an op").name;
            calls.push((name, request.replace("TEXT", &text).replace("JSON", ODD_JSON)));
        }
    };
    lines(AGENTS);
    lines(TASKS);
    lines(MAIL);
    calls
}

const AGENTS: &str = r#"
    agent/join {"agent": "lead", "role": "lead", "max_concurrent": 3}
    agent/join {"agent": "bob", "capabilities": ["rust", "db"], "strand_ms": 86400000}
    agent/join {"agent": "eve"}
    agent/leave {"agent": "eve"}
    channel/create {"channel": "general", "description": TEXT}
    channel/create {"channel": "quiet"}
    channel/join {"channel": "general", "agent": "lead"}
    channel/join {"channel": "general", "agent": "bob"}
    channel/post {"channel": "general", "body": "@bob have a look", "author": "lead"}
    channel/post {"channel": "general", "body": TEXT, "author": "bob", "reply_to": 1, "key": "said-once"}
    channel/post {"channel": "general", "body": "@lead @bob done?", "author": "eve", "reply_to": 2}
    channel/read {"channel": "general", "agent": "lead"}
    channel/read {"channel": "general", "agent": "bob", "limit": 1}
    channel/post {"channel": "general", "body": "@lead and now?"}
    route/add {"source": "slack", "agent": "lead", "channel": "C1", "text": "deploy"}
    route/add {"source": "github", "agent": "bob", "repository": "acme/api", "event": "issues", "bots": true}
    route/add {"source": "github", "agent": "lead", "user": "kim", "before": 1}
    route/add {"source": "email", "agent": "lead"}
    route/remove {"route": 4}
    key/add {"name": "kim", "role": "admin"}
    lock/claim {"name": "deploy", "run": "r", "ttl_ms": 86400000}
"#;

const TASKS: &str = r#"
    task/add {"board": "auth", "title": "plain", "body": TEXT, "done_when": "it works", "kind": "bug", "priority": 70, "tags": ["rust", "db"], "source": "kim", "origin": {"b": 1.5, "a": [null]}, "creator": "lead", "max_attempts": 5}
    task/add {"board": "auth", "title": "keyed", "after": ["auth-1"], "key": "ticket:7"}
    task/add {"board": "auth", "title": "assigned", "to": "bob"}
    task/add {"board": "auth", "title": "offered", "offer": "bob"}
    task/add {"board": "auth", "title": "completed"}
    task/add {"board": "auth", "title": "failed"}
    task/add {"board": "auth", "title": "cancelled"}
    task/add {"board": "auth", "title": "parked", "to": "bob"}
    task/add {"board": "auth", "title": "in progress"}
    task/add {"board": "auth", "title": "delayed"}
    task/add {"board": "auth", "title": "reviewed", "offer": "bob"}
    task/add {"board": "auth", "title": "waits", "after": ["auth-5", "auth-6"]}
    task/add {"board": "auth", "title": "rejected", "offer": "bob"}
    task/add {"board": "web", "title": TEXT, "after": ["auth-1", "auth-5"]}
    task/add {"board": "auth", "title": "released, and claimed again"}
    task/depend {"task": "auth-3", "after": "web-1"}
    task/claim {"task": "auth-5", "run": "r", "agent": "bob", "ttl_ms": 86400000}
    task/progress {"token": "task/auth-5@1", "text": "half way"}
    task/progress {"token": "task/auth-5@1", "text": TEXT}
    task/checkpoint {"token": "task/auth-5@1", "ordinal": 2, "phase": "tests", "data": {"at": 3}}
    task/done {"token": "task/auth-5@1", "output": TEXT}
    task/note {"task": "auth-5", "text": "well done"}
    task/note {"task": "auth-5", "text": TEXT}
    task/claim {"task": "auth-6", "run": "r", "ttl_ms": 86400000}
    task/fail {"token": "task/auth-6@1", "reason": TEXT}
    task/cancel {"task": "auth-7", "reason": "no longer"}
    task/park {"task": "auth-8", "reason": TEXT}
    task/claim {"task": "auth-9", "run": "bob-1", "agent": "bob", "ttl_ms": 86400000}
    task/progress {"token": "task/auth-9@1", "text": "begun"}
    task/checkpoint {"token": "task/auth-9@1", "ordinal": 1, "phase": "plan"}
    task/claim {"task": "auth-10", "run": "r", "ttl_ms": 86400000}
    task/fail {"token": "task/auth-10@1", "reason": "not yet", "retry": true, "delay_ms": 86400000}
    task/claim {"task": "auth-11", "run": "bob-1", "agent": "bob"}
    task/reject {"task": "auth-13", "agent": "bob", "reason": "too hard"}
    task/claim {"task": "auth-14", "run": "r"}
    claim/release {"token": "task/auth-14@1"}
    task/claim {"task": "auth-14", "run": "r"}
    task/reopen {"task": "auth-5", "reason": "once more"}
"#;

const MAIL: &str = r#"
    inbox/send {"agent": "lead", "text": TEXT, "source": "slack", "channel": "C1", "thread": "1.2", "sender": "U1", "data": {"x": 1}}
    inbox/send {"agent": "lead", "text": "read", "source": "email", "key": "mail-7"}
    inbox/send {"agent": "lead", "text": "respond"}
    inbox/send {"agent": "lead", "text": "delegate"}
    inbox/send {"agent": "lead", "text": "given up"}
    inbox/read {"message": "2"}
    inbox/respond {"message": "3", "text": TEXT}
    inbox/delegate {"message": "4", "board": "web", "title": "delegated"}
    mail/discard {"messages": [5]}
    inbox/send {"agent": "bob", "text": "being read"}
    agent/poll {"agent": "bob", "run": "bob-2", "accept": ["inbox_message"], "ttl_ms": 86400000}
    route/deliver {"source": "slack", "delivery": "d1", "text": "nobody's", "item": "i1"}
    mail/configure {"mailbox": "strict", "strict": true, "ttl_ms": 60000, "max_attempts": 2, "backoff_ms": 5000, "replay": "hold", "retain_ms": 86400000, "retain_count": 10}
    mail/configure {"mailbox": "hold", "replay": "hold"}
    mail/push {"mailbox": "box", "payload": JSON, "type": "build", "priority": 60, "headers": {"trace": "a=1"}, "key": "once", "max_attempts": 4}
    mail/push {"mailbox": "box", "payload": TEXT}
    mail/claim {"mailboxes": ["box"], "run": "r", "count": 2, "ttl_ms": 86400000}
    mail/checkpoint {"token": "message/8@1", "ordinal": 4, "phase": "sent", "data": [1]}
    mail/done {"token": "message/8@1", "outputs": [JSON, null, TEXT], "outcome": "built"}
    mail/fail {"token": "message/9@1", "reason": TEXT}
    mail/push {"mailbox": "box", "payload": JSON, "type": "build"}
    mail/push {"mailbox": "box", "delay_ms": 86400000}
    mail/push {"mailbox": "box", "payload": "held by a run", "priority": 90}
    mail/claim {"mailboxes": ["box"], "run": "r", "count": 1}
    mail/push {"mailbox": "box", "payload": "tried before", "priority": 80}
    mail/claim {"mailboxes": ["box"], "run": "r", "count": 1}
    mail/fail {"token": "message/13@1", "reason": "not yet", "retry": true, "delay_ms": 86400000}
    mail/push {"mailbox": "box", "payload": "given away", "priority": 100}
    mail/take {"mailboxes": ["box"]}
    mail/push {"mailbox": "hold", "payload": 7}
    mail/claim {"mailboxes": ["hold"], "run": "r"}
    mail/fail {"token": "message/15@1", "reason": "cut off", "lost": true}
    mail/push {"mailbox": "strict", "lane": "a", "payload": 1}
    mail/push {"mailbox": "strict", "lane": "a", "payload": 2}
    mail/push {"mailbox": "strict", "lane": "b", "payload": 3}
    mail/push {"mailbox": "strict", "lane": "b", "payload": 4}
    mail/push {"mailbox": "strict", "payload": 5}
    mail/claim {"mailboxes": ["strict"], "run": "r", "count": 2, "ttl_ms": 86400000}
    mail/done {"token": "message/16@1"}
    mail/fail {"token": "message/18@1", "reason": "cut off", "lost": true}
    mail/pause {"mailbox": "hold", "reason": TEXT}
"#;
