//! Traces, sent to whom the usual `OTEL_*` variables name. The SDK reads most of them by itself: the sampler, the
//! service's name, headers, how often it sends and how much it keeps meanwhile.
//!
//! A collector that is down costs nobody anything: spans wait in a bounded queue on a thread of their own, and what
//! does not fit there is let go.

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

/// The exporter gives up by itself after `OTEL_EXPORTER_OTLP_TIMEOUT`; this is for what it left behind.
const LIMIT: Duration = Duration::from_secs(60);
/// At the end, so long the last spans may take.
const FAREWELL: Duration = Duration::from_secs(3);

/// Where spans go until the server ends.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// `None` if nobody is to be sent any. What is wrong with the variables is a warning: they are often set for all
    /// programs alike, and traces are no reason not to serve.
    pub fn begin() -> Option<Self> {
        let endpoint = of_traces("ENDPOINT").filter(|_| wanted())?;
        Self::to(&endpoint)
            .inspect_err(|error| tracing::warn!("traces are not sent: {}", error.message()))
            .ok()
    }

    fn to(endpoint: &str) -> Result<Self> {
        let protocol = of_traces("PROTOCOL").unwrap_or_else(|| "http/protobuf".into());
        if protocol != "http/protobuf" {
            return Err(Error::internal(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`, and only http/protobuf is spoken"
            )));
        }
        let authority = of_traces("CERTIFICATE").map(PathBuf::from);
        let http = Http::new(endpoint.starts_with("https:"), authority.as_deref())?;
        let collector = Collector { http, runtime: Handle::current(), is_away: AtomicBool::new(false) };
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

    /// Sends what is left.
    pub async fn end(self) {
        let sent = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FAREWELL)).await;
        if let Ok(Err(e)) = sent {
            tracing::warn!("the last traces were not sent: {e}");
        }
    }
}

fn wanted() -> bool {
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|said| said.eq_ignore_ascii_case("true"));
    !disabled && variable("OTEL_TRACES_EXPORTER").is_none_or(|said| said == "otlp")
}

/// What is said for traces goes before what is said for all that is sent.
fn of_traces(what: &str) -> Option<String> {
    variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))
        .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{what}")))
}

/// The other end, by the client that we have.
#[derive(Debug)]
struct Collector {
    http: Http,
    /// The exporter's thread is none of ours.
    runtime: Handle,
    is_away: AtomicBool,
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
        let sending = self.runtime.spawn(async move { http.send(request.map(Full::new), LIMIT).await });
        Box::pin(async move {
            let answer = sending.await?;
            let problem = match &answer {
                Ok(response) if response.status().is_success() => None,
                Ok(response) => Some(response.status().to_string()),
                Err(silence) => Some(silence.reason().to_string()),
            };
            // Told once, and not for every batch.
            let was_away = self.is_away.swap(problem.is_some(), Ordering::Relaxed);
            match problem {
                Some(problem) if !was_away => {
                    tracing::warn!("traces do not reach their collector: {problem}")
                }
                None if was_away => tracing::info!("traces reach their collector again"),
                _ => {}
            }
            answer.map_err(|silence| silence.reason().to_string().into())
        })
    }
}
