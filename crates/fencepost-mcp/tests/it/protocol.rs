//! The protocol: its versions, unknown tools, resources.

use crate::client::{Client, Local, config, served};
use fencepost_testing::World;
use rmcp::{
    model::{ProtocolVersion, ReadResourceRequestParams, ResourceContents},
    service::{ClientLifecycleMode, serve_client_with_lifecycle},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// Lines of JSON, sent as they are.
struct Raw(BufReader<tokio::io::DuplexStream>);

impl Raw {
    async fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).await.expect("sent");
    }

    async fn next(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }
}

#[tokio::test]
async fn every_version_is_agreed_on() {
    for version in ["2025-06-18", "2025-11-25"] {
        let world = World::sqlite().await;
        world.add("one").await;
        let mut raw = Raw(BufReader::new(served(Local::new(&world, "r"))));
        let info = json!({"name": "x", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": info});
        raw.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string())
            .await;
        assert_eq!(raw.next().await["result"]["protocolVersion"], version);
        raw.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        raw.send(r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"claim"}}"#).await;
        let reply = raw.next().await;
        assert_eq!(reply["result"]["structuredContent"]["claim"]["token"], "task/auth-1@1", "{reply}");
        assert!(reply["result"].get("resultType").is_none(), "an older version has no such field: {reply}");
    }
}

#[tokio::test]
async fn the_newest_version_needs_no_handshake() {
    let world = World::sqlite().await;
    world.add("one").await;
    let mode = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    let host = Local::new(&world, "r");
    let peer = serve_client_with_lifecycle(config("codex-mcp-client"), served(host), mode)
        .await
        .expect("discovered");
    let client = Client { peer, meta: json!({"sessionId": "s-1"}) };
    assert_eq!(client.peer.list_all_tools().await.expect("tools").len(), 9);
    assert_eq!(client.ok("claim", json!({})).await["claim"]["run"], "codex-s-1");

    // A client that asks first and then shakes hands, as Claude Code 2.1.325 does.
    let mut raw = Raw(BufReader::new(served(Local::new(&world, "r"))));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    raw.send(
        &json!({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": meta}})
            .to_string(),
    )
    .await;
    let reply = raw.next().await;
    assert_eq!(
        reply["result"]["supportedVersions"],
        json!(["2025-06-18", "2025-11-25", "2026-07-28"]),
        "{reply}"
    );
    raw.send(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#).await;
    assert_eq!(raw.next().await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn an_unknown_tool_is_a_protocol_error_and_wrong_arguments_are_not() {
    let world = World::sqlite().await;
    let client = Client::new(Local::new(&world, "r")).await;
    let error = client.try_call("claim_task", json!({})).await.expect_err("no such tool");
    assert!(error.to_string().contains("there is no tool `claim_task`"), "{error}");
    for (tool, arguments, field) in [
        ("claim", json!({"id": "main-1"}), "id"),
        ("claim", json!({"wait_seconds": "10"}), "wait_seconds"),
        ("claim", json!({"wait_seconds": 999_999}), "wait_seconds"),
        ("claim", json!({"run": "refused"}), "run"),
        ("claim", json!({"run": "no such name!"}), "run"),
        ("finish", json!({}), "how"),
        ("finish", json!({"how": "done", "reason": "x"}), "reason"),
        ("plan", json!({"body": "x"}), "title"),
        ("say", json!({"text": "x"}), "channel"),
        ("report", json!({"phase": "x", "token": "task/main-1@1"}), "ordinal"),
        ("look", json!({"what": "why"}), "task"),
        ("settle", json!({}), "run"),
    ] {
        let refused = client.call(tool, arguments.clone()).await.0;
        let error = &refused["error"];
        assert_eq!(
            (&error["code"], &error["field"]),
            (&json!("invalid"), &json!(field)),
            "{tool} {arguments}: {refused}"
        );
    }
}

#[tokio::test]
async fn resources() {
    let world = World::sqlite().await;
    let task = world.add("write it").await;
    let client = Client::new(Local::new(&world, "r")).await;
    let listed = client.peer.list_all_resources().await.expect("a list");
    let uris: Vec<_> = listed.iter().map(|resource| resource.uri.as_str()).collect();
    assert_eq!(uris, ["fence://prime", "fence://board/auth"]);
    let templates = client.peer.list_all_resource_templates().await.expect("a list");
    let templates: Vec<_> = templates.iter().map(|template| template.uri_template.as_str()).collect();
    assert_eq!(templates, ["fence://board/{board}", "fence://task/{task}"]);
    let read = async |uri: String| {
        let read = client.peer.read_resource(ReadResourceRequestParams::new(uri)).await;
        read.map(|read| match read.contents.into_iter().next() {
            Some(ResourceContents::TextResourceContents { text, .. }) => text,
            other => panic!("{other:?}"),
        })
    };
    let page = read("fence://prime".into()).await.expect("the page");
    let names: Vec<_> =
        client.peer.list_all_tools().await.expect("tools").into_iter().map(|tool| tool.name).collect();
    assert!(names.iter().all(|name| page.contains(&format!("`{name}`"))), "the page names every tool");
    for uri in [format!("fence://task/{task}"), "fence://board/auth".into()] {
        let page: Value = serde_json::from_str(&read(uri).await.expect("a page")).expect("JSON");
        let task = if page["task"].is_object() { &page["task"] } else { &page["tasks"][0] };
        assert_eq!(task["from_others"]["title"], "write it", "{page}");
    }
    for uri in ["fence://task/main-9", "fence://board/none", "fence://secrets", "file:///etc/passwd"] {
        let error = read(uri.into()).await.expect_err("no such thing");
        assert!(error.to_string().contains("no"), "{error}");
    }
}
