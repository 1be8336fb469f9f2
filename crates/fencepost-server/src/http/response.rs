//! Replies and refusals as HTTP: a status, and `{"error": {…}}`.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use fencepost::{Code, Error};

/// An error as a response. Most have the status of their code; errors that HTTP has its own status for use that one.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub error: Error,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub fn new(status: StatusCode, error: Error) -> Self {
        Self { status, error, headers: Vec::new() }
    }

    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Closes the connection: the rest of the request's body is not read, so no other request can follow.
    pub fn and_close(self) -> Self {
        self.header(header::CONNECTION, HeaderValue::from_static("close"))
    }

    /// The whole response as text, for a connection that has no HTTP server behind it.
    pub fn to_http1(&self) -> String {
        let body = self.error.to_json().to_string();
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncache-control: no-store\r\ncontent-length: {}\r\n\
             retry-after: {}\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len(),
            self.retry_after().unwrap_or_default(),
        )
    }

    /// In seconds.
    fn retry_after(&self) -> Option<u64> {
        Some(self.error.field("retry_after_ms")?.as_u64()?.div_ceil(1000))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.code().http_status());
        Self::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json(self.status, self.error.to_json().to_string());
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response.headers_mut().extend(self.headers);
        response.extensions_mut().insert(Unlogged(self.error.code()));
        response
    }
}

/// Marks a refusal that the request log has no line for yet.
#[derive(Debug, Clone, Copy)]
pub struct Unlogged(pub Code);

/// A refusal that the request log already has.
pub fn logged(refusal: Refusal) -> Response {
    let mut response = refusal.into_response();
    response.extensions_mut().remove::<Unlogged>();
    response
}

pub fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
