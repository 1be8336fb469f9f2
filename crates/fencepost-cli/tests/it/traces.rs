//! Traces of a real server, at a collector that speaks OTLP over HTTP.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
    serve::{Served, answer},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value},
    trace::v1::{Span, status::StatusCode},
};
use prost::Message;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

/// A collector that stores all spans.
struct Collector {
    url: String,
    sent: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = sent.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, seen) = (stream.expect("a connection"), seen.clone());
                std::thread::spawn(move || while take(&stream, &seen).is_some() {});
            }
        });
        Self { url, sent }
    }

    /// Every span so far, with the name of the service.
    fn spans(&self) -> Vec<(Span, String)> {
        let sent = self.sent.lock().expect("not poisoned");
        let of = sent.iter().flat_map(|request| &request.resource_spans).flat_map(|of| {
            let resource = of.resource.clone().unwrap_or_default();
            let service = texts(&resource.attributes).remove("service.name").unwrap_or_default();
            let spans = of.scope_spans.iter().flat_map(|scope| scope.spans.clone());
            spans.map(move |span| (span, service.clone()))
        });
        of.collect()
    }

    fn span(&self, name: &str) -> (Span, String) {
        eventually("the span arrives", || self.spans().into_iter().find(|(span, _)| span.name == name))
    }
}

/// One request, answered.
fn take(stream: &TcpStream, seen: &Mutex<Vec<ExportTraceServiceRequest>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        (reader.read_until(b'\n', &mut head).ok()? > 0).then_some(())?;
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    assert!(head.starts_with("post /v1/traces ") && head.contains("application/x-protobuf"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.trim().parse().expect("a number")];
    reader.read_exact(&mut body).ok()?;
    seen.lock().expect("not poisoned").push(ExportTraceServiceRequest::decode(&*body).expect("OTLP"));
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone()?.value? {
        any_value::Value::StringValue(text) => Some((attribute.key.clone(), text)),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Calls an op as a client with a trace of its own.
fn call_traced(server: &Served, op: &str, body: Value, parent: &str) -> u16 {
    let (body, mut stream) = (body.to_string(), server.connect());
    write!(
        stream,
        "POST /v1/{op} HTTP/1.1\r\nHost: {}\r\nTraceparent: {parent}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    )
    .expect("sent");
    answer(stream).0
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

on_both! {
    without a server:

    fn a_call_is_part_of_its_clients_trace(sealed: Sealed) {
        sealed.ok(&["init"]);
        let collector = Collector::start();
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
        let server = Served::start_with(&sealed, &[], &variables);
        let parent = format!("00-{TRACE}-{PARENT}-01");
        server.call("task/add", json!({ "board": "auth", "title": "one" }));
        let claim = json!({ "run": "r-1", "agent": "codex", "task": "auth-1" });
        assert_eq!(call_traced(&server, "task/claim", claim, &parent), 200);
        let (span, service) = collector.span("task/claim");
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id), service), (TRACE.into(), PARENT.into(), "fence".into()));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
        let said = texts(&span.attributes);
        let wanted = [("agent", "codex"), ("op", "task/claim"), ("outcome", "ok"), ("run", "r-1")];
        assert_eq!(said, wanted.map(|(name, value)| (format!("fence.{name}"), value.to_owned())).into());
        // A call without a parent begins a trace.
        let (root, _) = collector.span("task/add");
        assert!(root.parent_span_id.is_empty() && hex(&root.trace_id) != TRACE);
        // A refusal is no error of the span.
        call_traced(&server, "claim/release", json!({ "token": "lock/x@1" }), &parent);
        let (refused, _) = collector.span("claim/release");
        assert_eq!(texts(&refused.attributes)["fence.outcome"], "not_found");
        assert_eq!(refused.status.unwrap_or_default().code, StatusCode::Unset as i32);
        // The client asks not to record it.
        call_traced(&server, "task/show", json!({ "task": "auth-1" }), &format!("00-{TRACE}-{PARENT}-00"));
        call_traced(&server, "task/list", json!({}), &parent);
        collector.span("task/list");
        assert!(collector.spans().iter().all(|(span, _)| span.name != "task/show"));
    }
}

#[test]
fn the_last_spans_are_sent_before_a_server_ends() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let collector = Collector::start();
    let endpoint = format!("{}/v1/traces", collector.url);
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_SERVICE_NAME", "night shift"),
    ];
    let ended = |more: &[(&str, &str)]| {
        let mut server = Served::start_with(&sealed, &[], &[&variables[..], more].concat());
        assert_eq!(server.call("admin/about", json!({})).0, 200);
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
        collector.spans().len()
    };
    for off in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ] {
        assert_eq!(ended(&[off]), 0, "{off:?}");
    }
    assert_eq!(ended(&[]), 1);
    assert_eq!(collector.span("admin/about").1, "night shift");
}

/// A collector that is down, and one that never answers.
#[test]
fn a_collector_that_is_down_blocks_nothing() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
    let deaf = format!("http://{}", deaf.local_addr().expect("its address"));
    for endpoint in ["http://127.0.0.1:9", &deaf] {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "1"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
        ];
        let mut server = Served::start_with(&sealed, &[], &variables);
        for _ in 0..200 {
            assert_eq!(server.call("admin/about", json!({})).0, 200);
        }
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{endpoint}");
    }
}
