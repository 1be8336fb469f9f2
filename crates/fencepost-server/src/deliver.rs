//! From a request that can be called to an answer that reached its client.
//!
//! What writes is run to its end in a task of its own, whether or not its client still listens. A client that hangs up
//! while it waits ends its wait: nothing is taken for it any more.

use crate::{
    App,
    app::stopping,
    call::{Asked, Verb},
};
use bytes::Bytes;
use fencepost::{Code, Error, Fleet, Result, op::Served};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

pub async fn run(app: &App, verb: Arc<Verb>, fleet: Fleet, body: Bytes, asked: &Asked) -> Result<Served> {
    let _place = asked.wait.map(|_| app.waiter()).transpose()?;
    let limit = app.settings.request_time + asked.wait.unwrap_or_default();
    if verb.entry.reads {
        return look(app, &verb, &fleet, &body, asked.wait.is_some(), limit).await;
    }
    // Dropping this end of it is hanging up.
    let (wanted, unwanted) = watch::channel(());
    let (reply, mut answer) = oneshot::channel();
    let fleet = fleet.wanted_until(unwanted);
    app.begun.spawn(async move {
        let _ = reply.send(verb.entry.serve(&fleet, &body).await);
    });
    let mut wanted = Some(wanted);
    loop {
        tokio::select! {
            answer = &mut answer => {
                let answer = answer.unwrap_or_else(|_| Err(Error::internal("the op ended without an answer")));
                return if wanted.is_none() && was_ended(&answer) { Err(stopping()) } else { answer };
            }
            () = app.stopping(), if wanted.is_some() && asked.wait.is_some() => wanted = None,
            // Real time: it bounds what a client waits for, and what was begun goes on.
            () = sleep(limit) => return Err(too_long(Code::OutcomeUnknown, limit)),
        }
    }
}

/// What only reads is dropped with its client.
async fn look(
    app: &App,
    verb: &Verb,
    fleet: &Fleet,
    body: &[u8],
    waits: bool,
    limit: Duration,
) -> Result<Served> {
    tokio::select! {
        served = verb.entry.serve(fleet, body) => served,
        () = app.stopping(), if waits => Err(stopping()),
        () = sleep(limit) => Err(too_long(Code::Unavailable, limit)),
    }
}

fn was_ended<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.code() == Code::Unavailable)
}

fn too_long(code: Code, limit: Duration) -> Error {
    Error::new(code, format!("there was no answer within {limit:?}"))
        .hint("ask again with the same request id: what was done is answered, and not done twice")
}
