//! Statements: SQL, its parameters and its answer.

use super::{
    dialect::to_postgres,
    row::{Row, Value},
};
use crate::error::{Error, Result};

/// A statement and its parameters.
#[derive(Debug, Clone)]
pub struct Stmt {
    pub(crate) sql: &'static str,
    pub(crate) params: Vec<Value>,
    kind: Kind,
    on_postgres: OnPostgres,
}

/// How PostgreSQL runs a statement.
#[derive(Debug, Clone, Copy)]
enum OnPostgres {
    /// As [`to_postgres`] translates it.
    Translated,
    /// The same, and SQLite does not run it.
    Only,
    /// By another text.
    Instead(&'static str),
}

/// The kind of a statement. The caller states it; the SQL text is not searched for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Appends to the log: other nodes are notified after the commit.
    Log,
}

impl Stmt {
    fn new(kind: Kind, sql: &'static str, params: Vec<Value>) -> Self {
        Self { sql, params, kind, on_postgres: OnPostgres::Translated }
    }
    pub fn read(sql: &'static str, params: Vec<Value>) -> Self {
        Self::new(Kind::Read, sql, params)
    }
    pub fn write(sql: &'static str, params: Vec<Value>) -> Self {
        Self::new(Kind::Write, sql, params)
    }
    /// Appends to the log.
    pub(crate) fn log(sql: &'static str, params: Vec<Value>) -> Self {
        Self::new(Kind::Log, sql, params)
    }
    /// Takes row locks, or keeps an order, that SQLite with its one writer does not need.
    pub fn lock(sql: &'static str, params: Vec<Value>) -> Self {
        Self::read(sql, params).only_on_postgres()
    }
    /// SQLite does not run it.
    #[must_use]
    pub fn only_on_postgres(self) -> Self {
        Self { on_postgres: OnPostgres::Only, ..self }
    }
    /// PostgreSQL runs this text instead, with the same parameters and columns. For the few statements that differ too
    /// much for comments in one text.
    #[must_use]
    pub fn on_postgres(self, sql: &'static str) -> Self {
        Self { on_postgres: OnPostgres::Instead(sql), ..self }
    }
    /// Its text for PostgreSQL.
    pub(crate) fn postgres_sql(&self) -> String {
        to_postgres(match self.on_postgres {
            OnPostgres::Instead(sql) => sql,
            OnPostgres::Translated | OnPostgres::Only => self.sql,
        })
    }
    pub(crate) fn writes(&self) -> bool {
        self.kind != Kind::Read
    }
    pub(crate) fn logs(&self) -> bool {
        self.kind == Kind::Log
    }
    /// Its text begins like a statement of another kind. For a check in debug builds.
    pub(crate) fn is_mislabelled(&self) -> bool {
        let begins = |words: &str| self.sql.trim_start().starts_with(words);
        (!self.writes() && ["insert", "update", "delete"].into_iter().any(begins))
            || (!self.logs() && begins("insert into event"))
    }
    pub(crate) fn only_postgres(&self) -> bool {
        matches!(self.on_postgres, OnPostgres::Only)
    }
}

/// A statement's answer: its rows, and how many it changed.
#[derive(Debug, Default)]
pub struct Answer {
    pub rows: Vec<Row>,
    pub affected: u64,
}

/// Statements that go to the database in one round trip.
///
/// ```
/// # use fencepost::{Batch, Result, Stmt, Tx, params};
/// # async fn example(tx: &mut Tx<'_>) -> Result<i64> {
/// let mut batch = Batch::new();
/// batch.add(Stmt::write("delete from note where task = ?1", params![7]));
/// let count = batch.add(Stmt::read("select count(*) as n from note", params![]));
/// let mut answers = tx.send(batch).await?;
/// answers.take(count).rows[0].get("n")
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Batch(Vec<Stmt>);

/// The index of one statement's answer.
#[derive(Debug, Clone, Copy)]
pub struct Slot(usize);

impl Slot {
    /// The first row of the statement's answer.
    pub(crate) fn first_row(self, answers: &[Answer]) -> Option<&Row> {
        answers.get(self.0)?.rows.first()
    }
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn add(&mut self, statement: Stmt) -> Slot {
        self.0.push(statement);
        Slot(self.0.len() - 1)
    }
    pub(crate) fn into_statements(self) -> Vec<Stmt> {
        self.0
    }
}

impl<const N: usize> From<[Stmt; N]> for Batch {
    fn from(statements: [Stmt; N]) -> Self {
        Self(statements.into())
    }
}

impl FromIterator<Stmt> for Batch {
    fn from_iter<I: IntoIterator<Item = Stmt>>(statements: I) -> Self {
        Self(statements.into_iter().collect())
    }
}

impl Extend<Stmt> for Batch {
    fn extend<I: IntoIterator<Item = Stmt>>(&mut self, statements: I) {
        self.0.extend(statements);
    }
}

/// The answers to a [`Batch`].
#[derive(Debug, Default)]
pub struct Answers(Vec<Answer>);

impl Answers {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        Self(answers)
    }
    /// The answer to one statement; empty if it was taken before.
    pub fn take(&mut self, slot: Slot) -> Answer {
        std::mem::take(&mut self.0[slot.0])
    }
    /// How many rows one statement changed.
    pub fn affected(&self, slot: Slot) -> u64 {
        self.0[slot.0].affected
    }
    /// The rows of all statements, in order.
    pub fn into_rows(self) -> impl Iterator<Item = Row> {
        self.0.into_iter().flat_map(|answer| answer.rows)
    }
    pub(crate) fn into_vec(self) -> Vec<Answer> {
        self.0
    }
}

/// Parameters of a statement: `params![id, now, "text"]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => { vec![$($crate::Value::from($value)),*] };
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

/// A statement over one key or a set of keys. One key is bound directly: through `json_each` a lookup takes 8 us
/// instead of 1.5.
macro_rules! by_keys {
    ($kind:ident, $keys:expr, $head:expr, $tail:literal $(, $param:expr)* $(,)?) => {
        match $keys {
            [key] => $crate::db::Stmt::$kind(concat!($head, " = ?1 ", $tail), $crate::params![*key $(, $param)*]),
            keys => $crate::db::Stmt::$kind(
                concat!($head, " in (select cast(value ->> 'k' as bigint) from json_each(?1)) ", $tail),
                $crate::params![$crate::db::key_set(keys.iter().copied()) $(, $param)*],
            ),
        }
    };
}
pub(crate) use by_keys;

/// The rows of `json_each(?2)`. On PostgreSQL each row also has the `number` that its row in the table will get, so
/// that rows are numbered in one order and written in another.
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
