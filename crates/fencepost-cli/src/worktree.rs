//! A git work tree for each attempt at a task: a directory of its own, on a branch of its own.
//!
//! This module knows git and directories, and neither the fleet nor claims. `fence work` decides when a tree is made and what becomes
//! of it.
//!
//! - A tree is complete when it has the ref `refs/worktree/fence-start`, the commit that it started from. Git keeps such refs per
//!   work tree, and removes them with the tree. Until then, and while it is removed, it is [marked](busy) as busy.
//! - The branch is created last, so a tree that could not be made leaves no branch.
//! - The process that works in a tree holds a [lock](hold) on it. Nobody else takes the tree over or removes it.
//! - A child may delete the `.git` of its tree. Git would then act on the repository around the tree, which is the user's, so no
//!   call may look above the trees, and a tree is changed or removed only if it still is the one that was made.
//! - Nothing with uncommitted changes, or with commits that are on no branch, is ever removed.
//!
//! Hooks: `git commit` runs all of them, because the commit is the agent's work and the repository's rules apply to it. A new tree gets
//! `post-checkout` and `post-merge`, with which tools prepare a tree. A failure of `post-checkout` is ignored: the tree is complete by
//! then. A merge runs neither `pre-merge-commit` nor `commit-msg`: it happens before the tree is set up, so a hook that runs tests or
//! a linter could only fail. No hook runs in the tree of [`Repository::merge_command`].
//!
//! Commits are not signed, whatever the configuration says: nobody is there to type the passphrase, and the signature would say that the
//! user made the commit.

mod busy;
mod copy;
mod create;
mod git;
mod hold;
mod shared;
#[cfg(test)]
mod testing;
mod tree;

use crate::{
    identity,
    location::{refuse_link, repository::main_work_tree},
    names::digest,
    private_files::make_directory,
};
use busy::Busy;
pub use create::{Attempt, Created, Plan};
use fencepost::{Code, Error, Result};
pub use git::{Git, prepare};
pub use hold::until_left;
pub use shared::Commit;
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
};
pub use tree::{Finished, Tree, some};

/// The directory of trees, in the repository's main work tree.
const TREES: &str = ".fence/trees";
/// All branches of tasks are below it.
const BRANCHES: &str = "fence";

/// The names of the trees in which branches are merged begin with it. The name of a task's tree has an `@`, and theirs have none.
const MERGES: &str = "merge-";

/// A variable of git: no repository is looked for in these directories and above them.
const CEILING: &str = "GIT_CEILING_DIRECTORIES";

/// The script of [`Repository::merge_command`]: its arguments and exit codes are at its top.
const MERGE: &str = include_str!("worktree/merge.sh");

/// A git repository, and the directory for its trees.
#[derive(Debug, Clone)]
pub struct Repository {
    git: Git,
    /// Where git runs: the work tree that was found, or the git directory of a bare repository.
    directory: PathBuf,
    /// A bare repository has none.
    main: Option<PathBuf>,
    trees: PathBuf,
}

/// A path that should be a tree.
#[derive(Debug)]
pub enum Opened {
    Ready(Box<Tree>),
    /// Another process works in it, makes it or removes it.
    InUse,
    /// It is not complete, or somebody removed its `.git`.
    Broken,
    /// It is no work tree of this repository.
    Unknown,
}

/// A work tree as git lists it.
#[derive(Debug, Default)]
struct Listed {
    path: PathBuf,
    branch: Option<String>,
    /// A person locked it with `git worktree lock`.
    locked: bool,
}

/// The branch of an attempt at a task: `fence/auth-3@2`.
pub fn branch_of(id: &str, fence: i64) -> String {
    format!("{BRANCHES}/{}", name_of(id, fence))
}

/// The name of a tree: `auth-3@2`. A board may have two dots in its name, and a branch may not.
fn name_of(id: &str, fence: i64) -> String {
    format!("{}@{fence}", id.replace("..", ".%2e"))
}

impl Repository {
    /// The repository around a directory. Its trees go to `trees`, or else to `.fence/trees` in its main work tree.
    pub async fn find(start: &Path, trees: Option<PathBuf>) -> Result<Self> {
        let missing = || {
            let message = format!("there is no git repository at `{}`", start.display());
            Error::new(Code::NotFound, message).hint("work trees need one: run this in a repository")
        };
        let home = main_work_tree(start).ok_or_else(missing)?;
        let has_files = async |at: &Path| {
            let answer = Git::new(at).text(["rev-parse", "--is-inside-work-tree"]).await;
            // A directory may be named `.git` and be none.
            let answer =
                answer.map_err(|e| if e.message().contains("not a git repository") { missing() } else { e });
            Result::Ok(answer? == "true")
        };
        let directory = match has_files(start).await? {
            true => Git::new(start).path(["rev-parse", "--show-toplevel"]).await?,
            false => home.clone(),
        };
        let main = has_files(&home).await?.then(|| home.clone());
        let git = Git::new(&directory);
        if git.text(["rev-list", "--max-count=1", "--all"]).await?.is_empty() {
            let message = format!("the git repository at `{}` has no commit yet", directory.display());
            return Err(Error::new(Code::Invalid, message).hint("a work tree starts from a commit: make one"));
        }
        let ignored = match &trees {
            Some(trees) => trees.clone(),
            None => home.join(".fence"),
        };
        if trees.is_none() {
            for directory in [home.join(".fence"), home.join(TREES)] {
                // The link may have come with the repository, and lead anywhere.
                refuse_link(&directory)?;
            }
        }
        let trees = trees.unwrap_or_else(|| home.join(TREES));
        let failed = |e: io::Error| {
            Error::unavailable(format!("cannot create the directory `{}`: {e}", trees.display()))
        };
        make_directory(&trees).map_err(failed)?;
        let repository = Self { git, directory, main, trees: fs::canonicalize(&trees).map_err(failed)? };
        repository.keep_out_of_git(&ignored).await?;
        Ok(repository)
    }

    /// The same repository. Git runs for this run, and is found by it if this process dies.
    #[must_use]
    pub fn for_run(&self, run: &str) -> Self {
        Self { git: self.git.clone().with_variable(identity::RUN, run), ..self.clone() }
    }

    /// The same repository, with this variable in the environment of git and its hooks.
    #[must_use]
    pub fn with_variable(&self, name: &'static str, value: impl Into<OsString>) -> Self {
        Self { git: self.git.clone().with_variable(name, value), ..self.clone() }
    }

    /// Git in a tree.
    fn git_in(&self, tree: &Path) -> Git {
        self.git.at(tree).with_variable(CEILING, self.ceiling())
    }

    /// The value of [`CEILING`] in a tree: the user's own, and the directory of trees.
    fn ceiling(&self) -> OsString {
        let mut directories = self.trees.clone().into_os_string();
        if let Some(own) = std::env::var_os(CEILING) {
            directories.push(":");
            directories.push(own);
        }
        directories
    }

    /// Git does not list the trees as untracked files of the main work tree, where a `git add` would add them.
    async fn keep_out_of_git(&self, directory: &Path) -> Result<()> {
        let inside = |main: &PathBuf| fs::canonicalize(main).is_ok_and(|main| self.trees.starts_with(main));
        let Some(main) = self.main.as_ref().filter(|main| inside(main)) else { return Ok(()) };
        let question = [OsStr::new("check-ignore"), OsStr::new("--quiet"), self.trees.as_os_str()];
        if Git::new(main).ask(question).await?.is_some() {
            return Ok(());
        }
        // `create_new` does not follow a link that somebody put there, and does not change a file of the user.
        let file = directory.join(".gitignore");
        let ignore = File::options().write(true).create_new(true).mode(0o600).open(&file);
        match ignore.and_then(|mut file| file.write_all(b"*\n")) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::unavailable(format!("cannot write `{}`: {e}", file.display())))
            }
            _ => Ok(()),
        }
    }

    /// The commit that the name of a branch, a tag or another revision means.
    pub async fn commit(&self, name: &str) -> Result<Option<String>> {
        let commit = format!("{name}^{{commit}}");
        self.git.ask(["rev-parse", "--quiet", "--verify", "--end-of-options", &commit]).await
    }

    /// Where git runs: the work tree that was found, or the git directory of a bare repository.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub async fn branch_exists(&self, branch: &str) -> Result<bool> {
        Ok(self.tip(branch).await?.is_some())
    }

    /// A tree that an earlier process made.
    pub async fn open(&self, path: &Path) -> Result<Opened> {
        let Ok(path) = fs::canonicalize(path) else { return Ok(Opened::Unknown) };
        let Some(listed) = self.listed().await?.into_iter().find(|tree| tree.path == path) else {
            return Ok(Opened::Unknown);
        };
        if busy::is_marked(&path) {
            return Ok(Opened::InUse);
        }
        let Some(hold) = hold::hold(&path)? else { return Ok(Opened::InUse) };
        let tree = Tree::open(self, listed, hold).await?;
        Ok(tree.map_or(Opened::Broken, |tree| Opened::Ready(tree.into())))
    }

    /// The trees of earlier attempts at a task, the newest first. Those that hold no work were removed.
    pub fn kept(&self, id: &str) -> Vec<PathBuf> {
        let prefix = name_of(id, 0).trim_end_matches('0').to_owned();
        let entries = fs::read_dir(&self.trees).into_iter().flatten().flatten();
        let fence = |name: &str| name.strip_prefix(&prefix)?.parse::<i64>().ok();
        let mut found: Vec<(i64, PathBuf)> = entries
            .filter_map(|entry| Some((fence(entry.file_name().to_str()?)?, entry.path())))
            .filter(|(_, path)| !busy::is_marked(path))
            .collect();
        found.sort();
        found.into_iter().rev().map(|(_, path)| path).collect()
    }

    /// The fences of the attempts at a task that have a branch here, the newest first.
    pub async fn fences(&self, id: &str) -> Result<Vec<i64>> {
        let attempts = format!("refs/heads/{}*", branch_of(id, 0).trim_end_matches('0'));
        let names = self.git.text(["for-each-ref", "--format=%(refname)", &attempts]).await?;
        let fence = |name: &str| name.rsplit_once('@')?.1.parse().ok();
        let mut fences: Vec<i64> = names.lines().filter_map(fence).collect();
        fences.sort_unstable();
        fences.reverse();
        Ok(fences)
    }

    /// Waits while a process works in the tree that has this branch checked out.
    pub async fn until_left(&self, branch: &str) -> Result<()> {
        if let Some(tree) = self.checked_out(branch).await? {
            until_left(Path::new(&tree)).await;
        }
        Ok(())
    }

    /// A command that merges a branch into another one. It may be killed at any moment. See `merge.sh` for its exit codes, and for
    /// the variable `FENCE_MERGE_GUARD`: a command line that is run right before the branch moves, and stops the merge if it fails.
    pub fn merge_command(&self, branch: &str, into: &str, message: &str) -> Command {
        self.merge_commit_command(&format!("refs/heads/{branch}"), branch, into, message)
    }

    /// The same, for this commit of the branch and no later one.
    pub fn merge_commit_command(&self, commit: &str, branch: &str, into: &str, message: &str) -> Command {
        let tree = self.trees.join(format!("{MERGES}{}", digest(into)));
        let mut command = Command::new("sh");
        command
            .args(["-c", MERGE, "merge"])
            .arg(&self.directory)
            .arg(tree)
            .args([branch, into, message, commit]);
        command.current_dir(&self.directory);
        prepare(&mut command);
        command
    }

    /// Removes the trees that processes left when they died in the middle of making, merging or removing one.
    ///
    /// This does not call `git worktree prune`, which also forgets a person's work trees on a disk that is not mounted now.
    ///
    /// Returns the trees that could not be removed. They are in nobody's way.
    pub async fn sweep(&self) -> Result<Vec<Error>> {
        let mut problems = Vec::new();
        for tree in busy::marked(&self.trees) {
            problems.extend(self.sweep_marked(&tree).await.err());
        }
        for listed in self.listed().await? {
            if listed.path.starts_with(&self.trees) && !listed.path.exists() && !busy::is_marked(&listed.path)
            {
                problems.extend(self.discard(&listed.path).await.err());
            }
        }
        Ok(problems)
    }

    async fn sweep_marked(&self, tree: &Path) -> Result<()> {
        let Some(mark) = Busy::mark(tree)? else { return Ok(()) };
        // Otherwise its process has finished since we saw the mark, and the tree may be in use.
        if mark.was_left {
            self.discard(tree).await?;
        }
        // A merge may have opened the file, and wait for our lock on it.
        if !tree.file_name().is_some_and(|name| name.as_bytes().starts_with(MERGES.as_bytes())) {
            mark.unmark();
        }
        Ok(())
    }

    /// Removes a tree that holds no work, whatever state it is in.
    async fn discard(&self, tree: &Path) -> Result<()> {
        let remove = ["worktree", "remove", "--force", "--force"].map(OsStr::new);
        let remove = || remove.into_iter().chain([tree.as_os_str()]);
        if !self.git.output(remove()).await?.is_success() && tree.exists() {
            // Git does not know a tree whose making or removal was interrupted.
            let directory = tree.to_owned();
            let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(directory)).await;
            if let Err(e) = removed.map_err(io::Error::other).and_then(|removed| removed) {
                return Err(Error::unavailable(format!("cannot remove `{}`: {e}", tree.display())));
            }
            self.git.output(remove()).await?;
        }
        Ok(())
    }

    async fn listed(&self) -> Result<Vec<Listed>> {
        let output = self.git.output(["worktree", "list", "--porcelain"]).await?;
        output.require_success()?;
        let mut all: Vec<Listed> = Vec::new();
        for line in output.stdout().split(|byte| *byte == b'\n') {
            if let Some(path) = line.strip_prefix(b"worktree ") {
                all.push(Listed { path: Path::new(OsStr::from_bytes(path)).to_owned(), ..Listed::default() });
            } else if let Some(last) = all.last_mut() {
                last.locked |= line.starts_with(b"locked");
                if let Some(branch) = line.strip_prefix(b"branch refs/heads/") {
                    last.branch = Some(String::from_utf8_lossy(branch).into_owned());
                }
            }
        }
        Ok(all)
    }

    /// The commit of a branch, if the branch exists.
    async fn tip(&self, branch: &str) -> Result<Option<String>> {
        self.commit(&format!("refs/heads/{branch}")).await
    }

    /// Does the commit `later` contain the commit `earlier`?
    pub async fn contains(&self, later: &str, earlier: &str) -> Result<bool> {
        Ok(self.git.ask(["merge-base", "--is-ancestor", earlier, later]).await?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{Sample, entries, finished, git, lines, program, read, ready, task, write},
        *,
    };
    use std::{io::Read, os::unix::process::CommandExt, process::Stdio};

    #[tokio::test]
    async fn a_repository_is_found_and_its_trees_stay_out_of_git() {
        let sample = Sample::new();
        let find =
            async |start: &Path| Repository::find(start, None).await.map_err(|e| e.message().to_owned());
        let root = sample.main.parent().unwrap();
        assert_eq!(
            find(root).await.unwrap_err(),
            format!("there is no git repository at `{}`", root.display())
        );
        let empty = sample.beside("empty");
        git(root, "init -q empty");
        let none = format!("the git repository at `{}` has no commit yet", empty.display());
        assert_eq!(find(&empty).await.unwrap_err(), none);

        // All work trees share the directory. The base may be the HEAD of the one that we are in.
        git(&sample.main, "worktree add -q ../linked");
        let linked = sample.beside("linked");
        git(&linked, "commit -q --allow-empty -m linked");
        let repository = find(&linked).await.unwrap();
        assert_eq!(repository.trees, sample.main.join(TREES));
        let plan = Plan { base: "HEAD".into(), ..task("a..b...c-1@1", &[]) };
        let tree = ready(repository.create(&plan).await.unwrap());
        assert_eq!(tree.start, git(&linked, "rev-parse HEAD"));
        assert_eq!(tree.branch.as_deref(), Some("fence/a.%2eb.%2e.c-1@1"));
        assert_eq!(repository.kept("a..b...c-1"), std::slice::from_ref(&tree.path));
        assert_eq!(read(&sample.main, ".fence/.gitignore"), "*\n");
        assert_eq!(git(&sample.main, "status --porcelain"), "");

        let elsewhere = Repository::find(&sample.main, Some(sample.main.join("my/trees"))).await.unwrap();
        ready(elsewhere.create(&task("auth-1@1", &[])).await.unwrap());
        assert_eq!(git(&sample.main, "status --porcelain"), "");

        git(root, "clone -q --bare main bare.git");
        let bare = find(&sample.beside("bare.git")).await.unwrap();
        let tree = ready(bare.create(&task("auth-1@1", &[])).await.unwrap());
        write(&tree.path, "b.txt", "b");
        tree.copy(&[".env".into()]).await.unwrap();
        tree.commit_all("b", "codex-1").await.unwrap().expect("a commit");
        assert_eq!(tree.finish(false).await.unwrap(), Finished::Removed);
        assert_eq!(
            run(bare.merge_command("fence/auth-1@1", "main", "merge")),
            (0, String::new(), String::new())
        );
        assert_eq!(git(&sample.beside("bare.git"), "show main:b.txt"), "b");

        std::os::unix::fs::symlink(root, empty.join(".fence")).unwrap();
        git(&empty, "-c user.name=x -c user.email=x@x commit -q --allow-empty -m one");
        assert!(
            find(&empty).await.unwrap_err().ends_with(".fence` is a symbolic link, which is not followed")
        );
    }

    /// The exit code, standard output and standard error.
    fn run(mut command: Command) -> (i32, String, String) {
        let output = command.stdin(Stdio::null()).output().expect("sh");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    #[tokio::test]
    async fn a_branch_is_merged_and_the_files_of_its_work_tree_follow() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        for setting in ["merge.ff only", "merge.autoStash true", "commit.gpgsign true", "merge.log true"] {
            git(&sample.main, &format!("config {setting}"));
        }
        sample.hook("pre-merge-commit", "exit 1");
        let merge =
            |branch: &str, into: &str| run(repository.merge_command(branch, into, "merge it\n\nFence: 1"));
        let main = || git(&sample.main, "rev-parse main");
        let one = finished(&repository, &task("auth-1@1", &[]), "one.txt", "1").await;
        let two = finished(&repository, &task("auth-2@1", &[]), "two.txt", "2").await;
        let three = finished(&repository, &task("auth-3@1", &[]), "a.txt", "three\n").await;

        // Nobody has the branch checked out.
        git(&sample.main, "branch release");
        assert_eq!(merge(&one, "release"), (0, String::new(), String::new()));
        assert_eq!(git(&sample.main, "show release:one.txt"), "1");
        assert_eq!(
            git(&sample.main, "log -1 --format=%an:%P:%B release"),
            format!("Kim:{} {}:merge it\n\nFence: 1", main(), git(&sample.main, &format!("rev-parse {one}")))
        );
        assert!(!sample.main.join("one.txt").exists());

        // The main work tree has it checked out, clean at first; then with changes that are not in the way.
        assert_eq!(merge(&one, "main"), (0, String::new(), String::new()));
        assert_eq!(
            (read(&sample.main, "one.txt"), git(&sample.main, "status --porcelain")),
            ("1".into(), String::new())
        );
        sample.write("a.txt", "mine\n");
        sample.write("untracked.txt", "mine");
        assert_eq!(merge(&two, "main"), (0, String::new(), String::new()));
        assert_eq!(read(&sample.main, "two.txt"), "2");
        assert_eq!(git(&sample.main, "status --porcelain"), "M a.txt\n?? untracked.txt");

        // Then with changes that are in the way.
        let before = main();
        let (code, out, why) = merge(&three, "main");
        assert_eq!((code, out.as_str()), (2, ""));
        let clear =
            format!("`main` was not moved: it is checked out in {}, and git says: ", sample.main.display());
        assert!(why.starts_with(&clear) && why.contains("local changes") && why.contains("a.txt"), "{why}");
        assert_eq!((main(), read(&sample.main, "a.txt")), (before.clone(), "mine\n".into()));
        // An ignored file is in the way, too.
        let env = ready(repository.create(&task("auth-4@1", &[])).await.unwrap());
        write(&env.path, ".env", "theirs");
        git(&env.path, "add -f .env");
        env.commit_all("a secret", "codex-1").await.unwrap().expect("a commit");
        sample.write(".env", "mine");
        assert_eq!(merge("fence/auth-4@1", "main").0, 2);
        assert_eq!((main(), read(&sample.main, ".env")), (before.clone(), "mine".into()));

        git(&sample.main, "commit -q --no-gpg-sign -a -m mine");
        let before = main();
        let (code, out, why) = merge(&three, "main");
        assert_eq!(
            (code, out.as_str(), why.as_str()),
            (1, "a.txt", "`fence/auth-3@1` conflicts with `main`")
        );
        assert_eq!(merge("nowhere", "main"), (2, String::new(), "there is no branch `nowhere`".into()));
        assert_eq!(merge(&one, "nowhere"), (2, String::new(), "there is no branch `nowhere`".into()));
        assert_eq!(
            merge(&one, "main"),
            (0, String::new(), "`main` contains `fence/auth-1@1` already".into())
        );
        assert_eq!(main(), before);

        // The guard runs when the merge is ready, and before the branch moves.
        let guarded = |guard: &str| {
            let mut command = repository.merge_command(&three, "release", "merge");
            command.env("FENCE_MERGE_GUARD", guard);
            run(command)
        };
        let release = git(&sample.main, "rev-parse release");
        let (code, _, why) = guarded("echo 'lease expired' >&2; exit 5");
        assert_eq!((code, why.as_str()), (3, "lease expired\nthe guard refused: `release` stays as it is"));
        assert_eq!(git(&sample.main, "rev-parse release"), release);
        // Somebody else moves the branch meanwhile.
        let (code, _, why) = guarded("git update-ref refs/heads/release main");
        assert!(code == 2 && why.starts_with("`release` was not moved: "), "{code} {why}");
        assert_eq!(git(&sample.main, "rev-parse release"), before);
        git(&sample.main, &format!("update-ref refs/heads/release {release}"));
        assert_eq!(
            guarded("test \"$(git rev-parse release)\" = \"$(git rev-parse release)\""),
            (0, String::new(), String::new())
        );
        assert_eq!(git(&sample.main, "show release:a.txt"), "three");
        assert_eq!(sample.state().1, ["auth-4@1"]);
    }

    #[tokio::test]
    async fn a_merge_that_runs_is_not_swept() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let branch = finished(&repository, &task("auth-1@1", &[]), "new.txt", "new").await;
        let mut command = repository.merge_command(&branch, "main", "merge");
        command.env("FENCE_MERGE_GUARD", "echo ready; read -r go");
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut merge = command.spawn().unwrap();
        let mut said = [0; 6];
        merge.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ready\n");
        repository.sweep().await.unwrap();
        let tree = repository.trees.join(format!("{MERGES}{}", digest("main")));
        assert_eq!(read(&tree, "new.txt"), "new", "it is still there");
        merge.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        assert!(merge.wait().unwrap().success());
        assert_eq!(read(&sample.main, "new.txt"), "new");
        assert_eq!(sample.state().1, Vec::<String>::new());
    }

    /// Every call of git, and every file that git checks out, is a step. A step kills the whole group of the script, before it and
    /// after it.
    #[tokio::test]
    async fn a_merge_killed_at_any_step_leaves_the_branch_old_or_new_and_the_next_one_works() {
        let sample = Sample::new();
        let repository = sample.repository().await;
        let branch = finished(&repository, &task("auth-1@1", &[]), "new.txt", "new").await;
        git(&sample.main, "branch release");
        let old = git(&sample.main, "rev-parse main");
        let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|directory| directory.join("git"))
            .find(|path| path.is_file())
            .expect("git");
        let bin = sample.beside("bin");
        // The step is the number of lines of the log. Builtins only: there are many steps.
        program(
            &bin.join("step"),
            "echo >>\"$STEPS/log\"; n=0; while read -r _; do n=$((n + 1)); done <\"$STEPS/log\"\n\
             read -r at <\"$STEPS/kill-at\"; read -r group <\"$STEPS/group\"\n\
             test $n -ne $at || kill -s KILL -- -$group",
        );
        program(
            &bin.join("git"),
            &format!(
                "test -e \"$STEPS/group\" || cut -d' ' -f5 /proc/$PPID/stat >\"$STEPS/group\"\n\
                 . \"${{0%/*}}/step\"; '{}' \"$@\"; code=$?; . \"${{0%/*}}/step\"; exit $code",
                real.display()
            ),
        );
        program(&bin.join("smudge"), "test -z \"$STEPS\" || . \"${0%/*}/step\"; exec cat");
        git(&sample.main, &format!("config filter.step.smudge {}", bin.join("smudge").display()));
        fs::create_dir_all(sample.main.join(".git/info")).unwrap();
        write(&sample.main, ".git/info/attributes", "*.txt filter=step\n");
        let path = std::env::join_paths(
            [&bin, real.parent().unwrap()]
                .map(Path::new)
                .into_iter()
                .chain([Path::new("/usr/bin"), Path::new("/bin")]),
        )
        .unwrap();
        let steps = sample.beside("steps");
        let merge = |into: &str, kill_at: usize| {
            let _ = fs::remove_dir_all(&steps);
            fs::create_dir(&steps).unwrap();
            write(&steps, "kill-at", &kill_at.to_string());
            let mut command = repository.merge_command(&branch, into, "merge");
            command.env("PATH", &path).env("STEPS", &steps).process_group(0);
            // This returns when the last process that has our pipes is gone.
            let (code, out, why) = run(command);
            (code, format!("{out}{why}"), lines(&read(&steps, "log")).len())
        };
        let tip = |name: &str| git(&sample.main, &format!("rev-parse {name}"));
        for into in ["main", "release"] {
            let reset = || match into {
                "main" => git(&sample.main, &format!("reset -q --hard {old}")),
                _ => git(&sample.main, &format!("update-ref refs/heads/{into} {old}")),
            };
            let (code, said, last) = merge(into, 0);
            assert_eq!(code, 0, "{said}");
            reset();
            // The two differ only in the last steps.
            let first = if into == "main" { 1 } else { last - 7 };
            let mut moved = 0;
            for step in first..=last {
                let (code, said, _) = merge(into, step);
                assert_eq!(code, -1, "{into}, step {step} of {last}: {said}");
                let is_new = tip(into) != old;
                if is_new {
                    moved += 1;
                    assert_eq!(tip(&format!("{into}^1 {into}^2")), format!("{old}\n{}", tip(&branch)));
                }
                if into == "main" {
                    assert_eq!(git(&sample.main, "status --porcelain"), "", "step {step}");
                    assert_eq!(sample.main.join("new.txt").exists(), is_new, "step {step}");
                }
                if step % 2 == 0 {
                    // A killed process closes its files one by one, our pipes before the lock: until then it counts as alive.
                    let mark = repository.trees.join(format!("{MERGES}{}.busy", digest(into)));
                    if let Ok(mark) = File::open(mark) {
                        mark.lock().unwrap();
                        // A process that another test starts may have a copy of it.
                        mark.unlock().unwrap();
                    }
                    repository.sweep().await.unwrap();
                    assert_eq!(sample.state().1, Vec::<String>::new(), "step {step}");
                }
                let (code, _, said) = run(repository.merge_command(&branch, into, "merge"));
                assert_eq!(code, 0, "{into}, after step {step}: {said}");
                assert_eq!(git(&sample.main, &format!("show {into}:new.txt")), "new");
                assert_eq!(sample.state().1, Vec::<String>::new(), "step {step}");
                reset();
            }
            assert!(moved > 0 && moved <= last - first, "{into}: killed before and after it moved");
        }
        assert_eq!(entries(&sample.main.join(TREES)), Vec::<String>::new());
    }
}
