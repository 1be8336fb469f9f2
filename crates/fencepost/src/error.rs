//! Errors: an expected refusal is a value with a code, a message and a hint.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request was refused or failed. The codes are the contract: messages may change, codes do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Internal,
    Invalid,
    NotFound,
    Unauthorized,
    Forbidden,
    TooLarge,
    Unavailable,
    OutcomeUnknown,
    NoneReady,
    BoardFinished,
    AlreadyClaimed,
    NotReady,
    LeaseExpired,
    AlreadyFinished,
    Cancelled,
    Suppressed,
    RateLimited,
    Paused,
    BudgetRefused,
}

impl Code {
    /// Codes that every op may answer with: they are about the request, its caller, or the fleet as a whole.
    /// [`Op::REFUSES`](crate::Op::REFUSES) lists an op's own.
    pub const OF_EVERY_OP: [Code; 9] = [
        Code::Invalid,
        Code::Unauthorized,
        Code::Forbidden,
        Code::NotFound,
        Code::TooLarge,
        Code::RateLimited,
        Code::Unavailable,
        Code::OutcomeUnknown,
        Code::Internal,
    ];

    /// The status of a reply with this code. The server answers a few requests that reach no op with statuses of its own,
    /// such as 405.
    pub fn http_status(self) -> u16 {
        match self {
            Code::Internal => 500,
            Code::Invalid => 400,
            Code::NotFound => 404,
            Code::Unauthorized => 401,
            Code::Forbidden => 403,
            Code::TooLarge => 413,
            Code::Unavailable | Code::OutcomeUnknown => 503,
            Code::NoneReady
            | Code::BoardFinished
            | Code::AlreadyClaimed
            | Code::NotReady
            | Code::LeaseExpired
            | Code::AlreadyFinished
            | Code::Cancelled => 409,
            Code::Suppressed | Code::RateLimited | Code::Paused | Code::BudgetRefused => 429,
        }
    }

    /// The exit code of a command that was refused or failed. A wrong command line exits with 2. A command that runs
    /// another one passes its exit code on.
    pub fn exit_code(self) -> u8 {
        match self {
            Code::Internal
            | Code::Invalid
            | Code::NotFound
            | Code::Unauthorized
            | Code::Forbidden
            | Code::TooLarge
            | Code::Unavailable
            | Code::OutcomeUnknown => 1,
            Code::NoneReady | Code::BoardFinished => 3,
            Code::AlreadyClaimed | Code::NotReady => 4,
            Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled => 5,
            Code::Suppressed | Code::RateLimited | Code::Paused | Code::BudgetRefused => 6,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Code::Internal => "internal",
            Code::Invalid => "invalid",
            Code::NotFound => "not_found",
            Code::Unauthorized => "unauthorized",
            Code::Forbidden => "forbidden",
            Code::TooLarge => "too_large",
            Code::Unavailable => "unavailable",
            Code::OutcomeUnknown => "outcome_unknown",
            Code::NoneReady => "none_ready",
            Code::BoardFinished => "board_finished",
            Code::AlreadyClaimed => "already_claimed",
            Code::NotReady => "not_ready",
            Code::LeaseExpired => "lease_expired",
            Code::AlreadyFinished => "already_finished",
            Code::Cancelled => "cancelled",
            Code::Suppressed => "suppressed",
            Code::RateLimited => "rate_limited",
            Code::Paused => "paused",
            Code::BudgetRefused => "budget_refused",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal or a failure: a code, a message (a lowercase fragment), a hint, and fields such as `holder`.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Error(Box<Body>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Body {
    code: Code,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(flatten)]
    fields: Map<String, Value>,
    /// See [`Error::raced`]. It never leaves the engine.
    #[serde(skip)]
    raced: bool,
    /// See [`Error::fleet_changed`]. It never leaves the engine.
    #[serde(skip)]
    fleet_changed: bool,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let body = Body {
            code,
            message: message.into(),
            hint: None,
            fields: Map::new(),
            raced: false,
            fleet_changed: false,
        };
        Error(Box::new(body))
    }
    pub fn invalid(field: &str, message: impl fmt::Display) -> Self {
        Error::new(Code::Invalid, format!("`{field}` {message}")).with("field", field)
    }
    pub fn internal(message: impl fmt::Display) -> Self {
        Error::new(Code::Internal, message.to_string())
    }
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Error::new(Code::Unavailable, message.to_string())
    }
    /// The call lost a race against another transaction. The store starts it over.
    pub(crate) fn raced(message: impl fmt::Display) -> Self {
        let mut error = Error::unavailable(message);
        error.0.raced = true;
        error.hint("another call changed it at the same time: try again")
    }
    /// The database is no longer the fleet that this process opened. Waiting does not help, so waiters get this error.
    pub(crate) fn fleet_changed(message: impl fmt::Display) -> Self {
        let mut error = Error::unavailable(message);
        error.0.fleet_changed = true;
        error
    }
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Serialize) -> Self {
        self.0.fields.insert(field.into(), serde_json::to_value(value).unwrap_or(Value::Null));
        self
    }
    pub fn code(&self) -> Code {
        self.0.code
    }
    pub fn message(&self) -> &str {
        &self.0.message
    }
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.0.fields.get(name)
    }
    /// The fleet, the disk or the network failed to answer: the same request may succeed later.
    ///
    /// It says nothing about the request itself. With `outcome_unknown` the request may have been carried out, so
    /// repeat it only if [`Op::ON_RETRY`](crate::Op::ON_RETRY) allows it.
    pub fn is_transient(&self) -> bool {
        matches!(self.code(), Code::Unavailable | Code::OutcomeUnknown)
    }
    /// The claim of this request is over, and no retry brings it back: its holder must stop.
    ///
    /// It applies to the answer to a request with a token. There `not_found` means that the item, or its fleet, is
    /// gone.
    pub fn ends_claim(&self) -> bool {
        matches!(self.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled | Code::NotFound)
    }
    /// Time or other callers may turn this refusal into a success. A claim that the caller itself holds stays refused.
    pub(crate) fn is_not_yet(&self) -> bool {
        matches!(self.code(), Code::NoneReady | Code::AlreadyClaimed | Code::NotReady | Code::BudgetRefused)
            && self.field("own") != Some(&Value::Bool(true))
    }
    /// PostgreSQL has a row with this key already.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.field("sqlstate").is_some_and(|state| state == "23505")
    }
    pub(crate) fn is_race(&self) -> bool {
        self.0.raced
    }
    /// The database does not answer and may come back: waiters go on waiting.
    pub(crate) fn is_outage(&self) -> bool {
        self.code() == Code::Unavailable && !self.0.fleet_changed
    }
    /// The JSON that every interface prints: `{"error": {"code": …, "message": …}}`.
    pub fn to_json(&self) -> Value {
        serde_json::json!({ "error": self })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("code", &self.0.code)
            .field("message", &self.0.message)
            .field("hint", &self.0.hint)
            .field("fields", &self.0.fields)
            .finish()
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_the_wire() {
        let error =
            Error::new(Code::AlreadyClaimed, "held by run `r-7f`").hint("fence ready").with("fence", 4);
        let text = serde_json::to_string(&error).unwrap();
        insta::assert_snapshot!(text, @r#"{"code":"already_claimed","message":"held by run `r-7f`","hint":"fence ready","fence":4}"#);
        assert_eq!(serde_json::from_str::<Error>(&text).unwrap().0, error.0);
    }

    #[test]
    fn every_code_is_transient_or_ends_a_claim_or_neither() {
        let neither = (false, false);
        let (transient, ends_claim) = ((true, false), (false, true));
        let table = [
            (Code::Internal, neither),
            (Code::Invalid, neither),
            (Code::NotFound, ends_claim),
            (Code::Unauthorized, neither),
            (Code::Forbidden, neither),
            (Code::TooLarge, neither),
            (Code::Unavailable, transient),
            (Code::OutcomeUnknown, transient),
            (Code::NoneReady, neither),
            (Code::BoardFinished, neither),
            (Code::AlreadyClaimed, neither),
            (Code::NotReady, neither),
            (Code::LeaseExpired, ends_claim),
            (Code::AlreadyFinished, ends_claim),
            (Code::Cancelled, ends_claim),
            (Code::Suppressed, neither),
            (Code::RateLimited, neither),
            (Code::Paused, neither),
            (Code::BudgetRefused, neither),
        ];
        let listed = serde_json::to_value(table.map(|(code, _)| code)).unwrap();
        assert_eq!(schemars::schema_for!(Code).get("enum"), Some(&listed), "the table has every code");
        for (code, expected) in table {
            let error = Error::new(code, "no");
            assert_eq!((error.is_transient(), error.ends_claim()), expected, "{code}");
        }
    }

    #[test]
    fn codes_print_as_they_serialize() {
        for code in [Code::Internal, Code::NoneReady, Code::OutcomeUnknown, Code::LeaseExpired] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
