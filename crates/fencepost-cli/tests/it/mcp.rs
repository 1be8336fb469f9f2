//! `fence mcp` as its clients start it: real processes, recorded messages, and the client of `rmcp`.

use crate::{
    on_both,
    sealed::{Finished, Sealed, finished},
};
use rmcp::{
    ServiceExt,
    model::{CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// An MCP client that sends lines, and the server behind it.
pub struct Client {
    pub child: Child,
    input: Option<ChildStdin>,
    output: mpsc::Receiver<String>,
    sent: i64,
    pub meta: Value,
}

impl Client {
    /// Starts `fence mcp` with these variables, and shakes hands as this client.
    pub fn start(sealed: &Sealed, name: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = sealed.command("fence");
        command.arg("mcp").args(["--ttl", "30m"]).envs(variables.iter().copied());
        Self::of(command, name)
    }

    /// Starts a command that serves MCP.
    pub fn of(mut command: Command, name: &str) -> Self {
        let mut client = Self::without_handshake(&mut command);
        let info = json!({"name": name, "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
        let reply = client.ask("initialize", params);
        assert_eq!(reply["result"]["serverInfo"]["name"], "fence", "{reply}");
        client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client
    }

    pub fn without_handshake(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("its output"));
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|read| line.send(read))
        });
        Self { child, input, output: lines, sent: 100, meta: json!({}) }
    }

    pub fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("an open connection");
        writeln!(input, "{line}").expect("it reads");
        input.flush().expect("it reads");
    }

    /// The next message of the server.
    pub fn next(&self) -> Value {
        let line = self.output.recv_timeout(Duration::from_secs(120)).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        let reply = self.next();
        assert_eq!(reply["id"], id, "{reply}");
        reply
    }

    /// Sends a call of a tool, and does not wait.
    pub fn begin(&mut self, tool: &str, arguments: Value) {
        self.sent += 1;
        let params = json!({"name": tool, "arguments": arguments, "_meta": self.meta});
        let call = json!({"jsonrpc": "2.0", "id": self.sent, "method": "tools/call", "params": params});
        self.send(&call.to_string());
    }

    /// Calls a tool and returns the structure of its result.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.begin(tool, arguments);
        self.next()["result"]["structuredContent"].clone()
    }

    /// Calls a tool that must not refuse.
    #[track_caller]
    pub fn ok(&mut self, tool: &str, arguments: Value) -> Value {
        let reply = self.call(tool, arguments);
        assert!(reply.is_object() && reply.get("error").is_none(), "{tool}: {reply}");
        reply
    }

    /// The code of a refusal.
    #[track_caller]
    pub fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let reply = self.call(tool, arguments);
        reply["error"]["code"].as_str().unwrap_or_else(|| panic!("{tool}: {reply}")).to_owned()
    }

    /// Closes the connection and waits for the server to end by itself.
    pub fn close(mut self) -> i32 {
        drop(self.input.take());
        self.child.wait().expect("its end").code().unwrap_or(-1)
    }
}

/// A server that a failed test leaves behind would keep its claims.
impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell command of a client's session.
fn shell(sealed: &Sealed, session: (&str, &str), words: &[&str]) -> Finished {
    finished(sealed.command("fence").env(session.0, session.1).args(words).output().expect("fence"))
}

/// Sends recorded lines, and returns the replies.
fn replay(client: &mut Client, recorded: &str) -> Vec<Value> {
    let mut replies = Vec::new();
    for line in recorded.lines() {
        client.send(line);
        let sent: Value = serde_json::from_str(line).expect("JSON");
        if sent.get("id").is_some() {
            let reply = client.next();
            assert_eq!(reply["id"], sent["id"], "{reply}");
            replies.push(reply["result"].clone());
        }
    }
    replies
}

on_both! {
    fn one_session_is_one_run_by_mcp_and_by_shell(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        sealed.ok(&["add", "two"]);
        let session = ("CLAUDE_CODE_SESSION_ID", "5e55-10");
        let mut claude = Client::start(&sealed, "claude-code", &[session]);
        let claimed = claude.ok("claim", json!({}));
        assert_eq!(claimed["claim"]["run"], "claude-5e55-10");
        assert_eq!(shell(&sealed, session, &["guard"]).code, 0);
        assert_eq!(shell(&sealed, ("CLAUDE_CODE_SESSION_ID", "another"), &["guard"]).code, 1, "another session holds nothing");
        assert_eq!(shell(&sealed, session, &["done", "--output", "by shell"]).code, 0);
        assert_eq!(claude.refused("guard", json!({"token": claimed["claim"]["token"]})), "already_finished");

        // Codex names its session with each call, and its shell has it in a variable.
        let mut codex = Client::start(&sealed, "codex-mcp-client", &[]);
        codex.meta = json!({"callId": "call_1", "sessionId": "01a1-ef", "threadId": "01a1-ef"});
        let token = codex.ok("claim", json!({}))["claim"]["token"].as_str().expect("a token").to_owned();
        assert_eq!(shell(&sealed, ("CODEX_SESSION_ID", "01a1-ef"), &["guard", &token]).code, 0);
        sealed.ok(&["unclaim", "task/main-2"]);
        assert_eq!(shell(&sealed, ("CODEX_SESSION_ID", "01a1-ef"), &["guard"]).code, 5, "it must not push");
        assert_eq!(codex.refused("guard", json!({})), "lease_expired");
        assert_eq!(codex.close(), 0);
        assert_eq!(claude.close(), 0);
    }

    fn a_client_of_fence_work_acts_for_its_run_alone(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        sealed.ok(&["add", "two"]);
        let token = sealed.ok(&["claim", "main-1", "-q"]);
        let variables =
            [("FENCE_RUN", "me"), ("FENCE_CLAIM", token.as_str()), ("CLAUDE_CODE_SESSION_ID", "inner")];
        let mut client = Client::start(&sealed, "claude-code", &variables);
        client.meta = json!({"sessionId": "another"});
        let mine = client.ok("look", json!({"what": "mine"}));
        assert_eq!((&mine["run"], &mine["token"]), (&json!("me"), &json!(token)), "{mine}");
        assert_eq!(client.refused("claim", json!({"run": "sub"})), "invalid");
        assert_eq!(client.refused("poll", json!({})), "not_ready");
        client.ok("finish", json!({"how": "done"}));
        assert_eq!(client.close(), 0);
        let runs = sealed.ok(&["runs", "--all", "--json"]);
        assert!(!runs.contains("claude-inner") && !runs.contains("claude-another"), "{runs}");
    }

    fn two_sessions_never_share_a_task(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three", "four"] {
            sealed.ok(&["add", title]);
        }
        // The clients name no session, so each connection is a run of its own, although they share a terminal.
        let mut clients: Vec<_> = (0..6).map(|_| Client::start(&sealed, "other", &[])).collect();
        clients.iter_mut().for_each(|client| client.begin("claim", json!({})));
        let replies: Vec<_> = clients.iter().map(|client| client.next()["result"]["structuredContent"].clone()).collect();
        let mut tokens: Vec<_> = replies.iter().filter_map(|reply| reply["claim"]["token"].as_str()).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, ["task/main-1@1", "task/main-2@1", "task/main-3@1", "task/main-4@1"], "{replies:?}");
        let mut runs: Vec<_> = replies.iter().filter_map(|reply| reply["claim"]["run"].as_str()).collect();
        runs.sort_unstable();
        runs.dedup();
        assert_eq!(runs.len(), 4, "{runs:?}");
        let refused: Vec<_> = replies.iter().filter_map(|reply| reply["error"]["code"].as_str()).collect();
        assert_eq!(refused, ["none_ready", "none_ready"]);
    }
}

#[test]
fn recorded_messages_of_claude_code() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    let mut command = sealed.command("fence");
    command
        .args(["mcp", "--ttl", "30m"])
        .env("CLAUDE_CODE_SESSION_ID", "2548a5a1-f202")
        .env("CLAUDECODE", "1");
    let mut client = Client::without_handshake(&mut command);
    let replies = replay(&mut client, include_str!("../data/mcp/claude.jsonl"));
    assert_eq!(replies[0]["protocolVersion"], "2025-11-25");
    let calls: Vec<_> =
        replies[replies.len() - 3..].iter().map(|reply| &reply["structuredContent"]).collect();
    assert_eq!(calls[0]["claim"]["run"], "claude-2548a5a1-f202");
    assert_eq!((&calls[1]["ok"], &calls[2]["task"]["status"]), (&json!(true), &json!("completed")));
    assert_eq!(client.close(), 0);
}

#[test]
fn recorded_messages_of_codex() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    sealed.ok(&["add", "two"]);
    let recorded = include_str!("../data/mcp/codex.jsonl");
    let mut client = Client::without_handshake(sealed.command("fence").args(["mcp", "--ttl", "30m"]));
    let replies = replay(&mut client, recorded);
    assert_eq!(replies[0]["protocolVersion"], "2025-06-18");
    let calls: Vec<_> =
        replies[replies.len() - 3..].iter().map(|reply| &reply["structuredContent"]).collect();
    assert_eq!(calls[0]["claim"]["run"], "codex-01a1ef36-4568-70f1-855c-9d91e21fb26a");
    assert_eq!(calls[2]["task"]["status"], "completed");
    assert_eq!(client.close(), 0);

    // Its calls again, by a new connection: nothing happens twice.
    let mut again = Client::without_handshake(sealed.command("fence").args(["mcp", "--ttl", "30m"]));
    let repeated = replay(&mut again, recorded);
    let token = |replies: &[Value]| replies[replies.len() - 3]["structuredContent"]["claim"]["token"].clone();
    assert_eq!(token(&repeated), token(&replies), "{repeated:?}");
    assert!(sealed.ok(&["ready"]).contains("main-2"));
}

#[test]
fn the_client_of_rmcp() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    let mut command = tokio::process::Command::from(sealed.command("fence"));
    command.args(["mcp", "--ttl", "30m"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut child = command.spawn().expect("fence mcp");
        let pipes = (child.stdout.take().expect("its output"), child.stdin.take().expect("its input"));
        let config = ClientConfig::new(ClientCapabilities::default(), Implementation::new("my-client", "1"));
        let client = config.serve(pipes).await.expect("a connection");
        let tools = client.list_all_tools().await.expect("a list");
        let listed = rmcp::model::ListToolsResult::with_all_items(tools);
        let size = serde_json::to_string(&listed).expect("JSON").len();
        assert!(listed.tools.len() <= 9 && size < 8 * 1024, "{size} bytes");
        let claimed = client.call_tool(CallToolRequestParams::new("claim")).await.expect("a result");
        let claimed = claimed.structured_content.expect("a structure");
        assert!(claimed["claim"]["run"].as_str().is_some_and(|run| run.starts_with("mcp-")), "{claimed}");
        client.cancel().await.expect("closed");
        assert!(child.wait().await.expect("its end").success());
    });
}

#[test]
fn malformed_and_oversized_messages_do_no_harm() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    let mut client = Client::start(&sealed, "x", &[("CLAUDE_CODE_SESSION_ID", "s")]);
    client.send("garbage");
    client.send("{\"jsonrpc\":\"2.0\",\"id\":");
    client.send(&format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}", "x".repeat(9 * 1024 * 1024)));
    client.send(&"[".repeat(100_000));
    let huge = client.refused("plan", json!({"title": "x", "body": "y".repeat(300 * 1024)}));
    assert_eq!(huge, "too_large");
    assert_eq!(client.refused("plan", json!({"title": "x".repeat(2000)})), "too_large");
    client.ok("claim", json!({}));
    assert_eq!(client.close(), 0);

    // A peer that does not speak the protocol is told so.
    let mut stranger = Client::without_handshake(sealed.command("fence").arg("mcp").stderr(Stdio::null()));
    stranger.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(stranger.close(), 1);
    let nobody = Client::without_handshake(sealed.command("fence").arg("mcp"));
    assert_eq!(nobody.close(), 0);
}

#[test]
fn a_fleet_may_be_created_while_the_client_runs() {
    let sealed = Sealed::sqlite();
    let mut client = Client::start(&sealed, "x", &[]);
    let refused = client.call("claim", json!({}));
    assert_eq!(refused["error"]["code"], "unavailable", "{refused}");
    assert!(refused["error"]["hint"].as_str().is_some_and(|hint| hint.contains("init")), "{refused}");
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    client.ok("claim", json!({}));
}
