//! Making a tree: it starts from the branches of the tasks that its task waited for, or else from a base.

use super::{
    BRANCHES, Finished, Opened, Repository, Tree, branch_of,
    busy::{self, Busy},
    hold, name_of,
    tree::START,
};
use crate::names::unique;
use fencepost::{Code, Error, Result};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// The purpose of a tree, and where it starts.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Without a task the tree is detached: it has no branch.
    pub task: Option<Attempt>,
    /// The branches of finished dependencies. Those that do not exist in this repository are ignored. The tree starts from the
    /// first one, with the others merged.
    pub after: Vec<String>,
    /// A branch or another name of a commit, for a tree that starts from no other branch.
    pub base: String,
    /// The kept tree of an earlier attempt at the same task. If it can be taken over, it is, with its uncommitted changes, and
    /// nothing is merged.
    pub reuse: Option<PathBuf>,
}

/// One attempt at a task: its id, and the fence of the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: String,
    pub fence: i64,
}

/// A tree, or the reason why there cannot be one.
#[derive(Debug)]
pub enum Created {
    Ready(Box<Tree>),
    /// The branches cannot be merged with each other: the last one conflicts with those before it.
    Conflict {
        branches: Vec<String>,
        files: Vec<String>,
    },
}

impl Repository {
    /// Makes a tree. A tree that a process left in the middle of it is replaced. Several processes may do this at the same time.
    pub async fn create(&self, plan: &Plan) -> Result<Created> {
        let Some(attempt) = &plan.task else {
            return self.make(&unique("detached-"), None, &[], &plan.base).await;
        };
        if self.branch_exists(BRANCHES).await? {
            let message = format!("a branch named `{BRANCHES}` is in the way of `{BRANCHES}/…`");
            return Err(Error::new(Code::Invalid, message)
                .hint(format!("rename it: git branch -m {BRANCHES} NEW-NAME")));
        }
        let branch = branch_of(&attempt.id, attempt.fence);
        if let Some(tree) = self.take_over(plan, attempt, &branch).await? {
            return Ok(Created::Ready(tree.into()));
        }
        let mut after: Vec<String> = Vec::new();
        for dependency in &plan.after {
            if !after.contains(dependency) && self.branch_exists(dependency).await? {
                after.push(dependency.clone());
            }
        }
        self.make(&name_of(&attempt.id, attempt.fence), Some(&branch), &after, &plan.base).await
    }

    /// The tree of an earlier attempt, on the branch of this one; `None` if it is not a complete tree of this task.
    async fn take_over(&self, plan: &Plan, attempt: &Attempt, branch: &str) -> Result<Option<Tree>> {
        let wanted = plan.reuse.as_ref().and_then(|path| fs::canonicalize(path).ok());
        let Some(path) = wanted.filter(|path| self.kept(&attempt.id).contains(path)) else { return Ok(None) };
        match self.open(&path).await? {
            Opened::Ready(tree) => tree.continue_on(branch).await.map(Some),
            _ => Ok(None),
        }
    }

    pub(super) async fn make(
        &self,
        name: &str,
        branch: Option<&str>,
        after: &[String],
        base: &str,
    ) -> Result<Created> {
        let path = self.trees.join(name);
        if let Some(tree) = self.left_behind(&path).await? {
            let tree = match branch {
                Some(branch) => tree.continue_on(branch).await?,
                None => tree,
            };
            return Ok(Created::Ready(tree.into()));
        }
        let Some(mark) = Busy::mark(&path)? else { return Err(in_use(&path)) };
        if mark.was_left {
            self.discard(&path).await?;
        } else if !is_free(&path) {
            // Another process made it since we looked.
            mark.unmark();
            return Err(in_use(&path));
        }
        let created = self.fill(&path, branch, after, base).await;
        if !matches!(created, Ok(Created::Ready(_))) {
            self.discard(&path).await?;
        }
        mark.unmark();
        created
    }

    /// A complete tree that is at the path already and holds work. One without work is removed.
    async fn left_behind(&self, path: &Path) -> Result<Option<Tree>> {
        if busy::is_marked(path) || !path.exists() {
            return Ok(None);
        }
        let tree = match self.open(path).await? {
            Opened::Ready(tree) => *tree,
            Opened::InUse => return Err(in_use(path)),
            Opened::Broken | Opened::Unknown if is_free(path) => return Ok(None),
            Opened::Broken | Opened::Unknown => {
                let message =
                    format!("`{}` is in the way: it is no work tree of this repository", path.display());
                return Err(Error::new(Code::Invalid, message).hint("move it to another place"));
            }
        };
        let status = tree.status().await?;
        if !status.clean || status.commits {
            return Ok(Some(tree));
        }
        match tree.clone().finish(false).await? {
            Finished::Removed => Ok(None),
            Finished::Kept { .. } => Ok(Some(tree)),
        }
    }

    async fn fill(&self, path: &Path, branch: Option<&str>, after: &[String], base: &str) -> Result<Created> {
        let first = match after.first() {
            Some(first) => self.required_commit(&format!("refs/heads/{first}")).await?,
            None => self.required_commit(base).await?,
        };
        // Twice --force also replaces a tree of this path that git still lists although its directory is gone.
        let add = ["worktree", "add", "--force", "--force", "--detach"].map(OsStr::new);
        let added = self.git.output(add.into_iter().chain([path.as_os_str(), OsStr::new(&first)])).await?;
        // Git removes a tree that it could not check out. If the tree is there, only the hook failed.
        if !path.join(".git").exists() {
            added.require_success()?;
        }
        let hold = hold::hold(path)?.ok_or_else(|| in_use(path))?;
        let mut git = self.git_in(path);
        let mut merged: Vec<String> = after.iter().take(1).cloned().collect();
        for branch in after.iter().skip(1) {
            let head = git.text(["rev-parse", "HEAD"]).await?;
            let tip = self.required_commit(&format!("refs/heads/{branch}")).await?;
            merged.push(branch.clone());
            if self.contains(&head, &tip).await? {
                continue;
            }
            git = git.with_identity("fence work", "work").await?;
            let message = format!("Merge branch '{branch}'");
            // Every option that the user's configuration could change.
            let options = "--ff --no-edit --no-verify --no-gpg-sign --no-verify-signatures --no-autostash --no-squash --commit \
                           --no-log --no-stat";
            let words = ["merge"].into_iter().chain(options.split_whitespace()).chain(["-m", &message, &tip]);
            let merge = git.output(words).await?;
            if !merge.is_success() {
                let files = git.unmerged().await?;
                if files.is_empty() {
                    merge.require_success()?;
                }
                return Ok(Created::Conflict { branches: merged, files });
            }
        }
        let start = git.text(["rev-parse", "HEAD"]).await?;
        git.text(["update-ref", START, &start]).await?;
        let mut tree = Tree::new(self, path.to_owned(), start, hold);
        if let Some(branch) = branch {
            tree.start_branch(branch).await?;
        }
        Ok(Created::Ready(tree.into()))
    }

    pub(super) async fn required_commit(&self, name: &str) -> Result<String> {
        let missing = || Error::new(Code::NotFound, format!("there is no commit `{name}` in the repository"));
        self.commit(name).await?.ok_or_else(missing)
    }

    /// Frees the name of a branch. A branch whose commits are in `head` is deleted. Another one gets another name: it comes from a
    /// fleet that used the same ids, because a fleet gives no fence out twice.
    pub(super) async fn free_branch(&self, branch: &str, head: &str) -> Result<()> {
        let Some(tip) = self.tip(branch).await? else { return Ok(()) };
        if let Some(path) = self.checked_out(branch).await? {
            let message = format!("the branch `{branch}` exists and is checked out in `{path}`");
            return Err(Error::new(Code::Invalid, message)
                .hint(format!("rename it: git branch -m {branch} NEW-NAME")));
        }
        if !self.contains(head, &tip).await? {
            let aside = format!("refs/heads/{branch}.old-{}", tip.chars().take(8).collect::<String>());
            self.git.text(["update-ref", &aside, &tip]).await?;
        }
        self.delete_branch(branch, &tip).await
    }

    /// Deletes a branch that no tree has checked out, if it still is at this commit.
    pub(super) async fn delete_branch(&self, branch: &str, tip: &str) -> Result<()> {
        self.git.text(["update-ref", "-d", &format!("refs/heads/{branch}"), tip]).await.map(drop)
    }

    /// The tree that has the branch checked out.
    pub(super) async fn checked_out(&self, branch: &str) -> Result<Option<String>> {
        let name = format!("refs/heads/{branch}");
        let path = self.git.text(["for-each-ref", "--format=%(worktreepath)", &name]).await?;
        Ok(Some(path).filter(|path| !path.is_empty()))
    }
}

/// An empty directory is not in the way.
fn is_free(path: &Path) -> bool {
    !path.exists() || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn in_use(path: &Path) -> Error {
    Error::unavailable(format!("another process uses the tree `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worktree::{
        testing::{Sample, entries, finished, git, read, ready, task, write},
        tree::Status,
    };

    #[tokio::test]
    async fn a_task_finds_the_files_of_the_tasks_it_waited_for() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let a = finished(&repository, &task("auth-1@1", &[]), "from-a.txt", "a").await;
        let b = finished(&repository, &task("auth-2@7", &[]), "from-b.txt", "b").await;
        assert_eq!((a.as_str(), b.as_str()), ("fence/auth-1@1", "fence/auth-2@7"));

        // One branch alone: no merge commit. `nowhere` is a branch of another machine.
        let after_a = ready(repository.create(&task("auth-3@1", &["fence/nowhere-1@1", &a])).await.unwrap());
        assert_eq!(read(&after_a.path, "from-a.txt"), "a");
        assert_eq!(git(&after_a.path, "rev-parse HEAD"), git(&sample.main, &format!("rev-parse {a}")));
        assert_eq!(git(&after_a.path, "symbolic-ref --short HEAD"), "fence/auth-3@1");
        let fresh = Status { clean: true, commits: false };
        assert_eq!(after_a.status().await.unwrap(), fresh);

        // Settings of a user that would stop or change a merge.
        for setting in
            ["merge.ff only", "commit.gpgsign true", "merge.verifySignatures true", "rerere.enabled true"]
        {
            git(&sample.main, &format!("config {setting}"));
        }
        sample.hook("pre-merge-commit", "exit 1");
        // A hook that fails after the fact does not count.
        sample.hook("post-checkout", "touch \"$(git rev-parse --git-dir)/hooked\"; exit 1");
        let both = ready(repository.create(&task("auth-4@1", &[&a, &b, &a])).await.unwrap());
        assert_eq!(
            (read(&both.path, "from-a.txt"), read(&both.path, "from-b.txt")),
            ("a".into(), "b".into())
        );
        assert_eq!(git(&both.path, "log -1 --format=%an:%s"), "Kim:Merge branch 'fence/auth-2@7'");
        assert_eq!(both.status().await.unwrap(), fresh, "the merge is where it starts");
        assert!(sample.main.join(".git/worktrees/auth-4@1/hooked").exists());

        // The merged branch contains both.
        both.git.text(["commit", "--allow-empty", "--no-gpg-sign", "-m", "more"]).await.unwrap();
        let all = ready(repository.create(&task("auth-5@1", &["fence/auth-4@1", &a, &b])).await.unwrap());
        assert_eq!(all.start, git(&both.path, "rev-parse HEAD"));

        let detached = Plan { task: None, ..task("auth-6@1", &[]) };
        let detached = ready(repository.create(&detached).await.unwrap());
        assert_eq!(
            (detached.branch.clone(), entries(&detached.path)),
            (None, vec![".git".into(), ".gitignore".into(), "a.txt".into()])
        );
        for tree in [after_a, both, all, detached] {
            assert_eq!(tree.finish(false).await.unwrap(), Finished::Removed);
        }
        assert_eq!(sample.state().0, ["fence/auth-1@1", "fence/auth-2@7", "fence/auth-4@1", "main"]);
        assert_eq!(sample.state().1, Vec::<String>::new());
        assert_eq!(git(&sample.main, "status --porcelain"), "", "the trees are ignored");
    }

    #[tokio::test]
    async fn a_conflict_names_branches_and_files_and_leaves_nothing_behind() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let one = finished(&repository, &task("auth-1@1", &[]), "a.txt", "mine").await;
        let two = finished(&repository, &task("auth-2@1", &[]), "b.txt", "b").await;
        let three = finished(&repository, &task("auth-3@1", &[]), "a.txt", "yours").await;
        let before = sample.state();
        match repository.create(&task("auth-4@1", &[&one, &two, &three])).await.unwrap() {
            Created::Conflict { branches, files } => {
                assert_eq!((branches, files), (vec![one, two, three], vec!["a.txt".to_owned()]));
            }
            ready => panic!("{ready:?}"),
        }
        assert_eq!(sample.state(), before);
        let missing = Plan { base: "nowhere".into(), ..task("auth-5@1", &[]) };
        let error = repository.create(&missing).await.unwrap_err();
        assert_eq!(error.message(), "there is no commit `nowhere` in the repository");
        assert_eq!(sample.state(), before);
    }

    #[tokio::test]
    async fn a_second_attempt_takes_over_the_tree_with_its_uncommitted_changes() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let first = ready(repository.create(&task("auth-3@2", &[])).await.unwrap());
        write(&first.path, "done.txt", "half");
        first.commit_all("half of it", "codex-1").await.unwrap();
        // In the middle of a merge, with a conflict.
        git(&first.path, "switch -q -c theirs main");
        write(&first.path, "done.txt", "theirs");
        first.commit_all("theirs", "codex-1").await.unwrap();
        git(&first.path, "switch -q fence/auth-3@2");
        assert!(!first.git.output(["merge", "theirs"]).await.unwrap().is_success());
        write(&first.path, "new.txt", "untracked");
        let changes = git(&first.path, "status --porcelain");
        let finished = first.clone().finish(false).await.unwrap();
        let why = "it has uncommitted changes: done.txt, new.txt".to_owned();
        assert_eq!(finished, Finished::Kept { path: first.path.clone(), why });
        assert_eq!(repository.kept("auth-3"), std::slice::from_ref(&first.path));

        // Only a tree of the same task.
        let other = Plan { reuse: Some(first.path.clone()), ..task("auth-4@1", &[]) };
        let other = ready(repository.create(&other).await.unwrap());
        assert!(!other.was_taken_over && other.path != first.path);
        let main = Plan { reuse: Some(sample.main.clone()), ..task("auth-3@3", &[]) };
        let main = ready(repository.create(&main).await.unwrap());
        assert_eq!(main.finish(false).await.unwrap(), Finished::Removed);

        // Not while another process works in it.
        let plan = Plan { reuse: Some(first.path.clone()), ..task("auth-3@4", &[]) };
        let fresh = ready(repository.create(&plan).await.unwrap());
        assert!(!fresh.was_taken_over && fresh.path != first.path);
        assert_eq!(fresh.finish(false).await.unwrap(), Finished::Removed);
        let path = first.path.clone();
        drop(first);
        crate::worktree::until_left(&path).await;
        let second = ready(repository.create(&plan).await.unwrap());
        assert!(second.was_taken_over);
        assert_eq!((&second.path, second.branch.as_deref()), (&path, Some("fence/auth-3@4")));
        assert_eq!(git(&second.path, "status --porcelain"), changes);
        assert_eq!(git(&second.path, "symbolic-ref --short HEAD"), "fence/auth-3@4");
        assert_eq!(second.status().await.unwrap(), Status { clean: false, commits: true });
        assert!(second.commit_all("no", "codex-1").await.unwrap_err().message().ends_with("done.txt"));
        write(&second.path, "done.txt", "all");
        git(&second.path, "add done.txt");
        second.commit_all("all of it", "codex-1").await.unwrap().expect("a commit");
        assert_eq!(second.finish(false).await.unwrap(), Finished::Removed);
        assert_eq!(git(&sample.main, "show fence/auth-3@4:new.txt"), "untracked");
    }

    #[tokio::test]
    async fn what_a_dead_worker_left_is_replaced_and_work_is_never_lost() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let trees = sample.main.join(".fence/trees");
        let path = trees.join("auth-3@2");
        let create = async || ready(repository.create(&task("auth-3@2", &[])).await.unwrap());

        // It died while it made the tree: in git's own steps, and at the end.
        let mark = trees.join("auth-3@2.busy");
        write(&trees, "auth-3@2.busy", "");
        fs::create_dir(&path).unwrap();
        write(&path, "half.txt", "");
        let tree = create().await;
        assert!(!mark.exists() && !path.join("half.txt").exists());
        // A sweep that saw the mark of the process that made it.
        repository.sweep_marked(&path).await.unwrap();
        assert!(path.join("a.txt").exists() && !mark.exists());
        drop(tree);
        write(&trees, "auth-3@2.busy", "");
        git(&path, "worktree lock .");
        create().await;
        write(&trees, "auth-3@2.busy", "");
        repository.sweep().await.unwrap();
        assert_eq!(sample.state().1, Vec::<String>::new());

        // A living one is left alone.
        let living = Busy::mark(&path).unwrap().unwrap();
        assert!(repository.create(&task("auth-3@2", &[])).await.is_err());
        repository.sweep().await.unwrap();
        assert!(mark.exists());
        living.unmark();
        let used = create().await;
        assert!(
            repository
                .create(&task("auth-3@2", &[]))
                .await
                .unwrap_err()
                .message()
                .contains("another process uses")
        );
        assert_eq!(used.finish(false).await.unwrap(), Finished::Removed);

        // One that cannot be removed is no reason to stop.
        write(&trees, "auth-1@1.busy", "");
        write(&trees, "auth-1@1", "no directory");
        write(&trees, "auth-2@1.busy", "");
        let problems = repository.sweep().await.unwrap();
        assert!(problems.len() == 1 && problems[0].message().contains("auth-1@1"), "{problems:?}");
        assert_eq!(entries(&trees), ["auth-1@1", "auth-1@1.busy"]);
        for file in entries(&trees) {
            fs::remove_file(trees.join(file)).unwrap();
        }

        // Somebody removed the directory.
        fs::remove_dir_all(create().await.path).unwrap();
        create().await;
        fs::remove_dir_all(&path).unwrap();
        repository.sweep().await.unwrap();
        assert_eq!(sample.state().1, Vec::<String>::new());

        // A complete tree with work is continued, one without is made anew.
        create().await;
        sample.write("a.txt", "two\n");
        git(&sample.main, "commit -q -a -m two");
        assert_eq!(read(&create().await.path, "a.txt"), "two\n");
        write(&path, "new.txt", "work");
        let again = create().await;
        assert!(again.was_taken_over);
        assert_eq!(read(&again.path, "new.txt"), "work");

        // A branch with commits of its own gets another name, a directory of somebody else stays.
        let tip = again.commit_all("work", "codex-1").await.unwrap().unwrap();
        assert_eq!(again.finish(false).await.unwrap(), Finished::Removed);
        let anew = create().await;
        assert!(!anew.path.join("new.txt").exists());
        assert_eq!(anew.finish(false).await.unwrap(), Finished::Removed);
        let aside = format!("fence/auth-3@2.old-{}", &tip[..8]);
        assert_eq!(sample.state().0, [aside.clone(), "main".into()]);
        assert_eq!(git(&sample.main, &format!("rev-parse {aside}")), tip);
        fs::create_dir(&path).unwrap();
        write(&path, "mine.txt", "");
        let error = repository.create(&task("auth-3@2", &[])).await.unwrap_err();
        assert!(error.message().ends_with("is in the way: it is no work tree of this repository"), "{error}");
        assert!(path.join("mine.txt").exists());

        git(&sample.main, &format!("branch -D {aside}"));
        git(&sample.main, "branch fence");
        let error = repository.create(&task("auth-4@1", &[])).await.unwrap_err();
        assert_eq!(error.message(), "a branch named `fence` is in the way of `fence/…`");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn eight_trees_are_made_and_removed_at_the_same_time() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let a = finished(&repository, &task("auth-1@1", &[]), "a1.txt", "a").await;
        let b = finished(&repository, &task("auth-2@1", &[]), "b1.txt", "b").await;
        let eight = (10..18).map(|n| {
            // Each as in a process of its own.
            let (main, plan) = (sample.main.clone(), task(&format!("auth-{n}@1"), &[&a, &b]));
            tokio::spawn(async move {
                let repository = Repository::find(&main, None).await.unwrap();
                let tree = ready(repository.create(&plan).await.unwrap());
                assert_eq!(read(&tree.path, "b1.txt"), "b");
                write(&tree.path, &format!("{n}.txt"), "");
                tree.commit_all("work", "codex-1").await.unwrap().expect("a commit");
                repository.sweep().await.unwrap();
                assert_eq!(tree.finish(false).await.unwrap(), Finished::Removed);
            })
        });
        for one in eight.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        assert_eq!(sample.state().0.len(), 11, "{:?}", sample.state());
        assert_eq!(sample.state().1, Vec::<String>::new());
    }
}
