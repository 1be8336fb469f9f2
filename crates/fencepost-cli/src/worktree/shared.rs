//! Branches that outlive an attempt: every attempt at a story works on the same branch, in a tree of its own.
//!
//! Of two attempts only the later one has the branch. The tree of the earlier one is detached from it, so a commit that the earlier
//! attempt makes late is on no branch. (A process that was stopped between a check of its claim and its commit would make one.)

use super::{Attempt, BRANCHES, Created, Finished, Opened, Repository, Tree, name_of, tree::START};
use crate::names::digest;
use fencepost::{Code, Error, Result};
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A commit on a branch: its id and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub id: String,
    pub message: String,
}

impl Repository {
    /// Creates a branch at a commit, if it does not exist. Several processes may do this at the same time.
    pub async fn ensure_branch(&self, branch: &str, base: &str) -> Result<()> {
        self.refuse_branch_above(branch).await?;
        let start = self.required_commit(base).await?;
        let created = self.git.output(["update-ref", &format!("refs/heads/{branch}"), &start, ""]).await?;
        match self.branch_exists(branch).await? {
            true => Ok(()),
            false => created.require_success(),
        }
    }

    /// A branch `loop` would be in the way of `loop/auth/main`: both are paths.
    pub async fn refuse_branch_above(&self, branch: &str) -> Result<()> {
        for (at, _) in branch.match_indices('/') {
            let above = &branch[..at];
            if self.branch_exists(above).await? {
                let message = format!("a branch named `{above}` is in the way of `{branch}`");
                return Err(Error::new(Code::Invalid, message)
                    .hint(format!("rename it: git branch -m {above} NEW-NAME")));
            }
        }
        Ok(())
    }

    /// The name of the branch that is checked out here; `None` if HEAD is detached.
    pub async fn current_branch(&self) -> Result<Option<String>> {
        self.git.ask(["symbolic-ref", "--quiet", "--short", "HEAD"]).await
    }

    /// Tracked files that were changed here and not committed.
    pub async fn uncommitted(&self) -> Result<Vec<String>> {
        let words =
            ["--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=no", "--no-renames"];
        let status = self.git.text(words).await?;
        Ok(status.split_terminator('\0').map(|line| line.get(3..).unwrap_or(line).to_owned()).collect())
    }

    /// The newest commit of a branch.
    pub async fn newest(&self, branch: &str) -> Result<Option<Commit>> {
        let Some(id) = self.tip(branch).await? else { return Ok(None) };
        let message = self.git.text(["log", "-1", "--format=%B", &id]).await?;
        Ok(Some(Commit { id, message }))
    }

    /// Does a branch contain all these commits?
    pub async fn contains_all(&self, branch: &str, commits: &[String]) -> Result<bool> {
        let branch = format!("^refs/heads/{branch}");
        let words = ["rev-list", "--max-count=1"].into_iter().map(str::to_owned);
        let missing =
            self.git.output(words.chain(commits.iter().cloned()).chain([branch, "--".into()])).await?;
        Ok(missing.is_success() && missing.stdout().is_empty())
    }

    /// The newest commit that both contain.
    pub async fn common(&self, one: &str, other: &str) -> Result<Option<String>> {
        self.git.ask(["merge-base", one, other]).await
    }

    /// The differences between two commits, whatever the user's configuration of `git diff` is.
    pub async fn diff(&self, from: &str, to: &str) -> Result<Vec<u8>> {
        let words = [
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--binary",
            "--find-renames",
            from,
            to,
            "--",
        ];
        let output = self.git.output(words).await?;
        output.require_success()?;
        Ok(output.stdout().to_vec())
    }

    /// Makes a tree for an attempt, on this branch at this commit. The trees of earlier attempts are detached from the branch, and
    /// those that hold no work are removed. Commits of the branch that are not in `start` are kept under another name, which is
    /// returned, too.
    pub async fn create_on(
        &self,
        attempt: &Attempt,
        branch: &str,
        start: &str,
    ) -> Result<(Tree, Option<String>)> {
        self.refuse_branch_above(branch).await?;
        let start = &self.required_commit(start).await?;
        self.detach_trees(branch, start).await?;
        let mut name = name_of(&attempt.id, attempt.fence);
        if self.trees.join(&name).exists() {
            // The same claim, in another process: the first one died.
            name = format!("{name}.{}", digest(&crate::names::unique("")));
        }
        let mut tree = match self.make(&name, None, &[], start).await? {
            Created::Ready(tree) => *tree,
            Created::Conflict { .. } => return Err(Error::internal("a tree without a merge has a conflict")),
        };
        let aside = tree.take_branch(branch).await?;
        Ok((tree, aside))
    }

    /// A detached tree at this commit, for looking at it.
    pub async fn create_at(&self, commit: &str) -> Result<Tree> {
        match self.make(&crate::names::unique("detached-"), None, &[], commit).await? {
            Created::Ready(tree) => Ok(*tree),
            Created::Conflict { .. } => Err(Error::internal("a tree without a merge has a conflict")),
        }
    }

    /// Detaches the trees that have this branch checked out from it. Such a tree may be broken, so git runs in its entry in the
    /// repository and not in its directory. A tree that a person made is left alone.
    async fn detach_trees(&self, branch: &str, start: &str) -> Result<()> {
        let others = self.listed().await?.into_iter().filter(|tree| tree.branch.as_deref() == Some(branch));
        for other in others.collect::<Vec<_>>() {
            let entry = self.entry(&other.path).await?;
            let ours = entry.map(|entry| self.git.clone().with_variable("GIT_DIR", entry));
            let is_ours = match &ours {
                Some(git) => git.ask(["rev-parse", "--quiet", "--verify", START]).await?.is_some(),
                None => false,
            };
            let Some(git) = ours.filter(|_| is_ours || other.path.starts_with(&self.trees)) else {
                let message = format!("the branch `{branch}` is checked out in `{}`", other.path.display());
                return Err(Error::new(Code::Invalid, message).hint("switch to another branch there"));
            };
            // Somebody may have deleted the branch.
            let head = git.ask(["rev-parse", "--quiet", "--verify", "HEAD"]).await?;
            let head = head.as_deref().unwrap_or(start);
            git.text(["update-ref", "--no-deref", "-m", "another attempt has the branch", "HEAD", head])
                .await?;
            if other.path.starts_with(&self.trees) && other.path.exists() {
                self.remove_unused(&other.path).await?;
            }
        }
        Ok(())
    }

    /// The directory of a tree's entry in the repository.
    async fn entry(&self, tree: &Path) -> Result<Option<PathBuf>> {
        let common = self.git.path(["rev-parse", "--path-format=absolute", "--git-common-dir"]).await?;
        let entries = fs::read_dir(common.join("worktrees")).into_iter().flatten().flatten();
        let is_it = |entry: &PathBuf| {
            let named = fs::read(entry.join("gitdir")).unwrap_or_default();
            Path::new(OsStr::from_bytes(named.trim_ascii_end())).parent() == Some(tree)
        };
        Ok(entries.map(|entry| entry.path()).find(is_it))
    }

    /// Removes a tree that nobody works in, and that holds no work.
    async fn remove_unused(&self, tree: &Path) -> Result<()> {
        if let Opened::Ready(tree) = self.open(tree).await? {
            match tree.finish(true).await? {
                Finished::Removed | Finished::Kept { .. } => {}
            }
        }
        Ok(())
    }

    /// Is this the name of a remote, or else a path or an address?
    pub async fn has_remote(&self, remote: &str) -> Result<bool> {
        let names = self.git.text(["remote"]).await?;
        Ok(remote.contains(['/', ':']) || names.lines().any(|name| name == remote))
    }

    /// Pushes a branch.
    pub async fn push(&self, remote: &str, branch: &str) -> Result<()> {
        let refs = format!("refs/heads/{branch}:refs/heads/{branch}");
        self.git
            .text([
                OsStr::new("push"),
                OsStr::new("--quiet"),
                OsStr::new("--"),
                OsStr::new(remote),
                OsStr::new(&refs),
            ])
            .await
            .map(drop)
    }
}

impl Tree {
    /// Puts the tree on a branch, and moves the branch to the tree's commit. Returns the name under which other commits of the branch
    /// are kept.
    async fn take_branch(&mut self, branch: &str) -> Result<Option<String>> {
        let (name, head) = (format!("refs/heads/{branch}"), self.head().await?);
        let tip = self.repository.tip(branch).await?;
        let mut aside = None;
        if let Some(tip) = &tip
            && !self.repository.contains(&head, tip).await?
        {
            let kept = format!("{BRANCHES}/{}.{}", branch.replace('/', "-"), tip.get(..8).unwrap_or(tip));
            self.git.text(["update-ref", &format!("refs/heads/{kept}"), tip]).await?;
            aside = Some(kept);
        }
        // Only if nobody moved it meanwhile. The empty old value: the branch must not exist.
        self.git.text(["update-ref", &name, &head, tip.as_deref().unwrap_or("")]).await?;
        self.git.text(["symbolic-ref", "-m", "fence loop", "HEAD", &name]).await?;
        self.branch = Some(branch.to_owned());
        Ok(aside)
    }

    /// Is the tree at this commit, without changes? Ignored files do not count.
    pub async fn is_at(&self, commit: &str) -> Result<bool> {
        Ok(self.head().await? == commit && self.status().await?.clean)
    }

    /// Commits the work of a step that began at the commit `start`: everything that is not ignored. If the step made commits itself,
    /// this one is on top of them, and may be empty. `None` if nothing has changed since.
    pub async fn commit_step(&self, start: &str, message: &str, agent: &str) -> Result<Option<String>> {
        let on = self.git.ask(["symbolic-ref", "--quiet", "--short", "HEAD"]).await?;
        if on != self.branch {
            let left =
                format!("its command left the branch `{}`", self.branch.as_deref().unwrap_or_default());
            return Err(Error::new(Code::Invalid, left));
        }
        let head = self.head().await?;
        if head != start && !self.repository.contains(&head, start).await? {
            let message = format!("its command removed commit {start} from its branch");
            return Err(Error::new(Code::Invalid, message));
        }
        if head == start {
            return self.commit_all(message, agent).await;
        }
        self.commit_even_if_empty(message, agent).await.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worktree::testing::{Sample, git, read, write};

    fn attempt(fence: i64) -> Attempt {
        Attempt { id: "auth-1".into(), fence }
    }

    #[tokio::test]
    async fn the_later_attempt_has_the_branch_and_a_late_commit_is_on_none() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        repository.ensure_branch("loop/l/main", "HEAD").await.unwrap();
        let base = git(&sample.main, "rev-parse loop/l/main");
        let (first, aside) = repository.create_on(&attempt(1), "loop/l/a", "loop/l/main").await.unwrap();
        assert_eq!((aside, git(&first.path, "symbolic-ref --short HEAD").as_str()), (None, "loop/l/a"));
        write(&first.path, "one.txt", "one");
        let one = first.commit_step(&base, "one", "codex-1").await.unwrap().expect("a commit");
        assert!(first.is_at(&one).await.unwrap());
        assert_eq!(first.commit_step(&one, "nothing", "codex-1").await.unwrap(), None);

        // The first attempt is frozen, and the second one begins at its commit.
        let (second, aside) = repository.create_on(&attempt(2), "loop/l/a", &one).await.unwrap();
        assert_eq!(
            (aside, git(&second.path, "rev-parse HEAD"), read(&second.path, "one.txt")),
            (None, one.clone(), "one".into())
        );
        write(&first.path, "late.txt", "late");
        let late = first.commit_step(&one, "late", "codex-1").await.unwrap_err();
        assert!(late.message().contains("left the branch `loop/l/a`"), "{late}");
        git(&first.path, "add .");
        git(&first.path, "-c user.name=x -c user.email=x@x commit -qm late");
        assert_eq!(git(&sample.main, "rev-parse loop/l/a"), one);

        // A third one begins anew: the commits of the second are kept.
        write(&second.path, "two.txt", "two");
        let two = second.commit_step(&one, "two", "codex-1").await.unwrap().expect("a commit");
        drop(second);
        let (third, aside) = repository.create_on(&attempt(3), "loop/l/a", "loop/l/main").await.unwrap();
        let aside = aside.expect("the commits of the second");
        assert_eq!(git(&sample.main, &format!("rev-parse {aside}")), two);
        assert_eq!(git(&third.path, "rev-parse HEAD"), base);
        // The second tree held nothing that is nowhere else, and nobody works in it.
        assert_eq!(sample.state().1, ["auth-1@1", "auth-1@3"]);
        // The same claim again, in another process.
        let (again, _) = repository.create_on(&attempt(3), "loop/l/a", "loop/l/main").await.unwrap();
        assert_ne!(again.path, third.path);

        // Commits that a step makes itself are covered by one of ours.
        write(&again.path, "own.txt", "own");
        git(&again.path, "add .");
        git(&again.path, "-c user.name=x -c user.email=x@x commit -qm own");
        let ours =
            again.commit_step(&base, "ours\n\nFence-Step: x", "codex-1").await.unwrap().expect("a commit");
        assert_eq!(
            git(&again.path, "log -1 --format=%s%n%P"),
            format!("ours\n{}", git(&again.path, "rev-parse HEAD^"))
        );
        assert_eq!(repository.newest("loop/l/a").await.unwrap().map(|tip| tip.id), Some(ours.clone()));
        let diff = String::from_utf8(repository.diff(&base, &ours).await.unwrap()).unwrap();
        assert!(diff.contains("+own") && !diff.contains("one"), "{diff}");
        git(&again.path, &format!("reset -q --hard {base}~0"));
        git(&again.path, "checkout -q --orphan other");
        git(&again.path, "symbolic-ref HEAD refs/heads/loop/l/a");
        git(&again.path, &format!("update-ref refs/heads/loop/l/a {one}"));
        let removed = again.commit_step(&ours, "x", "codex-1").await.unwrap_err();
        assert!(removed.message().contains("removed commit"), "{removed}");
    }

    #[tokio::test]
    async fn a_branch_in_the_way_is_named() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        git(&sample.main, "branch loop");
        let refused = repository.ensure_branch("loop/l/main", "HEAD").await.unwrap_err();
        assert_eq!(refused.message(), "a branch named `loop` is in the way of `loop/l/main`");
        git(&sample.main, "branch -m loop other");
        repository.ensure_branch("loop/l/main", "HEAD").await.unwrap();
        repository.ensure_branch("loop/l/main", "HEAD").await.unwrap();
        git(&sample.main, "branch loop/l/a");
        git(&sample.main, "worktree add -q ../mine loop/l/a");
        let taken = repository.create_on(&attempt(1), "loop/l/a", "HEAD").await.unwrap_err();
        assert!(taken.message().contains("is checked out in"), "{taken}");
        assert_eq!(repository.uncommitted().await.unwrap(), Vec::<String>::new());
        sample.write("a.txt", "changed");
        sample.write("untracked.txt", "");
        assert_eq!(repository.uncommitted().await.unwrap(), ["a.txt"]);
        assert_eq!(repository.current_branch().await.unwrap().as_deref(), Some("main"));
        git(&sample.main, "switch -q --detach");
        assert_eq!(repository.current_branch().await.unwrap(), None);
    }
}
