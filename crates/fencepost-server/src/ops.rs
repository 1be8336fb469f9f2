//! One request for one op: decode, call, encode.

pub mod delivery;

use crate::{
    access::peer,
    app::App,
    http::{
        AGENT, RUN,
        body::BodyLimits,
        query,
        response::{self, Refusal},
    },
    telemetry::request_log::{Fields, Line},
};
use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode, request},
    response::Response,
};
use bytes::Bytes;
use fencepost::{Error, Fleet, Result, key::Key, op::Entry};
use std::sync::Arc;

/// The handler of one op.
#[derive(Debug)]
pub struct Handler {
    pub entry: Entry,
    fields: query::Fields,
}

impl Handler {
    pub fn new(entry: Entry) -> Self {
        let fields = query::Fields::of(&(entry.request)().to_value());
        Self { entry, fields }
    }

    pub async fn post(self: Arc<Self>, app: App, request: Request) -> Response {
        let line = Line::begin(&app.telemetry, self.entry.name, request.headers());
        let (head, body) = request.into_parts();
        let limits = BodyLimits {
            size: app.settings.body_size,
            size_option: "--body-size",
            time: app.settings.body_time,
            memory: &app.request_memory,
        };
        let read = match limits.read(&head.headers, body).await {
            // A body may take long to arrive, and the key may be revoked meanwhile.
            Ok(body) => {
                let admitted = app.access.check_again(&app.fleet, head.extensions.get()).await;
                admitted.map(|()| body).map_err(Refusal::from)
            }
            refused => refused,
        };
        self.answer(app, line, head, read).await
    }

    pub async fn get(self: Arc<Self>, app: App, request: Request) -> Response {
        let line = Line::begin(&app.telemetry, self.entry.name, request.headers());
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
                response::logged(refusal)
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
        let fields = Fields::read(&body);
        let wait = fields.wait;
        line.set_caller(fields, key);
        let fleet = as_caller(&app.fleet, key, &head.headers)?;
        // Refused at once if the limit is reached: nobody waits for a permit to wait.
        let permit = wait.is_some().then(|| app.waiter(&peer::caller(&head.extensions))).transpose()?;
        let reads = self.entry.reads;
        let served = delivery::run(app, self, fleet, body, wait).await?;
        drop(permit);
        Ok(response::json(StatusCode::OK, delivery::body(app, reads, served)?))
    }
}

/// The fleet as this caller sees it: with the rights of its key, acting as the agent and in the run of the headers. An
/// agent's key always acts as that agent.
pub fn as_caller(fleet: &Fleet, key: Option<&Key>, headers: &HeaderMap) -> Result<Fleet> {
    let fleet = key.map_or_else(|| fleet.as_guest(), |key| fleet.as_key(key));
    let named = |name: &'static str| {
        let value = headers.get(name).map(|value| value.to_str());
        value.transpose().map_err(|_| Error::invalid(name, "is not a name"))
    };
    let fleet = named(AGENT)?.map_or_else(|| fleet.clone(), |agent| fleet.as_agent(agent));
    Ok(named(RUN)?.map_or_else(|| fleet.clone(), |run| fleet.in_run(run)))
}
