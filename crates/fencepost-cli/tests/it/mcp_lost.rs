//! Clients of `fence mcp` that are killed, or that disappear in the middle of a call.

use crate::{
    mcp::Client,
    on_both,
    sealed::{Sealed, eventually},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Stdio},
};

/// A client that is a process of its own: a script that starts the server and passes the messages on.
fn client(sealed: &Sealed, variables: &[(&str, &str)]) -> Client {
    sealed.script("client", "fence mcp --ttl 30m\nexit");
    let mut command = sealed.command("setsid");
    command.arg("./client").envs(variables.iter().copied());
    Client::of(command, "codex-mcp-client")
}

fn held(sealed: &Sealed) -> String {
    sealed.ok(&["claims", "--json"])
}

on_both! {
    fn a_killed_client_gives_its_task_back(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        // By its variable, by its calls, and by its connection.
        let sessions = [
            (vec![("CLAUDE_CODE_SESSION_ID", "5e55")], json!({}), "claude-5e55"),
            (vec![], json!({"sessionId": "01a1", "callId": "c"}), "codex-01a1"),
            (vec![], json!({}), "mcp-"),
        ];
        for (variables, meta, run) in sessions {
            let mut client = client(&sealed, &variables);
            client.meta = meta;
            let claimed = client.ok("claim", json!({}));
            assert!(claimed["claim"]["run"].as_str().is_some_and(|name| name.starts_with(run)), "{claimed}");
            assert!(claimed.get("warning").is_none(), "{claimed}");
            // The lease is long: only the keeper can give the task back.
            client.child.kill().expect("killed");
            drop(client);
            eventually("the task is back", || (!held(&sealed).contains("main-1")).then_some(()));
            let shown = sealed.ok(&["show", "main-1", "--json"]);
            assert!(shown.contains("\"attempts\":0"), "the attempt does not count: {shown}");
        }
    }

    fn a_client_that_disappears_while_it_waits_gets_nothing(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held"]);
        sealed.ok(&["claim", "main-1"]);
        let (mut server, input) = unread(&sealed, &json!({"wait_seconds": 600}));
        drop(input);
        // It may be there before the server notices that its client is gone.
        sealed.ok(&["add", "free"]);
        assert!(server.wait().expect("its end").success(), "it does not wait for ten minutes");
        assert!(!held(&sealed).contains("main-2"), "{}", held(&sealed));
        assert!(sealed.ok(&["ready"]).contains("main-2"));
    }

    fn a_reply_that_nobody_reads_gives_its_claim_back(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        let (mut server, input) = unread(&sealed, &json!({}));
        drop(input);
        server.wait().expect("its end");
        assert!(!held(&sealed).contains("main-1"), "{}", held(&sealed));
        assert!(sealed.ok(&["ready"]).contains("main-1"));
    }

at once:

    fn without_a_keeper_the_server_renews(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        // A keeper has no place for its file.
        if sealed.is_in_its_work_tree() {
            std::fs::write(sealed.path().join(".fence/fence.db-keepers"), "").expect("a file");
        }
        let mut command = sealed.command("fence");
        command.args(["mcp", "--ttl", "100s"]).env("XDG_RUNTIME_DIR", "/dev/null").env("TMPDIR", "/dev/null");
        let mut client = Client::of(command, "x");
        let claimed = client.ok("claim", json!({}));
        assert!(claimed["warning"].as_str().is_some_and(|warning| warning.contains("while this MCP server runs")), "{claimed}");
        let expires = claimed["claim"]["expires_at"].as_str().expect("a time").to_owned();
        eventually("the claim is renewed", || (!held(&sealed).contains(&expires)).then_some(()));
        assert!(held(&sealed).contains("main-1"));
        assert_eq!(client.close(), 0);
    }
}

/// A server that got a claim from a client that reads nothing any more.
fn unread(sealed: &Sealed, arguments: &Value) -> (Child, ChildStdin) {
    let mut command = sealed.command("fence");
    command.args(["mcp", "--ttl", "30m"]).env("CLAUDE_CODE_SESSION_ID", "5e55");
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("fence mcp");
    let (mut input, output) =
        (server.stdin.take().expect("its input"), server.stdout.take().expect("its output"));
    let info = json!({"name": "x", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
        .expect("sent");
    BufReader::new(output).read_line(&mut String::new()).expect("a reply");
    let call = json!({"name": "claim", "arguments": arguments});
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}))
        .expect("sent");
    (server, input)
}
