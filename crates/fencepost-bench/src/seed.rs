//! Fills a fleet with plain SQL, because adding a million tasks through the engine would take hours.

use std::path::Path;

/// Tasks that stand in the index before the claimable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    None,
    /// Tasks that depend on another.
    Blocked(i64),
    /// Tasks that failed and are delayed.
    Delayed(i64),
}

impl Front {
    fn parts(self) -> (i64, i64, &'static str) {
        match self {
            Front::None => (0, 0, "null"),
            Front::Blocked(count) => (count, 1, "null"),
            Front::Delayed(count) => (count, 0, "9000000000000"),
        }
    }
}

fn insert(series: &str, board: &str, first: i64, waiting_on: i64, delayed: &str, priority: i64) -> String {
    format!(
        "insert into task(board, n, title, priority, max_attempts, created_at, status, waiting_on, delayed_until, updated_at)
         select '{board}', {first} + i, 'a task', {priority}, 3, 0, 'unassigned', {waiting_on}, {delayed}, 0 from {series};
         insert into task_doc(task, body) select seq, 'what to do' from task where board = '{board}' and n >= {first};"
    )
}

pub fn sqlite(path: &Path, board: &str, count: i64) {
    fill(path, board, count, 0, "null", 50);
}

pub fn sqlite_front(path: &Path, board: &str, front: Front) {
    let (count, waiting_on, delayed) = front.parts();
    fill(path, board, count, waiting_on, delayed, 100);
}

fn fill(path: &Path, board: &str, count: i64, waiting_on: i64, delayed: &str, priority: i64) {
    if count == 0 {
        return;
    }
    let conn = rusqlite::Connection::open(path).expect("the file");
    conn.busy_timeout(std::time::Duration::from_secs(30)).expect("a timeout");
    let first: i64 = conn
        .query_row("select coalesce(max(n), 0) + 1 from task where board = ?1", [board], |row| row.get(0))
        .expect("a number");
    let series = format!(
        "(with recursive c(i) as (select 0 union all select i + 1 from c where i < {} - 1) select i from c)",
        count
    );
    let script = format!(
        "begin immediate; {}
         insert into board(name, next_n, created_at) values ('{board}', {}, 0)
           on conflict (name) do update set next_n = excluded.next_n; commit; analyze;",
        insert(&series, board, first, waiting_on, delayed, priority),
        first + count,
    );
    conn.execute_batch(&script).expect("seeded");
}

pub fn clear_sqlite(path: &Path) {
    let conn = rusqlite::Connection::open(path).expect("the file");
    conn.busy_timeout(std::time::Duration::from_secs(30)).expect("a timeout");
    conn.execute_batch("begin immediate; delete from task; delete from task_doc; delete from event; commit;")
        .expect("cleared");
}

/// A plain connection to the bench's schema.
pub struct Postgres {
    client: tokio_postgres::Client,
    schema: String,
}

impl Postgres {
    pub async fn connect(base: &str, schema: &str) -> Self {
        let client = client(base, schema).await;
        Self { client, schema: schema.into() }
    }
    pub async fn drop_schema(&self) {
        let sql = format!("drop schema if exists {} cascade", self.schema);
        self.client.batch_execute(&sql).await.expect("dropped");
    }
    pub async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("by plain SQL");
    }
    pub async fn clear(&self) {
        self.client.batch_execute("truncate task, task_doc, event, edge, note").await.expect("cleared");
    }
    pub async fn seed(&self, board: &str, count: i64) {
        self.fill(board, count, 0, "null", 50).await;
    }
    pub async fn front(&self, board: &str, front: Front) {
        let (count, waiting_on, delayed) = front.parts();
        self.fill(board, count, waiting_on, delayed, 100).await;
    }
    async fn fill(&self, board: &str, count: i64, waiting_on: i64, delayed: &str, priority: i64) {
        if count == 0 {
            return;
        }
        let first: i64 = self
            .client
            .query_one("select coalesce(max(n), 0) + 1 from task where board = $1", &[&board])
            .await
            .expect("a number")
            .get(0);
        let series = format!("generate_series(0, {} - 1) as i", count);
        let script = format!(
            "{} insert into board(name, next_n, created_at) values ('{board}', {}, 0)
               on conflict (name) do update set next_n = excluded.next_n;",
            insert(&series, board, first, waiting_on, delayed, priority),
            first + count,
        );
        self.client.batch_execute(&script).await.expect("seeded");
        self.client.batch_execute("vacuum analyze task, task_doc").await.expect("analysed");
    }
}

pub async fn client(base: &str, schema: &str) -> tokio_postgres::Client {
    let mut config: tokio_postgres::Config = base.parse().expect("an address");
    config.options(format!("-c search_path={schema}"));
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}
