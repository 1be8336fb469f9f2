//! The directory that holds our hooks, and the hooks in it.
//!
//! Usually it is the repository's own `hooks`, and a hook that is there is renamed and called. If `core.hooksPath` names another
//! directory, or `hooks` is a link, the hooks there belong to the user or are tracked by git, and are not touched. Then the repository
//! gets a directory of ours as its `core.hooksPath`, and each hook in it calls the one in the other directory.

use super::{
    hook_script::{self, Author, HOOKS, KEPT, Kind, PASSED_ON, PASSED_ON_IF_THERE},
    repository::{HOOKS_BEFORE, HOOKS_PATH, LOCAL_HOOKS_BEFORE, Repository, Scoped},
};
use fencepost::{Code, Error, Result};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Place {
    pub directory: PathBuf,
    /// The directory of hooks that ours replaces, as git's settings name it.
    pub before: Option<String>,
}

/// A file with the name of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Ours,
    /// Ours, but somebody changed it.
    Changed,
    Others,
}

impl Place {
    /// The place for the hooks of this repository.
    pub async fn of(repository: &Repository) -> Result<Self> {
        let (own, ours) = (repository.directory.join("hooks"), directory_of_ours(repository));
        let Some(Scoped { value, scope }) = repository.path_setting(HOOKS_PATH).await? else {
            return Ok(match is_elsewhere(&own, repository) {
                true => Self { directory: ours, before: Some(own.display().to_string()) },
                false => Self { directory: own, before: None },
            });
        };
        if Path::new(&value) == ours {
            let before = repository.setting(HOOKS_BEFORE).await?;
            return Ok(Self {
                directory: ours,
                before: Some(before.unwrap_or_else(|| own.display().to_string())),
            });
        }
        let path = PathBuf::from(&value);
        if repository.owns(&path) && !is_elsewhere(&path, repository) {
            return Ok(Self { directory: path, before: None });
        }
        if !matches!(scope.as_str(), "local" | "global" | "system") {
            return Err(Error::new(
                Code::Invalid,
                format!("core.hooksPath is `{value}`, and is set for the {scope} alone"),
            )
            .hint("unset it there (git config --worktree --unset core.hooksPath), then install again"));
        }
        Ok(Self { directory: ours, before: Some(value) })
    }

    /// The hooks to write here.
    pub async fn hooks(&self, repository: &Repository) -> Result<Vec<(&'static str, Kind)>> {
        let mut hooks = HOOKS.to_vec();
        if let Some(before) = &self.before {
            let above = match Path::new(before).is_absolute() {
                true => PathBuf::new(),
                // Git looks for it from the directory in which it runs hooks.
                false => match repository.git().path(["rev-parse", "--show-toplevel"]).await {
                    Ok(top) => top,
                    Err(_) => repository.directory.clone(),
                },
            };
            let there = |name: &&str| above.join(before).join(name).exists();
            let passed_on = PASSED_ON.into_iter().chain(PASSED_ON_IF_THERE.into_iter().filter(there));
            hooks.extend(passed_on.map(|name| (name, Kind::PassOn)));
        }
        Ok(hooks)
    }

    /// Makes git use this directory, if it is not the repository's own.
    pub async fn activate(&self, repository: &Repository) -> Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        let ours = self.directory.display().to_string();
        let local = repository.local(HOOKS_PATH).await?;
        if local.as_deref() != Some(&ours) {
            repository.set(HOOKS_BEFORE, before).await?;
            match local {
                Some(local) => repository.set(LOCAL_HOOKS_BEFORE, &local).await?,
                None => repository.unset(LOCAL_HOOKS_BEFORE).await?,
            }
            repository.set(HOOKS_PATH, &ours).await?;
        }
        let now = repository.path_setting(HOOKS_PATH).await?.map(|found| found.value);
        match now.as_deref() == Some(&ours) {
            true => Ok(()),
            false => Err(Error::new(
                Code::Invalid,
                format!(
                    "core.hooksPath is still `{}`: another setting overrides it",
                    now.unwrap_or_default()
                ),
            )
            .hint("git config --show-origin --get-all core.hooksPath shows where it is set")),
        }
    }
}

/// Undoes [`Place::activate`]. A `core.hooksPath` that somebody set since stays.
pub async fn deactivate(repository: &Repository) -> Result<()> {
    let ours = directory_of_ours(repository);
    if repository.local(HOOKS_PATH).await?.is_some_and(|path| Path::new(&path) == ours) {
        match repository.local(LOCAL_HOOKS_BEFORE).await? {
            Some(before) => repository.set(HOOKS_PATH, &before).await?,
            None => repository.unset(HOOKS_PATH).await?,
        }
    }
    repository.unset(HOOKS_BEFORE).await?;
    repository.unset(LOCAL_HOOKS_BEFORE).await
}

/// The directory for our hooks if those of the repository are elsewhere.
pub fn directory_of_ours(repository: &Repository) -> PathBuf {
    repository.own_directory().join("hooks")
}

/// The directories in which hooks of ours may be.
pub fn directories(repository: &Repository, place: &Place) -> Vec<PathBuf> {
    let mut all = vec![repository.directory.join("hooks"), directory_of_ours(repository)];
    if !all.contains(&place.directory) {
        all.push(place.directory.clone());
    }
    all.retain(|directory| !is_elsewhere(directory, repository));
    all
}

/// Does a link lead out of the git directory?
fn is_elsewhere(directory: &Path, repository: &Repository) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    match (real(directory), real(&repository.directory)) {
        (Some(directory), Some(repository)) => !directory.starts_with(repository),
        _ => false,
    }
}

/// The names of all hooks that may be ours.
pub fn names() -> impl Iterator<Item = &'static str> {
    HOOKS.into_iter().map(|(name, _)| name).chain(PASSED_ON).chain(PASSED_ON_IF_THERE)
}

pub fn found(directory: &Path, name: &str) -> Result<Found> {
    let path = directory.join(name);
    match fs::symlink_metadata(&path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Found::Nothing)
        }
        Err(e) => Err(unusable(&path, &e)),
        Ok(about) if !about.is_file() => Ok(Found::Others),
        Ok(_) => Ok(match hook_script::author(&fs::read(&path).map_err(|e| unusable(&path, &e))?) {
            Author::Fence => Found::Ours,
            Author::FenceAndOthers => Found::Changed,
            Author::Others => Found::Others,
        }),
    }
}

/// The hook that ours calls, if it is kept beside ours.
pub fn kept(directory: &Path, name: &str) -> Option<PathBuf> {
    let path = directory.join(format!("{name}{KEPT}"));
    fs::symlink_metadata(&path).is_ok().then_some(path)
}

/// Renames a hook that is not ours, so that ours can call it.
pub fn keep(directory: &Path, name: &str) -> Result<()> {
    rename(&directory.join(name), &directory.join(format!("{name}{KEPT}")))
}

/// Puts a hook back that was kept.
pub fn restore(directory: &Path, name: &str) -> Result<()> {
    rename(&directory.join(format!("{name}{KEPT}")), &directory.join(name))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| unusable(from, &e))
}

/// Writes a hook of ours; git never sees half of it.
pub fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let (path, draft) = (directory.join(name), directory.join(format!("{name}.fence-new")));
    let written = fs::create_dir_all(directory)
        .and_then(|()| fs::write(&draft, text))
        .and_then(|()| fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&draft, &path));
    written.map_err(|e| unusable(&path, &e))
}

pub fn remove(directory: &Path, name: &str) -> Result<()> {
    let path = directory.join(name);
    fs::remove_file(&path).map_err(|e| unusable(&path, &e))
}

fn unusable(path: &Path, why: &io::Error) -> Error {
    Error::unavailable(format!("the hook `{}` cannot be used: {why}", path.display()))
}
