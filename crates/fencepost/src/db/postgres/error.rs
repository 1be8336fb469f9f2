//! PostgreSQL's errors, with hints on what to do.

use crate::error::{Code, Error};
use deadpool_postgres::PoolError;
use std::error::Error as _;
use tokio_postgres::error::SqlState;

pub(super) fn outcome_unknown(message: String) -> Error {
    Error::new(Code::OutcomeUnknown, message)
        .hint("ask again with the same request id: it is done at most once")
}

/// Nothing was committed: COMMIT failed with an integrity (23) or rollback (40) error, or the server had ended the idle
/// transaction.
pub(super) fn rolled_back(sqlstate: &serde_json::Value) -> bool {
    sqlstate.as_str().is_some_and(|code| code.starts_with("23") || code.starts_with("40") || code == IDLE)
}

/// `idle_in_transaction_session_timeout`: this node was frozen or very busy between two statements.
const IDLE: &str = "25P03";

pub(super) fn pool_error(e: PoolError) -> Error {
    match e {
        PoolError::Backend(e) => postgres_error(e),
        PoolError::Timeout(_) => Error::unavailable("no connection to PostgreSQL became free in time")
            .hint("it is down, or `connections` is too small for the number of callers"),
        e => Error::unavailable(format!("PostgreSQL cannot be reached: {e}")),
    }
}

/// An error that the server sent, with a hint on what to do. Before COMMIT a call can start over and loses nothing.
pub(super) fn postgres_error(e: tokio_postgres::Error) -> Error {
    let Some(db) = e.as_db_error() else { return client_error(&e) };
    let state = db.code();
    let error = if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED
    {
        Error::raced(format!("PostgreSQL asks to try again: {}", db.message()))
    } else if state.code() == IDLE {
        Error::raced(format!("PostgreSQL ended the transaction: {}", db.message()))
            .hint("this process did nothing for too long between two statements; try again")
    } else if ["57P", "08"].iter().any(|class| state.code().starts_with(class)) {
        Error::raced(format!("PostgreSQL is shutting down or starting: {}", db.message()))
            .hint("try again in a moment")
    } else if ["28", "3D"].iter().any(|class| state.code().starts_with(class)) {
        Error::unavailable(format!("PostgreSQL refuses the connection: {}", db.message())).hint(LOGIN)
    } else if *state == SqlState::LOCK_NOT_AVAILABLE || *state == SqlState::QUERY_CANCELED {
        Error::unavailable(format!("PostgreSQL cancelled the statement: {}", db.message()))
            .hint("another transaction holds a lock (see pg_stat_activity): try again")
    } else if state.code().starts_with("53") || *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        Error::unavailable(format!("PostgreSQL cannot run the statement now: {}", db.message()))
    } else {
        Error::internal(format!("PostgreSQL: {}", db.message()))
    };
    error.with("sqlstate", state.code())
}

/// An error of this side or of the network. The library has no codes for its kinds of errors, so their text is
/// compared.
pub(super) fn client_error(e: &tokio_postgres::Error) -> Error {
    let kind = e.to_string();
    let cause = e.source().map_or_else(|| kind.clone(), |source| format!("{kind}: {source}"));
    let io = e.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let untrusted = crate::tls::distrust(e);
    if untrusted.is_some() || (io.is_none() && kind == "error performing TLS handshake") {
        let why = untrusted.map_or(cause, |(_, why)| why);
        Error::unavailable(format!("PostgreSQL cannot be trusted: {why}"))
            .hint("its certificate must fit sslmode and sslrootcert")
    } else if e.is_closed() || io.is_some() || kind == "timeout waiting for server" {
        Error::raced(format!("PostgreSQL cannot be reached: {cause}"))
            .hint("is it running, and is the address right?")
    } else if kind == "invalid configuration" || kind == "authentication error" {
        Error::unavailable(format!("PostgreSQL cannot be logged in to: {cause}")).hint(LOGIN)
    } else {
        Error::internal(format!("PostgreSQL: {cause}"))
    }
}

const LOGIN: &str = "check the user, the password and the database in the address";
