//! One request for one op: decode, call, encode.

use crate::{
    App,
    answer::{self, Refusal},
    deliver, door,
    line::{Line, clip},
    query::Fields,
    room::Room,
};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, header, request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, Result, key::Key, op::Entry};
use http_body_util::BodyExt;
use serde::Deserialize;
use std::{borrow::Cow, sync::Arc, time::Duration};

/// An op, and what its requests look like.
#[derive(Debug)]
pub struct Verb {
    pub entry: Entry,
    fields: Fields,
}

/// The agent that acts, for callers whose key does not say it.
pub const AGENT: &str = "fence-agent";

/// How long a client may go on sending what will not be read.
const SEEN_OFF: Duration = Duration::from_secs(1);

impl Verb {
    pub fn new(entry: Entry) -> Self {
        let fields = Fields::of(&(entry.request)().to_value());
        Self { entry, fields }
    }

    pub async fn post(self: Arc<Self>, app: App, request: Request) -> Response {
        let line = Line::new(app.clone(), self.entry.name, request.headers());
        let (head, body) = request.into_parts();
        let intake = Intake { most: app.settings.body_size, option: "--body-size", room: &app.bodies };
        let read = match body_of(&app, &head.headers, body, intake).await {
            // It may have taken its time, and the key been revoked meanwhile.
            Ok(body) => {
                let admitted = app.keys.check(&app.fleet, head.extensions.get()).await;
                admitted.map(|()| body).map_err(Refusal::from)
            }
            refused => refused,
        };
        self.answer(app, line, head, read).await
    }

    pub async fn get(self: Arc<Self>, app: App, request: Request) -> Response {
        let line = Line::new(app.clone(), self.entry.name, request.headers());
        let (head, _) = request.into_parts();
        let read = self.fields.read(head.uri.query().unwrap_or_default());
        let read = read.map(|request| Bytes::from(request.to_string())).map_err(Refusal::from);
        self.answer(app, line, head, read).await
    }

    async fn answer(
        self: Arc<Self>,
        app: App,
        mut line: Line,
        head: request::Parts,
        read: Result<Bytes, Refusal>,
    ) -> Response {
        let answer = match read {
            Ok(body) => self.call(&app, &mut line, &head, body).await,
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(response) => {
                line.end(None);
                response
            }
            Err(refusal) => {
                line.end(Some(refusal.error.code()));
                let mut response = refusal.into_response();
                // It is told already.
                response.extensions_mut().remove::<answer::Outcome>();
                response
            }
        }
    }

    async fn call(
        self: Arc<Self>,
        app: &App,
        line: &mut Line,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Response, Refusal> {
        let key = head.extensions.get::<Key>();
        let asked = Asked::of(&body);
        let wait = asked.wait;
        line.asked(asked, key);
        let fleet = caller(&app.fleet, key, &head.headers)?;
        // Nobody waits for another's place.
        let place = wait.is_some().then(|| app.waiter(&door::holder(&head.extensions))).transpose()?;
        let reads = self.entry.reads;
        let served = deliver::run(app, self, fleet, body, wait).await?;
        drop(place);
        Ok(answer::json(StatusCode::OK, deliver::body(app, reads, served)?))
    }
}

/// What the server itself wants to know of a request. What does not fit is for the op to refuse; its texts are
/// unchecked, and kept only to be told, so they are clipped.
#[derive(Debug, Default)]
pub struct Asked {
    pub run: Option<String>,
    pub agent: Option<String>,
    pub token: Option<String>,
    pub wait: Option<Duration>,
}

impl Asked {
    fn of(body: &[u8]) -> Self {
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
        let own = |text: Option<Cow<'_, str>>| text.map(|text| clip(&text));
        Self {
            run: own(known.run),
            agent: own(known.agent),
            token: own(known.token),
            // An absurd wait is the op's to refuse.
            wait: known.wait_ms.map(|ms| Duration::from_millis(ms.min(86_400_000))),
        }
    }
}

/// The fleet, called by whose key it is, as the agent that is named. (An agent's key is that agent's, whatever is said.)
fn caller(fleet: &Fleet, key: Option<&Key>, headers: &HeaderMap) -> Result<Fleet> {
    let fleet = key.map_or_else(|| fleet.as_guest(), |key| fleet.as_key(key));
    let Some(agent) = headers.get(AGENT) else { return Ok(fleet) };
    let agent = agent.to_str().map_err(|_| Error::invalid(AGENT, "is not a name"))?;
    Ok(fleet.as_agent(agent))
}

/// How much of a body is taken, and where it is kept.
#[derive(Debug, Clone, Copy)]
pub struct Intake<'a> {
    pub most: usize,
    /// The option that says so.
    pub option: &'static str,
    pub room: &'a Room,
}

/// The body, if it is JSON, not too large, and here in time.
pub async fn body_of(
    app: &App,
    headers: &HeaderMap,
    mut body: Body,
    intake: Intake<'_>,
) -> Result<Bytes, Refusal> {
    let read = read(app, headers, &mut body, intake).await;
    if matches!(&read, Err(refusal) if [Code::TooLarge, Code::Unavailable].contains(&refusal.error.code())) {
        see_off(body).await;
    }
    read
}

async fn read(app: &App, headers: &HeaderMap, body: &mut Body, intake: Intake<'_>) -> Result<Bytes, Refusal> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > intake.most) {
        return Err(intake.too_large());
    }
    let limit = app.settings.body_time;
    // Real time: a client that sends slowly is not waited for.
    let bytes =
        tokio::time::timeout(limit, intake.collect(body)).await.unwrap_or_else(|_| Err(slow(limit)))?;
    match headers.get(header::CONTENT_TYPE) {
        // Nothing was sent, of no type: a request with nothing in it.
        None if bytes.is_empty() => Ok(Bytes::from_static(b"{}")),
        given if is_json(given.and_then(|kind| kind.to_str().ok())) => Ok(bytes),
        given => Err(wrong_type(given.and_then(|kind| kind.to_str().ok()))),
    }
}

impl Intake<'_> {
    /// Room is taken for what came, and not for what was announced: that costs nothing.
    async fn collect(self, body: &mut Body) -> Result<Bytes, Refusal> {
        let mut buffer = self.room.buffer();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| {
                let error = Error::new(Code::Invalid, format!("the request's body broke off: {e}"));
                Refusal::from(error).and_close()
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if buffer.len() + data.len() > self.most {
                return Err(self.too_large());
            }
            buffer.push(&data).map_err(|_| crowded())?;
        }
        Ok(buffer.into())
    }

    fn too_large(self) -> Refusal {
        let Self { most, option, .. } = self;
        let error = Error::new(Code::TooLarge, format!("the request is larger than {most} bytes"))
            .with("limit", most)
            .hint(format!("send less at once, or let the server take more: fence serve {option}"));
        Refusal::from(error).and_close()
    }
}

fn crowded() -> Refusal {
    let error = Error::unavailable("the memory for large requests is taken by others")
        .with("retry_after_ms", 1000)
        .hint("ask again later, or send less at once; fence serve --body-memory says how much there is");
    Refusal::from(error).and_close()
}

/// A client that is still sending when its connection is closed may never see why. So what is too large is taken, and
/// thrown away, for a moment.
pub async fn see_off(mut body: Body) {
    let gone = async { while let Some(Ok(_)) = body.frame().await {} };
    // Real time: nobody is waited for longer.
    let _ = tokio::time::timeout(SEEN_OFF, gone).await;
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

fn slow(limit: Duration) -> Refusal {
    let error = Error::new(Code::Invalid, format!("the request's body did not arrive within {limit:?}"))
        .hint("send it in one go");
    Refusal::new(StatusCode::REQUEST_TIMEOUT, error).and_close()
}
