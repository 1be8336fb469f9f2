//! Limits on the fields of a request, and the checks that enforce them. Each check names the field that is wrong.

use crate::{
    clock::Millis,
    error::{Code, Error, Result},
};

pub const TITLE_MAX: usize = 500;
pub const BODY_MAX: usize = 256 * 1024;
pub const OUTPUT_MAX: usize = 1024 * 1024;
pub const PAYLOAD_MAX: usize = 1024 * 1024;
pub const OUTPUTS_MAX: usize = 100;
pub const MAILBOXES_MAX: usize = 100;
pub const TEXT_MAX: usize = 16 * 1024;
pub const NAME_MAX: usize = 128;
pub const TAGS_MAX: usize = 32;
pub const DEPENDENCIES_MAX: usize = 1000;
pub const PLAN_MAX: usize = 10_000;
/// The highest task number that an import accepts: the board counts on from there, and must not run out of numbers.
pub const NUMBER_MAX: i64 = 1_000_000_000;
pub const CLAIMS_MAX: i64 = 1000;
pub const WAITED_MAX: usize = 1000;
pub const TTL_MIN: Millis = Millis::seconds(1);
pub const TTL_MAX: Millis = Millis::days(30);
/// A caller that wants to wait longer repeats the call. That way a dead connection is noticed.
pub const WAIT_MAX: Millis = Millis::minutes(10);
pub const ATTEMPTS_MAX: i64 = 1000;

/// Characters that names may have besides letters and digits.
pub(crate) const PLAIN: &str = "._-";
/// The same for names that can be paths: locks, runs and mailboxes.
pub(crate) const PATH: &str = "._-:/";

/// The first thing that is wrong with a name.
pub(crate) fn name_problem(name: &str, extra: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
    if name.is_empty() {
        Some("is empty".into())
    } else if name.len() > NAME_MAX {
        Some(format!("is longer than {NAME_MAX} characters"))
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Some("does not start with a letter or a digit".into())
    } else {
        name.chars()
            .find(|&c| !allowed(c))
            .map(|c| format!("has a {c:?}: letters, digits and any of `{extra}` are allowed"))
    }
}

/// Checks on the fields of a request. Each names the field that is wrong, and its limit.
pub(crate) mod check {
    use super::*;

    pub fn plain_name(field: &str, name: &str) -> Result<()> {
        name_problem(name, PLAIN).map_or(Ok(()), |problem| Err(Error::invalid(field, problem)))
    }
    pub fn path_name(field: &str, name: &str) -> Result<()> {
        name_problem(name, PATH).map_or(Ok(()), |problem| Err(Error::invalid(field, problem)))
    }
    pub fn text(field: &str, text: &str, max: usize) -> Result<()> {
        if text.len() > max {
            let message = format!("`{field}` has {} bytes; at most {max} are allowed", text.len());
            return Err(Error::new(Code::TooLarge, message).with("field", field).with("max", max));
        }
        // PostgreSQL's text cannot hold NUL. SQLite's could, but the two must agree.
        if text.contains('\0') { Err(Error::invalid(field, "contains a NUL character")) } else { Ok(()) }
    }
    pub fn optional_text(field: &str, value: Option<&str>, max: usize) -> Result<()> {
        value.map_or(Ok(()), |value| text(field, value, max))
    }
    /// JSON that a claimant will read. It is checked here, so that nobody claims an item that cannot be read.
    pub fn json(field: &str, json: &str, max: usize) -> Result<()> {
        text(field, json, max)?;
        crate::json::check_readable(json)
            .map_err(|e| Error::invalid(field, format!("is JSON that cannot be read: {e}")))
    }
    pub fn optional_json(field: &str, value: Option<&str>, max: usize) -> Result<()> {
        value.map_or(Ok(()), |value| json(field, value, max))
    }
    pub fn line(field: &str, value: &str, max: usize) -> Result<()> {
        if value.trim().is_empty() {
            return Err(Error::invalid(field, "is empty"));
        }
        text(field, value, max)
    }
    pub fn optional_name(field: &str, name: Option<&str>) -> Result<()> {
        name.map_or(Ok(()), |name| plain_name(field, name))
    }
    pub fn tags(field: &str, tags: &[String]) -> Result<()> {
        if tags.len() > TAGS_MAX {
            return Err(Error::invalid(
                field,
                format!("has {} tags; at most {TAGS_MAX} are allowed", tags.len()),
            ));
        }
        tags.iter().try_for_each(|tag| plain_name(field, tag))
    }
    pub fn range(field: &str, value: i64, low: i64, high: i64) -> Result<()> {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("is {value}; it must be between {low} and {high}")))
    }
    pub fn span(field: &str, value: Millis, low: Millis, high: Millis) -> Result<()> {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("is {} ms; it must be between {low} and {high}", value.0)))
    }
    pub fn lease(field: &str, ttl: Option<Millis>) -> Result<()> {
        ttl.map_or(Ok(()), |ttl| span(field, ttl, TTL_MIN, TTL_MAX))
    }
    pub fn wait(wait: Millis) -> Result<()> {
        span("wait_ms", wait, Millis(0), WAIT_MAX)
    }
    pub fn request(request: Option<&str>) -> Result<()> {
        request.map_or(Ok(()), |id| line("request", id, NAME_MAX))
    }
}
