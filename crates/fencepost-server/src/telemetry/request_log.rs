//! The request log: one line for each request, with its op, agent, run, outcome and time.

use super::{Telemetry, span::Span};
use axum::http::HeaderMap;
use fencepost::{Code, key::Key};
use serde::Deserialize;
use std::{borrow::Cow, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Characters of a text that are logged, at most. No valid name or token is longer: the longest is the token of a task
/// on a board with the longest name, 173.
const LOGGED: usize = 200;

/// Shortens a text that nothing has checked yet, so that a log line or a span is never as large as a request.
pub fn clip(text: &str) -> String {
    match text.char_indices().nth(LOGGED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The fields of a request that the server itself uses: for the log, and to know how long the request waits. Fields of
/// the wrong type are left to the op to refuse. The texts are unchecked and therefore clipped.
#[derive(Debug, Default)]
pub struct Fields {
    pub run: Option<String>,
    pub agent: Option<String>,
    pub token: Option<String>,
    pub wait: Option<Duration>,
}

impl Fields {
    pub fn read(body: &[u8]) -> Self {
        #[derive(Deserialize, Default)]
        struct Known<'a> {
            #[serde(borrow, default)]
            run: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            agent: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            token: Option<Cow<'a, str>>,
            #[serde(default)]
            wait_ms: Option<u64>,
        }
        let known: Known<'_> = serde_json::from_slice(body).unwrap_or_default();
        let clipped = |text: Option<Cow<'_, str>>| text.map(|text| clip(&text));
        Self {
            run: clipped(known.run),
            agent: clipped(known.agent),
            token: clipped(known.token),
            // The op refuses a wait that is too long.
            wait: known.wait_ms.map(|ms| Duration::from_millis(ms.min(86_400_000))),
        }
    }
}

/// The line of a request in progress, written when it is dropped. Dropped without an outcome, it says that the client is
/// gone.
#[derive(Debug)]
pub struct Line {
    telemetry: Arc<Telemetry>,
    op: &'static str,
    fields: Fields,
    key: Option<String>,
    // Real time: it is reported and decides nothing.
    began: Instant,
    outcome: Option<&'static str>,
    span: Option<Span>,
}

impl Line {
    pub fn begin(telemetry: &Arc<Telemetry>, op: &'static str, headers: &HeaderMap) -> Self {
        let span = telemetry.tracer.as_ref().map(|tracer| Span::begin(tracer, op, headers));
        let (telemetry, began) = (telemetry.clone(), Instant::now());
        Self { telemetry, op, fields: Fields::default(), key: None, began, outcome: None, span }
    }

    /// Adds the fields of the request. Without an agent in them, the key's agent is logged.
    pub fn set_caller(&mut self, fields: Fields, key: Option<&Key>) {
        self.fields = fields;
        self.key = key.map(|key| key.name.clone());
        self.fields.agent = self.fields.agent.take().or_else(|| key?.agent.clone());
    }

    /// Ends the request: refused with this code, or done.
    pub fn end(mut self, refused: Option<Code>) {
        if let (Some(span), Some(code)) = (&mut self.span, refused) {
            span.refused(code);
        }
        self.outcome = Some(refused.map_or("ok", Code::as_str));
    }

    /// Ends a request that was done, with a more precise outcome than `ok`.
    pub fn end_as(mut self, outcome: &'static str) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let outcome = self.outcome.unwrap_or("gone");
        self.telemetry.metrics.record(self.op, outcome, took, self.fields.wait.is_some());
        if let Some(span) = self.span.take() {
            span.end(&self.fields, self.key.as_deref(), outcome);
        }
        tracing::info!(
            target: "fence::request",
            op = self.op,
            key = self.key,
            agent = self.fields.agent,
            run = self.fields.run,
            token = self.fields.token,
            outcome,
            ms = took.as_micros() as f64 / 1000.0,
        );
    }
}

/// Logs a request that no op was called for.
pub fn refused(path: &str, code: Code) {
    tracing::info!(target: "fence::request", path = clip(path), outcome = code.as_str(), "refused");
}
