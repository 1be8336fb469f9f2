//! The git repository that the hooks belong to, and its settings.

use crate::worktree::Git;
use fencepost::{Code, Error, Result};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The setting of git that names the directory of the hooks.
pub const HOOKS_PATH: &str = "core.hooksPath";
/// The fleet that `pre-receive` asks.
pub const ASK: &str = "fence.ask";
/// Branches that take only commits with a trailer. It may have several values.
pub const REQUIRE: &str = "fence.require";
/// The directory of the hooks that our own replaces, and its value in the repository's own settings, if it was set there.
pub const HOOKS_BEFORE: &str = "fence.hooksBefore";
pub const LOCAL_HOOKS_BEFORE: &str = "fence.localHooksBefore";

#[derive(Debug)]
pub struct Repository {
    git: Git,
    /// The git directory that all work trees share.
    pub directory: PathBuf,
}

/// The value of a setting, and which of git's files it is in: `local`, `global`, `system`, `worktree`, `command`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scoped {
    pub value: String,
    pub scope: String,
}

impl Repository {
    /// The repository around the current directory.
    pub async fn here() -> Result<Self> {
        let here = std::env::current_dir()
            .map_err(|e| Error::new(Code::NotFound, format!("the current directory cannot be read: {e}")))?;
        Self::of(Git::new(here)).await
    }

    /// The repository whose git called this process.
    pub async fn of_hook() -> Result<Self> {
        Self::of(Git::in_hook()).await
    }

    async fn of(git: Git) -> Result<Self> {
        let found = git.output(["rev-parse", "--path-format=absolute", "--git-common-dir"]).await?;
        if !found.is_success() {
            return Err(Error::new(Code::NotFound, "there is no git repository here").hint(
                "go to a clone, or to the repository that receives pushes; fence git needs git 2.31 or newer",
            ));
        }
        let path = found.stdout();
        let directory = OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(path)).into();
        Ok(Self { git, directory })
    }

    pub fn git(&self) -> &Git {
        &self.git
    }

    /// The directory for files of fence.
    pub fn own_directory(&self) -> PathBuf {
        self.directory.join("fence")
    }

    /// The values of a setting.
    pub async fn settings(&self, key: &str) -> Result<Vec<String>> {
        let values = self.git.ask(["config", "--null", "--get-all", key]).await?.unwrap_or_default();
        Ok(values.split_terminator('\0').map(str::to_owned).collect())
    }

    /// The value that holds.
    pub async fn setting(&self, key: &str) -> Result<Option<String>> {
        Ok(self.settings(key).await?.pop())
    }

    /// The same with its scope, as a path in which `~` is expanded.
    pub async fn path_setting(&self, key: &str) -> Result<Option<Scoped>> {
        let words = ["config", "--null", "--show-scope", "--type=path", "--get", key];
        let Some(found) = self.git.ask(words).await? else { return Ok(None) };
        let (scope, value) = found.split_once('\0').unwrap_or_default();
        Ok(Some(Scoped { value: value.trim_end_matches('\0').into(), scope: scope.into() }))
    }

    /// The value in the repository's own settings, as it is written there.
    pub async fn local(&self, key: &str) -> Result<Option<String>> {
        self.git.ask(["config", "--local", "--get", key]).await
    }

    pub async fn set(&self, key: &str, value: &str) -> Result<()> {
        self.git.text(["config", "--local", "--replace-all", key, value]).await.map(drop)
    }

    pub async fn add(&self, key: &str, value: &str) -> Result<()> {
        self.git.text(["config", "--local", "--add", key, value]).await.map(drop)
    }

    /// Removes all values of a setting.
    pub async fn unset(&self, key: &str) -> Result<()> {
        if self.local(key).await?.is_none() {
            return Ok(());
        }
        self.git.text(["config", "--local", "--unset-all", key]).await.map(drop)
    }

    /// Is this directory the repository's own, which nobody shares and git does not track?
    pub fn owns(&self, directory: &Path) -> bool {
        directory.is_absolute() && directory.starts_with(&self.directory)
    }
}
