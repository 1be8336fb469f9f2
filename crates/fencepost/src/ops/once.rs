//! Effects that must happen once: a command, its key, and its kept result. An effect's row is created by its first
//! claim, and stays until somebody removes it. A claim that is lost while its command runs leaves the effect in doubt:
//! it may have happened, so it neither counts as done nor runs again by itself.

use crate::{
    clock::Time,
    engine::op::verbs,
    error::{Code, Error, Result},
    ids::Token,
    lease,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![begin::Begin, finish::Finish, resolve::Resolve, show::Show, list::List, remove::Remove];
pub(crate) mod claimable;
pub(crate) mod lapse;
pub(crate) mod record;
pub(crate) mod release;

/// How much of each output stream is kept.
pub const OUTPUT_KEPT: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing ran, or somebody found out that it did not happen. The next caller runs it.
    Unused,
    /// A run holds it.
    Running,
    /// Its command exited with 0, or a check or a person said that it happened.
    Succeeded,
    /// Its command exited with another code.
    Failed,
    /// Its command was begun, and nobody knows how it ended.
    InDoubt,
}

impl Status {
    pub const ALL: [Status; 5] =
        [Status::Unused, Status::Running, Status::Succeeded, Status::Failed, Status::InDoubt];

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Unused => "unused",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::InDoubt => "in_doubt",
        }
    }

    fn read(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| Error::internal(format!("an effect has status `{text}`")))
    }

    /// It has a result that later callers get.
    pub fn is_finished(self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed)
    }
}

/// Who said how an effect ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The command itself, by its exit code.
    Command,
    /// A check that its holder ran.
    Check,
    /// Somebody who looked.
    Person,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Source::Command => "command",
            Source::Check => "check",
            Source::Person => "person",
        }
    }

    fn read(text: &str) -> Result<Self> {
        let found =
            [Source::Command, Source::Check, Source::Person].into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| Error::internal(format!("an effect's result is from `{text}`")))
    }
}

/// The beginning of what a command wrote to one of its streams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// At most 64 KiB, before base64.
    pub text: String,
    /// `text` is base64, because the bytes are no text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base64: bool,
    /// There was more, which is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

impl Output {
    fn check(&self, field: &str) -> Result<()> {
        let most = if self.base64 { OUTPUT_KEPT.div_ceil(3) * 4 } else { OUTPUT_KEPT };
        check::text(field, &self.text, most)
    }

    /// The stored form.
    fn json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(Error::internal)
    }

    fn stored(text: Option<String>) -> Result<Option<Self>> {
        text.map(|text| serde_json::from_str(&text).map_err(Error::internal)).transpose()
    }
}

/// An effect, and its result if it has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    pub key: String,
    pub status: Status,
    /// The command, for people.
    pub command: String,
    /// The token of its latest claim. `once/resolve` names an effect in doubt by it.
    pub token: String,
    /// The run that began it last, and the run's agent.
    pub begun_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub begun_at: Time,
    /// The current claim, while a run holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<lease::Claim>,
    /// Who said how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Output>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Output>,
    /// The note of whoever resolved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why it is in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub updated_at: Time,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    pub effect: Effect,
}

/// Parses a token that must be an effect's.
fn effect_token(token: &str) -> Result<Token> {
    let token = Token::check(token)?;
    if token.resource.noun() != claimable::NOUN {
        let message = format!("`{}` is not an effect", token.resource);
        return Err(Error::new(Code::Invalid, message).with("field", "token"));
    }
    Ok(token)
}

fn check_outputs(stdout: Option<&Output>, stderr: Option<&Output>) -> Result<()> {
    stdout.map_or(Ok(()), |output| output.check("stdout"))?;
    stderr.map_or(Ok(()), |output| output.check("stderr"))
}

fn not_found(key: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no effect `{key}`"))
        .hint("fence once --list shows those there are")
}
