//! One open transaction on either database.

use super::{
    Answer, Answers, Batch, Notes, Opening, Row, Stmt, Value, about::Database, postgres::Session,
    sqlite::SqliteConnection,
};
use crate::{caller::Caller, clock::Time, error::Result};
use std::pin::Pin;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One open transaction: the database, the time, the caller and the opening.
#[derive(Debug)]
pub struct Tx<'a> {
    pub(crate) db: Db<'a>,
    /// The time of the transaction, read once, when it had its lock.
    pub now: Time,
    pub caller: Caller,
    pub(crate) opening: Opening,
    /// The call's notes. The store returns them with the reply.
    pub(crate) notes: Notes,
}

/// The kind of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Scope {
    /// It runs one call.
    #[default]
    Call,
    /// It is an embedder's, with rows of its own. A repeated completion is an error in it, so that those rows roll
    /// back.
    Embedded,
}

#[derive(Debug)]
pub(crate) enum Db<'a> {
    /// `&mut`, because a connection is `Send` but not `Sync`, and ops' futures must be `Send`.
    Sqlite(&'a mut SqliteConnection),
    Postgres(&'a Session),
}

impl<'a> Tx<'a> {
    pub(crate) fn new(db: Db<'a>, now: Time, caller: Caller, opening: Opening) -> Self {
        let notes = Notes { now, try_again_at: opening.due.at, ..Notes::default() };
        Self { db, now, caller, opening, notes }
    }

    /// The call's notes.
    pub(crate) fn into_notes(self) -> Notes {
        let more_to_expire = self.opening.expired > 0 && self.opening.due.is_due(self.now);
        Notes { more_to_expire, ..self.notes }
    }

    /// Runs a statement that only reads, and returns its rows. (In [`Fleet::transaction`](crate::Fleet::transaction)
    /// the statement may also write.)
    pub async fn query(&mut self, sql: &'static str, params: Vec<Value>) -> Result<Vec<Row>> {
        Ok(self.one(Stmt::read(sql, params)).await?.rows)
    }

    /// Runs a statement that writes, and returns the number of rows it changed.
    pub async fn execute(&mut self, sql: &'static str, params: Vec<Value>) -> Result<u64> {
        Ok(self.one(Stmt::write(sql, params)).await?.affected)
    }

    /// Runs a statement that writes and has a `returning` clause, and returns its rows.
    pub async fn execute_returning(&mut self, sql: &'static str, params: Vec<Value>) -> Result<Vec<Row>> {
        Ok(self.one(Stmt::write(sql, params)).await?.rows)
    }

    pub(crate) async fn one(&mut self, statement: Stmt) -> Result<Answer> {
        let mut batch = Batch::new();
        let only = batch.add(statement);
        Ok(self.send(batch).await?.take(only))
    }

    /// Runs the statements of a batch in order, in one round trip. No statement can depend on another's answer.
    pub async fn send(&mut self, batch: Batch) -> Result<Answers> {
        let statements = batch.into_statements();
        if cfg!(debug_assertions) && self.opening.scope == Scope::Call {
            let wrong = statements.iter().find(|statement| statement.is_mislabelled());
            assert!(wrong.is_none(), "a statement of another kind than its label: {wrong:?}");
        }
        self.notes.writes += statements.iter().filter(|statement| statement.writes()).count();
        let answers: Vec<Answer> = match &mut self.db {
            Db::Sqlite(conn) => {
                statements.iter().map(|statement| conn.run(statement)).collect::<Result<_>>()?
            }
            Db::Postgres(session) => session.pipeline(&statements).await?,
        };
        Ok(Answers::new(answers))
    }

    /// Allocates numbers from a counter outside of this transaction, so that it does not lock the counter's row.
    /// `None`: the caller allocates them in the transaction. (An embedder's transaction may have locked the row
    /// already.)
    pub(crate) async fn allocate_numbers(&mut self, counter: Stmt) -> Option<i64> {
        match &self.db {
            Db::Postgres(session) if self.opening.scope == Scope::Call => {
                session.allocate_numbers(&counter).await
            }
            _ => None,
        }
    }

    /// The statement that reads the next deadline.
    pub(crate) fn reads_due(&self) -> &'static str {
        match &self.db {
            Db::Sqlite(conn) => conn.due,
            Db::Postgres(session) => session.due,
        }
    }

    /// The request's fingerprint for its events, if the request has an id.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.opening.request.as_ref().and(self.opening.fingerprint.as_deref())
    }

    /// The database's version and durability settings.
    pub(crate) async fn database(&mut self) -> Result<Database> {
        match &mut self.db {
            Db::Sqlite(conn) => conn.describe(),
            Db::Postgres(session) => session.describe().await,
        }
    }

    /// Damage that the database finds in its own file. PostgreSQL has other means for that (checksums, `pg_amcheck`).
    pub(crate) async fn damage(&mut self) -> Result<Vec<String>> {
        match &mut self.db {
            Db::Sqlite(conn) => conn.damage(),
            Db::Postgres(_) => Ok(Vec::new()),
        }
    }
}
