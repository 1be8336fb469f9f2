//! A profile: how a client is started, and how its output is read. Profiles are data, so that a user adds one without code.

use crate::{environment::config_home, trust::small_text};
use fencepost::{Code, Error, Millis, Result};
use serde::Deserialize;
use std::{collections::BTreeMap, path::PathBuf};

const BUILT_IN: [(&str, &str); 3] = [
    ("claude", include_str!("profiles/claude.toml")),
    ("codex", include_str!("profiles/codex.toml")),
    ("exec", include_str!("profiles/exec.toml")),
];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The command line. `{…}` in a word is a variable: see [`Words`].
    #[serde(default)]
    pub command: Vec<String>,
    /// Words that are added to resume a session, with `{session}`.
    #[serde(default)]
    pub resume: Vec<String>,
    /// Words at the end of the command line.
    #[serde(default)]
    pub last: Vec<String>,
    #[serde(default)]
    pub prompt: PromptBy,
    /// Variables of the child's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub no_verdict: NoVerdict,
    /// Does the worker commit the changes in a work tree? A client whose sandbox keeps `.git` read-only cannot.
    #[serde(default)]
    pub worker_commits: bool,
    /// Lines of standard output that tell the session, the result and the cost.
    #[serde(default)]
    pub read: Vec<Read>,
    /// Lines that tell that the client cannot work now.
    #[serde(default)]
    pub stop: Vec<Stop>,
}

/// How the child gets its prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptBy {
    #[default]
    Stdin,
    /// As the last word of the command line.
    Argument,
}

/// The meaning of exit 0 if the child settled nothing itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum NoVerdict {
    /// The attempt failed, with the reason `no_verdict`.
    #[default]
    Fail,
    /// The work is done.
    Done,
    /// The work goes back, and the attempt does not count.
    Release,
}

/// A line of output, as a JSON object: at each of these JSON pointers is the value, or one of the values.
pub type Where = BTreeMap<String, toml::Value>;

/// Facts that are read from such a line, by JSON pointers in which `*` stands for every key. A later line replaces the facts of an
/// earlier one; numbers are added up with `add`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    #[serde(rename = "where")]
    pub matches: Where,
    pub session: Option<String>,
    /// The text that the client ends with.
    pub result: Option<String>,
    /// The sum of the numbers at these places.
    #[serde(default)]
    pub usd: Vec<String>,
    #[serde(default)]
    pub tokens_in: Vec<String>,
    #[serde(default)]
    pub tokens_out: Vec<String>,
    /// Add the numbers to those of earlier lines.
    #[serde(default)]
    pub add: bool,
    /// When a limit ends, in seconds since 1970, for a [`Stop`] that follows.
    pub reset: Option<String>,
}

/// A line that tells that the client cannot work now. Of several that fit, the first counts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    pub kind: StopKind,
    #[serde(rename = "where")]
    pub matches: Where,
    /// The text that explains it.
    pub text: Option<String>,
    /// The text contains one of these, whatever the capitals.
    #[serde(default)]
    pub contains: Vec<String>,
    /// The words after which the text names the time of the reset: `10:41 PM` or `Nov 22nd, 2026 1:48 PM`, local time.
    pub reset_after: Option<String>,
    /// Only if an earlier line told the reset.
    #[serde(default)]
    pub needs_reset: bool,
    /// How long to pause if no reset was named. Without it, until a person resumes the agent.
    #[serde(default, deserialize_with = "span")]
    pub pause: Option<Millis>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopKind {
    UsageLimit,
    Overload,
    Login,
}

impl StopKind {
    pub fn as_str(self) -> &'static str {
        match self {
            StopKind::UsageLimit => "usage limit",
            StopKind::Overload => "overload",
            StopKind::Login => "login",
        }
    }
}

fn span<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Millis>, D::Error> {
    let text = String::deserialize(from)?;
    super::super::duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Profile {
    /// The profile of this name: the user's own, else a built-in one; or the one in this file.
    pub fn load(name: &str) -> Result<Self> {
        let text = Self::text(name)?;
        toml::from_str(&text).map_err(|e| {
            Error::new(Code::Invalid, format!("profile `{name}` is wrong: {}", e.message().trim_end()))
                .hint("fence work --show-profile claude shows a profile that works")
        })
    }

    /// The text of a profile.
    pub fn text(name: &str) -> Result<String> {
        let unreadable = |path: &PathBuf, e: std::io::Error| {
            Error::new(Code::Invalid, format!("profile `{}` cannot be read: {e}", path.display()))
        };
        if name.ends_with(".toml") {
            let path = PathBuf::from(name);
            return small_text(&path).map_err(|e| unreadable(&path, e));
        }
        let own = config_home().map(|home| home.join("fence/profiles").join(format!("{name}.toml")));
        if let Some(path) = own.filter(|path| !name.contains('/') && path.exists()) {
            return small_text(&path).map_err(|e| unreadable(&path, e));
        }
        let built_in = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        built_in.map(|(_, text)| (*text).to_owned()).ok_or_else(|| {
            let names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            Error::new(Code::Invalid, format!("there is no profile `{name}`")).hint(format!(
                "the profiles are {}; one of your own is a file NAME.toml in the directory fence/profiles of your \
                 settings, or any file that ends in .toml",
                names.join(", ")
            ))
        })
    }
}

/// The values of the variables in a profile's command line.
#[derive(Debug, Clone, Default)]
pub struct Words {
    values: Vec<(&'static str, String)>,
}

impl Words {
    pub fn new(values: Vec<(&'static str, String)>) -> Self {
        Self { values }
    }

    /// The words with their variables replaced. An unknown variable is an error.
    pub fn fill(&self, words: &[String]) -> Result<Vec<String>> {
        words.iter().map(|word| fill(word, "{", "}", &self.values)).collect()
    }
}

/// Replaces every `{name}`; the names consist of small letters and `_`, so that other braces stay as they are.
pub fn fill(text: &str, open: &str, close: &str, values: &[(&'static str, String)]) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(open) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let after = &after[open.len()..];
        let end = after.find(close).filter(|end| {
            let name = after[..*end].trim();
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        });
        let Some(end) = end else {
            out.push_str(open);
            rest = after;
            continue;
        };
        let name = after[..end].trim();
        let value = values.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let known: Vec<_> = values.iter().map(|(name, _)| *name).collect();
            Error::new(Code::Invalid, format!("there is no variable `{name}`"))
                .hint(format!("the variables are {}", known.join(", ")))
        })?;
        out.push_str(&value.1);
        rest = &after[end + close.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_profiles_are_right() {
        for (name, text) in BUILT_IN {
            toml::from_str::<Profile>(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        assert!(
            Profile::load("no-such").is_err_and(|e| e.hint_text().unwrap().contains("claude, codex, exec"))
        );
        let wrong = toml::from_str::<Profile>("command = []\ncolour = 1").unwrap_err();
        assert!(wrong.message().contains("unknown field `colour`"), "{wrong}");
    }

    #[test]
    fn an_unknown_variable_is_an_error() {
        let values = [("session", "s-1".to_owned()), ("tree", "/t".to_owned())];
        let filled = |text| fill(text, "{", "}", &values).map_err(|e| e.message().to_owned());
        assert_eq!(filled("--resume={session}:{tree}"), Ok("--resume=s-1:/t".into()));
        assert_eq!(filled("{\"json\": {}} {a b} { 1 }"), Ok("{\"json\": {}} {a b} { 1 }".into()));
        assert_eq!(filled("{sesion}"), Err("there is no variable `sesion`".into()));
        let twice = fill("{{ tree }} and {tree}", "{{", "}}", &values).unwrap();
        assert_eq!(twice, "/t and {tree}");
    }
}
