//! The private PostgreSQL that `make test` starts, and clusters of a test's own.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
};

/// The address of the shared server, without a schema.
pub fn address() -> String {
    std::env::var("FENCE_TEST_POSTGRES").expect(
        "FENCE_TEST_POSTGRES is not set: run the tests with `make test`, which starts a private PostgreSQL",
    )
}

/// The address of a fleet in a schema.
pub fn url(schema: &str) -> String {
    format!("{}?schema={schema}&sslmode=disable", address())
}

/// A schema that no other test uses, even when several test runs share one PostgreSQL. The server keeps the schemas of
/// earlier runs and process ids repeat, hence the random part.
pub fn fresh_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, random) = (std::process::id(), fastrand::u64(..));
    format!("t{process}_{random:016x}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A connection without the engine, in a schema.
pub async fn connect(schema: &str) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(&address(), tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("PostgreSQL accepts the connection");
    tokio::spawn(connection);
    client.batch_execute(&format!("set search_path = {schema}")).await.expect("the schema is set");
    client
}

/// Does the shared server write to the disk before it acknowledges? That of `make test` does not: see there.
pub async fn fsync() -> bool {
    let row = connect("public").await.query_one("show fsync", &[]).await.expect("the setting");
    row.get::<_, String>(0) == "on"
}

/// A PostgreSQL of one test's own, which the test can stop and start. Dropping it removes it.
#[derive(Debug)]
pub struct Cluster {
    dir: tempfile::TempDir,
    address: String,
}

impl Cluster {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let started = script("start", dir.path(), &[]);
        let address = started.lines().find_map(|line| line.strip_prefix("FENCE_TEST_POSTGRES="));
        Self { address: address.expect("an address").to_owned(), dir }
    }

    /// The address of a fleet in it.
    pub fn url(&self) -> String {
        format!("{}?sslmode=disable", self.address)
    }

    pub fn stop(&self) {
        script("stop", self.dir.path(), &[]);
    }

    /// Stops it without a shutdown checkpoint, as a crash does.
    pub fn crash(&self) {
        script("stop", self.dir.path(), &["immediate"]);
    }

    /// Starts it again, on the same port.
    pub fn restart(&self) {
        script("restart", self.dir.path(), &[]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        script("rm", self.dir.path(), &[]);
    }
}

/// Runs `scripts/postgres`.
fn script(verb: &str, dir: &Path, more: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
    let ran = Command::new(script).arg(verb).arg(dir).args(more).output().expect("the script runs");
    assert!(ran.status.success(), "{verb} {more:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}
