//! One open transaction, whichever database it is on.
//!
//! SQL is written once, as SQLite reads it: `?N` for parameters, `json_each(?N)` for a set of rows handed in as
//! one JSON array of objects, and what only PostgreSQL needs in a comment, `/*pg for update skip locked*/`.
//! [`to_postgres`] uncovers it. A statement that only takes a row lock is a [`Stmt::lock`]: SQLite has one
//! writer at a time, so it is not run there.

use crate::{
    clock::{Millis, Time},
    db::{postgres::Session, sqlite::Lite},
    engine::{
        op::{AnyOp, AnyReply, Op, typed},
        prelude::{Before, Opening},
        wait::Wish,
    },
    error::{Error, Result},
    ops::{admin::about::Database, claim::deliver::Handed, key::Key},
};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who is calling. Recorded with every event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub agent: Option<String>,
    /// What it may do, if it had to show a key.
    pub(crate) key: Option<Arc<Key>>,
    /// It came from afar without a key, because the fleet had none.
    pub(crate) is_guest: bool,
}

/// One open transaction: the time, the caller, and the database.
#[derive(Debug)]
pub struct Tx<'a> {
    pub(crate) db: Db<'a>,
    /// Read once, when the transaction had its lock.
    pub now: Time,
    pub caller: Caller,
    pub(crate) opening: Opening,
    pub(crate) place: Place,
    /// It made something due that no read at its opening could know of.
    pub(crate) stirred: bool,
    /// When the answer could be another with nothing written: one who waits looks again then.
    pub(crate) again_at: Option<Time>,
    /// When whoever waits has something to do itself, whatever there is.
    pub(crate) own_again_at: Option<Time>,
    /// One who waits only wants to know whether it is a "not yet": if it is, the answer is thrown away.
    pub(crate) glance: bool,
    /// What it looked for and did not find: everyone with this wish would come away empty, too.
    pub(crate) wishes: Vec<Wish>,
    /// The claims that the reply hands over.
    pub(crate) handed: Vec<Handed>,
    /// How often the fleet was restored, on PostgreSQL: positions say it.
    pub(crate) epoch: i64,
    /// How far `now` is ahead of the clock that the fleet goes by: this machine's, or the database's.
    pub(crate) ahead: Millis,
    /// The clock was put right: this much is to be taken off `now` for whoever comes next.
    pub(crate) clock_moved: Millis,
    /// How many statements did not only read.
    writes: usize,
}

/// Whose transaction it is. In an embedder's, a repeated completion is an error, so that its rows roll back too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Own,
    Embedded,
}

#[derive(Debug)]
pub(crate) enum Db<'a> {
    /// `&mut`, because a connection is `Send` but not `Sync`, and ops' futures must be `Send`.
    Sqlite(&'a mut Lite),
    Postgres(&'a Session),
}

impl<'a> Tx<'a> {
    pub(crate) fn new(db: Db<'a>, now: Time, caller: Caller, opening: Opening, place: Place) -> Self {
        let (again_at, epoch, ahead) = (opening.due.at, opening.epoch, opening.ahead);
        Self {
            db,
            now,
            caller,
            opening,
            place,
            stirred: false,
            again_at,
            own_again_at: None,
            glance: false,
            wishes: Vec::new(),
            handed: Vec::new(),
            epoch,
            ahead,
            clock_moved: Millis(0),
            writes: 0,
        }
    }

    /// Runs one statement and gives its rows.
    pub async fn query(&mut self, sql: &'static str, params: Vec<Value>) -> Result<Vec<Row>> {
        Ok(self.one(Stmt::new(sql, params)).await?.rows)
    }

    /// Runs one statement and gives the number of rows it changed.
    pub async fn execute(&mut self, sql: &'static str, params: Vec<Value>) -> Result<u64> {
        Ok(self.one(Stmt::new(sql, params)).await?.affected)
    }

    pub(crate) async fn one(&mut self, statement: Stmt) -> Result<Answer> {
        Ok(self.pipeline(vec![statement]).await?.remove(0))
    }

    /// Runs statements in order, in one round trip: none may need another's answer.
    pub async fn pipeline(&mut self, statements: Vec<Stmt>) -> Result<Vec<Answer>> {
        self.writes += statements.iter().filter(|statement| !statement.sql.starts_with("select")).count();
        match &mut self.db {
            Db::Sqlite(lite) => statements.iter().map(|statement| lite.run(statement)).collect(),
            Db::Postgres(session) => session.pipeline(&statements).await,
        }
    }

    /// Numbers of a board that this transaction need not hold the counter for, if they are to be had. (An embedder's may
    /// have it already.)
    pub(crate) async fn numbers(&mut self, board: &str, count: i64) -> Option<i64> {
        match &self.db {
            Db::Postgres(session) if self.place == Place::Own => session.numbers(board, count).await,
            _ => None,
        }
    }

    /// What was asked under the request's id, for the events of this op.
    pub(crate) fn asked(&self) -> Option<&str> {
        self.opening.request.as_ref().and(self.opening.asked.as_deref())
    }

    pub(crate) fn wrote(&self) -> bool {
        self.writes > 0
    }

    /// What the database says of itself.
    pub(crate) async fn database(&mut self) -> Result<Database> {
        match &mut self.db {
            Db::Sqlite(lite) => lite.describe(),
            Db::Postgres(session) => session.describe().await,
        }
    }

    /// What the database finds wrong with how it is stored, whatever the rows mean. PostgreSQL looks after that by
    /// other means (checksums, `pg_amcheck`).
    pub(crate) async fn damage(&mut self) -> Result<Vec<String>> {
        match &mut self.db {
            Db::Sqlite(lite) => lite.damage(),
            Db::Postgres(_) => Ok(Vec::new()),
        }
    }

    /// Runs an op in this transaction. If it is refused, what it did is undone and the transaction goes on. (Locks that it
    /// took to look stay until the end.)
    /// Nothing waits in here: everyone else would wait with it.
    pub async fn call<O: Op>(&mut self, op: O) -> Result<O::Reply> {
        let op = op.erase();
        typed(self.call_any(&*op).await?)
    }

    fn call_any<'t>(&'t mut self, op: &'t dyn AnyOp) -> BoxFuture<'t, Result<AnyReply>> {
        Box::pin(async move {
            self.caller.may(op.name(), op.access())?;
            if op.wait().is_some_and(|wait| wait != Millis(0)) {
                return Err(Error::invalid(
                    "wait_ms",
                    "cannot be used in a transaction, which would stay open",
                )
                .hint("leave it out, or wait with Fleet::call before the transaction"));
            }
            let before = Before::of(op, &self.caller);
            self.open(&before).await?;
            self.execute("savepoint op", vec![]).await?;
            let reply = op.run(self).await;
            if reply.is_err() {
                self.execute("rollback to savepoint op", vec![]).await?;
            }
            self.execute("release savepoint op", vec![]).await?;
            reply
        })
    }

    /// Runs an op as a part of another, which has seen to all that comes before it: the run it acts for is there,
    /// locked, heard and its caller's own. That leaves a refusal nothing to undo; if there is, all of it is begun anew.
    pub(crate) async fn part<O: Op>(&mut self, op: O) -> Result<O::Reply> {
        let writes = self.writes;
        let reply = op.erase().run(self).await.map_err(|error| match self.writes == writes {
            true => error,
            false => Error::again(format!("{} met another: {}", O::NAME, error.message())),
        });
        typed(reply?)
    }
}

/// A statement and its parameters.
#[derive(Debug, Clone)]
pub struct Stmt {
    pub(crate) sql: &'static str,
    pub(crate) params: Vec<Value>,
    pub(crate) only_postgres: bool,
}

impl Stmt {
    pub fn new(sql: &'static str, params: Vec<Value>) -> Self {
        Self { sql, params, only_postgres: false }
    }
    /// Takes row locks, or keeps something in order, that SQLite does not need.
    pub fn lock(sql: &'static str, params: Vec<Value>) -> Self {
        Self { sql, params, only_postgres: true }
    }
}

/// What a statement gave: its rows, and how many it changed.
#[derive(Debug, Default)]
pub struct Answer {
    pub rows: Vec<Row>,
    pub affected: u64,
}

/// How a set of keys is named in a statement.
const KEYS: &str = "in (select cast(value ->> 'k' as bigint) from json_each(?1))";
/// The same as a list, which PostgreSQL looks up in an index. It takes the set for a hundred keys, and would rather walk
/// through the whole table in their order: 15 ms to lock one of 20,000 messages.
const KEYS_ON_POSTGRES: &str = "= any(array(select cast(value ->> 'k' as bigint) from json_each(?1)))";

/// `json_each` is a function of the schema on PostgreSQL (built-in functions of that name mean something else).
pub(crate) fn to_postgres(sql: &str) -> String {
    sql.replace(KEYS, KEYS_ON_POSTGRES)
        .replace("/*pg", "")
        .replace("*/", "")
        .replace("json_each(", "fence_each(")
        .replace('?', "$")
}

/// Parameters of a statement: `params![id, now, "text"]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => { vec![$($crate::Value::from($value)),*] };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Int(v.into())
    }
}
impl From<Time> for Value {
    fn from(v: Time) -> Self {
        Value::Int(v.0)
    }
}
impl From<Millis> for Value {
    fn from(v: Millis) -> Self {
        Value::Int(v.0)
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Text(v.into())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Text(v)
    }
}
impl From<&String> for Value {
    fn from(v: &String) -> Self {
        Value::Text(v.clone())
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Value::Null, Into::into)
    }
}

/// One row; its columns are read by name.
#[derive(Debug)]
pub struct Row {
    columns: Arc<[Box<str>]>,
    values: Vec<Value>,
    /// The column after the one read last. Most rows are read in order, and need not be searched.
    next: AtomicUsize,
}

impl Row {
    pub(crate) fn new(columns: Arc<[Box<str>]>, values: Vec<Value>) -> Self {
        Self { columns, values, next: AtomicUsize::new(0) }
    }
    pub fn get<T: FromValue>(&self, column: &str) -> Result<T> {
        let at = self.position(column)?;
        read(column, self.values[at].clone())
    }

    /// The same, but a text is moved out instead of copied.
    pub fn take<T: FromValue>(&mut self, column: &str) -> Result<T> {
        let at = self.position(column)?;
        let value = match &mut self.values[at] {
            Value::Text(text) => Value::Text(std::mem::take(text)),
            other => other.clone(),
        };
        read(column, value)
    }

    fn position(&self, column: &str) -> Result<usize> {
        let next = self.next.load(Ordering::Relaxed);
        let at = (next..self.columns.len())
            .chain(0..next.min(self.columns.len()))
            .find(|&at| *self.columns[at] == *column)
            .ok_or_else(|| Error::internal(format!("the statement has no column `{column}`")))?;
        self.next.store(at + 1, Ordering::Relaxed);
        Ok(at)
    }
}

fn read<T: FromValue>(column: &str, value: Value) -> Result<T> {
    T::from_value(value).map_err(|value| Error::internal(format!("column `{column}` holds {value:?}")))
}

/// What a column can be read as. A value that does not fit is given back.
pub trait FromValue: Sized {
    fn from_value(value: Value) -> Result<Self, Value>;
}
impl FromValue for i64 {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Int(v) => Ok(v),
            other => Err(other),
        }
    }
}
impl FromValue for bool {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(|v| v != 0)
    }
}
impl FromValue for Time {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(Time)
    }
}
impl FromValue for Millis {
    fn from_value(value: Value) -> Result<Self, Value> {
        i64::from_value(value).map(Millis)
    }
}
impl FromValue for String {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Text(v) => Ok(v),
            other => Err(other),
        }
    }
}
impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Null => Ok(None),
            other => T::from_value(other).map(Some),
        }
    }
}

/// A set of rows as one parameter for `json_each(?N)`.
pub(crate) fn set<T: serde::Serialize>(rows: impl IntoIterator<Item = T>) -> Result<Value> {
    let rows: Vec<T> = rows.into_iter().collect();
    serde_json::to_string(&rows).map(Value::Text).map_err(Error::internal)
}

/// A set of keys, `{"k": …}` each, for `select cast(value ->> 'k' as bigint) from json_each(?N)`.
pub(crate) fn key_set(keys: impl IntoIterator<Item = i64>) -> Value {
    let keys: Vec<String> = keys.into_iter().map(|key| format!("{{\"k\":{key}}}")).collect();
    Value::Text(format!("[{}]", keys.join(",")))
}

/// A statement over one key or a set of them. One key is bound as it is: through `json_each` a lookup takes
/// 8 us instead of 1.5.
macro_rules! by_keys {
    ($keys:expr, $head:expr, $tail:literal $(, $param:expr)* $(,)?) => {
        match $keys {
            [key] => $crate::db::tx::Stmt::new(concat!($head, " = ?1 ", $tail), $crate::params![*key $(, $param)*]),
            keys => $crate::db::tx::Stmt::new(
                concat!($head, " in (select cast(value ->> 'k' as bigint) from json_each(?1)) ", $tail),
                $crate::params![$crate::db::tx::key_set(keys.iter().copied()) $(, $param)*],
            ),
        }
    };
}
pub(crate) use by_keys;

/// The rows of `json_each(?2)`. On PostgreSQL each has the `number` that its row in the table will have, so that rows can
/// be numbered in one order and written in another.
macro_rules! numbered {
    ($table:literal, $column:literal) => {
        concat!(
            "/*pg (select key, value, nextval((select pg_get_serial_sequence('",
            $table,
            "', '",
            $column,
            "')::regclass)) as number from*/ json_each(?2) /*pg order by key) as item*/"
        )
    };
}
pub(crate) use numbered;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_postgres_needs_is_uncovered_for_it() {
        let sql =
            "select 1 from t, json_each(?2) as item where id = ?1 limit 1 /*pg for update skip locked*/";
        assert_eq!(
            to_postgres(sql),
            "select 1 from t, fence_each($2) as item where id = $1 limit 1  for update skip locked"
        );
    }

    #[test]
    fn a_set_of_keys_is_looked_up() {
        let sql = by_keys!(&[1, 2][..], "delete from t where id", "and x = 1");
        let expected = "delete from t where id = any(array(select cast(value ->> 'k' as bigint) from fence_each($1))) and x = 1";
        assert_eq!(to_postgres(sql.sql), expected);
    }
}
