//! One attempt of a remote call: the request as it is sent, and how the attempt can fail.

use crate::{address::Address, http::Reason, retry::new_request_id};
use bytes::Bytes;
use fencepost::{Code, Error, Json, Result, op::OnRetry};
use std::{collections::BTreeMap, time::Duration};
// Real time: it is spent waiting for a server. The fleet's clock decides leases.
use tokio::time::Instant;

/// How long one attempt may take beside the time that the op waits. The engine gives up after 30 s.
const LIMIT: Duration = Duration::from_secs(35);

/// The fields of a request, each as the caller wrote it: a payload keeps its spaces and its long numbers.
pub type Fields = BTreeMap<String, Json>;

/// A request, sent anew with each attempt.
pub struct Outgoing {
    fields: Fields,
    pub on_retry: OnRetry,
    /// When it began, and how long the op waits from then on. A repeat waits only for the rest.
    wait: Option<(Instant, Duration)>,
}

impl Outgoing {
    pub fn new(mut fields: Fields, on_retry: OnRetry) -> Self {
        let has_id = fields.get("request").is_some_and(|id| id.text() != "null");
        if on_retry == OnRetry::ByRequestId && !has_id {
            fields.insert("request".into(), new_request_id().as_str().into());
        }
        let wait = fields.get("wait_ms").and_then(|wait| wait.read().ok()).map(Duration::from_millis);
        Self { fields, on_retry, wait: wait.map(|wait| (Instant::now(), wait)) }
    }

    pub fn waits_until(&self) -> Option<Instant> {
        self.wait.map(|(began, wait)| began + wait)
    }

    /// The body to send now, and how long the attempt may take.
    pub fn at(&self, now: Instant) -> Result<(Bytes, Duration)> {
        let bytes = |fields: &Fields| serde_json::to_vec(fields).map(Bytes::from).map_err(Error::internal);
        let Some((began, wait)) = self.wait else { return Ok((bytes(&self.fields)?, LIMIT)) };
        let left = wait.saturating_sub(now - began);
        let mut fields = self.fields.clone();
        fields.insert("wait_ms".into(), Json::of(&left.as_millis())?);
        Ok((bytes(&fields)?, left + LIMIT))
    }

    /// The error after the last attempt. If the server may have carried out one of the attempts, the outcome is unknown.
    pub fn give_up(&self, failure: Failure, lost: bool) -> Error {
        let unknown = lost && self.on_retry != OnRetry::Reads;
        let error = match failure {
            Failure::NotSent(error) | Failure::Lost(error) | Failure::OtherProgram(error) if unknown => {
                let error = Error::new(Code::OutcomeUnknown, error.message().to_owned());
                error.hint(match self.on_retry != OnRetry::Never {
                    true => "it may have been done; a retry is safe",
                    false => "it may have been done: check before you retry",
                })
            }
            failure => failure.into_error(),
        };
        match self.fields.get("request").and_then(|id| id.read::<String>().ok()) {
            Some(request) if error.code() == Code::OutcomeUnknown => error.with("request", request),
            _ => error,
        }
    }
}

/// An attempt without a reply.
pub enum Failure {
    /// The server did not get the request.
    NotSent(Error),
    /// The response was lost.
    Lost(Error),
    /// Another program answered.
    OtherProgram(Error),
    /// The server answered with an error.
    Refused(Error),
}

impl Failure {
    pub fn may_repeat(&self, on_retry: OnRetry) -> bool {
        match self {
            Failure::NotSent(_) => true,
            Failure::Lost(_) => on_retry != OnRetry::Never,
            Failure::OtherProgram(_) => false,
            Failure::Refused(error) => error.is_transient() && on_retry != OnRetry::Never,
        }
    }

    /// Another server of the fleet may do better.
    pub fn is_of_the_server(&self) -> bool {
        match self {
            Failure::NotSent(_) | Failure::Lost(_) | Failure::OtherProgram(_) => true,
            Failure::Refused(error) => error.code() == Code::Unavailable,
        }
    }

    fn into_error(self) -> Error {
        match self {
            Failure::NotSent(error)
            | Failure::Lost(error)
            | Failure::OtherProgram(error)
            | Failure::Refused(error) => error,
        }
    }
}

/// The error if another program answered.
pub fn other_program(server: &Address, what: &str) -> Error {
    Error::unavailable(format!("{server} {what}"))
        .hint("is this the address of a `fence serve`? a proxy in front of it may have answered instead")
}

/// The error if nothing answered.
pub fn no_answer(server: &Address, reason: &Reason) -> Error {
    let hint = reason.hint.unwrap_or("is `fence serve` running there, and is the address right?");
    Error::unavailable(format!("the fleet at {server} does not answer: {reason}")).hint(hint)
}
