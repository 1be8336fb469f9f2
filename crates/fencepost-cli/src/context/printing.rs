//! Printing replies, warnings and errors.

use super::Context;
use crate::environment::sandbox;
use crate::output::{next_step, streams, tasks::lease_kept, untrusted};
use fencepost::{Code, Error, Result, claim};
use serde::{Serialize, de::DeserializeOwned};
use std::{borrow::Cow, process::ExitCode};

impl Context {
    /// Prints a reply: as JSON with `--json`, else as text. `text` gets a reply in which all untrusted text is safe to show, so no
    /// command has to do that itself.
    pub fn print<T: Serialize + DeserializeOwned>(
        &self,
        reply: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode> {
        let json = serde_json::to_string(reply).map_err(Error::internal)?;
        let text = match untrusted::shown_in_json(&json) {
            // A payload is printed as it was written, which may be in several lines.
            _ if self.json() => return self.print_json(&json.replace('\n', " ")),
            Cow::Borrowed(_) => text(reply),
            Cow::Owned(safe) => match serde_json::from_str(&safe) {
                Ok(safe) => text(&safe),
                Err(_) => return self.print_json(&json),
            },
        };
        streams::print(text.trim_end())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints JSON, with or without `--json`.
    pub fn print_json(&self, json: &str) -> Result<ExitCode> {
        streams::print_json(json)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Warns of a problem that did not stop the command.
    pub fn warn(&self, error: &Error) {
        match self.json() {
            true => streams::print_error_json(&serde_json::json!({ "warning": error }).to_string()),
            false => streams::print_error(&streams::label("warning", error.message())),
        }
    }

    /// Warns that the lease is not the one that was asked for, for commands that print nothing but a token.
    pub fn warn_of_lease(&self, claim: &claim::Claim) {
        let kept = lease_kept(claim, &self.terminal);
        if !kept.is_empty() && !self.json() {
            self.warn(&Error::new(Code::Invalid, kept.trim_start()));
        }
    }

    /// The flag with which the user can repeat a command whose outcome is unknown, so that it happens at most once. For a remote
    /// fleet the error has the id, because not every op takes one.
    fn retry_flag(&self, error: &Error) -> Option<String> {
        if error.code() != Code::OutcomeUnknown {
            return None;
        }
        let text = |field| error.field(field).and_then(|value| value.as_str());
        if let Some(run) = text("run") {
            return Some(format!("--run {run}"));
        }
        let remote = self.location().is_ok_and(|location| location.is_remote());
        let request = text("request").or((!remote).then_some(&self.request))?;
        Some(format!("--request {request}"))
    }

    /// The message, with the flag in place of the request's field that it was given for.
    fn with_flag(&self, error: &Error) -> String {
        let message = error.message().to_owned();
        let Some(field) = error.field("field").and_then(|field| field.as_str()) else { return message };
        // A field in a line of a file was not given by a flag.
        if error.field("line").is_some() {
            return message;
        }
        let flag = field.strip_suffix("_ms").unwrap_or(field).replace('_', "-");
        match self.invocation.flags.contains(&flag) {
            true => message.replace(&format!("`{field}`"), &format!("`--{flag}`")),
            false => message,
        }
    }

    pub fn fail(&self, error: &Error) -> ExitCode {
        // The error itself, such as a read-only file system, does not say who made it so.
        let in_sandbox =
            sandbox().filter(|_| error.is_transient()).map(|sandbox| error.clone().hint(sandbox.hint()));
        let error = in_sandbox.as_ref().unwrap_or(error);
        if self.json() {
            streams::print_error_json(&error.to_json().to_string());
        } else {
            let retry = self.retry_flag(error);
            let retry = retry.map(|flag| format!("the same command with {flag} does it at most once"));
            let mut hints: Vec<String> =
                error.hint_text().map(str::to_owned).into_iter().chain(retry).collect();
            if hints.is_empty() {
                hints.push(next_step::hint(error.code()));
            }
            let lines = [streams::label("error", &self.with_flag(error))].into_iter();
            let hints = hints.iter().map(|hint| streams::label("hint", hint));
            streams::print_error(&lines.chain(hints).collect::<Vec<_>>().join("\n"));
        }
        ExitCode::from(error.code().exit_code())
    }
}
