//! The paths: one for each op of the registry, and those beside them.

use crate::{
    app::App,
    docs::{openapi, page},
    events,
    http::{
        path,
        response::{self, Refusal, Unlogged},
    },
    mcp,
    ops::{Handler, delivery::out_of_memory},
    telemetry::request_log,
    webhooks,
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use fencepost::{Code, Error, op};
use serde_json::json;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// How long the database may take to answer a check of readiness.
const READY_WITHIN: Duration = Duration::from_secs(5);

pub fn router(app: App) -> Router {
    let mut router = Router::new()
        .route(path::HEALTH, get(health))
        .route(path::READINESS, get(readiness))
        .route(path::METRICS, get(metrics))
        .route(path::EVENTS, get(events::follow))
        .route(path::OPENAPI, get(openapi_document))
        .route(path::DOCS, get(docs_page))
        .route(path::SLACK, post(webhooks::slack))
        .route(path::GITHUB, post(webhooks::github))
        .route(path::MCP, mcp::route(app.clone()));
    for entry in op::registry() {
        let names = [Some(entry.name), entry.formerly];
        let reads = entry.reads;
        let handler = Arc::new(Handler::new(entry));
        let (posted, got) = (handler.clone(), handler);
        let mut methods =
            post(move |State(app): State<App>, request| async move { posted.post(app, request).await });
        if reads {
            methods = methods
                .get(move |State(app): State<App>, request| async move { got.get(app, request).await });
        }
        for name in names.into_iter().flatten() {
            router = router.route(&format!("/v1/{name}"), methods.clone());
        }
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), check_access))
        .with_state(app)
}

/// Lets a request in, or refuses it. Refusals that no handler logged are logged here.
async fn check_access(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    let response = match app.access.admit(&app.fleet, &mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    if let Some(Unlogged(code)) = response.extensions().get() {
        request_log::refused(uri.path(), *code);
    }
    response
}

/// The process answers.
async fn health() -> Response {
    response::json(StatusCode::OK, json!({ "ok": true }).to_string())
}

/// The database answers, too.
async fn readiness(State(app): State<App>) -> Response {
    // Real time: it limits how long a readiness check waits.
    let answer = tokio::time::timeout(READY_WITHIN, app.about()).await;
    let answer = answer.unwrap_or_else(|_| Err(Error::unavailable("it did not answer in time")));
    match answer {
        Ok(facts) => {
            let facts = json!({ "ok": true, "database": facts.database.kind, "now": facts.now });
            response::json(StatusCode::OK, facts.to_string())
        }
        Err(error) => {
            let error = Error::unavailable(format!("the database does not answer: {}", error.message()));
            Refusal::from(error).into_response()
        }
    }
}

async fn metrics(State(app): State<App>) -> Result<Response, Refusal> {
    let text = app.telemetry.metrics.text(&app.fleet, app.usage()).await?.into_bytes();
    let text = app.reply_memory.hold(text).map_err(|_| out_of_memory(Code::Unavailable))?;
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Made once: it never changes while the process lives.
async fn openapi_document() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document().to_string());
    response::json(StatusCode::OK, DOCUMENT.as_str())
}

async fn docs_page() -> Response {
    static PAGE: LazyLock<String> = LazyLock::new(page::html);
    let mut response = Html(PAGE.as_str()).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    response
}

async fn not_found(request: Request) -> Refusal {
    let path = request.uri().path();
    let error = match path.strip_prefix("/v1/").map(op::find) {
        Some(Err(error)) => error,
        _ => Error::new(Code::NotFound, format!("there is nothing at {path}"))
            .hint("ops are at /v1/<noun>/<verb>, such as POST /v1/task/claim; /docs lists them"),
    };
    error.into()
}

/// The header `Allow` lists the methods.
async fn wrong_method(method: Method, request: Request) -> Refusal {
    let path = request.uri().path();
    let hint = match path.starts_with("/v1/") && method == Method::GET {
        true => "this op writes: send it as POST with a JSON body",
        false => "the header Allow lists the methods",
    };
    let error = Error::new(Code::Invalid, format!("{path} does not accept {method}")).hint(hint);
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error)
}
