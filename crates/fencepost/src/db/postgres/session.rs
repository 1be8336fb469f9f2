//! One connection for the length of one call.

use super::{
    allocator::{InFlight, NumberAllocator},
    error::{outcome_unknown, postgres_error, rolled_back},
    notifier::Notifier,
};
use crate::{
    db::{
        Answer, Row, Stmt, Value,
        about::{Database, Setting},
        stats::Stats,
    },
    error::{Error, Result},
    params,
};
use deadpool_postgres::Object;
use futures_util::{TryStreamExt, future::join_all};
use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// The most statements of one round trip: `join_all` starts no more futures than this in order.
const PIPELINE_MAX: usize = 30;

/// One connection for the length of one call.
pub(crate) struct Session {
    client: Option<Object>,
    pub(super) stats: Arc<Stats>,
    notifier: Arc<Notifier>,
    pub(super) allocator: NumberAllocator,
    /// This call allocated numbers, and its transaction is not over.
    pub(super) allocating: Mutex<Option<InFlight>>,
    /// Reads the next deadline.
    pub(crate) due: &'static str,
    /// A transaction may be open on the connection.
    pub(super) open: AtomicBool,
    /// A statement of the transaction failed. If no savepoint undid it, COMMIT rolls back and still reports success.
    failed: AtomicBool,
    /// The transaction wrote to the log.
    logged: AtomicBool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Drop for Session {
    /// A caller that hung up during its call leaves a transaction open. Its connection is closed instead of returned to
    /// the pool, where the next call would inherit the transaction.
    fn drop(&mut self) {
        if self.open.load(Ordering::SeqCst)
            && let Some(client) = self.client.take()
        {
            self.notify_if_logged();
            drop(Object::take(client));
        }
    }
}

impl Session {
    pub(super) fn new(
        client: Object,
        stats: Arc<Stats>,
        notifier: Arc<Notifier>,
        allocator: NumberAllocator,
        due: &'static str,
    ) -> Self {
        Self {
            client: Some(client),
            stats,
            notifier,
            allocator,
            allocating: Mutex::default(),
            due,
            open: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            logged: AtomicBool::new(false),
        }
    }

    /// A transaction is about to begin.
    pub(super) fn begin(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.failed.store(false, Ordering::SeqCst);
        self.logged.store(false, Ordering::SeqCst);
    }

    /// Notifies other nodes if the transaction wrote to the log. It was committed, or may have been.
    fn notify_if_logged(&self) {
        if self.logged.swap(false, Ordering::SeqCst) {
            self.notifier.announce();
        }
    }

    pub(super) fn client(&self) -> &Object {
        self.client.as_ref().expect("taken only when dropped")
    }

    /// Runs statements in order, in one round trip. (The first use of a statement on a connection prepares it.)
    pub(crate) async fn pipeline(&self, statements: &[Stmt]) -> Result<Vec<Answer>> {
        let answers = self.send(statements).await;
        self.failed.fetch_or(answers.is_err(), Ordering::SeqCst);
        answers
    }

    async fn send(&self, statements: &[Stmt]) -> Result<Vec<Answer>> {
        let client = self.client();
        let mut prepared = Vec::with_capacity(statements.len());
        for statement in statements {
            self.stats.statement();
            self.logged.fetch_or(statement.logs(), Ordering::SeqCst);
            prepared.push(client.prepare_cached(&statement.postgres_sql()).await.map_err(postgres_error)?);
        }
        let mut answers = Vec::with_capacity(statements.len());
        for (statements, prepared) in statements.chunks(PIPELINE_MAX).zip(prepared.chunks(PIPELINE_MAX)) {
            self.stats.round_trip();
            let flight = join_all(statements.iter().zip(prepared).map(|(statement, prepared)| async move {
                let params = statement.params.iter().map(|p| p as &(dyn ToSql + Sync));
                let mut stream = pin!(client.query_raw(prepared, params).await?);
                let columns: Arc<[Box<str>]> = prepared.columns().iter().map(|c| c.name().into()).collect();
                let mut rows = Vec::new();
                while let Some(row) = stream.try_next().await? {
                    rows.push(read_row(&row, columns.clone()));
                }
                Ok((rows, stream.rows_affected().unwrap_or(0)))
            }));
            // Only the first error tells the cause: the later ones report that the transaction was aborted.
            for answer in flight.await {
                let (rows, affected) = answer.map_err(postgres_error)?;
                answers.push(Answer { rows: rows.into_iter().collect::<Result<_>>()?, affected });
            }
        }
        Ok(answers)
    }

    pub(crate) async fn describe(&self) -> Result<Database> {
        let statement = Stmt::read(
            "select current_setting('server_version') as version, current_setting('fsync') as fsync,
               current_setting('full_page_writes') as full_page_writes,
               current_setting('synchronous_commit') as synchronous_commit,
               (select max(version) from migration) as schema_version",
            params![],
        );
        let answers = self.pipeline(&[statement]).await?;
        let row = &answers[0].rows[0];
        let waits = ["on", "local", "remote_write", "remote_apply"];
        Ok(Database {
            kind: "PostgreSQL".into(),
            version: row.get("version")?,
            schema_version: row.get("schema_version")?,
            durability: vec![
                Setting::new("fsync", row.get("fsync")?, &["on"]),
                Setting::new("full_page_writes", row.get("full_page_writes")?, &["on"]),
                Setting::new("synchronous_commit", row.get("synchronous_commit")?, &waits),
            ],
        })
    }

    /// Commits if the result is a success, and rolls back if not.
    pub(super) async fn finish<T>(&self, result: Result<T>) -> Result<T> {
        let mut end = vec![Stmt::read(if result.is_ok() { "commit" } else { "rollback" }, params![])];
        if result.is_ok() && self.failed.load(Ordering::SeqCst) {
            // This fails in an aborted transaction, where COMMIT would roll back without an error.
            end.insert(0, Stmt::read("select 1", params![]));
        }
        let ended = self.pipeline(&end).await;
        if result.is_ok() {
            self.notify_if_logged();
        }
        match (result, ended) {
            (Ok(value), Ok(_)) => {
                self.open.store(false, Ordering::SeqCst);
                Ok(value)
            }
            (Ok(_), Err(e)) if e.field("sqlstate").is_some_and(|state| state == "25P02") => {
                Err(Error::internal("a statement in the transaction failed, so all of it was rolled back")
                    .hint("return the statement's error, or undo it with a savepoint"))
            }
            (Ok(_), Err(e)) if e.field("sqlstate").is_some_and(rolled_back) => Err(e),
            (Ok(_), Err(e)) => {
                Err(outcome_unknown(format!("the answer to COMMIT was lost: {}", e.message())))
            }
            (Err(e), ended) => {
                self.open.store(ended.is_err(), Ordering::SeqCst);
                Err(e)
            }
        }
    }
}

fn read_row(row: &tokio_postgres::Row, columns: Arc<[Box<str>]>) -> Result<Row> {
    let types = row.columns().iter().enumerate();
    let values = types.map(|(i, column)| read_value(row, i, column.type_())).collect::<Result<_>>()?;
    Ok(Row::new(columns, values))
}

fn read_value(row: &tokio_postgres::Row, i: usize, ty: &Type) -> Result<Value> {
    let value = match *ty {
        Type::INT8 => row.try_get::<_, Option<i64>>(i).map(|v| v.map(Value::Int)),
        Type::INT4 => row.try_get::<_, Option<i32>>(i).map(|v| v.map(|v| Value::Int(v.into()))),
        Type::BOOL => row.try_get::<_, Option<bool>>(i).map(|v| v.map(|v| Value::Int(v.into()))),
        Type::TEXT | Type::VARCHAR | Type::NAME => {
            row.try_get::<_, Option<String>>(i).map(|v| v.map(Value::Text))
        }
        Type::VOID => Ok(None),
        ref other => return Err(Error::internal(format!("a column has the type {other}"))),
    };
    Ok(value.map_err(postgres_error)?.unwrap_or(Value::Null))
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut bytes::BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(v) if *ty == Type::INT4 => i32::try_from(*v)?.to_sql(ty, out),
            Value::Int(v) if *ty == Type::BOOL => (*v != 0).to_sql(ty, out),
            Value::Int(v) if *ty == Type::INT8 => v.to_sql(ty, out),
            Value::Int(_) => Err(format!("a number was given for a {ty}").into()),
            Value::Text(v) => v.as_str().to_sql(ty, out),
        }
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    to_sql_checked!();
}
