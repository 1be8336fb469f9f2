//! What is told of a request, in the log and in spans.
//!
//! A process of its own: whether a line is caught is decided once for the whole process, by the thread that first
//! writes it. Beside other tests, that could be a thread of theirs, where nobody listens.

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

/// Everything that lines and spans say, by field.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, String)>>>);

impl Told {
    fn add(&self, field: &str, text: String) {
        self.0.lock().expect("what was told").push((field.into(), text));
    }
    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().expect("what was told"))
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.add(field.name(), text.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Told {
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

impl SpanExporter for Told {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for said in spans.into_iter().flat_map(|span| span.attributes) {
            self.add(said.key.as_str(), said.value.to_string());
        }
        Ok(())
    }
}

/// One thread: lines are caught where they are written.
#[tokio::test]
async fn of_an_unchecked_text_only_the_beginning_is_told() {
    let told = Told::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(told.clone()).build();
    let dir = tempfile::tempdir().expect("a directory");
    let fleet =
        Fleet::open(&dir.path().join("fence.db").display().to_string()).await.expect("the fleet opens");
    let mut settings = Settings::new("127.0.0.1:7373".parse().expect("an address"));
    settings.tracer = Some(provider.tracer("test"));
    let router = router(App::new(fleet, settings));
    let _caught = tracing::subscriber::set_default(told.clone());

    // Three bytes each: cut between characters.
    let long = "語".repeat(100_000);
    let begins = format!("{}…", "語".repeat(200));
    let request = json!({ "run": long, "agent": long, "token": long }).to_string();
    assert_eq!(send(&router, "POST", "/v1/task/claim", request).await.status(), 400);
    let said = told.take();
    for field in ["run", "agent", "token", "fence.run", "fence.agent", "fence.token"] {
        let text = said.iter().find_map(|(name, text)| (name == field).then_some(text));
        assert!(text == Some(&begins), "{field} has {:?} bytes", text.map(String::len));
    }

    let nowhere = format!("/v1/{}", "x".repeat(10_000));
    assert_eq!(send(&router, "GET", &nowhere, String::new()).await.status(), 404);
    let said = told.take();
    let path = said.iter().find_map(|(name, text)| (name == "path").then_some(text)).expect("its path");
    assert_eq!(*path, format!("/v1/{}…", "x".repeat(196)));

    // The longest token that there can be is told whole.
    let token = format!("task/{}-{max}@{max}", "b".repeat(128), max = i64::MAX);
    let request = json!({ "token": token }).to_string();
    assert_eq!(send(&router, "POST", "/v1/task/done", request).await.status(), 404);
    let said = told.take();
    assert!(said.contains(&("token".into(), token.clone())), "{said:?}");
    assert!(said.contains(&("fence.token".into(), token)), "{said:?}");
}

async fn send(router: &Router, method: &str, path: &str, body: String) -> Response {
    let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7373");
    let request = request.header("content-type", "application/json").body(Body::from(body));
    router.clone().oneshot(request.expect("a request")).await.expect("the router never fails")
}
