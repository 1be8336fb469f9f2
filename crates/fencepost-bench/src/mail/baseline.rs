//! The baseline for mailboxes: the engine's statements written by hand, row by row, one transaction for each batch.

use super::file;
use rusqlite::{Connection, params, types::Value};
use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

const RUN: &str = "select key, expires_at from run where name = ?1 and ended_at is null";
const DUE: &str = "select floor, (select min(expires_at) from run where ended_at is null),
    (select min(delayed_until) from message where delayed_until is not null) from fleet";
const PICK: &str = "select id, mailbox, lane, kind, idempotency_key, priority, max_attempts, created_at, status, outcome,
    delayed_until, attempts, lapsed, fence, delivery, until_at, claimed_at, last_fence, last_verb, last_digest,
    failure_reason, updated_at, finished_at from message
    where ready = 1 and mailbox = ?2 order by priority desc, id limit ?1";
const CLAIM: &str = "update message set status = 'processing', run = ?2, fence = fence + 1, claimed_at = ?3,
    attempts = attempts + 1, updated_at = ?3
    where id = ?1 and exists (select 1 from run where key = ?2 and ended_at is null and expires_at > ?3)";
const DOC: &str = "select payload, headers, checkpoint from message_doc where message = ?1";
const HELD: &str = "select message.id, message.mailbox, message.lane, message.kind, message.idempotency_key,
    message.priority, message.max_attempts, message.created_at, message.status, message.outcome,
    message.delayed_until, message.attempts, message.lapsed, message.fence, message.delivery, message.until_at,
    message.claimed_at, message.last_fence, message.last_verb, message.last_digest, message.failure_reason,
    message.updated_at, message.finished_at, run.key, run.name, run.agent, run.expires_at, run.ended_at
    from message left join run on run.key = message.run where message.id = ?1";
const DONE: &str = "update message set status = 'processed', outcome = 'done', run = null, claimed_at = null,
    until_at = null, last_fence = fence, last_verb = 'done', last_digest = '0123456789abcdef', updated_at = ?3,
    finished_at = ?3, prune_at = ?3 + coalesce((select retain_ms from mailbox where name = message.mailbox), 2592000000)
    where id = ?1 and fence = ?2 and run = ?4
    and exists (select 1 from run where key = ?4 and ended_at is null and expires_at > ?3)";
const CLEAR: &str = "update message_doc set payload = null where message = ?1";
const EVENT: &str =
    "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, details)
    values (?1, ?2, ?3, ?4, ?5, ?6, null, ?7, null, null)";

fn now() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_millis() as i64)
}

/// Messages claimed and completed a second, by one thread.
pub fn cycles(path: &Path, mailbox: &str, batch: i64, span: Duration) -> f64 {
    let conn = file(path);
    conn.set_prepared_statement_cache_capacity(64);
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).expect("a setting");
    conn.execute_batch("pragma synchronous=full; pragma wal_autocheckpoint=4000; pragma cache_size=-32768;")
        .expect("pragmas");
    let run = format!("hand-{}", now());
    let open = "insert into run(name, ttl_ms, opened_at, expires_at) values (?1, 1800000, ?2, ?2 + 1800000)";
    execute(&conn, open, params![run, now()]);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        let claimed = transaction(&conn, || claim(&conn, mailbox, &run, batch));
        assert!(!claimed.is_empty(), "the queue ran out");
        count += claimed.len();
        transaction(&conn, || claimed.iter().for_each(|&(id, fence)| complete(&conn, id, fence, &run)));
    }
    count as f64 / start.elapsed().as_secs_f64()
}

fn claim(conn: &Connection, mailbox: &str, run: &str, batch: i64) -> Vec<(i64, i64)> {
    read(conn, DUE, params![]);
    let key = int(&read(conn, RUN, params![run])[0], 0);
    let picked = read(conn, PICK, params![batch, mailbox]);
    let at = now();
    let claimed = picked.iter().map(|row| {
        let (id, fence) = (int(row, 0), int(row, 13) + 1);
        execute(conn, CLAIM, params![id, key, at]);
        let resource = format!("message/{id}");
        execute(conn, EVENT, params![at, "message.claimed", resource, "pending", "processing", run, fence]);
        read(conn, DOC, params![id]);
        (id, fence)
    });
    claimed.collect()
}

fn complete(conn: &Connection, id: i64, fence: i64, run: &str) {
    let at = now();
    let message = read(conn, HELD, params![id]).remove(0);
    execute(conn, DONE, params![id, fence, at, int(&message, 23)]);
    execute(conn, CLEAR, params![id]);
    let resource = format!("message/{id}");
    execute(conn, EVENT, params![at, "message.completed", resource, "processing", "processed", run, fence]);
}

fn transaction<T>(conn: &Connection, work: impl FnOnce() -> T) -> T {
    execute(conn, "begin immediate", params![]);
    let result = work();
    execute(conn, "commit", params![]);
    result
}

fn execute(conn: &Connection, sql: &str, params: impl rusqlite::Params) {
    conn.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).expect(sql);
}

fn read(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Vec<Vec<Value>> {
    let mut statement = conn.prepare_cached(sql).expect(sql);
    let width = statement.column_count();
    let mut rows = statement.query(params).expect(sql);
    let mut out = Vec::new();
    while let Some(row) = rows.next().expect(sql) {
        out.push((0..width).map(|i| row.get(i).expect("a value")).collect());
    }
    out
}

fn int(row: &[Value], at: usize) -> i64 {
    match row[at] {
        Value::Integer(i) => i,
        ref other => panic!("{other:?} is not a number"),
    }
}

/// Fills a mailbox by plain SQL; `{count}` stands for how many in the series.
pub fn script(series: &str, mailbox: &str, count: i64) -> String {
    let series = series.replace("{count}", &count.to_string());
    let payload = format!("\"{}\"", "x".repeat(super::SMALL));
    format!(
        "insert into mailbox(name, created_at) values ('{mailbox}', 0) on conflict (name) do nothing;
         insert into message(mailbox, priority, max_attempts, created_at, status, updated_at)
         select '{mailbox}', 50, 3, 0, 'pending', 0 from {series};
         insert into message_doc(message, payload) select id, '{payload}' from message
         where mailbox = '{mailbox}' and status = 'pending' and not exists (
           select 1 from message_doc where message_doc.message = message.id);"
    )
}

/// Without `analyze`, which the engine never runs.
pub fn seed(path: &Path, mailbox: &str, count: i64) {
    let series =
        "(with recursive c(i) as (select 1 union all select i + 1 from c where i < {count}) select i from c)";
    let script = script(series, mailbox, count);
    file(path).execute_batch(&format!("begin immediate; {script} commit;")).expect("seeded");
}

pub fn clear(path: &Path) {
    let clear = "begin immediate; delete from message; delete from message_doc; delete from event; commit;";
    file(path).execute_batch(clear).expect("cleared");
}
