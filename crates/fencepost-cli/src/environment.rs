//! Environment variables, and the user's directories.

use fencepost::{Code, Error, Result};
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
