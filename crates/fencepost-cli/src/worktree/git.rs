//! Runs git: in one directory, without a person at the terminal, and once more if another git holds a lock.

use fencepost::{Backoff, Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStringExt, process::CommandExt},
    path::{Path, PathBuf},
    pin::pin,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    runtime::Handle,
    time::timeout,
};

/// Variables that a git sets for its hooks and aliases. They would make our git work on the repository of that git, or on other
/// files. (Variables with settings, such as `GIT_CONFIG_COUNT` and `GIT_AUTHOR_NAME`, are the user's and stay.)
const OF_ANOTHER_GIT: [&str; 17] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Settings of our own calls. Daemons and maintenance that a call starts would outlive the tree. Resolutions of conflicts that a
/// person recorded are that person's. `merge.sh` has the same list.
const SETTINGS: [&str; 8] = [
    "-c",
    "core.fsmonitor=false",
    "-c",
    "maintenance.auto=false",
    "-c",
    "gc.auto=0",
    "-c",
    "rerere.enabled=false",
];

/// The longest time for one call. A checkout of a large repository takes minutes, and a hook may wait for ever.
const LIMIT: Duration = Duration::from_secs(600);
/// Git removes its lock files on TERM.
const GRACE: Duration = Duration::from_secs(5);
/// A daemon that a hook started may hold the pipes open after git has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// The longest error, in bytes. The reason of a failure may have 16 KiB.
const MESSAGE: usize = 2048;
/// Together about ten seconds.
const ATTEMPTS: u32 = 30;
const PAUSES: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// Prepares a command that uses git: it finds the repository by its directory alone, and nothing waits for a person.
pub fn prepare(command: &mut Command) {
    for name in OF_ANOTHER_GIT {
        command.env_remove(name);
    }
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_EDITOR", ":").env("GIT_SEQUENCE_EDITOR", ":");
    // The settings of the person who runs the tests.
    if cfg!(test) {
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    }
}

/// Git in one directory.
#[derive(Debug, Clone)]
pub struct Git {
    directory: PathBuf,
    /// It works on the repository, the index and the objects that the variables of another git name.
    in_hook: bool,
    variables: Vec<(&'static str, OsString)>,
    limit: Duration,
}

/// The end of one call.
#[derive(Debug)]
pub struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

impl Git {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), in_hook: false, variables: Vec::new(), limit: LIMIT }
    }

    /// Git for a hook: it sees the objects of a push that is not accepted yet.
    pub fn in_hook() -> Self {
        Self { in_hook: true, ..Self::new(".") }
    }

    /// The same git in another directory.
    pub fn at(&self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..self.clone() }
    }

    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// The standard output, without the newline at its end. A call that exits with another code than 0 is an error.
    pub async fn text<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<String> {
        let output = self.output(words).await?;
        output.require_success()?;
        Ok(output.line())
    }

    /// The same, as a path.
    pub async fn path<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<PathBuf> {
        let output = self.output(words).await?;
        output.require_success()?;
        let mut path = output.stdout;
        path.pop_if(|last| *last == b'\n');
        Ok(OsString::from_vec(path).into())
    }

    /// The same for a question: `None` if the exit code is 1, which says no.
    pub async fn ask<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<Option<String>> {
        let output = self.output(words).await?;
        if output.status.code() == Some(1) {
            return Ok(None);
        }
        output.require_success()?;
        Ok(Some(output.line()))
    }

    /// The files with conflicts.
    pub async fn unmerged(&self) -> Result<Vec<String>> {
        let files = self.text(["diff", "--name-only", "-z", "--no-relative", "--diff-filter=U"]).await?;
        Ok(files.split_terminator('\0').map(str::to_owned).collect())
    }

    /// Runs git, and repeats the call while another git holds a lock that it needs.
    pub async fn output<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Result<Output> {
        let words: Vec<OsString> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let mut pauses = PAUSES;
        for _ in 1..ATTEMPTS {
            let output = self.once(&words).await?;
            if output.is_success() || !is_contended(&output.stderr) {
                return Ok(output);
            }
            tokio::time::sleep(pauses.next()).await;
        }
        self.once(&words).await
    }

    async fn once(&self, words: &[OsString]) -> Result<Output> {
        let mut command = Command::new("git");
        command.args(SETTINGS).args(words).current_dir(&self.directory);
        if !self.in_hook {
            prepare(&mut command);
        }
        // Errors are read below, in English.
        command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE").envs(self.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A Ctrl-C at the terminal is for the worker, which lets git finish.
        command.process_group(0);
        let child = tokio::process::Command::from(command).spawn();
        let mut running = Running(Some(child.map_err(|error| not_started(&error, &self.directory))?));
        let child = running.0.as_mut().ok_or_else(|| Error::internal("git is gone"))?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ended = {
            let mut reading = pin!(async { tokio::join!(read(out, &mut stdout), read(err, &mut stderr)) });
            let waiting = async {
                let (mut wait, mut read) = (pin!(child.wait()), false);
                loop {
                    tokio::select! {
                        status = &mut wait => break (status, read),
                        _ = &mut reading, if !read => read = true,
                    }
                }
            };
            let ended = timeout(self.limit, waiting).await;
            if let Ok((_, false)) = ended {
                let _ = timeout(LAST_OUTPUT, reading).await;
            }
            ended
        };
        let verb = || words.iter().take(2).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let Ok((status, _)) = ended else {
            end(child).await;
            return Err(Error::unavailable(format!(
                "`git {}` did not end within {:?} and was ended",
                verb(),
                self.limit
            ))
            .hint("a hook of the repository may be waiting for something"));
        };
        let status = status.map_err(|e| Error::unavailable(format!("`git {}`: {e}", verb())))?;
        Ok(Output { status, stdout, stderr: message(&stderr) })
    }

    /// The author and committer that the user configured; if there is none, a name that says who commits.
    pub async fn with_identity(mut self, name: &str, address: &str) -> Result<Self> {
        for (identity, name_variable, address_variable) in [
            ("GIT_AUTHOR_IDENT", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"),
            ("GIT_COMMITTER_IDENT", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
        ] {
            // Otherwise git makes up an address from the name of the user and the machine.
            let found = self.output(["-c", "user.useConfigOnly=true", "var", identity]).await?;
            if !found.is_success() {
                self.variables.push((name_variable, name.into()));
                self.variables.push((address_variable, format!("{address}@fence.invalid").into()));
            }
        }
        Ok(self)
    }

    #[cfg(test)]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

impl Output {
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    pub fn require_success(&self) -> Result<()> {
        if self.is_success() {
            return Ok(());
        }
        let stderr = self.stderr.strip_prefix("fatal: ").unwrap_or(&self.stderr);
        let why = if stderr.is_empty() { self.status.to_string() } else { stderr.into() };
        Err(Error::unavailable(format!("git failed: {why}")))
    }

    pub fn stdout(&self) -> &[u8] {
        &self.stdout
    }

    fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.stdout);
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, to: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(to).await;
    }
}

/// The end of an error, as a text that can be stored: a hook may print anything.
fn message(stderr: &[u8]) -> String {
    let end = &stderr[stderr.len().saturating_sub(MESSAGE)..];
    String::from_utf8_lossy(end).replace('\0', "\u{fffd}").trim().to_owned()
}

/// A git that is ended if nobody waits for it any more: the claim was lost, or the worker stops.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // At once: this process may be at its end.
        signal(&child, Signal::TERM);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { end(&mut child).await });
        }
    }
}

/// Ends git and its hooks.
async fn end(child: &mut Child) {
    for with in [Signal::TERM, Signal::KILL] {
        signal(child, with);
        if timeout(GRACE, child.wait()).await.is_ok() {
            return;
        }
    }
}

/// Signals the group of a git that was not waited for yet.
fn signal(child: &Child, signal: Signal) {
    if let Some(id) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
        let _ = kill_process_group(id, signal);
    }
}

fn not_started(error: &io::Error, directory: &Path) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound if directory.exists() => {
            Error::unavailable("there is no program `git`").hint("work trees need git 2.31 or newer")
        }
        _ => Error::unavailable(format!("cannot run git in `{}`: {error}", directory.display())),
    }
}

/// Another git holds a lock, or is in the middle of adding or removing a work tree.
fn is_contended(stderr: &str) -> bool {
    let lock = stderr.contains(".lock") && stderr.contains("File exists");
    let list = ["failed to read", "could not create directory of"].iter().any(|says| stderr.contains(says));
    lock || list && stderr.contains("worktrees/") || stderr.contains("could not lock config file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worktree::testing::Sample;

    #[test]
    fn another_git_is_in_the_way_for_a_moment() {
        for (says, is_passing) in [
            ("fatal: Unable to create '/r/.git/index.lock': File exists.", true),
            ("error: could not lock config file .git/config: File exists", true),
            ("fatal: failed to read .git/worktrees/x/commondir: Success", true),
            ("fatal: could not create directory of '.git/worktrees/x': No such file or directory", true),
            ("fatal: failed to read object 1a2b: Input/output error", false),
            ("fatal: '/r/x' already exists", false),
        ] {
            assert_eq!(is_contended(says), is_passing, "{says}");
        }
    }

    #[tokio::test]
    async fn another_gits_lock_is_waited_for_and_a_hook_that_hangs_is_ended() {
        let sample = Sample::new();
        let lock = sample.main.join(".git/index.lock");
        std::fs::write(&lock, "").unwrap();
        let git = Git::new(&sample.main);
        sample.write("a.txt", "two");
        // The lock goes away with the third attempt.
        let script = "!echo . >>.git/attempts; test $(wc -l <.git/attempts) -lt 3 || rm -f .git/index.lock; git add a.txt";
        git.text(["-c", &format!("alias.attempt={script}"), "attempt"]).await.unwrap();
        assert_eq!(std::fs::read_to_string(sample.main.join(".git/attempts")).unwrap(), ".\n.\n.\n");

        sample.hook("pre-commit", "sleep 1000");
        let hung = git.with_limit(Duration::from_millis(300)).text(["commit", "-m", "never"]).await;
        let error = hung.unwrap_err();
        assert!(error.message().contains("`git commit -m` did not end"), "{error}");
        assert!(!lock.exists(), "git removes its lock on TERM");
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_ended_with_its_hooks() {
        let sample = Sample::new();
        sample.hook("pre-commit", "echo $$ >.git/hook.new; mv .git/hook.new .git/hook; sleep 1000");
        sample.write("a.txt", "two");
        let hook = sample.main.join(".git/hook");
        let begun = async {
            while !hook.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let git = Git::new(&sample.main);
        tokio::select! {
            ended = git.text(["commit", "-am", "two"]) => panic!("{ended:?}"),
            begun = timeout(Duration::from_secs(60), begun) => begun.expect("the hook runs"),
        }
        let pid = std::fs::read_to_string(hook).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        // Git removes its lock on TERM.
        let lock = sample.main.join(".git/index.lock");
        let over = async {
            while rustix::process::test_kill_process(pid).is_ok() || lock.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), over).await.expect("the hook is ended");
    }

    #[tokio::test]
    async fn a_daemon_of_a_hook_does_not_keep_us_waiting() {
        let sample = Sample::new();
        sample.hook("pre-commit", "sleep 1000 & echo $! >.git/daemon");
        sample.write("a.txt", "two");
        Git::new(&sample.main).text(["commit", "-am", "two"]).await.unwrap();
        let pid = std::fs::read_to_string(sample.main.join(".git/daemon")).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
}
