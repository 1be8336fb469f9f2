//! A place to work: a git work tree for a child, what is merged into it before, and what becomes of it afterwards.

use super::{
    child::{Child, Finished},
    settling::{Decision, End, STOPPED},
    worker::what,
};
use crate::{
    environment::host,
    identity::process::own_program,
    names::{digest, unique},
    output::text::{line, shell_quoted},
    supervise::{LeaseRenewer, Service, is_finished},
    trailer::Trailer,
    worktree::{self, Attempt, Created, Plan, Repository, Tree, branch_of, some},
};
use fencepost::{
    Code, Error, Millis, Op, Result, admin,
    agent::Type,
    claim, lock, run,
    task::{self, Task},
};
use fencepost_client::renewal;
use std::time::Duration;
use tokio::time::timeout;

/// How long to wait until the attempt before ours has left its tree. A frozen worker does not leave it.
const LEAVING: Duration = Duration::from_secs(10);

/// The longest name of a lock.
const LOCK_MAX: usize = 128;

/// Errors of the whole machine, in the words of the system and of git.
const OF_MACHINE: [&str; 6] = [
    "No space left on device",
    "Disk quota exceeded",
    "Permission denied",
    "Read-only file system",
    "Too many open files",
    "there is no program `git`",
];

/// Where a child works.
pub enum Place {
    /// Where the worker was started.
    Here,
    Tree(Box<Tree>),
    /// There is none, or it cannot be prepared, and this is what becomes of the work.
    None(Decision, Option<Box<Tree>>),
}

/// The claim under which a step is done.
#[derive(Clone, Copy)]
enum Under {
    Claim,
    /// The child completed its task itself, so nobody else can get it any more.
    NoClaim,
}

impl Under {
    fn of(settled: bool) -> Self {
        if settled { Under::NoClaim } else { Under::Claim }
    }
}

impl Place {
    pub fn tree(&self) -> Option<&Tree> {
        match self {
            Place::Tree(tree) => Some(tree),
            _ => None,
        }
    }
}

impl Child<'_> {
    /// Makes the place, and prepares it.
    pub async fn place(&self) -> Result<Place> {
        let Some(repository) = &self.worker.crew.repository else { return Ok(Place::Here) };
        let repository = repository.for_run(&self.trigger.run);
        let making = async { Ok(repository.create(&self.plan(&repository).await?).await) };
        let created = match self.step(Under::Claim, Millis(0), making).await? {
            Ok(created) => created?,
            Err(decision) => return Ok(Place::None(decision, None)),
        };
        match created {
            Err(error) => Ok(Place::None(not_made(error)?, None)),
            Ok(Created::Conflict { branches, files }) => Ok(Place::None(conflict(&branches, &files), None)),
            Ok(Created::Ready(tree)) => {
                self.set_tree(&tree);
                match self.prepare(&tree).await {
                    Ok(Some(decision)) => Ok(Place::None(decision, Some(tree))),
                    Ok(None) => Ok(Place::Tree(tree)),
                    Err(error) => {
                        let _ = tree.finish(false).await;
                        Err(error)
                    }
                }
            }
        }
    }

    /// Does a part of the work that is no command. The worker gives it up when the time of the child is over, and when it is told to
    /// end itself, after a `grace`.
    async fn step<T>(
        &self,
        under: Under,
        grace: Millis,
        work: impl Future<Output = T>,
    ) -> Result<Result<T, Decision>> {
        let (max_time, stop) = (self.worker.crew.args.max_time, &self.worker.service.stop);
        let left = Millis(self.began + max_time.0 - renewal::now());
        let work = async {
            match under {
                Under::NoClaim => Ok(work.await),
                Under::Claim => self.renewer.while_held(work).await,
            }
        };
        let ending = async {
            stop.ending().await;
            tokio::time::sleep(grace.into()).await;
        };
        tokio::select! {
            done = work => done.map(Ok),
            () = ending => Ok(Err(Decision::released(STOPPED))),
            () = tokio::time::sleep(left.into()) => {
                Ok(Err(Decision::failed(format!("max_time: it took more than {max_time}"))))
            }
        }
    }

    /// The task that the child does. A review of an offer changes no files.
    fn task(&self) -> Option<&Task> {
        let does = matches!(self.trigger.kind, Type::TaskAssigned | Type::PoolTask);
        self.trigger.task.as_ref().filter(|_| does)
    }

    fn attempt(&self) -> Option<Attempt> {
        let task = self.task()?;
        let (_, fence) = self.renewer.token().rsplit_once('@')?;
        Some(Attempt { id: task.id.clone(), fence: fence.parse().ok()? })
    }

    async fn plan(&self, repository: &Repository) -> Result<Plan> {
        let args = &self.worker.crew.args;
        let mut after = Vec::new();
        for dependency in self.task().map_or(&[][..], |task| &task.after) {
            if dependency.status == task::Status::Completed {
                after.extend(self.finished_branch(repository, &dependency.id).await?);
            }
        }
        let reuse = match (args.reuse_tree, self.task()) {
            (true, Some(task)) => repository.kept(&task.id).into_iter().next(),
            _ => None,
        };
        if let Some(tree) = &reuse {
            // The worker before us gave the task back, and may still be looking at the tree.
            let _ = timeout(LEAVING, worktree::until_left(tree)).await;
        }
        Ok(Plan {
            task: self.attempt(),
            after,
            base: args.base.clone().unwrap_or_else(|| "HEAD".into()),
            reuse,
        })
    }

    /// The branch of the attempt that completed a task. (The log of events need not have it: events are pruned, and PostgreSQL shows
    /// an event only after all transactions that began before it.)
    async fn finished_branch(&self, repository: &Repository, id: &str) -> Result<Option<String>> {
        for fence in repository.fences(id).await? {
            // The refusal says how the claim ended.
            let renew = claim::Renew::new(format!("task/{id}@{fence}"));
            let renewed = self.worker.service.call_until_answered(renew).await;
            if !renewed.is_err_and(|error| is_finished(&error)) {
                continue;
            }
            let branch = branch_of(id, fence);
            // Its child said that the task is done, and its worker may still be committing the files. Not for ever: that child may
            // be waiting for this task.
            let stall = self.worker.crew.args.stall.into();
            timeout(stall, repository.until_left(&branch)).await.unwrap_or(Ok(()))?;
            return Ok(Some(branch));
        }
        let line = format!("{}: {} starts without the files of {id}", self.worker.agent, what(self.trigger));
        self.worker.crew.report.notice_line(&format!("{line}: this repository has no branch of it"));
        Ok(None)
    }

    /// Copies files into a tree, and runs its setup. Returns what becomes of the work if that fails.
    async fn prepare(&self, tree: &Tree) -> Result<Option<Decision>> {
        let args = &self.worker.crew.args;
        if tree.is_ready().await? {
            return Ok(None);
        }
        match self.step(Under::Claim, Millis(0), tree.copy(&args.copy)).await? {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return not_made(error).map(Some),
            Err(decision) => return Ok(Some(decision)),
        }
        if let Some(setup) = &args.setup {
            let mut command = tree.setup_command(setup);
            self.withhold_key(&mut command);
            self.set_environment(&mut command);
            let Some(Finished { end, tail, .. }) = self.supervise(command, Vec::new(), &()).await? else {
                return Ok(Some(Decision::released("its setup was not started")));
            };
            let last = tail.lines().next_back().unwrap_or_default();
            match end {
                End::Exited(0) => {}
                End::Exited(code) => {
                    return Ok(Some(Decision::failed(format!("setup exited with {code}: {last}"))));
                }
                End::Interrupted(reason) => return Ok(Some(Decision::failed(format!("setup {reason}")))),
                End::Stopped => return Ok(Some(Decision::released(STOPPED))),
                End::Lost(reason) => return Ok(Some(Decision::released(reason))),
            }
        }
        tree.set_ready().await?;
        Ok(None)
    }

    /// Commits for the child, if its client cannot, and merges its branch. Returns another decision if that fails. `settled`: the
    /// child completed its task itself.
    pub async fn integrate(&self, tree: &Tree, settled: bool) -> Result<Option<Decision>> {
        let crew = self.worker.crew;
        let (Some(task), Some(branch)) = (self.task(), &tree.branch) else { return Ok(None) };
        if !crew.profile.worker_commits && crew.args.merge_into.is_none() {
            return Ok(None);
        }
        let fleet = self.worker.service.call_until_answered(admin::About {}).await?.fleet;
        let token = self.renewer.token().parse().map_err(Error::internal)?;
        let trailer =
            Trailer::new(token, &fleet).ok_or_else(|| Error::internal("a claim without a trailer"))?;
        // A title may have several lines, and one of them could be a trailer.
        let message = format!("{}\n\n{trailer}", line(&task.title));
        if crew.profile.worker_commits {
            let commit = tree.commit_all(&message, &self.worker.agent);
            let committed = self.step(Under::of(settled), crew.args.grace, commit).await?;
            let decision = match committed {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(Decision::failed(format!("commit: {}", error.message()))),
                Err(decision) => Some(decision),
            };
            match decision {
                Some(decision) if settled => {
                    let told =
                        format!("the changes in {} on {} are not committed", tree.path.display(), host());
                    self.not_integrated(task, &told, &decision, None).await;
                    return Ok(None);
                }
                Some(decision) => return Ok(Some(decision)),
                None => {}
            }
        }
        let Some(into) = &crew.args.merge_into else { return Ok(None) };
        match self.merge(branch, into, &format!("Merge {branch}: {message}"), settled).await? {
            // The task is completed, and stays so. What is missing becomes a task of its own.
            Some(decision) if settled => {
                let told = format!("`{branch}` is not merged into `{into}`");
                let mend = format!("Merge `{into}` into your branch, resolve the conflicts, and commit");
                self.not_integrated(task, &told, &decision, Some(mend)).await;
                Ok(None)
            }
            decision => Ok(decision),
        }
    }

    /// Merges under the lock of the branch, and under the claim on the task.
    async fn merge(
        &self,
        branch: &str,
        into: &str,
        message: &str,
        settled: bool,
    ) -> Result<Option<Decision>> {
        let service = &self.worker.service;
        let Some(repository) = &self.worker.crew.repository else { return Ok(None) };
        // A claim on the task is renewed with the lock if one run holds both.
        let run = if settled { unique("merge-") } else { self.trigger.run.clone() };
        let lock = match self.step(Under::of(settled), Millis(0), self.lock(into, &run)).await? {
            Ok(Ok(lock)) => lock,
            Ok(Err(error)) => return Ok(Some(not_merged(&error))),
            Err(decision) => return Ok(Some(decision)),
        };
        let others = if settled { Vec::new() } else { self.trigger.claims.clone() };
        let file = self.worker.crew.database_file.clone();
        let renewer = LeaseRenewer::new(&service.connection, file, lock.clone()).and(others);
        let mut command = repository.merge_command(branch, into, message);
        self.set_environment(&mut command);
        let program = shell_quoted(&own_program());
        let tokens = [Some(lock.token.as_str()), (!settled).then_some(self.renewer.token())];
        let guards: Vec<String> =
            tokens.into_iter().flatten().map(|token| format!("{program} guard {token}")).collect();
        command.env("FENCE_MERGE_GUARD", guards.join(" && "));
        service.context.pass_on(&mut command)?;
        let merged = self.supervise_under(renewer, command, Vec::new(), &()).await;
        self.unlock(&lock.token, settled.then_some(run)).await;
        let Finished { end, output, tail, .. } = match merged {
            Ok(Some(finished)) => finished,
            Ok(None) => return Ok(Some(Decision::released("its merge was not started"))),
            Err(error) => return Ok(Some(not_merged(&error))),
        };
        Ok(match end {
            End::Exited(0) => None,
            End::Exited(1) => {
                let files: Vec<String> = output.lines().map(str::to_owned).collect();
                Some(conflict(&[into.to_owned(), branch.to_owned()], &files))
            }
            End::Stopped => Some(Decision::released(STOPPED)),
            End::Lost(reason) => Some(Decision::released(reason)),
            End::Exited(_) | End::Interrupted(_) => {
                let last = tail.lines().next_back().unwrap_or_default();
                Some(Decision::failed(format!("merge: {last}")))
            }
        })
    }

    /// Waits for the lock of a branch.
    async fn lock(&self, branch: &str, run: &str) -> Result<claim::Claim> {
        loop {
            let claim = lock::Claim {
                name: lock_name(branch),
                run: run.into(),
                agent: Some(self.worker.agent.clone()),
                ttl_ms: Some(self.worker.crew.args.ttl),
                max_ms: None,
                wait_ms: Some(fencepost::WAIT_MAX),
                resume: false,
                request: Some(unique("")),
            };
            let answer = self.worker.service.call_until_answered(claim).await;
            if !lock::Claim::not_yet(answer.as_ref()) {
                return answer.map(|held| held.claim);
            }
        }
    }

    /// Gives the lock back. If that fails, its lease ends soon.
    async fn unlock(&self, token: &str, run: Option<String>) {
        let release = claim::Release::new(token);
        let _ = self.worker.service.connection.call(release).await;
        if let Some(run) = run {
            let _ = self.worker.service.connection.call(run::End { run, ..run::End::default() }).await;
        }
    }

    /// The task is done, but its work is not where it should be. If another attempt can `mend` that, the task is done once more. Once:
    /// a person looks at a second failure.
    async fn not_integrated(&self, task: &Task, told: &str, decision: &Decision, mend: Option<String>) {
        let reason = decision.reason.clone().unwrap_or_default();
        let told = format!("{told}: {}", reason.split("; ").next().unwrap_or_default());
        let service = &self.worker.service;
        let request = Some(unique(""));
        let asked = match mend.filter(|_| task.reopens.is_none() && decision.for_good) {
            Some(mend) => {
                let reason = Some(format!("{told}. {mend}"));
                let reopen = task::Reopen { task: task.id.clone(), reason, to: None, request };
                let reopened = service.call_until_answered(reopen).await;
                reopened.map(|reopened| format!("it is done again as {}", reopened.task.id))
            }
            None => {
                let note = task::Note { task: task.id.clone(), text: told.clone(), request };
                service.call_until_answered(note).await.map(|_| "do it by hand".to_owned())
            }
        };
        let next = asked.unwrap_or_else(|error| {
            service.warn(&error);
            "do it by hand".to_owned()
        });
        let line = format!("{}: {} is done, but {told}; {next}", self.worker.agent, task.id);
        self.worker.crew.report.notice_line(&line);
    }

    /// Removes the tree, or keeps it and says so in the task's notes. Returns the directory of a tree that was kept.
    pub async fn leave(&self, tree: Box<Tree>, decision: &Decision) -> Option<String> {
        let done = decision.outcome == run::settle::Outcome::Done;
        let returns = decision.outcome == run::settle::Outcome::Released && self.worker.crew.args.reuse_tree;
        let branch = tree.branch.clone();
        let finished = match (returns, tree.status().await) {
            // The next attempt goes on with the commits.
            (true, Ok(status)) if status.commits => Ok(worktree::Finished::Kept {
                path: tree.path.clone(),
                why: "the next attempt can take it over".into(),
            }),
            _ => tree.finish(done).await,
        };
        let (path, why) = match finished {
            Ok(worktree::Finished::Removed) => return None,
            Ok(worktree::Finished::Kept { path, why }) => (path.display().to_string(), why),
            Err(error) => {
                self.worker.service.warn(&error);
                return None;
            }
        };
        if let Some(task) = self.task() {
            let branch = branch.map_or(String::new(), |branch| format!(", branch {branch}"));
            self.worker
                .note_kept(&task.id, &self.trigger.run, &format!("{path} on {}{branch}; {why}", host()))
                .await;
        }
        Some(path)
    }
}

fn conflict(branches: &[String], files: &[String]) -> Decision {
    let reason = format!(
        "merge_conflict: {} conflict in {}; merge them by hand in one of the branches, then fence retry",
        branches.join(" and "),
        some(files)
    );
    Decision { for_good: true, ..Decision::failed(reason) }
}

/// A tree that cannot be made is a failed attempt: it may be because of the task, or of the branches that it waited for. An error of
/// the whole machine, or of the worker's options, stays one: it would use up the attempts of everything.
fn not_made(error: Error) -> Result<Decision> {
    let is_general = error.code() == Code::NotFound || OF_MACHINE.iter().any(|e| error.message().contains(e));
    if is_general { Err(error) } else { Ok(Decision::failed(format!("work tree: {}", error.message()))) }
}

/// The merge could not be begun.
fn not_merged(error: &Error) -> Decision {
    let reason = format!("merge: {}", error.message());
    if Service::may_pass(error) || lost(error) {
        Decision::released(reason)
    } else {
        Decision::failed(reason)
    }
}

/// The lock of a branch: `git/main`. The name of a lock has fewer characters, and git allows no `:` in a branch.
fn lock_name(branch: &str) -> String {
    let mut name = "git/".to_owned();
    for byte in branch.bytes() {
        match byte {
            b'.' | b'_' | b'-' | b'/' => name.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            _ => name.push_str(&format!(":{byte:02x}")),
        }
    }
    if name.len() > LOCK_MAX { format!("git/:{}", digest(branch)) } else { name }
}

/// Is this the error of a lost claim? (`while_held` returns no other that says so; git's errors have other codes.)
pub fn lost(error: &Error) -> bool {
    matches!(error.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_branch_has_a_lock_of_its_own() {
        assert_eq!(lock_name("release/1.0_x-y"), "git/release/1.0_x-y");
        assert_eq!(lock_name("fix#12+ä"), "git/fix:2312:2b:c3:a4");
        let long = ["a".repeat(200), "b".repeat(200)].map(|branch| lock_name(&branch));
        assert!(long[0] != long[1] && long[0].len() < 20, "{long:?}");
    }

    #[test]
    fn a_conflict_in_many_files_has_a_short_reason() {
        let files: Vec<String> = (0..400).map(|n| format!("directory/with/a/long/name/{n}.txt")).collect();
        let reason = conflict(&["main".into(), "fence/a-1@1".into()], &files).reason.unwrap();
        assert!(reason.contains("and 395 more; merge them by hand") && reason.len() < 500, "{reason}");
    }

    #[test]
    fn a_full_disk_fails_no_attempt() {
        let full = Error::unavailable("git failed: cannot create x: No space left on device");
        assert!(not_made(full).is_err());
        let unrelated = Error::unavailable("git failed: refusing to merge unrelated histories");
        let reason = "work tree: git failed: refusing to merge unrelated histories";
        assert_eq!(not_made(unrelated).unwrap(), Decision::failed(reason));
    }
}
