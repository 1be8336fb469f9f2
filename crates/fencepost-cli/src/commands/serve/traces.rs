//! Traces, sent to the collector that the `OTEL_*` variables name. The SDK itself reads the variables for the sampler, the name of
//! the service, the headers, and the size and interval of batches.
//!
//! A collector that is down does not slow the server: spans wait in a bounded queue on a thread of their own, and those that do not
//! fit are dropped.

use crate::environment::variable;
use fencepost::{Error, Result};
use fencepost_client::Http;
use http_body_util::Full;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};
use std::{
    path::PathBuf,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::runtime::Handle;

/// The timeout of one request. The exporter gives up earlier, after `OTEL_EXPORTER_OTLP_TIMEOUT`, but leaves the request running.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for the last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// The exporter of spans.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// `None` if the variables name no collector. A wrong variable is only a warning: such variables are often set for all programs
    /// alike, and a server without traces is better than none.
    pub fn begin() -> Option<Self> {
        let endpoint = trace_variable("ENDPOINT").filter(|_| is_enabled())?;
        Self::to(&endpoint)
            .inspect_err(|error| tracing::warn!("traces are not sent: {}", error.message()))
            .ok()
    }

    fn to(endpoint: &str) -> Result<Self> {
        let protocol = trace_variable("PROTOCOL").unwrap_or_else(|| "http/protobuf".into());
        if protocol != "http/protobuf" {
            return Err(Error::internal(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`, and only http/protobuf is supported"
            )));
        }
        let authority = trace_variable("CERTIFICATE").map(PathBuf::from);
        let http = Http::new(endpoint.starts_with("https:"), authority.as_deref())?;
        let collector = Collector { http, runtime: Handle::current(), is_down: AtomicBool::new(false) };
        let exporter = SpanExporter::builder().with_http().with_http_client(collector).build();
        let mut resource = Resource::builder();
        if variable("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("fence");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter.map_err(Error::internal)?);
        Ok(Self(provider.build()))
    }

    pub fn tracer(&self) -> SdkTracer {
        self.0.tracer("fence")
    }

    /// Sends the remaining spans.
    pub async fn end(self) {
        let sent = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(LAST_SPANS)).await;
        if let Ok(Err(e)) = sent {
            tracing::warn!("the last traces were not sent: {e}");
        }
    }
}

fn is_enabled() -> bool {
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    !disabled && variable("OTEL_TRACES_EXPORTER").is_none_or(|value| value == "otlp")
}

/// A variable for traces comes before the one for all signals.
fn trace_variable(what: &str) -> Option<String> {
    variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))
        .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{what}")))
}

/// The collector, reached with our own HTTP client.
#[derive(Debug)]
struct Collector {
    http: Http,
    /// The exporter's thread is not part of the runtime, so requests are spawned on it.
    runtime: Handle,
    is_down: AtomicBool,
}

impl HttpClient for Collector {
    fn send_bytes<'s, 'f>(
        &'s self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        let http = self.http.clone();
        let sending =
            self.runtime.spawn(async move { http.send(request.map(Full::new), REQUEST_TIMEOUT).await });
        Box::pin(async move {
            let answer = sending.await?;
            let problem = match &answer {
                Ok(response) if response.status().is_success() => None,
                Ok(response) => Some(response.status().to_string()),
                Err(silence) => Some(silence.reason().to_string()),
            };
            // Logged once, and not for every batch.
            let was_down = self.is_down.swap(problem.is_some(), Ordering::Relaxed);
            match problem {
                Some(problem) if !was_down => {
                    tracing::warn!("traces do not reach their collector: {problem}")
                }
                None if was_down => tracing::info!("traces reach their collector again"),
                _ => {}
            }
            answer.map_err(|silence| silence.reason().to_string().into())
        })
    }
}
