//! Environment variables, and the user's directories.

use fencepost::{Code, Error, Millis, Result};
use std::path::PathBuf;

/// The name of a fleet's database in the directory that holds it.
pub const DATABASE: &str = "fence.db";

/// A variable, if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The same, for a variable that must be text: skipping a value that cannot be read would act on something else.
pub fn text_variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::new(Code::Invalid, format!("{name} is not UTF-8")))
        }
        value => Ok(value.ok().filter(|value| !value.is_empty())),
    }
}

/// The name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The sandbox of an agent's client in which this program runs. It cannot write and connect where it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    Claude,
    Codex,
}

pub fn sandbox() -> Option<Sandbox> {
    // The first process of Codex's sandbox. The variable is set only if the sandbox has no network.
    let first = || std::fs::read("/proc/1/cmdline").unwrap_or_default();
    let is_codex = |line: Vec<u8>| {
        let program = line.split(|&b| b == 0).next().map(String::from_utf8_lossy);
        program.is_some_and(|program| program.ends_with("codex-linux-sandbox"))
    };
    if variable("SANDBOX_RUNTIME").is_some() {
        return Some(Sandbox::Claude);
    }
    let codex = variable("CODEX_SANDBOX_NETWORK_DISABLED").or_else(|| variable("CODEX_SANDBOX"));
    (codex.is_some() || is_codex(first())).then_some(Sandbox::Codex)
}

impl Sandbox {
    /// The next step of an agent whose fleet cannot be reached from the sandbox.
    pub fn hint(self) -> &'static str {
        match self {
            Sandbox::Codex => {
                "this is Codex's sandbox, which may not reach the fleet: use the tools of fence mcp, which runs outside of it. A person \
                 installs them, and opens the sandbox for the fleet's directory: fence setup codex"
            }
            Sandbox::Claude => {
                "this is Claude Code's sandbox, which may not reach the fleet: use the tools of fence mcp, which runs outside of it. A \
                 person installs them: fence setup claude --mcp; or allows the fleet's directory in sandbox.filesystem.allowWrite"
            }
        }
    }
}

/// The user's directory for settings.
pub fn config_home() -> Option<PathBuf> {
    directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))
}

/// The user's directory for decisions that programs remember.
pub fn state_home() -> Option<PathBuf> {
    directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")))
}

/// The user's directory for the data of fence.
pub fn data_home() -> Option<PathBuf> {
    let data = directory("XDG_DATA_HOME").or_else(|| Some(directory("HOME")?.join(".local/share")))?;
    Some(data.join("fence"))
}

fn directory(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// `30s`, `30m`, `2h`.
pub fn duration(text: &str) -> Result<Millis, String> {
    let malformed = || "not a duration such as 30s, 30m or 2h".to_owned();
    let span: jiff::Span = text.parse().map_err(|_| malformed())?;
    let span = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| malformed())?;
    if span.is_negative() {
        return Err(malformed());
    }
    Ok(Millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}
