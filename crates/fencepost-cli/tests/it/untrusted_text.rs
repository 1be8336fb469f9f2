//! Untrusted text is made safe: every text field of every op, in the output of every command.

use crate::sealed::{Sealed, eventually};
use fencepost::{Fleet, op};
use serde_json::{Map, Value, json};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    net::TcpListener,
};

/// A text that clears the screen, sets the window's title, rings the bell, returns to the margin, sets colours (also by C1),
/// reverses the reading direction, hides characters, uses Unicode's line separators, a tag character and our own marks, and looks
/// like our own messages.
const HOSTILE: &str = "x\x1b[2J\x1b[45m\x1b]0;owned\x07\r\u{9b}45m\x7f\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}\u{fdd0}\u{fdd1}[45m\nerror: forged\nhint: forged\nclaim: forged\ntask/forged-1@1";

/// Checks that no hidden character is in the output, and that no line of the text begins at the margin.
#[track_caller]
fn look(what: &str, shown: &str) {
    let bad: Vec<char> = HOSTILE.chars().filter(|c| *c != '\n' && !matches!(c, ' '..='~')).collect();
    let lies = ["error: forged", "hint: forged", "claim: forged", "task/forged"];
    let is_forged = |line: &&str| line.contains(&bad[..]) || lies.iter().any(|lie| line.starts_with(lie));
    let forged = shown.split('\n').find(is_forged);
    assert_eq!(forged, None, "{what}");
}

/// The output without our own colours and without the terminal's line ends.
fn plain(shown: &str) -> String {
    let mut shown = shown.replace("\r\n", "\n").replace("\r\x1b[K", "");
    for code in ["0", "1", "2", "4", "31", "32", "33", "36"] {
        shown = shown.replace(&format!("\x1b[{code}m"), "");
    }
    shown
}

/// Calls ops in this process, because there are a thousand calls.
struct Seeds {
    fleet: Fleet,
    runtime: tokio::runtime::Runtime,
    names: u32,
    texts: Cell<u32>,
    /// The last item of each op: `{task/fail}` in a command line is the task that `task/fail` failed.
    used: BTreeMap<String, String>,
}

impl Seeds {
    fn call(&self, name: &str, request: &Value) -> fencepost::Result<Value> {
        self.runtime.block_on(op::find(name)?.call(&self.fleet, &request.to_string()))
    }

    #[track_caller]
    fn ok(&self, name: &str, request: Value) -> Value {
        self.call(name, &request).unwrap_or_else(|e| panic!("{name} {request}: {e}"))
    }

    /// The hostile text, a new one each time, because keys must be unique.
    fn hostile(&self) -> Value {
        self.texts.set(self.texts.get() + 1);
        json!(format!("{HOSTILE}{}", self.texts.get()))
    }

    /// Calls an op, and replaces the hostile text in fields that refuse it. Returns whether any field accepted it.
    fn insist(&self, name: &str, mut request: Value) -> bool {
        while request.to_string().contains("forged") {
            let Err(error) = self.call(name, &request) else { return true };
            let field = error.field("field").and_then(Value::as_str).map(str::to_owned);
            let field = field.or_else(|| Some(error.message().split('`').nth(1)?.to_owned()));
            let key = field.unwrap_or_default().rsplit('.').next().unwrap_or_default().to_owned();
            if !tame(&mut request, &key) {
                return false;
            }
        }
        false
    }

    /// A run with a message of bob's inbox, and the claim on it.
    fn polled(&mut self) -> (String, String) {
        self.ok("inbox/send", json!({ "agent": "bob", "text": HOSTILE, "sender": HOSTILE }));
        self.names += 1;
        let run = format!("polled-{}", self.names);
        let given = self.ok("agent/poll", json!({ "agent": "bob", "run": run, "accept": ["inbox_message"] }));
        let token = self.text(&given, "/trigger/claims/0/token");
        (run, token)
    }

    fn text(&self, reply: &Value, pointer: &str) -> String {
        reply
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("{pointer}: {reply}"))
            .to_owned()
    }

    fn task(&self) -> String {
        self.text(&self.ok("task/add", json!({ "title": HOSTILE, "body": HOSTILE })), "/task/id")
    }

    /// A claim for an op of this noun.
    fn token(&self, noun: &str) -> String {
        match noun {
            "mail" => {
                self.ok("mail/push", json!({ "mailbox": "box", "payload": HOSTILE }));
                let claimed = self.ok("mail/claim", json!({ "mailboxes": ["box"], "run": "r", "count": 1 }));
                self.text(&claimed, "/claims/0/claim/token")
            }
            "once" => {
                self.texts.set(self.texts.get() + 1);
                let key = format!("t{}", self.texts.get());
                let begin = json!({ "key": key, "command": HOSTILE, "run": "once" });
                self.text(&self.ok("once/begin", begin), "/claim/token")
            }
            _ => {
                self.text(&self.ok("task/claim", json!({ "task": self.task(), "run": "r" })), "/claim/token")
            }
        }
    }

    fn message(&self, noun: &str) -> i64 {
        let reply = match noun {
            "route" => {
                let event = json!({ "source": "slack", "text": HOSTILE, "sender": HOSTILE, "id": HOSTILE });
                return self
                    .call("route/deliver", &event)
                    .ok()
                    .and_then(|it| it["message"].as_i64())
                    .unwrap_or(1);
            }
            _ => self.ok("mail/push", json!({ "mailbox": "box", "payload": { HOSTILE: [HOSTILE] } })),
        };
        reply.pointer("/message/id").and_then(Value::as_i64).expect("its number")
    }

    /// A valid value for a required field.
    fn plausible(&mut self, op: &str, field: &str, schema: &Value, root: &Value) -> Value {
        let noun = op.split('/').next().unwrap_or_default();
        self.names += 1;
        let value = match field {
            "task" if ["task/accept", "task/reject"].contains(&op) => {
                let task = self.task();
                self.ok("task/offer", json!({ "task": task, "to": "bob" }));
                json!(task)
            }
            "task" => json!(self.task()),
            "tasks" if schema["items"]["type"] == "string" => json!([self.task()]),
            "token" => json!(self.token(noun)),
            "tokens" => json!([self.token(noun)]),
            "resource" => json!(format!("task/{}", self.task())),
            "message" if noun == "inbox" => json!(self.polled().1),
            "message" => json!(self.message(noun)),
            "messages" if noun == "mail" && op != "mail/push_many" => json!([self.message(noun)]),
            "run" if op == "run/settle" => json!(self.polled().0),
            "run" if op == "agent/poll" => json!(format!("poll-{}", self.names)),
            "run" => json!("r"),
            "agent" | "author" | "to" if op != "agent/leave" => json!("bob"),
            "channel" => json!("general"),
            "mailbox" => json!("box"),
            "mailboxes" => json!(["box"]),
            "board" => json!("main"),
            "after" => json!(self.task()),
            "key" if op == "once/begin" => json!(format!("k{}", self.names)),
            "key" => json!(self.token(noun).trim_start_matches("once/").split('@').next()),
            "happened" => json!(true),
            "name" | "agent" => json!(format!("n{}", self.names)),
            _ => any(schema, root, &|| json!("x")).or_else(|| word(schema, root)).unwrap_or(json!(1)),
        };
        let kept = value.as_str().map(|text| text.trim_start_matches("task/").to_owned());
        let kept = kept.or_else(|| value.as_i64().map(|number| number.to_string()));
        if let (Some(kept), "task" | "token" | "message") = (kept, field) {
            let kept = kept.split('@').next().unwrap_or_default().trim_start_matches("message/");
            let kept = kept.trim_start_matches("once/").to_owned();
            self.used.insert(op.to_owned(), kept);
        }
        value
    }
}

/// A word of an enum schema.
fn word(schema: &Value, root: &Value) -> Option<Value> {
    if let Some(name) = schema["$ref"].as_str() {
        return word(root.pointer(name.trim_start_matches('#'))?, root);
    }
    let others = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|all| schema[all].as_array()).flatten();
    schema["enum"]
        .get(0)
        .or(schema.get("const"))
        .cloned()
        .or_else(|| others.into_iter().find_map(|one| word(one, root)))
}

/// Replaces the hostile text in every field of this name by a plain one, or removes the field if that was refused, too. Returns
/// whether there was such a field.
fn tame(value: &mut Value, key: &str) -> bool {
    match value {
        Value::Object(fields) => match fields.remove(key) {
            Some(hostile) if hostile.to_string().contains("forged") => {
                let plain = if hostile.is_array() { json!(["bob"]) } else { json!("bob") };
                fields.insert(key.to_owned(), plain);
                true
            }
            Some(_) => true,
            None => fields.values_mut().map(|field| tame(field, key)).filter(|tamed| *tamed).count() > 0,
        },
        Value::Array(items) => {
            items.iter_mut().map(|item| tame(item, key)).filter(|tamed| *tamed).count() > 0
        }
        _ => false,
    }
}

/// A value that fits a schema, with this text in all its texts; `None` if there is no text in it.
fn any(schema: &Value, root: &Value, text: &dyn Fn() -> Value) -> Option<Value> {
    if let Some(name) = schema["$ref"].as_str() {
        return any(root.pointer(name.trim_start_matches('#'))?, root, text);
    }
    if let Some(others) =
        schema["anyOf"].as_array().or(schema["oneOf"].as_array()).or(schema["allOf"].as_array())
    {
        return others.iter().find_map(|other| any(other, root, text));
    }
    if schema.get("enum").is_some() || schema.get("const").is_some() || schema.get("format").is_some() {
        return None;
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"].as_array()?.iter().find_map(Value::as_str));
    match kind {
        Some("string") => Some(text()),
        Some("array") => any(&schema["items"], root, text).map(|item| json!([item])),
        Some("object") => {
            let mut object = Map::new();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let required = schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
                let value = any(field, root, text);
                let value =
                    if required { value.or_else(|| word(field, root)).or(Some(json!(1))) } else { value };
                object.extend(value.map(|value| (name.clone(), value)));
            }
            if let Some(values) = schema.get("additionalProperties").filter(|more| more.is_object()) {
                object.insert("k".into(), any(values, root, text)?);
            }
            (!object.is_empty()).then_some(Value::Object(object))
        }
        // Any JSON at all.
        None => Some(text()),
        Some(_) => None,
    }
}

/// Ops that would remove the data or the times of the others.
const LEFT_OUT: [&str; 6] =
    ["admin/prune", "admin/restored", "admin/set_clock", "event/prune", "mail/reset", "admin/expire"];

/// The hostile text in every text field of every op, one at a time and all at once.
fn seed(url: &str) -> BTreeMap<String, String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fleet = runtime.block_on(Fleet::open(url)).expect("the fleet");
    let mut seeds = Seeds { fleet, runtime, names: 0, texts: Cell::new(0), used: BTreeMap::new() };
    for agent in ["bob", "lead"] {
        seeds.ok(
            "agent/join",
            json!({ "agent": agent, "role": if agent == "lead" { "lead" } else { "worker" } }),
        );
    }
    seeds.ok("channel/create", json!({ "channel": "general", "description": HOSTILE }));
    seeds.ok("channel/join", json!({ "channel": "general", "agent": "bob" }));
    let mut accepted = BTreeSet::new();
    for entry in op::registry() {
        if LEFT_OUT.contains(&entry.name) {
            continue;
        }
        let schema = (entry.request)().to_value();
        let fields = schema["properties"].as_object().cloned().unwrap_or_default();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let texts = fields.iter().filter(|(_, field)| any(field, &schema, &|| json!(HOSTILE)).is_some());
        let texts: Vec<(&String, &Value)> = texts.collect();
        let mut tries: Vec<Vec<(&String, &Value)>> = texts.iter().map(|field| vec![*field]).collect();
        tries.push(texts);
        for hostile in tries {
            let mut request = Map::new();
            for name in &required {
                request.insert((*name).into(), seeds.plausible(entry.name, name, &fields[*name], &schema));
            }
            for (name, field) in hostile {
                request
                    .extend(any(field, &schema, &|| seeds.hostile()).map(|value| (name.to_owned(), value)));
            }
            if seeds.insist(entry.name, Value::Object(request)) {
                accepted.insert(entry.name);
            }
            // If the hostile name was refused, bob left.
            if entry.name == "agent/leave" {
                seeds.ok("agent/join", json!({ "agent": "bob" }));
            }
            if entry.name == "agent/pause" {
                seeds.ok("agent/resume", json!({ "agent": "bob" }));
            }
        }
    }
    // An op that refused all fields would test nothing.
    for name in [
        "task/add",
        "task/plan",
        "task/fail",
        "task/done",
        "task/progress",
        "task/note",
        "task/park",
        "task/cancel",
        "task/edit",
        "task/reject",
        "mail/push",
        "mail/push_many",
        "mail/fail",
        "mail/done",
        "mail/pause",
        "inbox/send",
        "inbox/respond",
        "inbox/delegate",
        "channel/post",
        "run/end",
        "run/settle",
        "agent/poll",
        "agent/pause",
        "claim/unclaim",
        "route/add",
        "route/deliver",
        "once/begin",
        "once/finish",
        "once/resolve",
    ] {
        assert!(accepted.contains(name), "{name} took the text nowhere: {accepted:?}");
    }
    seeds.used
}

/// Every command with arguments: `{!}` is the hostile text, `{task/fail}` the item of that op. A command that is missing here fails
/// the test.
const COMMANDS: &[(&str, &[&str])] = &[
    ("", &[""]),
    ("status", &["status", "--run {!} status"]),
    ("ack", &["ack"]),
    ("accept", &["accept {task/offer} --agent bob", "accept {!}"]),
    (
        "add",
        &[
            "add {!} --body {!} --done-when {!} --kind {!}",
            "add x --tag {!}",
            "add x --key {!}",
            "add -f {!}",
        ],
    ),
    ("agent", &["agent"]),
    ("agent-join", &["agent join {!}", "agent join bob --capability {!}"]),
    ("agent-leave", &["agent leave {!}"]),
    ("agent-list", &["agent list --all"]),
    ("agent-pause", &["agent pause lead --reason {!}", "agent", "poll --agent lead", "agent pause {!}"]),
    ("agent-recall", &["agent recall {!}", "agent recall bob --force"]),
    ("agent-resume", &["agent resume lead", "agent resume {!}"]),
    ("assign", &["assign {task/edit} bob", "assign {!} {!}"]),
    ("spend", &["spend"]),
    (
        "spend-set",
        &["spend set --agent {!} --usd 5", "spend set --board {!} --runs 5", "spend set --usd {!}"],
    ),
    ("spend-show", &["spend show"]),
    ("storm", &["storm"]),
    ("storm-breaker", &["storm breaker open --reason {!}", "storm breaker close", "storm breaker {!}"]),
    ("storm-cause", &["storm cause {!}", "storm cause post/general/1", "storm cause run/{!}"]),
    (
        "storm-set",
        &["storm set {!}", "storm set window={!}", "storm set enabled=on --channel {!} --agent {!}"],
    ),
    ("storm-show", &["storm show"]),
    ("storm-tick", &["storm tick", "why general bob", "why {!} {!}"]),
    ("backup", &["backup {!}/x"]),
    ("board", &["board"]),
    ("board-list", &["board list"]),
    ("board-show", &["board show main", "board show {!}"]),
    ("call", &["call", "call task/list", "call task/show {!}", "call {!}"]),
    ("cancel", &["cancel {task/note} --reason {!}"]),
    ("channel", &["channel"]),
    ("channel-create", &["channel create other --description {!}", "channel create {!}"]),
    ("channel-join", &["channel join general --agent lead", "channel join {!} --agent {!}"]),
    ("channel-leave", &["channel leave general --agent lead"]),
    ("channel-list", &["channel list"]),
    ("channel-post", &["channel post general {!}", "channel post general @bob{!} --agent lead"]),
    ("channel-read", &["channel read general --agent bob --from 1 --peek"]),
    ("channel-unread", &["channel unread --agent bob"]),
    ("checkpoint", &["checkpoint {!} {!}"]),
    (
        "claim",
        &[
            "claim",
            "claim {!}",
            "claim --board {!}",
            "claim --run other {task/park}",
            "claim --run other {task/unpark}",
        ],
    ),
    ("claims", &["claims"]),
    ("completions", &["completions {!}"]),
    ("config", &["config"]),
    ("config-show", &["config show --agent {!}"]),
    ("demo", &["demo {!}"]),
    ("dep", &["dep"]),
    ("dep-add", &["dep add {task/edit} {!}"]),
    ("dep-rm", &["dep rm {task/edit} {!}"]),
    ("doctor", &["doctor --run {!}"]),
    ("done", &["done {!}", "done {task/edit} --output {!}"]),
    ("edit", &["edit {task/edit} --title {!}"]),
    ("end", &["end r --reason {!}", "end {!}"]),
    (
        "events",
        &[
            "events",
            "events --since start",
            "events --kind {!}",
            "events --resource {!}",
            "events --since {!}",
        ],
    ),
    ("export", &["export", "export {!}/x", "export --board {!}"]),
    ("fail", &["fail {!} --reason {!}"]),
    ("git", &["git"]),
    ("git-forget", &["git forget {!}"]),
    ("git-install", &["git install --require {!}", "git install --require main", "git install --remove"]),
    ("git-status", &["git status", "git status {!}"]),
    ("guard", &["guard {!}", "guard {task/edit}"]),
    ("hook", &["hook {!}", "hook stop --run {!}"]),
    ("lift", &["lift {!}", "lift me --reason {!}"]),
    ("import", &["import"]),
    ("import-agent-swarm", &["import agent-swarm {!}"]),
    ("import-jsonl", &["import jsonl {!}", "import jsonl hostile.jsonl", "import jsonl hostile.jsonl"]),
    ("import-pm", &["import pm {!}"]),
    ("inbox", &["inbox --agent bob"]),
    ("inbox-delegate", &["inbox delegate {inbox/read} --agent bob --title {!}"]),
    ("inbox-list", &["inbox list --agent bob"]),
    ("inbox-read", &["inbox read {inbox/read} --agent bob"]),
    ("inbox-respond", &["inbox respond {inbox/respond} {!} --agent bob"]),
    ("inbox-send", &["inbox send bob {!} --source {!} --sender {!} --channel {!} --thread {!}"]),
    ("init", &["init", "init --db {!}/x"]),
    ("key", &["key"]),
    ("key-add", &["key add {!} --role reader"]),
    ("key-list", &["key list --all"]),
    ("key-revoke", &["key revoke {!}"]),
    ("list", &["list", "list --status {!}", "list --{!}"]),
    ("lock", &["lock deploy -- {!}", "lock {!} -- true"]),
    (
        "log",
        &[
            "log {task/fail}",
            "log {task/reject}",
            "log {task/park}",
            "log {task/note}",
            "log {task/edit}",
            "log {!}",
        ],
    ),
    (
        "loop-start",
        &[
            "loop start hostile --prd prd.json",
            "loop start hostile --prd prd.json --project {!}",
            "loop start {!} --prd {!}",
        ],
    ),
    ("loop-next", &["loop next hostile", "loop next {!}"]),
    ("loop-step", &["loop step plan --learned {!}", "loop step plan --data {!}", "loop step {!}"]),
    ("loop-verdict", &["loop verdict fail --feedback {!}", "loop verdict {!}"]),
    (
        "loop-run",
        &["loop run hostile --config loops.toml", "loop run hostile --config {!}", "loop run {!} --prd {!}"],
    ),
    (
        "loop-status",
        &["loop status hostile --story S-1", "loop status {!}", "loop status hostile --story {!}"],
    ),
    ("loop", &["loop"]),
    ("loop-list", &["loop list --all"]),
    ("loop-guard", &["loop guard {!}"]),
    ("loop-cancel", &["loop cancel hostile --reason {!}", "loop cancel {!}"]),
    ("loop-restart", &["loop restart hostile --reason {!}", "loop restart {!}"]),
    ("mail", &["mail"]),
    ("mail-checkpoint", &["mail checkpoint {!} {!}"]),
    ("mail-claim", &["mail claim box --count 20", "mail claim {!}"]),
    ("mail-configure", &["mail configure box --max-attempts 3", "mail configure {!}"]),
    ("mail-discard", &["mail discard {mail/fail}"]),
    ("mail-done", &["mail done {!}", "mail done {!} {!}"]),
    ("mail-fail", &["mail fail {!} --reason {!}"]),
    ("mail-list", &["mail list", "mail list --status failed", "mail list --status {!}"]),
    ("mail-pause", &["mail pause other --reason {!}"]),
    ("mail-peek", &["mail peek box --count 20"]),
    (
        "mail-push",
        &["mail push box {!} --type {!} --header {!}={!} --lane {!}", "mail push --header {!} box x"],
    ),
    ("mail-redrive", &["mail redrive {!}"]),
    ("mail-release", &["mail release {!}"]),
    ("mail-reset", &["mail reset --run {!}"]),
    ("mail-resume", &["mail resume {!}", "mail resume other"]),
    (
        "mail-show",
        &["mail show {mail/fail}", "mail show {mail/done}", "mail show {mail/checkpoint}", "mail show {!}"],
    ),
    ("mail-stats", &["mail stats", "mail stats box", "mail stats {!}"]),
    ("mail-take", &["mail take box --count 5"]),
    ("mail-work", &["mail work box --drain --max 3 -- false", "mail work box --drain -- {!}"]),
    ("mcp", &["mcp --ttl {!}", "mcp"]),
    ("note", &["note {task/edit} {!}"]),
    ("offer", &["offer {task/note} {!}"]),
    (
        "once",
        &[
            "once --list",
            "once --list --status {!}",
            "once {once/finish}",
            "once {once/resolve}",
            "once {once/finish} -- true",
            "once {once/resolve} --remove",
            "once k -- {!}",
            "once {!} -- true",
            "once {!} --happened --note {!}",
        ],
    ),
    ("park", &["park {task/edit} --reason {!}"]),
    ("pause", &["pause {!} --reason {!}", "pause --for {!}"]),
    ("poll", &["poll --agent bob", "poll --agent bob", "poll --agent lead", "poll --agent {!}"]),
    ("prime", &["prime", "prime --board {!}", "prime --skill {!}"]),
    ("progress", &["progress {!} {!}"]),
    ("prune", &["prune --older-than {!}", "prune"]),
    ("ready", &["ready", "ready --board {!}"]),
    ("reject", &["reject {task/offer} --reason {!} --agent bob"]),
    ("release", &["release {!} --note {!}"]),
    ("renew", &["renew {!}"]),
    ("reopen", &["reopen {task/done} --reason {!}", "reopen {!}"]),
    ("resume", &["resume {!}"]),
    ("retry", &["retry {task/fail}", "retry {!}"]),
    ("route", &["route"]),
    ("route-add", &["route add slack --text {!} --to bob", "route add {!} --to {!} --channel {!}"]),
    ("route-again", &["route again"]),
    ("route-list", &["route list"]),
    ("route-rm", &["route rm {!}", "route rm 1 --reason {!}"]),
    ("route-unmatched", &["route unmatched"]),
    ("runs", &["runs --all"]),
    // There is no database of this name, so it does not serve.
    ("serve", &["serve --listen {!}", "serve --db {!}"]),
    ("settle", &["settle r --failed {!} --exit {!}", "settle {!}"]),
    (
        "setup",
        &[
            "setup {!}",
            "setup claude",
            "setup agents-md --board {!} --dry-run",
            "setup agents-md",
            "setup --check",
        ],
    ),
    (
        "show",
        &[
            "show {task/fail}",
            "show {task/reject}",
            "show {task/park}",
            "show {task/progress}",
            "show {task/checkpoint}",
            "show {task/note}",
            "show {task/done}",
            "show {task/edit}",
            "show {!}",
        ],
    ),
    ("top", &["top --once"]),
    ("trust", &["trust project", "trust --list", "trust project --revoke", "trust {!}"]),
    ("unclaim", &["unclaim {task/edit} --reason {!}", "unclaim {!}"]),
    ("unpark", &["unpark {task/park}"]),
    ("wait", &["wait {task/done} --timeout 1ms", "wait {!}"]),
    ("whoami", &["whoami --agent {!}", "whoami --db {!}"]),
    ("why", &["why {task/fail}", "why {task/park}", "why {task/reject}", "why {task/edit}", "why {!}"]),
    (
        "work",
        &[
            "work --plain --agent bob --drain --count 2 -- cat",
            "work --plain --drain --agent {!} -- cat",
            "work --plain --agent bob --drain --count 1 -- {!}",
            "work --agent bob --profile {!}",
            "work --plain --agent bob --drain --prompts {!} -- cat",
            "work --show-profile {!}",
            "work --show-prompt {!}",
        ],
    ),
];

/// All commands, from the manual pages.
fn commands(sealed: &Sealed) -> BTreeSet<String> {
    sealed.ok(&["man", "pages"]);
    let pages = std::fs::read_dir(sealed.path().join("pages")).expect("the pages");
    let names = pages.map(|page| page.expect("a page").file_name().into_string().expect("its name"));
    names
        .map(|page| {
            page.trim_start_matches("fence").trim_start_matches('-').trim_end_matches(".1").to_owned()
        })
        .collect()
}

#[test]
fn every_command_is_listed() {
    let all = commands(&Sealed::sqlite());
    let listed: BTreeSet<String> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let new: Vec<_> = all.difference(&listed).collect();
    assert!(new.is_empty(), "say in COMMANDS how these show something that others wrote: {new:?}");
    let old: Vec<_> = listed.difference(&all).collect();
    assert!(old.is_empty(), "these are no commands any more: {old:?}");
}

/// A fleet full of hostile texts, and the words of every command that shows one.
fn hostile_fleet() -> (Sealed, Vec<Vec<String>>) {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let used = seed(&sealed.url());
    let item = json!({ "id": "imported-1", "title": HOSTILE, "body": HOSTILE, HOSTILE: 1 });
    std::fs::write(sealed.path().join("hostile.jsonl"), item.to_string()).expect("written");
    let escaped: String = HOSTILE.chars().map(|c| format!("\\U{:08x}", u32::from(c))).collect();
    std::fs::create_dir(sealed.path().join("project")).expect("made");
    let settings = format!("agent = \"{escaped}\"\nurl = \"http://{escaped}\"\n");
    std::fs::write(sealed.path().join("project/fence.toml"), settings).expect("written");
    std::fs::write(sealed.path().join("AGENTS.md"), HOSTILE).expect("written");
    let twice = json!(HOSTILE);
    std::fs::create_dir(sealed.path().join(".claude")).expect("made");
    let twice = format!("{{{twice}: 1, {twice}: 1}}");
    std::fs::write(sealed.path().join(".claude/settings.json"), twice).expect("written");
    sealed.first_commit();
    let story =
        json!({ "id": "S-1", "title": HOSTILE, "description": HOSTILE, "acceptance_criteria": [HOSTILE] });
    let prd = json!({ "project": HOSTILE, "stories": [story] });
    std::fs::write(sealed.path().join("prd.json"), prd.to_string()).expect("written");
    let steps = "steps = ['implement']\nstep.implement = 'cat; exit 1'\n";
    std::fs::write(sealed.path().join("loops.toml"), steps).expect("written");
    let lines = COMMANDS.iter().flat_map(|(_, lines)| lines.iter());
    let lines = lines.map(|line| line.split_whitespace().map(|word| fill(word, &used)).collect()).collect();
    (sealed, lines)
}

/// A script that runs all the commands.
fn script(lines: &[Vec<String>], more: &str) -> String {
    let quoted =
        |words: &[String]| words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let lines = lines.iter().map(|words| format!("fence {more} {} < /dev/null\n", quoted(words)));
    format!("export FENCE_RUN=me\n{}", lines.collect::<String>())
}

#[test]
fn no_text_acts_on_a_terminal() {
    let (sealed, lines) = hostile_fleet();
    sealed.script("terminal.sh", &script(&lines, ""));
    let shown = sealed.sh("script -qec 'stty cols 100; ./terminal.sh' /dev/null < /dev/null");
    look("a terminal", &plain(&shown.out));
    assert!(
        shown.out.contains("\\u{1b}[2J") && shown.out.contains("    error: forged"),
        "it is shown: {shown:?}"
    );
}

#[test]
fn no_text_acts_on_readers_of_json() {
    let (sealed, lines) = hostile_fleet();
    sealed.script("json.sh", &script(&lines, "--json"));
    let said = sealed.sh("./json.sh 2>&1");
    look("--json", &said.out);
    assert!(said.out.contains("error: forged"), "it is shown: {said:?}");
}

#[test]
fn no_text_begins_at_the_margin() {
    let (sealed, lines) = hostile_fleet();
    for words in &lines {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = sealed.fence(&words);
        look(&format!("fence {words:?}"), &said.out);
        look(&format!("fence {words:?}, its errors"), &said.err);
    }
}

fn fill(word: &str, used: &BTreeMap<String, String>) -> String {
    let word = word.replace("{!}", HOSTILE);
    match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
        Some(op) => used.get(op).unwrap_or_else(|| panic!("{op} was not done to anything: {used:?}")).clone(),
        None => word,
    }
}

/// JSON with escaped characters means the same to programs.
#[test]
fn json_keeps_texts_unchanged() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "x", "--body", HOSTILE]);
    sealed.ok(&["mail", "push", "box", "--text", HOSTILE]);
    let shown: Value = serde_json::from_str(&sealed.ok(&["--json", "show", "main-1"])).expect("JSON");
    assert_eq!(shown["task"]["body"], HOSTILE);
    let claimed: Value = serde_json::from_str(&sealed.ok(&["--json", "mail", "claim", "box"])).expect("JSON");
    assert_eq!(claimed["claims"][0]["message"]["payload"], HOSTILE);
}

/// A server at any address can send any text.
#[test]
fn the_texts_of_a_server_are_untrusted() {
    let sealed = Sealed::sqlite();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let bodies = [
        json!({ "error": { "code": "not_found", "message": HOSTILE, "hint": HOSTILE } }).to_string(),
        HOSTILE.to_owned(),
    ];
    let answers = bodies.clone();
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(stream.try_clone().expect("the same")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = &answers[n.min(1)];
            let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
        }
    });
    for _ in &bodies {
        let said = sealed.fence(&["--url", &url, "show", "main-1"]);
        assert!(!said.err.is_empty() && said.code != 0, "{said:?}");
        look("a server's error", &said.err);
    }
    let said = eventually("the server is asked", || {
        Some(sealed.fence(&["--json", "--url", &url, "show", "main-1"]))
    });
    look("a server's error as JSON", &said.err);
}
