//! Running a call and delivering its reply.
//!
//! A call that writes runs to its end, even if its client hangs up. A claim whose reply does not reach the socket is
//! given back: the reply carries its [`Delivery`], and dropping the one drops the other.

use super::Handler;
use crate::app::{App, stopping};
use axum::body::Body;
use bytes::Bytes;
use fencepost::{
    Code, Error, Fleet, Result, RunToEnd,
    claim::Delivery,
    op::{AnyOp, AnyReply, Served},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::sleep;

/// Calls an op. A caller that waits is asked to retry when the server stops.
pub async fn run(
    app: &App,
    op: Arc<Handler>,
    fleet: Fleet,
    body: Bytes,
    wait: Option<Duration>,
) -> Result<Served> {
    let waits = wait.is_some();
    let limit = app.settings.request_time + wait.unwrap_or_default();
    let reads = op.entry.reads;
    let call = async {
        // A call that reads or waits may be dropped with its client: the engine gives back what it claims meanwhile.
        if reads || waits {
            op.entry.serve(&fleet, &body).await
        } else {
            let call = async move { op.entry.serve(&fleet, &body).await };
            RunToEnd::new(app.running.track_future(call)).await?
        }
    };
    tokio::select! {
        served = call => served,
        () = app.stopping(), if waits => Err(stopping()),
        // Real time: it limits how long a client waits.
        () = sleep(limit) => Err(timed_out(if reads { Code::Unavailable } else { Code::OutcomeUnknown }, limit)),
    }
}

/// The same as [`run`], for an op that is not made from a body of JSON.
pub async fn run_op(app: &App, fleet: Fleet, op: Arc<dyn AnyOp>) -> Result<(AnyReply, Delivery)> {
    let waits = op.wait().is_some();
    let limit = app.settings.request_time + op.wait().map(Duration::from).unwrap_or_default();
    let reads = op.reads();
    let call = async {
        if reads || waits {
            fleet.deliver_any(op).await
        } else {
            let call = async move { fleet.deliver_any(op).await };
            RunToEnd::new(app.running.track_future(call)).await?
        }
    };
    tokio::select! {
        answer = call => answer,
        () = app.stopping(), if waits => Err(stopping()),
        // Real time: it limits how long a client waits.
        () = sleep(limit) => Err(timed_out(if reads { Code::Unavailable } else { Code::OutcomeUnknown }, limit)),
    }
}

/// Runs a call that writes to its end. The client gets an answer in time, even if the call takes longer.
pub async fn run_to_end<T: Send + 'static>(
    app: &App,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let limit = app.settings.request_time;
    tokio::select! {
        answer = RunToEnd::new(app.running.track_future(call)) => answer?,
        // Real time: it limits how long a client waits.
        () = sleep(limit) => Err(timed_out(Code::OutcomeUnknown, limit)),
    }
}

fn timed_out(code: Code, limit: Duration) -> Error {
    Error::new(code, format!("there was no answer within {limit:?}"))
        .hint("retry with the same request id: a request that was carried out is answered, not repeated")
}

/// A reply with claims. They count as delivered when the connection takes it.
#[derive(Debug)]
struct ClaimingReply {
    json: Option<Bytes>,
    deliveries: Vec<Delivery>,
}

/// The reply as a body, counted against the memory budget. If the budget is used up, claims are given back, and the
/// outcome of other writes is unknown to the client until it retries.
pub fn body(app: &App, reads: bool, served: Served) -> Result<Body> {
    let Served { json, delivery, .. } = served;
    let code = if reads || !delivery.is_empty() { Code::Unavailable } else { Code::OutcomeUnknown };
    claiming_body(app, code, json, vec![delivery])
}

/// A reply with the claims of several calls.
pub fn claiming_body(app: &App, code: Code, json: Vec<u8>, deliveries: Vec<Delivery>) -> Result<Body> {
    let json = app.reply_memory.hold(json).map_err(|_| out_of_memory(code))?;
    if deliveries.iter().all(Delivery::is_empty) {
        return Ok(json.into());
    }
    Ok(Body::new(ClaimingReply { json: Some(json), deliveries }))
}

pub fn out_of_memory(code: Code) -> Error {
    Error::new(code, "the memory for large replies is full of replies that clients have not read")
        .with("retry_after_ms", 1000)
        .hint("retry later, or ask for less at once; fence serve --reply-memory sets the limit")
}

impl HttpBody for ClaimingReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::mem::take(&mut self.deliveries).into_iter().for_each(Delivery::delivered);
        Poll::Ready(self.json.take().map(|json| Ok(Frame::data(json))))
    }

    fn is_end_stream(&self) -> bool {
        self.json.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.as_ref().map_or(0, |json| json.len() as u64))
    }
}
