//! A served fleet of its own for every test, on either database.

use axum::{Router, body::Body, http::Request, response::Response};
use fencepost::{Clock, Fleet, ManualClock, Options, Time, admin};
use fencepost_server::{App, Settings, router};
use http_body_util::BodyExt;
use serde_json::Value;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tower::ServiceExt;

/// Defines each test once and runs it on both databases.
#[macro_export]
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {
        $($(#[$doc])* async fn $name($world: $crate::world::World) $body)*
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = $crate::world::World::sqlite().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = $crate::world::World::postgres().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
    };
}

#[derive(Clone)]
pub struct World {
    pub fleet: Fleet,
    pub clock: ManualClock,
    pub app: App,
    pub router: Router,
    _dir: Option<Arc<tempfile::TempDir>>,
}

impl World {
    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = dir.path().join("fence.db").display().to_string();
        Self::open(&url, Some(Arc::new(dir))).await
    }

    /// A schema that no other test uses. It has a random part, because PostgreSQL keeps the schemas of earlier runs and
    /// process ids repeat.
    pub async fn postgres() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var("FENCE_TEST_POSTGRES").expect(
            "FENCE_TEST_POSTGRES is not set: run the tests with `make test`, which starts a private PostgreSQL",
        );
        let (process, random) = (std::process::id(), fastrand::u64(..));
        let schema = format!("srv{process}_{random:016x}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self::open(&format!("{base}?schema={schema}&sslmode=disable"), None).await
    }

    async fn open(url: &str, dir: Option<Arc<tempfile::TempDir>>) -> Self {
        let clock = ManualClock::at("2026-01-01T12:00:00Z".parse::<Time>().expect("a time"));
        let mut options = Options::default();
        options.clock = Clock::Manual(clock.clone());
        let fleet = Fleet::open_with(url, options).await.expect("the fleet opens");
        let app = App::new(fleet.clone(), settings());
        Self { fleet, clock, router: router(app.clone()), app, _dir: dir }
    }

    /// The same fleet, served with other settings.
    pub fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings();
        change(&mut settings);
        let app = App::new(self.fleet.clone(), settings);
        Self { router: router(app.clone()), app, ..self.clone() }
    }

    /// Moves the clock as if the fleet had been used in every hour. Retention counts only time in use.
    pub async fn pass_in_use(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        let at = Clock::Manual(self.clock.clone()).read().0;
        let used = self.fleet.transaction(move |tx| {
            Box::pin(async move {
                tx.execute("update fleet set seen_at = ?1", fencepost::params![at]).await?;
                tx.execute("delete from gap where at = ?1", fencepost::params![at]).await
            })
        });
        used.await.expect("time passes");
    }

    pub async fn assert_sound(&self) {
        let report = self.fleet.call(admin::Check {}).await.expect("the check runs");
        assert!(report.ok, "{:#?}", report.violations);
    }

    pub async fn send(&self, request: Request<Body>) -> Response {
        let answer = tokio::time::timeout(crate::LIMIT, self.router.clone().oneshot(request)).await;
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
