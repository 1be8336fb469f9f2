//! From a request that can be called to an answer that reached its client.
//!
//! What writes runs to its end, whether or not its client still listens. What was claimed for a client that is gone
//! before its answer was handed to the socket is given back: wherever the answer is dropped, its [`Delivery`] goes with it.

use crate::{App, app::stopping, call::Verb};
use axum::body::Body;
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, Result, RunToEnd, claim::Delivery, op::Served};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::sleep;

pub async fn run(
    app: &App,
    verb: Arc<Verb>,
    fleet: Fleet,
    body: Bytes,
    wait: Option<Duration>,
) -> Result<Served> {
    let waits = wait.is_some();
    let limit = app.settings.request_time + wait.unwrap_or_default();
    let reads = verb.entry.reads;
    let call = async {
        // What only reads, or waits, can be dropped with its client: the engine sees to what it takes meanwhile.
        if reads || waits {
            verb.entry.serve(&fleet, &body).await
        } else {
            let call = async move { verb.entry.serve(&fleet, &body).await };
            RunToEnd::new(app.begun.track_future(call)).await?
        }
    };
    tokio::select! {
        served = call => served,
        () = app.stopping(), if waits => Err(stopping()),
        // Real time: it bounds what a client waits for.
        () = sleep(limit) => Err(too_long(if reads { Code::Unavailable } else { Code::OutcomeUnknown }, limit)),
    }
}

/// What writes runs to its end; its client is answered in time.
pub async fn run_to_end<T: Send + 'static>(
    app: &App,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let limit = app.settings.request_time;
    tokio::select! {
        answer = RunToEnd::new(app.begun.track_future(call)) => answer?,
        // Real time: it bounds what a client waits for.
        () = sleep(limit) => Err(too_long(Code::OutcomeUnknown, limit)),
    }
}

fn too_long(code: Code, limit: Duration) -> Error {
    Error::new(code, format!("there was no answer within {limit:?}"))
        .hint("ask again with the same request id: what was done is answered, and not done twice")
}

/// An answer on its way. It is delivered when the connection takes it.
#[derive(Debug)]
struct Parcel {
    json: Option<Bytes>,
    delivery: Option<Delivery>,
}

/// The answer, in the memory that there is for answers. What finds none is given back, or can be asked for again.
pub fn body(app: &App, reads: bool, served: Served) -> Result<Body> {
    let Served { json, delivery, .. } = served;
    let code = if reads || !delivery.is_empty() { Code::Unavailable } else { Code::OutcomeUnknown };
    let json = app.replies.hold(json).map_err(|_| crowded(code))?;
    if delivery.is_empty() {
        return Ok(json.into());
    }
    Ok(Body::new(Parcel { json: Some(json), delivery: Some(delivery) }))
}

pub fn crowded(code: Code) -> Error {
    Error::new(code, "the memory for large replies is taken by clients that have not read theirs")
        .with("retry_after_ms", 1000)
        .hint("ask again later, or for less at once; fence serve --reply-memory says how much there is")
}

impl HttpBody for Parcel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(delivery) = self.delivery.take() {
            delivery.delivered();
        }
        Poll::Ready(self.json.take().map(|json| Ok(Frame::data(json))))
    }

    fn is_end_stream(&self) -> bool {
        self.json.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.as_ref().map_or(0, |json| json.len() as u64))
    }
}
