//! One span for each call of an op, if a collector is set up.

use super::request_log::Fields;
use axum::http::HeaderMap;
use fencepost::Code;
use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator,
    trace::{Span as _, SpanKind, Status, Tracer},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{self, SdkTracer},
};

#[derive(Debug)]
pub struct Span(trace::Span);

impl Span {
    /// Begins a span, as a child of the client's span if the request names it (`traceparent`).
    pub fn begin(tracer: &SdkTracer, op: &'static str, headers: &HeaderMap) -> Self {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = tracer.span_builder(op).with_kind(SpanKind::Server);
        let span = span.with_attributes([KeyValue::new("fence.op", op)]);
        Self(span.start_with_context(tracer, &parent))
    }

    /// Marks a failure of the server as an error. An ordinary refusal is not one.
    pub fn refused(&mut self, code: Code) {
        if code.http_status() >= 500 {
            self.0.set_status(Status::error(code.as_str()));
        }
    }

    pub fn end(mut self, fields: &Fields, key: Option<&str>, outcome: &'static str) {
        let attributes = [
            ("fence.agent", fields.agent.as_deref()),
            ("fence.run", fields.run.as_deref()),
            ("fence.token", fields.token.as_deref()),
            ("fence.key", key),
            ("fence.outcome", Some(outcome)),
        ];
        for (name, value) in attributes {
            if let Some(value) = value {
                self.0.set_attribute(KeyValue::new(name, value.to_owned()));
            }
        }
        self.0.end();
    }
}
