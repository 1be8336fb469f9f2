//! Telemetry: a line of the request log and a span for each request, and metrics.

pub mod metrics;
pub mod request_log;
mod span;

use metrics::Metrics;
use opentelemetry_sdk::trace::SdkTracer;

#[derive(Debug, Default)]
pub struct Telemetry {
    pub metrics: Metrics,
    /// Collects spans; `None` if nobody does.
    tracer: Option<SdkTracer>,
}

impl Telemetry {
    pub fn new(tracer: Option<SdkTracer>) -> Self {
        Self { metrics: Metrics::default(), tracer }
    }
}
