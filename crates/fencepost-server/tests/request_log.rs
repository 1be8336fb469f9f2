//! The request log and the spans.
//!
//! This is a test binary of its own: `tracing` decides once for the process, in the thread that first writes a line,
//! whether anybody wants it. Beside other tests that could be a thread without a subscriber.

use axum::{Router, body::Body, http::Request, response::Response};
use fencepost::Fleet;
use fencepost_server::{App, Settings, router};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use serde_json::json;
use std::{
    fmt,
    sync::{Arc, Mutex},
};
use tower::ServiceExt;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The fields of all lines and spans.
#[derive(Debug, Clone, Default)]
struct Recorded(Arc<Mutex<Vec<(String, String)>>>);

impl Recorded {
    fn add(&self, field: &str, text: String) {
        self.0.lock().expect("not poisoned").push((field.into(), text));
    }
    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

impl Visit for Recorded {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.add(field.name(), text.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Recorded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "fence::request"
    }
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl SpanExporter for Recorded {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for attribute in spans.into_iter().flat_map(|span| span.attributes) {
            self.add(attribute.key.as_str(), attribute.value.to_string());
        }
        Ok(())
    }
}

/// On one thread, because the subscriber is that of the thread.
#[tokio::test]
async fn only_the_beginning_of_an_unchecked_text_is_logged() {
    let recorded = Recorded::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(recorded.clone()).build();
    let dir = tempfile::tempdir().expect("a directory");
    let fleet =
        Fleet::open(&dir.path().join("fence.db").display().to_string()).await.expect("the fleet opens");
    let mut settings = Settings::new("127.0.0.1:7373".parse().expect("an address"));
    settings.tracer = Some(provider.tracer("test"));
    let router = router(App::new(fleet, settings));
    let _subscriber = tracing::subscriber::set_default(recorded.clone());

    // Three bytes each: cut between characters.
    let long = "語".repeat(100_000);
    let begins = format!("{}…", "語".repeat(200));
    let request = json!({ "run": long, "agent": long, "token": long }).to_string();
    assert_eq!(send(&router, "POST", "/v1/task/claim", request).await.status(), 400);
    let fields = recorded.take();
    for field in ["run", "agent", "token", "fence.run", "fence.agent", "fence.token"] {
        let text = fields.iter().find_map(|(name, text)| (name == field).then_some(text));
        assert!(text == Some(&begins), "{field} has {:?} bytes", text.map(String::len));
    }

    let unknown = format!("/v1/{}", "x".repeat(10_000));
    assert_eq!(send(&router, "GET", &unknown, String::new()).await.status(), 404);
    let fields = recorded.take();
    let path = fields.iter().find_map(|(name, text)| (name == "path").then_some(text)).expect("its path");
    assert_eq!(*path, format!("/v1/{}…", "x".repeat(196)));

    // The longest possible token is logged whole.
    let token = format!("task/{}-{max}@{max}", "b".repeat(128), max = i64::MAX);
    let request = json!({ "token": token }).to_string();
    assert_eq!(send(&router, "POST", "/v1/task/done", request).await.status(), 404);
    let fields = recorded.take();
    assert!(fields.contains(&("token".into(), token.clone())), "{fields:?}");
    assert!(fields.contains(&("fence.token".into(), token)), "{fields:?}");
}

async fn send(router: &Router, method: &str, path: &str, body: String) -> Response {
    let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7373");
    let request = request.header("content-type", "application/json").body(Body::from(body));
    router.clone().oneshot(request.expect("a request")).await.expect("the router never fails")
}
