//! The fleet's log as it grows: `GET /v1/events`, as server-sent events.
//!
//! Each event has its position as its id, so that a client that comes back (a browser does so by itself) is told what it
//! missed. What is not taken is not kept here: the log keeps it, and a reader that is too slow is sent away to read on
//! later.

use crate::{App, Secret, answer::Refusal, app::stopping, deliver, door, places::Place, query::Fields};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, Millis, Op, Result, WAIT_MAX, event, op};
use std::convert::Infallible;
use tokio::sync::mpsc::{self, error::SendTimeoutError};
use tokio_util::sync::CancellationToken;

/// Events in one page.
const PAGE: i64 = 100;

/// The position of the newest event that can be read.
pub async fn end(fleet: &Fleet) -> Result<String> {
    Ok(fleet.call(event::List { last: Some(1), ..event::List::default() }).await?.position)
}

pub async fn follow(State(app): State<App>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let last = head.headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let who = Who { name: door::holder(&head.extensions), shown: head.extensions.get().cloned() };
    match Follower::new(app, head.uri.query().unwrap_or_default(), last, who).await {
        Ok(follower) => follower.stream(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Who follows: whose share it takes, and the key that it came with.
struct Who {
    name: String,
    shown: Option<Secret>,
}

struct Follower {
    app: App,
    list: event::List,
    /// The key that it came with.
    shown: Option<Secret>,
    _place: Place,
}

impl Follower {
    async fn new(app: App, query: &str, last: Option<String>, who: Who) -> Result<Self, Refusal> {
        let mut list = asked(query)?;
        let place = app.waiter(&who.name)?;
        list.since = match last.filter(|id| !id.is_empty()).or(list.since) {
            None => Some(end(&app.fleet).await?),
            Some(since) => Some(since).filter(|since| since != "start"),
        };
        // A position that was never one is the client's mistake. One that is gone is told as the last event.
        let first = event::List { limit: Some(1), ..list.clone() };
        match app.fleet.call(first).await {
            Err(error) if error.code() == Code::Invalid => Err(error.into()),
            _ => Ok(Self { app, list, shown: who.shown, _place: place }),
        }
    }

    fn stream(mut self) -> Response {
        let (pages, mut page) = mpsc::channel::<Bytes>(self.app.settings.reader_buffer.max(1) + 1);
        let gone = CancellationToken::new();
        let reading = gone.clone().drop_guard();
        let app = self.app.clone();
        app.begun.spawn(async move {
            // The last word has a place of its own, however full it is.
            let Ok(farewell) = pages.clone().reserve_owned().await else { return };
            let Some(why) = self.read_on(&pages, &gone).await else { return };
            // Who does not read that either is cut off as everyone is who does not read.
            drop(farewell.send(error(&why)));
        });
        let stream = futures_util::stream::poll_fn(move |context| {
            let _ = &reading;
            page.poll_recv(context).map(|page| page.map(Ok::<_, Infallible>))
        });
        let mut response = Response::new(Body::from_stream(stream));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Hands on what is logged. Gives why it ends, unless the reader is gone.
    async fn read_on(&mut self, pages: &mpsc::Sender<Bytes>, gone: &CancellationToken) -> Option<Error> {
        let settings = &self.app.settings;
        let heartbeat = Millis(i64::try_from(settings.heartbeat.as_millis()).unwrap_or(i64::MAX));
        let heartbeat = Some(heartbeat.min(WAIT_MAX));
        let mut text = self.list.since.as_ref().map_or("retry: 1000\n\n".to_owned(), |since| {
            // An id with no data: where to read on from, if nothing comes.
            format!("retry: 1000\nid: {since}\n\n")
        });
        loop {
            let Ok(page) = self.app.replies.hold(text.into_bytes()) else {
                return Some(deliver::crowded(Code::Unavailable));
            };
            match pages.send_timeout(page, settings.slow_reader).await {
                Ok(()) => {}
                Err(SendTimeoutError::Closed(_)) => return None,
                Err(SendTimeoutError::Timeout(_)) => return Some(too_slow()),
            }
            let next = event::List { limit: Some(PAGE), wait_ms: heartbeat, ..self.list.clone() };
            let page = tokio::select! {
                page = self.app.fleet.call(next) => page,
                () = self.app.stopping() => return Some(stopping()),
                () = gone.cancelled() => return None,
            };
            // A key may have been revoked since the last page.
            let page = match page {
                Ok(page) => self.app.keys.check(&self.app.fleet, self.shown.as_ref()).await.map(|()| page),
                Err(error) => Err(error),
            };
            match page {
                Ok(page) => {
                    text = told(&page.events);
                    self.list.since = Some(page.position);
                }
                Err(error) => return Some(error),
            }
        }
    }
}

/// What a follower may ask for: the same as `event/list`, but for what makes a page of it.
fn asked(query: &str) -> Result<event::List> {
    let fields = Fields::of(&(op::find(event::List::NAME)?.request)().to_value());
    let request = fields.read(query)?;
    for unfit in ["last", "from", "within_ms", "limit", "wait_ms"] {
        if request.get(unfit).is_some() {
            return Err(Error::invalid(unfit, "is of `event/list`: this goes on without end"));
        }
    }
    op::decode(request.to_string())
}

fn told(events: &[event::Entry]) -> String {
    if events.is_empty() {
        return ": still here\n\n".into();
    }
    let line = |event: &event::Entry| {
        let data = serde_json::to_string(event).unwrap_or_default();
        format!("id: {}\ndata: {data}\n\n", event.position)
    };
    events.iter().map(line).collect()
}

/// The last message. It has no id, so that the client reads on from the last event it saw.
fn error(error: &Error) -> Bytes {
    format!("event: error\ndata: {}\n\n", error.to_json()).into()
}

fn too_slow() -> Error {
    Error::new(Code::RateLimited, "what was sent was not read in time")
        .hint("come back with the header Last-Event-ID, or since=, and the id of the last event that you saw")
}
