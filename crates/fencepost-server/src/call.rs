//! One request for one op: decode, call, encode.

use crate::{
    App,
    answer::{self, Refusal},
    query::Fields,
};
use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, op::Entry};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;

/// An op, and what its requests look like.
#[derive(Debug)]
pub struct Verb {
    pub entry: Entry,
    fields: Fields,
}

/// The agent that acts, for callers whose key does not say it.
pub const AGENT: &str = "fence-agent";

impl Verb {
    pub fn new(entry: Entry) -> Self {
        let fields = Fields::of(&(entry.request)().to_value());
        Self { entry, fields }
    }

    pub async fn post(&self, app: App, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let answer = async {
            let body = Limited::new(body, app.settings.body_size);
            let body = read(&app, &head.headers, body).await?;
            self.call(&app, &head.headers, body).await
        };
        answer.await.unwrap_or_else(IntoResponse::into_response)
    }

    pub async fn get(&self, app: App, request: Request) -> Response {
        let (head, _) = request.into_parts();
        let answer = async {
            let query = self.fields.read(head.uri.query().unwrap_or_default())?;
            self.call(&app, &head.headers, query.to_string().into()).await
        };
        answer.await.unwrap_or_else(IntoResponse::into_response)
    }

    async fn call(&self, app: &App, headers: &HeaderMap, body: Bytes) -> Result<Response, Refusal> {
        let text = std::str::from_utf8(&body)
            .map_err(|_| Error::new(Code::Invalid, "the request does not fit: it is not UTF-8"))?;
        let fleet = caller(&app.fleet, headers)?;
        let reply = self.entry.call(&fleet, text).await?;
        Ok(answer::json(StatusCode::OK, reply.to_string()))
    }
}

/// The fleet, called by whom the headers name.
fn caller(fleet: &Fleet, headers: &HeaderMap) -> Result<Fleet, Refusal> {
    let Some(agent) = headers.get(AGENT) else { return Ok(fleet.clone()) };
    let agent = agent.to_str().map_err(|_| Error::invalid(AGENT, "is not a name"))?;
    Ok(fleet.as_agent(agent))
}

/// The body, if it is JSON, not too large, and here in time.
async fn read(app: &App, headers: &HeaderMap, body: Limited<axum::body::Body>) -> Result<Bytes, Refusal> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > app.settings.body_size) {
        return Err(too_large(app));
    }
    let collected = tokio::time::timeout(app.settings.body_time, body.collect()).await;
    let bytes = match collected {
        Err(_) => return Err(slow(app.settings.body_time)),
        Ok(Err(e)) if e.is::<LengthLimitError>() => return Err(too_large(app)),
        Ok(Err(e)) => {
            let error = Error::new(Code::Invalid, format!("the request's body broke off: {e}"));
            return Err(Refusal::from(error).and_close());
        }
        Ok(Ok(body)) => body.to_bytes(),
    };
    match headers.get(header::CONTENT_TYPE) {
        // Nothing was sent, of no type: a request with nothing in it.
        None if bytes.is_empty() => Ok(Bytes::from_static(b"{}")),
        given if is_json(given.and_then(|kind| kind.to_str().ok())) => Ok(bytes),
        given => Err(wrong_type(given.and_then(|kind| kind.to_str().ok()))),
    }
}

fn is_json(given: Option<&str>) -> bool {
    let kind = given.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn wrong_type(given: Option<&str>) -> Refusal {
    let given = given.map_or("has no content type".into(), |kind| format!("is `{kind}`"));
    let error = Error::new(Code::Invalid, format!("the request {given}, and must be JSON"))
        .hint("send the header Content-Type: application/json");
    Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error)
}

fn too_large(app: &App) -> Refusal {
    let most = app.settings.body_size;
    let error = Error::new(Code::TooLarge, format!("the request is larger than {most} bytes"))
        .with("limit", most)
        .hint("send less at once: several smaller requests");
    Refusal::from(error).and_close()
}

fn slow(limit: Duration) -> Refusal {
    let error = Error::new(Code::Invalid, format!("the request's body did not arrive within {limit:?}"))
        .hint("send it in one go");
    Refusal::new(StatusCode::REQUEST_TIMEOUT, error).and_close()
}
