//! The branches of a loop: `loop/LOOP/main`, and one for each story.

use super::config::{AtEnd, Config};
use crate::worktree::{Repository, some};
use fencepost::{Code, Error, Result};

/// The branch that stories are merged into.
pub fn main(id: &str) -> String {
    format!("loop/{id}/main")
}

pub fn of_story(id: &str, story: &str) -> String {
    format!("loop/{id}/{story}")
}

/// Refuses a repository in which the loop cannot begin.
pub async fn check(repository: &Repository, config: &Config, id: &str) -> Result<()> {
    match &config.at_end {
        AtEnd::Merge(into) if !repository.branch_exists(into).await? => {
            return Err(Error::new(
                Code::Invalid,
                format!("`into` is `{into}`, and there is no such branch"),
            ));
        }
        AtEnd::Push(remote) if !repository.has_remote(remote).await? => {
            return Err(Error::new(
                Code::Invalid,
                format!("`remote` is `{remote}`, and there is no such remote"),
            ));
        }
        _ => {}
    }
    repository.refuse_branch_above(&main(id)).await?;
    if repository.branch_exists(&main(id)).await? {
        return Ok(());
    }
    match &config.base {
        Some(base) if repository.commit(base).await?.is_none() => {
            Err(Error::new(Code::Invalid, format!("`base` is `{base}`, and there is no such branch or commit")))
        }
        Some(_) => Ok(()),
        None if repository.current_branch().await?.is_none() => {
            Err(Error::new(Code::Invalid, "HEAD is detached, so there is no branch to begin from")
                .hint("switch to a branch, or name one in the config: base = \"main\""))
        }
        None => match repository.uncommitted().await?.as_slice() {
            [] => Ok(()),
            files => Err(Error::new(
                Code::Invalid,
                format!("the work tree has changes that are not committed, and the loop would begin without them: {}", some(files)),
            )
            .hint("commit or stash them, or name a branch to begin from: base = \"main\"")),
        },
    }
}

/// Creates the loop's branch, if no chain has done so.
pub async fn begin(repository: &Repository, config: &Config, id: &str) -> Result<()> {
    repository.ensure_branch(&main(id), config.base.as_deref().unwrap_or("HEAD")).await
}
