//! The paths: each op of the registry, and what there is beside them.

use crate::{
    App,
    answer::{self, Refusal},
    call::Verb,
    deliver, docs, door, hooks, log, openapi,
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::from_fn_with_state,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use fencepost::{Code, Error, op};
use serde_json::json;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// How long the database may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(5);

pub fn router(app: App) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/events", get(log::follow))
        .route("/v1/openapi.json", get(openapi))
        .route("/docs", get(docs))
        .route(hooks::SLACK, post(hooks::slack))
        .route(hooks::GITHUB, post(hooks::github));
    for entry in op::registry() {
        let path = format!("/v1/{}", entry.name);
        let reads = entry.reads;
        let verb = Arc::new(Verb::new(entry));
        let (posted, got) = (verb.clone(), verb);
        let mut methods =
            post(move |State(app): State<App>, request| async move { posted.post(app, request).await });
        if reads {
            methods = methods
                .get(move |State(app): State<App>, request| async move { got.get(app, request).await });
        }
        router = router.route(&path, methods);
    }
    router
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), door::enter))
        .with_state(app)
}

/// The process answers.
async fn healthz() -> Response {
    answer::json(StatusCode::OK, json!({ "ok": true }).to_string())
}

/// The database answers, too.
async fn readyz(State(app): State<App>) -> Response {
    // Real time: nobody who asks this can wait longer.
    let asked = tokio::time::timeout(READY_WITHIN, app.about()).await;
    let answer = asked.unwrap_or_else(|_| Err(Error::unavailable("it did not answer in time")));
    match answer {
        Ok(facts) => {
            let facts = json!({ "ok": true, "database": facts.database.kind, "now": facts.now });
            answer::json(StatusCode::OK, facts.to_string())
        }
        Err(error) => {
            let error = Error::unavailable(format!("the database does not answer: {}", error.message()));
            Refusal::from(error).into_response()
        }
    }
}

async fn metrics(State(app): State<App>) -> Result<Response, Refusal> {
    let text = app.metrics.text(&app).await?.into_bytes();
    let text = app.replies.hold(text).map_err(|_| deliver::crowded(Code::Unavailable))?;
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// It is the same as long as the process lives.
async fn openapi() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document().to_string());
    answer::json(StatusCode::OK, DOCUMENT.as_str())
}

async fn docs() -> Response {
    static PAGE: LazyLock<String> = LazyLock::new(docs::page);
    let mut response = Html(PAGE.as_str()).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(docs::POLICY));
    response
}

async fn nothing_here(request: Request) -> Refusal {
    let path = request.uri().path();
    let error = match path.strip_prefix("/v1/").map(op::find) {
        Some(Err(error)) => error,
        _ => Error::new(Code::NotFound, format!("there is nothing at {path}"))
            .hint("ops are at /v1/<noun>/<verb>, such as POST /v1/task/claim; /docs shows them all"),
    };
    error.into()
}

/// Which there are is in the header `Allow`.
async fn wrong_method(method: Method, request: Request) -> Refusal {
    let path = request.uri().path();
    let hint = match path.starts_with("/v1/") && method == Method::GET {
        true => "it changes something: POST it, as JSON",
        false => "the header Allow says how",
    };
    let error = Error::new(Code::Invalid, format!("{path} cannot be asked by {method}")).hint(hint);
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error)
}
