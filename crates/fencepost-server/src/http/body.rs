//! Reading a request's body: JSON, within limits on size, time and memory.

use super::response::Refusal;
use crate::limits::memory::Memory;
use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use bytes::Bytes;
use fencepost::{Code, Error, Result};
use http_body_util::BodyExt;
use std::time::Duration;

/// How long the rest of a refused body is read and discarded.
const DRAIN: Duration = Duration::from_secs(1);

/// The limits on one body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits<'a> {
    /// In bytes.
    pub size: usize,
    /// The option of `fence serve` that sets the size.
    pub size_option: &'static str,
    /// How long the body may take to arrive.
    pub time: Duration,
    /// The budget that it counts against.
    pub memory: &'a Memory,
}

impl BodyLimits<'_> {
    /// Reads the body, or refuses it.
    pub async fn read(self, headers: &HeaderMap, mut body: Body) -> Result<Bytes, Refusal> {
        let read = self.read_json(headers, &mut body).await;
        if matches!(&read, Err(refusal) if [Code::TooLarge, Code::Unavailable].contains(&refusal.error.code()))
        {
            drain(body).await;
        }
        read
    }

    async fn read_json(self, headers: &HeaderMap, body: &mut Body) -> Result<Bytes, Refusal> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.size) {
            return Err(self.too_large());
        }
        // Real time: it limits a slow client.
        let bytes = tokio::time::timeout(self.time, self.collect(body))
            .await
            .unwrap_or_else(|_| Err(too_slow(self.time)))?;
        match headers.get(header::CONTENT_TYPE) {
            // No body and no content type: an empty request.
            None if bytes.is_empty() => Ok(Bytes::from_static(b"{}")),
            given if is_json(given.and_then(|kind| kind.to_str().ok())) => Ok(bytes),
            given => Err(wrong_type(given.and_then(|kind| kind.to_str().ok()))),
        }
    }

    /// Reserves memory for bytes that arrived, not for the announced length: announcing costs a client nothing.
    async fn collect(self, body: &mut Body) -> Result<Bytes, Refusal> {
        let mut buffer = self.memory.buffer();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| {
                let error = Error::new(Code::Invalid, format!("the request's body ended early: {e}"));
                Refusal::from(error).and_close()
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if buffer.len() + data.len() > self.size {
                return Err(self.too_large());
            }
            buffer.push(&data).map_err(|_| out_of_memory())?;
        }
        Ok(buffer.into())
    }

    fn too_large(self) -> Refusal {
        let Self { size, size_option, .. } = self;
        let error = Error::new(Code::TooLarge, format!("the request is larger than {size} bytes"))
            .with("limit", size)
            .hint(format!("send less at once, or let the server take more: fence serve {size_option}"));
        Refusal::from(error).and_close()
    }
}

/// Reads and discards the rest of a body for a moment. A client that is still sending when its connection is closed may
/// see a reset instead of the refusal.
pub async fn drain(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // Real time: it limits a slow client.
    let _ = tokio::time::timeout(DRAIN, rest).await;
}

fn out_of_memory() -> Refusal {
    let error = Error::unavailable("the memory for large requests is full of other requests")
        .with("retry_after_ms", 1000)
        .hint("retry later, or send less at once; fence serve --body-memory sets the limit");
    Refusal::from(error).and_close()
}

fn is_json(given: Option<&str>) -> bool {
    let kind = given.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn wrong_type(given: Option<&str>) -> Refusal {
    let given = given.map_or("no content type".into(), |kind| format!("the content type `{kind}`"));
    let error = Error::new(Code::Invalid, format!("the request has {given} and must be JSON"))
        .hint("send the header Content-Type: application/json");
    Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error)
}

fn too_slow(limit: Duration) -> Refusal {
    let error = Error::new(Code::Invalid, format!("the request's body did not arrive within {limit:?}"))
        .hint("send the whole body at once");
    Refusal::new(StatusCode::REQUEST_TIMEOUT, error).and_close()
}
