//! `/mcp`: the tools of [`fencepost_mcp`] over Streamable HTTP, without sessions. Each request stands for itself: its key says who
//! calls, and the client names the run.

use crate::{
    access::peer,
    app::App,
    http::{AGENT, RUN, body::BodyLimits, response::Refusal},
    ops::{as_caller, delivery},
    settings::Secret,
    telemetry::request_log::{Fields, Line},
};
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{MethodRouter, post},
};
use fencepost::{
    BoxFuture, Code, Error, Millis, Result,
    claim::{Claim, Delivery},
    key::Key,
    op::{AnyOp, AnyReply},
    run,
    sync::lock,
};
use fencepost_mcp::{Acting, Call, Host, Mcp, session_run};
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use std::sync::{Arc, Mutex};

/// The lease of a run. Each of its calls renews it; between two calls an agent thinks, and runs commands.
const LEASE: Millis = Millis::minutes(10);

type Service = StreamableHttpService<Mcp, NeverSessionManager>;

/// The claims that one request made. They are the client's when the connection takes the reply.
#[derive(Debug, Clone, Default)]
struct Deliveries(Arc<Mutex<Vec<Delivery>>>);

/// The handler of [`crate::http::path::MCP`].
pub fn route<S: Clone + Send + Sync + 'static>(app: App) -> MethodRouter<S> {
    let mcp = Mcp::new(Arc::new(Remote { app: app.clone() }));
    // Host, Origin and the size of bodies are checked before.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(app.settings.body_size);
    let service = Service::new(move || Ok(mcp.clone()), Arc::default(), config);
    post(move |request| async move { answer(&app, &service, request).await })
}

async fn answer(app: &App, service: &Service, request: Request) -> Response {
    served(app, service, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn served(app: &App, service: &Service, request: Request) -> Result<Response, Refusal> {
    let (mut head, body) = request.into_parts();
    let limits = BodyLimits {
        size: app.settings.body_size,
        size_option: "--body-size",
        time: app.settings.body_time,
        memory: &app.request_memory,
    };
    let body = limits.read(&head.headers, body).await?;
    // A body may take long to arrive, and the key may be revoked meanwhile.
    app.access.check_again(&app.fleet, head.extensions.get()).await?;
    // The key is known by now, and its secret is not for anything that logs requests.
    head.headers.remove(header::AUTHORIZATION);
    head.extensions.remove::<Secret>();
    let deliveries = Deliveries::default();
    head.extensions.insert(deliveries.clone());
    let reply = service.handle(Request::from_parts(head, Full::new(body))).await;
    let (mut head, body) = reply.into_parts();
    let json = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    let deliveries = std::mem::take(&mut *lock(&deliveries.0));
    let body = delivery::claiming_body(app, Code::OutcomeUnknown, json, deliveries)?;
    head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(Response::from_parts(head, body))
}

/// Every client of `/mcp`.
#[derive(Debug)]
struct Remote {
    app: App,
}

/// The head of the HTTP request that a call came with.
fn head(call: &Call) -> Result<&Parts> {
    call.extensions.get::<Parts>().ok_or_else(|| Error::internal("the call came by no HTTP request"))
}

fn named(headers: &HeaderMap, name: &'static str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

impl Remote {
    async fn call_op(&self, call: &Call, acting: &Acting, op: Arc<dyn AnyOp>) -> Result<AnyReply> {
        let head = head(call)?;
        let key = head.extensions.get::<Key>();
        let mut line = Line::begin(&self.app.telemetry, op.name(), &head.headers);
        let fields = op.to_json().map(|json| Fields::read(json.text().as_bytes())).unwrap_or_default();
        line.set_caller(fields, key);
        let answer = async {
            let fleet = as_caller(&self.app.fleet, key, &head.headers)?;
            let fleet = if acting.run.is_empty() { fleet } else { fleet.in_run(&acting.run) };
            // Refused at once if the limit is reached: nobody waits for a permit to wait.
            let caller = || peer::caller(&head.extensions);
            let permit = op.wait().is_some().then(|| self.app.waiter(&caller())).transpose()?;
            let answer = delivery::run_op(&self.app, fleet, op).await;
            drop(permit);
            answer
        };
        match answer.await {
            Ok((reply, delivery)) => {
                if let Some(deliveries) = head.extensions.get::<Deliveries>() {
                    lock(&deliveries.0).push(delivery);
                }
                line.end(None);
                Ok(reply)
            }
            Err(error) => {
                line.end(Some(error.code()));
                Err(error)
            }
        }
    }
}

impl Host for Remote {
    fn acting(&self, call: &Call) -> Result<Acting> {
        let header = named(&head(call)?.headers, RUN);
        let found = header.or_else(|| session_run(&call.client, &call.meta));
        let run = call.run.clone().or_else(|| found.clone()).ok_or_else(|| {
            Error::invalid("run", "is missing: this server does not know whose call it is")
                .hint("pass run, a name of your own, the same in all your calls; or let the client send the header Fence-Run")
        })?;
        let named = call.run.is_some();
        Ok(Acting { session: found.unwrap_or_else(|| run.clone()), run, named })
    }

    fn begin<'h>(&'h self, call: &'h Call, acting: &'h Acting) -> BoxFuture<'h, ()> {
        Box::pin(async move {
            let (Ok(head), run) = (head(call), acting.run.clone()) else { return };
            let Ok(fleet) = as_caller(&self.app.fleet, head.extensions.get(), &head.headers) else { return };
            // Refused if there is no such run yet, or not any more. The op itself says what that means.
            let _ = fleet.call(run::Renew { run, ttl_ms: None }).await;
        })
    }

    fn call<'h>(
        &'h self,
        call: &'h Call,
        acting: &'h Acting,
        op: Arc<dyn AnyOp>,
    ) -> BoxFuture<'h, Result<AnyReply>> {
        Box::pin(self.call_op(call, acting, op))
    }

    fn agent(&self, call: &Call) -> Option<String> {
        let head = head(call).ok()?;
        let of_key = head.extensions.get::<Key>().and_then(|key| key.agent.clone());
        of_key.or_else(|| named(&head.headers, AGENT))
    }

    fn default_claim(&self) -> Option<String> {
        None
    }

    fn lease(&self) -> Millis {
        LEASE
    }

    fn claimed<'h>(&'h self, _: &'h Call, _: &'h Acting, _: &'h [Claim]) -> BoxFuture<'h, Option<String>> {
        // The lease is long, and each call renews it.
        Box::pin(std::future::ready(None))
    }

    fn ended(&self) {}
}
