//! The baseline: the engine's statements written by hand, as a careful developer would put them in a loop.

use crate::seed;
use futures_util::future::try_join_all;
use rusqlite::{Connection, params};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

const RUN_BY_NAME: &str = "select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason from run
    where name = ?1 and ended_at is null";
const COLUMNS: &str =
    "select task.seq, task.board, task.n, task.title, task.kind, task.priority, task.tags, task.source,
    task.creator, task.idempotency_key, task.max_attempts, task.created_at, task.status, task.assignee,
    task.offered_to, task.offered_at, task.accepted_at, task.rejection_reason, task.parked,
    task.delayed_until, task.waiting_on, task.attempts, task.reviews, task.lapsed, task.fence,
    task.until_at, task.claimed_at, task.last_fence, task.last_verb, task.last_digest,
    task.failure_reason, task.updated_at, task.finished_at, run.key as run_key, run.name as run_name,
    run.agent as run_agent, run.expires_at as run_expires_at, run.ended_at as run_ended_at
    from task left join run on run.key = task.run ";
const UNHELD: &str = "null as run_key from task ";
const PICK: &str = "where task.ready = 1 and task.board = ?2 order by task.priority desc, task.seq limit ?1
    /*pg for update of task skip locked*/";
const CLAIM: &str = "update task set status = 'in_progress', run = ?2, fence = fence + 1, claimed_at = ?3,
    attempts = attempts + 1, updated_at = ?3
    where seq = ?1 and exists (select 1 from run where key = ?2 and ended_at is null and expires_at > ?3)";
const EVENT: &str =
    "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, details)
    values (?1, ?2, ?3, ?4, ?5, ?6, null, ?7, null, null)";
const DOC: &str = "select task, body, done_when, origin, output, checkpoint from task_doc where task = ?1";
const AFTER: &str = "select edge.task, other.board, other.n, other.title, other.status, task_doc.output
    from edge join task as other on other.seq = edge.depends_on
    left join task_doc on task_doc.task = other.seq and other.status = 'completed'
    where edge.task = ?1 order by other.seq";
const NOTES: &str =
    "select task, kind, at, agent, run, fence, body from note where task = ?1 order by id desc limit 200";
const RUN_BEHIND: &str =
    "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
    from task join run on run.key = task.run where task.board = ?1 and task.n = ?2 and task.fence = ?3";
const BY_NUMBER: &str = "where task.board = ?1 and task.n = ?2";
const DONE: &str = "update task set status = 'completed', run = null, claimed_at = null, until_at = null,
    last_fence = fence, last_verb = 'done', last_digest = '0123456789abcdef', updated_at = ?3, finished_at = ?3
    where seq = ?1 and fence = ?2
    and exists (select 1 from run where key = ?4 and ended_at is null and expires_at > ?3)";
const DEPENDENTS: &str = "select edge.task, task.tags from edge join task on task.seq = edge.task
    where edge.depends_on = ?1 order by edge.task /*pg for update of task*/";
const NUMBER: &str = "insert into board(name, next_n, created_at) values (?1, 2, ?2)
    on conflict (name) do update set next_n = board.next_n + 1 returning next_n";
const ADD: &str =
    "insert into task(board, n, title, priority, max_attempts, status, waiting_on, created_at, updated_at)
    values (?1, ?2, ?3, 50, 3, 'unassigned', 0, ?4, ?4) returning seq";
const ADD_DOC: &str = "insert into task_doc(task, body) values (?1, null)";

/// The same columns as a held task's, without the join.
fn pick() -> String {
    let columns = COLUMNS.split("run.key as").next().unwrap_or_default();
    format!("{columns}{UNHELD}{PICK}")
}

fn now() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_millis() as i64)
}

/// Adds and claim+done cycles a second, 64 calls to a commit, by one thread.
pub fn sqlite(path: &Path, synchronous: &str, span: Duration) -> (f64, f64) {
    let conn = connect(path, synchronous);
    let adds = rate(span, || {
        execute(&conn, "begin immediate", params![]);
        for _ in 0..64 {
            add(&conn);
        }
        execute(&conn, "commit", params![]);
        64
    });
    drop(conn);
    let cycles = sqlite_cycles(path, synchronous, span);
    (adds, cycles)
}

/// Like 64 callers of the engine: 64 claims in one commit, then 64 completions.
pub fn sqlite_cycles(path: &Path, synchronous: &str, span: Duration) -> f64 {
    seed::sqlite(path, "hand", 300_000);
    let conn = connect(path, synchronous);
    let run = format!("hand-{}", now());
    open_run(&conn, &run);
    let cycles = rate(span, || {
        execute(&conn, "begin immediate", params![]);
        let claimed: Vec<_> =
            (0..64).map(|_| claim(&conn, "hand", &run).expect("the queue ran out")).collect();
        execute(&conn, "commit", params![]);
        execute(&conn, "begin immediate", params![]);
        for (n, fence) in claimed {
            complete(&conn, "hand", n, fence);
        }
        execute(&conn, "commit", params![]);
        64
    });
    drop(conn);
    seed::clear_sqlite(path);
    cycles
}

/// One process of many, with SQLite's own busy handler: a commit for each claim and each completion.
pub fn loop_on_file(path: &Path, span: Duration) -> u64 {
    let conn = connect(path, "full");
    let run = format!("hand-{}", std::process::id());
    execute(&conn, "begin immediate", params![]);
    open_run(&conn, &run);
    execute(&conn, "commit", params![]);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        execute(&conn, "begin immediate", params![]);
        let claimed = claim(&conn, "work", &run);
        execute(&conn, "commit", params![]);
        let Some((n, fence)) = claimed else { break };
        execute(&conn, "begin immediate", params![]);
        complete(&conn, "work", n, fence);
        execute(&conn, "commit", params![]);
        count += 1;
    }
    count
}

fn connect(path: &Path, synchronous: &str) -> Connection {
    let conn = Connection::open(path).expect("the file");
    conn.busy_timeout(Duration::from_secs(30)).expect("a timeout");
    conn.set_prepared_statement_cache_capacity(64);
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).expect("a setting");
    let pragmas = format!(
        "pragma synchronous={synchronous}; pragma wal_autocheckpoint=4000; pragma cache_size=-32768;"
    );
    conn.execute_batch(&pragmas).expect("pragmas");
    conn
}

fn rate(span: Duration, mut step: impl FnMut() -> u64) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        count += step();
    }
    count as f64 / start.elapsed().as_secs_f64()
}

fn execute(conn: &Connection, sql: &str, params: impl rusqlite::Params) {
    conn.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).expect(sql);
}

/// Reads every row and every column, as the engine does.
fn read(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Vec<Vec<rusqlite::types::Value>> {
    let mut statement = conn.prepare_cached(sql).expect(sql);
    let width = statement.column_count();
    let mut rows = statement.query(params).expect(sql);
    let mut out = Vec::new();
    while let Some(row) = rows.next().expect(sql) {
        out.push((0..width).map(|i| row.get(i).expect("a value")).collect());
    }
    out
}

fn int(row: &[rusqlite::types::Value], at: usize) -> i64 {
    match row[at] {
        rusqlite::types::Value::Integer(i) => i,
        ref other => panic!("{other:?} is not a number"),
    }
}

fn open_run(conn: &Connection, name: &str) {
    execute(
        conn,
        "insert into run(name, ttl_ms, opened_at, expires_at) values (?1, 1800000, ?2, ?2 + 1800000)",
        params![name, now()],
    );
}

fn add(conn: &Connection) {
    let at = now();
    let next = int(&read(conn, NUMBER, params!["added", at])[0], 0);
    let seq = int(&read(conn, ADD, params!["added", next - 1, "a task", at])[0], 0);
    execute(conn, ADD_DOC, params![seq]);
    let resource = format!("task/added-{}", next - 1);
    execute(
        conn,
        EVENT,
        params![at, "task.added", resource, None::<&str>, "unassigned", None::<&str>, None::<i64>],
    );
}

fn claim(conn: &Connection, board: &str, run: &str) -> Option<(i64, i64)> {
    let at = now();
    let key = int(&read(conn, RUN_BY_NAME, params![run])[0], 0);
    let picked = read(conn, &pick(), params![1, board]).pop()?;
    let (seq, n, fence) = (int(&picked, 0), int(&picked, 2), int(&picked, 24) + 1);
    execute(conn, CLAIM, params![seq, key, at]);
    let resource = format!("task/{board}-{n}");
    execute(conn, EVENT, params![at, "task.claimed", resource, "unassigned", "in_progress", run, fence]);
    read(conn, DOC, params![seq]);
    read(conn, AFTER, params![seq]);
    read(conn, NOTES, params![seq]);
    Some((n, fence))
}

fn complete(conn: &Connection, board: &str, n: i64, fence: i64) {
    let at = now();
    let key = int(&read(conn, RUN_BEHIND, params![board, n, fence])[0], 0);
    let task = read(conn, &format!("{COLUMNS}{BY_NUMBER}"), params![board, n]).remove(0);
    execute(conn, DONE, params![int(&task, 0), fence, at, key]);
    let resource = format!("task/{board}-{n}");
    execute(conn, EVENT, params![at, "task.completed", resource, "in_progress", "completed", "hand", fence]);
    read(conn, DEPENDENTS, params![int(&task, 0)]);
}

/// Adds and claim+done cycles a second on PostgreSQL, each connection by itself, pipelined where possible.
pub async fn postgres(base: &str, schema: &str, connections: usize, span: Duration) -> (f64, f64) {
    let mut clients = Vec::new();
    for i in 0..connections {
        clients.push(Arc::new(Pg::connect(base, schema, i).await));
    }
    let adds = pg_rate(&clients, span, |pg| async move { pg.add().await }).await;
    let cycles = pg_rate(&clients, span, |pg| async move { pg.cycle("work").await }).await;
    (adds, cycles)
}

async fn pg_rate<F>(
    clients: &[Arc<Pg>],
    span: Duration,
    step: impl Fn(Arc<Pg>) -> F + Clone + Send + 'static,
) -> f64
where
    F: Future<Output = Result<(), tokio_postgres::Error>> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = clients
        .iter()
        .map(|pg| {
            let (pg, count, step) = (pg.clone(), count.clone(), step.clone());
            tokio::spawn(async move {
                while start.elapsed() < span {
                    step(pg.clone()).await.expect("by hand");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

struct Pg {
    client: tokio_postgres::Client,
    run: String,
    key: AtomicI64,
    prepared: std::collections::HashMap<&'static str, tokio_postgres::Statement>,
}

type Param<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

impl Pg {
    async fn connect(base: &str, schema: &str, i: usize) -> Self {
        let client = seed::client(base, schema).await;
        let mut prepared = std::collections::HashMap::new();
        for (name, sql) in [
            ("begin", "begin".to_owned()),
            ("commit", "commit".to_owned()),
            ("clock", "select (extract(epoch from clock_timestamp()) * 1000)::bigint".to_owned()),
            ("run", RUN_BY_NAME.to_owned()),
            (
                "lock_run",
                "select key from run where key = ?1 and ended_at is null and expires_at > ?2 for key share"
                    .to_owned(),
            ),
            ("pick", pick()),
            ("claim", CLAIM.to_owned()),
            ("event", EVENT.to_owned()),
            ("doc", DOC.to_owned()),
            ("after", AFTER.to_owned()),
            ("notes", NOTES.to_owned()),
            ("run_behind", RUN_BEHIND.to_owned()),
            ("lock", "select 1 from task where board = ?1 and n = ?2 for update".to_owned()),
            ("load", format!("{COLUMNS}{BY_NUMBER}")),
            ("done", DONE.to_owned()),
            ("dependents", DEPENDENTS.to_owned()),
            ("number", NUMBER.to_owned()),
            ("add", ADD.to_owned()),
            ("add_doc", ADD_DOC.to_owned()),
        ] {
            let sql = sql.replace("/*pg", "").replace("*/", "").replace('?', "$");
            prepared.insert(name, client.prepare(&sql).await.expect(name));
        }
        let run = format!("hand-{i}");
        let row = client
            .query_one(
                "insert into run(name, ttl_ms, opened_at, expires_at) values ($1, 1800000, $2::bigint, $2::bigint + 1800000) returning key",
                &[&run, &now()],
            )
            .await
            .expect("a run");
        Self { client, run, key: AtomicI64::new(row.get(0)), prepared }
    }

    async fn query(
        &self,
        name: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        self.client.query(&self.prepared[name], params).await
    }

    async fn add(&self) -> Result<(), tokio_postgres::Error> {
        let opened = try_join_all([self.query("begin", &[]), self.query("clock", &[])]).await?;
        let at: i64 = opened[1][0].get(0);
        let next: i64 = self.query("number", &[&"added", &at]).await?[0].get(0);
        let n = next - 1;
        let seq: i64 = self.query("add", &[&"added", &n, &"a task", &at]).await?[0].get(0);
        let resource = format!("task/added-{n}");
        let (none, number) = (None::<&str>, None::<i64>);
        let event: [Param<'_>; 7] = [&at, &"task.added", &resource, &none, &"unassigned", &none, &number];
        try_join_all([self.query("add_doc", &[&seq]), self.query("event", &event)]).await?;
        self.query("commit", &[]).await.map(drop)
    }

    async fn cycle(&self, board: &str) -> Result<(), tokio_postgres::Error> {
        let opened = try_join_all([
            self.query("begin", &[]),
            self.query("clock", &[]),
            self.query("run", &[&self.run]),
        ])
        .await?;
        let at: i64 = opened[1][0].get(0);
        let key = self.key.load(Ordering::Relaxed);
        let picked =
            try_join_all([self.query("lock_run", &[&key, &at]), self.query("pick", &[&1_i64, &board])])
                .await?;
        let task = &picked[1][0];
        let (seq, n, fence): (i64, i64, i64) = (task.get(0), task.get(2), task.get::<_, i64>(24) + 1);
        let resource = format!("task/{board}-{n}");
        let event: [Param<'_>; 7] =
            [&at, &"task.claimed", &resource, &"unassigned", &"in_progress", &self.run, &fence];
        try_join_all([
            self.query("claim", &[&seq, &key, &at]),
            self.query("event", &event),
            self.query("doc", &[&seq]),
            self.query("after", &[&seq]),
            self.query("notes", &[&seq]),
        ])
        .await?;
        self.query("commit", &[]).await?;

        let behind: [Param<'_>; 3] = [&board, &n, &fence];
        let opened = try_join_all([
            self.query("begin", &[]),
            self.query("clock", &[]),
            self.query("run_behind", &behind),
        ])
        .await?;
        let at: i64 = opened[1][0].get(0);
        try_join_all([self.query("lock", &[&board, &n]), self.query("load", &[&board, &n])]).await?;
        let event: [Param<'_>; 7] =
            [&at, &"task.completed", &resource, &"in_progress", &"completed", &self.run, &fence];
        try_join_all([
            self.query("done", &[&seq, &fence, &at, &key]),
            self.query("event", &event),
            self.query("dependents", &[&seq]),
        ])
        .await?;
        self.query("commit", &[]).await.map(drop)
    }
}
