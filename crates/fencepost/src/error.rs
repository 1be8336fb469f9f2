//! An expected no is a value with a code, and says what to do next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was not done. The codes are the contract: messages may change, codes do not.
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
}

impl Code {
    /// Every op may answer with these: they are about the request, its caller, or the fleet as a whole. Which other
    /// codes an op may answer with is [`Op::REFUSES`](crate::Op::REFUSES).
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
            Code::Suppressed | Code::RateLimited | Code::Paused => 429,
        }
    }
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
            Code::Suppressed | Code::RateLimited | Code::Paused => 6,
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
    /// Something else moved at the same moment; starting over settles it. Never leaves the engine.
    #[serde(skip)]
    raced: bool,
    /// It stays as it is until this process is started again: nobody waits for it to end. Never leaves the engine.
    #[serde(skip)]
    lasting: bool,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let body = Body {
            code,
            message: message.into(),
            hint: None,
            fields: Map::new(),
            raced: false,
            lasting: false,
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
    /// Lost a race that the next try will see the end of.
    pub(crate) fn raced(message: impl fmt::Display) -> Self {
        let mut error = Error::unavailable(message);
        error.0.raced = true;
        error.hint("something else changed it at the same moment: try again")
    }
    /// Unavailable to this process for as long as it runs: the fleet is not the one that it opened.
    pub(crate) fn lasting(message: impl fmt::Display) -> Self {
        let mut error = Error::unavailable(message);
        error.0.lasting = true;
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
    /// It may become a yes with time, and by others' doing. What the caller itself holds does not.
    pub(crate) fn is_not_yet(&self) -> bool {
        matches!(self.code(), Code::NoneReady | Code::AlreadyClaimed | Code::NotReady)
            && self.field("own") != Some(&Value::Bool(true))
    }
    /// PostgreSQL had a row of this key already.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.field("sqlstate").is_some_and(|state| state == "23505")
    }
    pub(crate) fn is_race(&self) -> bool {
        self.0.raced
    }
    /// The database is away, and may come back: those who wait for something go on waiting.
    pub(crate) fn is_away(&self) -> bool {
        self.code() == Code::Unavailable && !self.0.lasting
    }
    /// As every interface prints it: `{"error": {"code": …, "message": …}}`.
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
    fn codes_print_as_they_serialize() {
        for code in [Code::Internal, Code::NoneReady, Code::OutcomeUnknown, Code::LeaseExpired] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
