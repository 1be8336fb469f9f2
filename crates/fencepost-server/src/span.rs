//! One span for each call of an op, if anybody collects them.

use crate::{App, call::Asked};
use axum::http::HeaderMap;
use fencepost::Code;
use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator,
    trace::{Span as _, SpanKind, Status, Tracer},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace};

#[derive(Debug)]
pub struct Span(trace::Span);

impl Span {
    /// A part of what the client is at, if it says so (`traceparent`).
    pub fn begin(app: &App, op: &'static str, headers: &HeaderMap) -> Option<Self> {
        let tracer = app.settings.tracer.as_ref()?;
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = tracer.span_builder(op).with_kind(SpanKind::Server);
        let span = span.with_attributes([KeyValue::new("fence.op", op)]);
        Some(Self(span.start_with_context(tracer, &parent)))
    }

    /// A refusal is an answer. What the server could not do is an error.
    pub fn refused(&mut self, code: Code) {
        if code.http_status() >= 500 {
            self.0.set_status(Status::error(code.as_str()));
        }
    }

    pub fn end(mut self, asked: &Asked, key: Option<&str>, outcome: &'static str) {
        let said = [
            ("fence.agent", asked.agent.as_deref()),
            ("fence.run", asked.run.as_deref()),
            ("fence.token", asked.token.as_deref()),
            ("fence.key", key),
            ("fence.outcome", Some(outcome)),
        ];
        for (name, value) in said {
            if let Some(value) = value {
                self.0.set_attribute(KeyValue::new(name, value.to_owned()));
            }
        }
        self.0.end();
    }
}
