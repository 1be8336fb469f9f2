//! `GET /v1/events`: the fleet's log as server-sent events, as it grows.
//!
//! The id of each event is its position in the log. A client that reconnects (a browser does so by itself) gets the
//! events that it missed. The server buffers only a few pages; a client that reads too slowly is disconnected and can
//! continue later.

use crate::{
    access::peer,
    app::{App, stopping},
    http::{query::Fields, response::Refusal},
    limits::permits::Permit,
    ops::delivery::out_of_memory,
    settings::Secret,
    telemetry::metrics::log_end,
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fencepost::{Code, Error, Millis, Op, Result, WAIT_MAX, event, op};
use std::convert::Infallible;
use tokio::sync::mpsc::{self, error::SendTimeoutError};
use tokio_util::sync::CancellationToken;

/// Events in one page.
const PAGE: i64 = 100;

pub async fn follow(State(app): State<App>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let last = head.headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let caller = Caller { name: peer::caller(&head.extensions), secret: head.extensions.get().cloned() };
    match Follower::new(app, head.uri.query().unwrap_or_default(), last, caller).await {
        Ok(follower) => follower.stream(),
        Err(refusal) => refusal.into_response(),
    }
}

/// The caller whose limits count, and the secret that it sent.
struct Caller {
    name: String,
    secret: Option<Secret>,
}

struct Follower {
    app: App,
    list: event::List,
    secret: Option<Secret>,
    _permit: Permit,
}

impl Follower {
    async fn new(app: App, query: &str, last: Option<String>, caller: Caller) -> Result<Self, Refusal> {
        let mut list = filter(query)?;
        let permit = app.waiter(&caller.name)?;
        list.since = match last.filter(|id| !id.is_empty()).or(list.since) {
            None => Some(log_end(&app.fleet).await?),
            Some(since) => Some(since).filter(|since| since != "start"),
        };
        // A malformed position is refused here. A pruned position is reported as the last event of the stream.
        let first = event::List { limit: Some(1), ..list.clone() };
        match app.fleet.call(first).await {
            Err(error) if error.code() == Code::Invalid => Err(error.into()),
            _ => Ok(Self { app, list, secret: caller.secret, _permit: permit }),
        }
    }

    fn stream(mut self) -> Response {
        let (pages, mut page) = mpsc::channel::<Bytes>(self.app.settings.reader_buffer.max(1) + 1);
        let gone = CancellationToken::new();
        let reading = gone.clone().drop_guard();
        let app = self.app.clone();
        app.running.spawn(async move {
            // A slot for the last message is reserved, however full the channel is.
            let Ok(last) = pages.clone().reserve_owned().await else { return };
            let Some(why) = self.send_pages(&pages, &gone).await else { return };
            // A client that does not read this either runs into the connection's write timeout.
            drop(last.send(error(&why)));
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

    /// Sends pages of events. Returns why the stream ends; `None` if the client is gone.
    async fn send_pages(&mut self, pages: &mpsc::Sender<Bytes>, gone: &CancellationToken) -> Option<Error> {
        let settings = &self.app.settings;
        let heartbeat = Millis(i64::try_from(settings.heartbeat.as_millis()).unwrap_or(i64::MAX));
        let heartbeat = Some(heartbeat.min(WAIT_MAX));
        let mut text = self.list.since.as_ref().map_or("retry: 1000\n\n".to_owned(), |since| {
            // An id without data: where to continue if the stream ends before the first event.
            format!("retry: 1000\nid: {since}\n\n")
        });
        loop {
            let Ok(page) = self.app.reply_memory.hold(text.into_bytes()) else {
                return Some(out_of_memory(Code::Unavailable));
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
                Ok(page) => {
                    let secret = self.secret.as_ref();
                    self.app.access.check_again(&self.app.fleet, secret).await.map(|()| page)
                }
                Err(error) => Err(error),
            };
            match page {
                Ok(page) => {
                    text = as_text(&page.events);
                    self.list.since = Some(page.position);
                }
                Err(error) => return Some(error),
            }
        }
    }
}

/// The filter of a follower: the fields of `event/list` without those that make a page of it.
fn filter(query: &str) -> Result<event::List> {
    let fields = Fields::of(&(op::find(event::List::NAME)?.request)().to_value());
    let request = fields.read(query)?;
    for field in ["last", "from", "within_ms", "limit", "wait_ms"] {
        if request.get(field).is_some() {
            return Err(Error::invalid(field, "belongs to `event/list`: this stream has no end"));
        }
    }
    op::decode(request.to_string())
}

fn as_text(events: &[event::Entry]) -> String {
    if events.is_empty() {
        return ": still here\n\n".into();
    }
    let line = |event: &event::Entry| {
        let data = serde_json::to_string(event).unwrap_or_default();
        format!("id: {}\ndata: {data}\n\n", event.position)
    };
    events.iter().map(line).collect()
}

/// The last message. It has no id, so that a client continues after the last event that it received.
fn error(error: &Error) -> Bytes {
    format!("event: error\ndata: {}\n\n", error.to_json()).into()
}

fn too_slow() -> Error {
    Error::new(Code::RateLimited, "the client did not read the events in time").hint(
        "reconnect with the id of the last event that you received, in the header Last-Event-ID or as since=",
    )
}
