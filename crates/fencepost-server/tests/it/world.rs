//! A served fleet of its own for every test, on either database.

use axum::{Router, body::Body, http::Request, response::Response};
use fencepost_server::{App, Settings, router};
use fencepost_testing::PATIENCE;
use http_body_util::BodyExt;
use serde_json::Value;
use std::ops::Deref;
use tower::ServiceExt;

/// A fleet and its router. The fleet and the clock are those of [`fencepost_testing::World`].
#[derive(Clone)]
pub struct World {
    world: fencepost_testing::World,
    pub app: App,
    pub router: Router,
}

impl Deref for World {
    type Target = fencepost_testing::World;

    fn deref(&self) -> &Self::Target {
        &self.world
    }
}

impl World {
    pub async fn sqlite() -> Self {
        Self::of(fencepost_testing::World::sqlite().await.with_fallback().await)
    }

    pub async fn postgres() -> Self {
        Self::of(fencepost_testing::World::postgres().await.with_fallback().await)
    }

    fn of(world: fencepost_testing::World) -> Self {
        let app = App::new(world.fleet.clone(), settings());
        Self { world, router: router(app.clone()), app }
    }

    /// The same fleet, served with other settings.
    pub fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings();
        change(&mut settings);
        let app = App::new(self.fleet.clone(), settings);
        Self { router: router(app.clone()), app, ..self.clone() }
    }

    pub async fn send(&self, request: Request<Body>) -> Response {
        let answer = tokio::time::timeout(PATIENCE, self.router.clone().oneshot(request)).await;
        answer.expect("an answer in time").expect("the router never fails")
    }

    /// Sends a request. Returns the status, the relevant headers and the body as text.
    pub async fn exchange(&self, request: Request<Body>) -> String {
        let response = self.send(request).await;
        let mut shown = response.status().to_string();
        for name in ["allow", "connection", "retry-after", "www-authenticate"] {
            if let Some(value) = response.headers().get(name) {
                shown.push_str(&format!("\n{name}: {}", value.to_str().expect("text")));
            }
        }
        assert_eq!(response.headers()["content-type"], "application/json");
        format!("{shown}\n{}", text(response).await)
    }

    /// POSTs JSON and returns the status and the reply.
    pub async fn post(&self, op: &str, body: Value) -> (u16, Value) {
        let response = self.send(post(op, &body.to_string())).await;
        (response.status().as_u16(), serde_json::from_str(&text(response).await).expect("JSON"))
    }

    /// Like [`Self::post`], but the call must succeed.
    #[track_caller]
    pub fn ok(&self, op: &'static str, body: Value) -> impl Future<Output = Value> {
        let at = std::panic::Location::caller();
        async move {
            let (status, reply) = self.post(op, body).await;
            assert_eq!(status, 200, "{at}: {op}: {reply}");
            reply
        }
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.send(get(path)).await;
        (response.status().as_u16(), serde_json::from_str(&text(response).await).expect("JSON"))
    }
}

fn settings() -> Settings {
    Settings::new("127.0.0.1:7373".parse().expect("an address"))
}

pub async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// A request as a client on this machine sends it.
pub fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "127.0.0.1:7373")
}

pub fn get(path: &str) -> Request<Body> {
    request("GET", path).body(Body::empty()).expect("a request")
}

pub fn post(op: &str, body: &str) -> Request<Body> {
    request("POST", &format!("/v1/{op}"))
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .expect("a request")
}
