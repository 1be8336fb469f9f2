//! From a request that can be called to an answer that reached its client.
//!
//! What writes runs to its end, whether or not its client still listens. What was claimed for a client that is gone
//! before its answer was handed to the socket is given back: wherever the answer is dropped, its [`Delivery`] goes with it.

use crate::{App, app::stopping, call::Verb};
use axum::body::Body;
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, Result, Unbroken, claim::Delivery, op::Served};
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
            Unbroken::new(app.begun.track_future(call)).await?
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
pub async fn unbroken<T: Send + 'static>(
    app: &App,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let limit = app.settings.request_time;
    tokio::select! {
        answer = Unbroken::new(app.begun.track_future(call)) => answer?,
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

pub fn body(served: Served) -> Body {
    let Served { json, delivery, .. } = served;
    if delivery.is_empty() {
        return json.into();
    }
    Body::new(Parcel { json: Some(json.into()), delivery: Some(delivery) })
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
