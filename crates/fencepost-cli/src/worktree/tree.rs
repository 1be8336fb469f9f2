//! A complete tree: its state, its commits, and its end.

use super::{
    CEILING, Listed, Repository,
    busy::Busy,
    git::{Git, prepare},
    hold::Hold,
};
use fencepost::{Code, Error, Result};
use std::{os::unix::ffi::OsStrExt, path::PathBuf, process::Command};

/// The commit that a tree started from. It stays the same when a second attempt takes the tree over.
pub const START: &str = "refs/worktree/fence-start";

/// The tree is prepared: its files were copied, and its setup has succeeded.
const READY: &str = "refs/worktree/fence-ready";

/// How we commit. Nobody is there to type the passphrase for a signature.
const COMMIT: [&str; 4] = ["commit", "--quiet", "--no-gpg-sign", "--cleanup=whitespace"];

/// Said of a tree without its own `.git`.
const BROKEN: &str = "is no work tree of the repository any more: its .git was removed or replaced";

/// How many files a message names.
const NAMED: usize = 5;

/// A directory to work in.
#[derive(Debug, Clone)]
pub struct Tree {
    pub(super) repository: Repository,
    pub(super) git: Git,
    pub path: PathBuf,
    /// A tree for no task has none.
    pub branch: Option<String>,
    /// The commit that it started from.
    pub start: String,
    /// It holds the work of an earlier attempt.
    pub was_taken_over: bool,
    _hold: Hold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// There are no uncommitted changes and no untracked files. Ignored files do not count.
    pub clean: bool,
    /// There are commits beyond the one that it started from.
    pub commits: bool,
}

/// What became of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finished {
    Removed,
    /// It holds work that is nowhere else, or could not be removed.
    Kept {
        path: PathBuf,
        why: String,
    },
}

impl Tree {
    pub(super) fn new(repository: &Repository, path: PathBuf, start: String, hold: Hold) -> Self {
        Self {
            repository: repository.clone(),
            git: repository.git_in(&path),
            path,
            branch: None,
            start,
            was_taken_over: false,
            _hold: hold,
        }
    }

    /// `None` if it was not made by [`Repository::create`], or is no work tree any more.
    pub(super) async fn open(repository: &Repository, listed: Listed, hold: Hold) -> Result<Option<Self>> {
        let git = repository.git_in(&listed.path);
        let start = git.output(["rev-parse", "--quiet", "--verify", START]).await?;
        let start = String::from_utf8_lossy(start.stdout()).trim().to_owned();
        let tree = Self { branch: listed.branch, ..Self::new(repository, listed.path, start, hold) };
        Ok(tree.is_intact().await?.then_some(tree))
    }

    /// Is it the tree that was made? A child may have removed its `.git`, or made another repository of it.
    async fn is_intact(&self) -> Result<bool> {
        let found = self.git.output(["rev-parse", "--show-toplevel", START]).await?;
        let made = [self.path.as_os_str().as_bytes(), self.start.as_bytes(), b""].join(&b'\n');
        Ok(found.is_success() && found.stdout() == made)
    }

    /// Puts the tree on a new branch at its commit. Files, index and a merge under way stay as they are: `git switch` would refuse
    /// some of it, and this also runs no hook.
    pub(super) async fn start_branch(&mut self, branch: &str) -> Result<()> {
        let head = self.head().await?;
        self.repository.free_branch(branch, &head).await?;
        let name = format!("refs/heads/{branch}");
        // The empty old value: the branch must not exist.
        self.git.text(["update-ref", &name, &head, ""]).await?;
        self.git.text(["symbolic-ref", "-m", "fence work", "HEAD", &name]).await?;
        self.branch = Some(branch.to_owned());
        Ok(())
    }

    /// Takes over the work of an earlier attempt.
    pub(super) async fn continue_on(mut self, branch: &str) -> Result<Self> {
        if self.branch.as_deref() != Some(branch) {
            self.start_branch(branch).await?;
        }
        self.was_taken_over = true;
        Ok(self)
    }

    /// Makes a command run in this tree.
    pub fn enter(&self, command: &mut Command) {
        command.current_dir(&self.path).env(CEILING, self.repository.ceiling());
        prepare(command);
    }

    /// The command that prepares a tree, a command line for the shell: `npm install`.
    pub fn setup_command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        self.enter(&mut command);
        command
    }

    pub async fn is_ready(&self) -> Result<bool> {
        Ok(self.git.ask(["rev-parse", "--quiet", "--verify", READY]).await?.is_some())
    }

    /// The next attempt need not prepare it again.
    pub async fn set_ready(&self) -> Result<()> {
        self.git.text(["update-ref", READY, &self.start]).await.map(drop)
    }

    pub async fn status(&self) -> Result<Status> {
        let commits = !self.commits_beyond_start("HEAD").await?.is_empty();
        Ok(Status { clean: self.changes().await?.is_empty(), commits })
    }

    /// Commits everything that is not ignored, and returns the commit; `None` if there is nothing to commit. Hooks run as usual.
    pub async fn commit_all(&self, message: &str, agent: &str) -> Result<Option<String>> {
        let git = self.staged(agent).await?;
        if git.ask(["diff", "--cached", "--quiet"]).await?.is_some() {
            return Ok(None);
        }
        git.text(COMMIT.into_iter().chain(["-m", message])).await?;
        self.head().await.map(Some)
    }

    /// The same, also if there is nothing to commit.
    pub(super) async fn commit_even_if_empty(&self, message: &str, agent: &str) -> Result<String> {
        let git = self.staged(agent).await?;
        git.text(COMMIT.into_iter().chain(["--allow-empty", "-m", message])).await?;
        self.head().await
    }

    /// Stages everything that is not ignored.
    async fn staged(&self, agent: &str) -> Result<Git> {
        if !self.is_intact().await? {
            let message = format!("`{}` {BROKEN}", self.path.display());
            return Err(Error::new(Code::Invalid, message));
        }
        let git = self.git.clone().with_identity(&format!("{agent} (fence work)"), agent).await?;
        let unmerged = git.unmerged().await?;
        if !unmerged.is_empty() {
            let message = format!("files with conflicts are not committed: {}", some(&unmerged));
            return Err(Error::new(Code::Invalid, message));
        }
        git.text(["add", "--all"]).await?;
        Ok(git)
    }

    /// Removes the tree, unless it holds work that is nowhere else. Its branch stays if it has commits of its own, or if
    /// `keep_branch` says so. Nothing may run in the tree any more.
    pub async fn finish(self, keep_branch: bool) -> Result<Finished> {
        let kept = |why: String| Ok(Finished::Kept { path: self.path.clone(), why });
        if self.path.exists()
            && let Some(why) = self.reason_to_keep().await?
        {
            return kept(why);
        }
        // From here on it holds no work. If this process dies, `sweep` goes on.
        let Some(mark) = Busy::mark(&self.path)? else {
            return kept("another process is removing it".into());
        };
        if let Err(error) = self.repository.discard(&self.path).await {
            if self.repository.listed().await?.iter().any(|tree| tree.path == self.path) {
                // A part of its files may be gone, so nobody takes it over. It is not swept, either: its path is told to people.
                let _ = self.git.output(["update-ref", "-d", START]).await;
                mark.unmark();
            }
            return kept(error.message().into());
        }
        if let Some(branch) = &self.branch
            && !keep_branch
            && let Some(tip) = self.repository.tip(branch).await?
            && self.repository.contains(&self.start, &tip).await?
            && self.repository.checked_out(branch).await?.is_none()
        {
            self.repository.delete_branch(branch, &tip).await?;
        }
        mark.unmark();
        Ok(Finished::Removed)
    }

    async fn reason_to_keep(&self) -> Result<Option<String>> {
        if !self.is_intact().await? {
            return Ok(Some(format!("it {BROKEN}")));
        }
        let changes = self.changes().await?;
        if !changes.is_empty() {
            return Ok(Some(format!("it has uncommitted changes: {}", some(&changes))));
        }
        // An agent may have left its branch, or be in the middle of a rebase.
        let head = self.head().await?;
        let refs = ["--count=1", "--contains", &head, "refs/heads", "refs/remotes", "refs/tags"];
        let on_a_branch = self.git.text(["for-each-ref"].into_iter().chain(refs)).await?;
        if on_a_branch.is_empty() && !self.commits_beyond_start("HEAD").await?.is_empty() {
            return Ok(Some("it has commits that are on no branch".into()));
        }
        let on = self.git.ask(["symbolic-ref", "--quiet", "--short", "HEAD"]).await?;
        if let (Some(on), Some(branch)) = (on, &self.branch)
            && on != *branch
        {
            return Ok(Some(format!("it is on the branch {on}")));
        }
        let listed = self.repository.listed().await?;
        if listed.iter().any(|tree| tree.path == self.path && tree.locked) {
            return Ok(Some("it is locked: git worktree unlock".into()));
        }
        // The repositories of submodules are removed with the tree.
        let check = "test -z \"$(git status --porcelain --untracked-files=normal; \
                     git rev-list --max-count=1 HEAD --all --not --remotes)\"";
        let submodules = self.git.output(["submodule", "--quiet", "foreach", "--recursive", check]).await?;
        if !submodules.is_success() {
            return Ok(Some("a submodule has changes, or commits that are on no remote".into()));
        }
        Ok(None)
    }

    pub async fn head(&self) -> Result<String> {
        self.git.text(["rev-parse", "--verify", "HEAD"]).await
    }

    /// One commit, or nothing.
    async fn commits_beyond_start(&self, name: &str) -> Result<String> {
        self.git.text(["rev-list", "--max-count=1", name, "--not", &self.start]).await
    }

    /// The paths of uncommitted changes and untracked files, whatever the configuration hides.
    async fn changes(&self) -> Result<Vec<String>> {
        let options =
            ["--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none", "--no-renames"];
        // The agent's own git may hold the lock that a refresh of the index needs.
        let words = ["--no-optional-locks", "status"].into_iter().chain(options);
        let status = self.git.text(words).await?;
        Ok(status.split_terminator('\0').map(|line| line.get(3..).unwrap_or(line).to_owned()).collect())
    }
}

/// The first few, and how many more there are.
pub fn some(files: &[String]) -> String {
    let named = files.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worktree::{
        Opened,
        testing::{Sample, git, read, ready, task, write},
    };
    use std::fs;

    #[tokio::test]
    async fn a_clean_tree_is_removed_and_one_with_work_is_kept() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        // A user who hides untracked files.
        git(&sample.main, "config status.showUntrackedFiles no");
        let create = async |token: &str| ready(repository.create(&task(token, &[])).await.unwrap());
        let kept = |path: &PathBuf, why: &str| Finished::Kept { path: path.clone(), why: why.into() };

        let clean = create("auth-1@1").await;
        write(&clean.path, ".env", "ignored files do not count");
        assert_eq!(clean.commit_all("nothing", "codex-1").await.unwrap(), None);
        assert_eq!(clean.finish(true).await.unwrap(), Finished::Removed);
        assert!(repository.branch_exists("fence/auth-1@1").await.unwrap(), "it was to be kept");

        let dirty = create("auth-2@1").await;
        (0..7).for_each(|n| write(&dirty.path, &format!("{n}.txt"), ""));
        assert_eq!(dirty.status().await.unwrap(), Status { clean: false, commits: false });
        let why = "it has uncommitted changes: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more";
        assert_eq!(dirty.clone().finish(false).await.unwrap(), kept(&dirty.path, why));
        assert!(dirty.path.join("6.txt").exists());

        // An agent that left its branch.
        let detached = create("auth-3@1").await;
        git(&detached.path, "switch -q --detach");
        write(&detached.path, "b.txt", "");
        detached.commit_all("on no branch", "codex-1").await.unwrap().expect("a commit");
        assert_eq!(detached.status().await.unwrap(), Status { clean: true, commits: true });
        let why = "it has commits that are on no branch";
        assert_eq!(detached.clone().finish(false).await.unwrap(), kept(&detached.path, why));

        // After a restart.
        assert!(matches!(repository.open(&dirty.path).await.unwrap(), Opened::InUse));
        let (path, branch, start) = (dirty.path.clone(), dirty.branch.clone(), dirty.start.clone());
        drop(dirty);
        let Opened::Ready(opened) = repository.open(&path).await.unwrap() else { panic!("no tree") };
        assert_eq!((&opened.branch, &opened.start), (&branch, &start));
        assert!(matches!(repository.open(&sample.main).await.unwrap(), Opened::Broken));
        git(&opened.path, "worktree lock .");
        (0..7).for_each(|n| fs::remove_file(path.join(format!("{n}.txt"))).unwrap());
        let why = "it is locked: git worktree unlock";
        assert_eq!(opened.clone().finish(false).await.unwrap(), kept(&path, why));
        git(&opened.path, "worktree unlock .");
        assert_eq!(opened.finish(false).await.unwrap(), Finished::Removed);
        assert!(!repository.branch_exists("fence/auth-2@1").await.unwrap());
        assert_eq!(sample.state().1, ["auth-3@1"]);
        // The directory is gone already.
        fs::remove_dir_all(&detached.path).unwrap();
        assert_eq!(detached.finish(false).await.unwrap(), Finished::Removed);
        assert_eq!(sample.state(), (vec!["fence/auth-1@1".into(), "main".into()], vec![]));
    }

    /// The repository around such a tree is the user's.
    #[tokio::test]
    async fn a_tree_without_its_git_is_kept_and_the_users_files_are_not_committed() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        sample.write("a.txt", "of the user");
        for (n, do_it) in ["true", "git init -q"].into_iter().enumerate() {
            let tree = ready(repository.create(&task(&format!("auth-{n}@1"), &[])).await.unwrap());
            write(&tree.path, ".env", "work that the user's repository ignores");
            let mut child = tree.setup_command(&format!("rm .git; {do_it}; git add ../../../a.txt"));
            assert!(!child.status().unwrap().success(), "git does not find the user's repository");
            assert!(tree.status().await.is_err());
            let error = tree.commit_all("never", "codex-1").await.unwrap_err();
            assert!(error.message().contains("is no work tree of the repository any more"), "{error}");
            let path = tree.path.clone();
            assert_eq!(
                tree.finish(false).await.unwrap(),
                Finished::Kept { path: path.clone(), why: format!("it {BROKEN}") }
            );
            assert!(path.join(".env").exists());
            assert!(matches!(repository.open(&path).await.unwrap(), Opened::Broken));
        }
        assert_eq!(git(&sample.main, "status --porcelain"), "M a.txt");
        assert_eq!(git(&sample.main, "rev-list --count main"), "1");
    }

    /// Somebody else's branch may have been put there while nobody held the tree.
    #[tokio::test]
    async fn a_tree_on_another_branch_is_kept() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let tree = ready(repository.create(&task("auth-1@1", &[])).await.unwrap());
        git(&tree.path, "switch -q -c other");
        let kept = |why: &str| Finished::Kept { path: tree.path.clone(), why: why.into() };
        assert_eq!(tree.clone().finish(false).await.unwrap(), kept("it is on the branch other"));
        git(&tree.path, "switch -q fence/auth-1@1");
        tree.set_ready().await.unwrap();
        assert!(tree.is_ready().await.unwrap());
        assert_eq!(tree.clone().finish(false).await.unwrap(), Finished::Removed);
    }

    #[tokio::test]
    async fn the_work_in_submodules_is_kept() {
        let sample = Sample::new();
        git(&sample.main, "init -q -b main ../sub");
        let sub = sample.beside("sub");
        git(&sub, "-c user.name=x -c user.email=x@x commit -q --allow-empty -m one");
        git(&sample.main, "-c protocol.file.allow=always submodule --quiet add ../sub");
        git(&sample.main, "commit -q -m sub");
        let repository = sample.repository().await;
        let tree = ready(repository.create(&task("auth-1@1", &[])).await.unwrap());
        git(&tree.path, "-c protocol.file.allow=always submodule --quiet update --init");
        let inside = tree.path.join("sub");
        git(&inside, "-c user.name=x -c user.email=x@x commit -q --allow-empty -m two");
        tree.commit_all("the submodule moved", "codex-1").await.unwrap().expect("a commit");
        let why = "a submodule has changes, or commits that are on no remote".to_owned();
        assert_eq!(
            tree.clone().finish(false).await.unwrap(),
            Finished::Kept { path: tree.path.clone(), why }
        );
        git(&inside, "push -q origin HEAD:refs/heads/two");
        git(&inside, "fetch -q");
        assert_eq!(tree.finish(false).await.unwrap(), Finished::Removed);
        assert_eq!(sample.state().1, Vec::<String>::new());
    }

    #[tokio::test]
    async fn commits_carry_the_user_or_else_the_agent_and_obey_hooks() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let tree = ready(repository.create(&task("auth-1@1", &[])).await.unwrap());
        git(&sample.main, "config commit.gpgsign true");
        git(&sample.main, "config commit.cleanup strip");
        write(&tree.path, "one.txt", "");
        let id = tree.commit_all("one\n\n# no comment\n\nFence: auth-1@1", "codex-1").await.unwrap();
        assert_eq!(id, Some(git(&tree.path, "rev-parse HEAD")));
        assert_eq!(
            git(&tree.path, "log -1 --format=%an/%ae/%cn%n%B"),
            "Kim/kim@example.com/Kim\none\n\n# no comment\n\nFence: auth-1@1"
        );
        git(&sample.main, "config --unset user.name");
        git(&sample.main, "config --unset user.email");
        write(&tree.path, "two.txt", "");
        tree.commit_all("two", "codex-1").await.unwrap().expect("a commit");
        assert_eq!(
            git(&tree.path, "log -1 --format=%an/%ae/%cn"),
            "codex-1 (fence work)/codex-1@fence.invalid/codex-1 (fence work)"
        );
        sample.hook("pre-commit", "echo no tests >&2; exit 1");
        write(&tree.path, "three.txt", "");
        let error = tree.commit_all("three", "codex-1").await.unwrap_err();
        assert_eq!(error.message(), "git failed: no tests");
        sample.hook("pre-commit", "head -c 100000 /dev/zero >&2; echo; echo the end >&2; exit 1");
        let error = tree.commit_all("three", "codex-1").await.unwrap_err();
        let is_short = error.message().len() < 16 * 1024 && !error.message().contains('\0');
        assert!(is_short && error.message().ends_with("the end"), "{error}");
    }

    #[tokio::test]
    async fn a_command_in_the_tree_sees_the_tree_alone() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let tree = ready(repository.create(&task("auth-1@1", &[])).await.unwrap());
        let mut setup = tree.setup_command("git rev-parse --show-toplevel >top; pwd >>top");
        assert!(setup.status().unwrap().success());
        let path = tree.path.display();
        assert_eq!(read(&tree.path, "top"), format!("{path}\n{path}\n"));
        let removed = |name: &str| setup.get_envs().any(|(n, value)| n == name && value.is_none());
        assert!(removed("GIT_DIR") && removed("GIT_INDEX_FILE"));
    }
}
