//! A place to work: a git work tree for a child, what is merged into it before, and what becomes of it afterwards.

use super::{
    child::{Child, Finished},
    settling::{Decision, End},
};
use crate::{
    identity::process::own_program,
    names::unique,
    supervise::LeaseRenewer,
    worktree::{self, Attempt, Created, Plan, Repository, Tree, branch_of},
};
use fencepost::{
    Code, Error, Result,
    agent::Type,
    event, lock, run,
    task::{self, Task},
};
use std::time::Duration;

/// Where a child works.
pub enum Place {
    /// Where the worker was started.
    Here,
    Tree(Box<Tree>),
    /// There is none, or it cannot be prepared, and this is what becomes of the work.
    None(Decision, Option<Box<Tree>>),
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
        let plan = self.renewer.while_held(self.plan(repository)).await??;
        match self.renewer.while_held(repository.create(&plan)).await?? {
            Created::Conflict { branches, files } => Ok(Place::None(conflict(&branches, &files), None)),
            Created::Ready(tree) => {
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
            after.extend(self.finished_branch(&dependency.id).await?);
        }
        let reuse = match (args.reuse_tree, self.task()) {
            (true, Some(task)) => repository.kept(&task.id).into_iter().next(),
            _ => None,
        };
        Ok(Plan {
            task: self.attempt(),
            after,
            base: args.base.clone().unwrap_or_else(|| "HEAD".into()),
            reuse,
        })
    }

    /// The branch of the attempt that completed a task.
    async fn finished_branch(&self, id: &str) -> Result<Option<String>> {
        let mut since = None;
        loop {
            let resource = Some(format!("task/{id}"));
            let list = event::List { since, resource, limit: Some(1000), ..event::List::default() };
            let page = self.worker.service.call_until_answered(list).await?;
            let completed = page.events.iter().rfind(|event| event.kind == "task.completed");
            if let Some(event) = completed {
                self.run_ended(event.run.as_deref()).await?;
                return Ok(event.fence.map(|fence| branch_of(id, fence)));
            }
            if !page.more {
                return Ok(None);
            }
            since = Some(page.position);
        }
    }

    /// Waits until the run that completed a task has ended: the child said that the task is done, and its worker may still be
    /// committing its files. If the child lives on, this ends with the lease of its run.
    async fn run_ended(&self, run: Option<&str>) -> Result<()> {
        let Some(run) = run else { return Ok(()) };
        loop {
            let list = run::List { run: Some(run.into()), all: true, limit: Some(1) };
            let runs = self.worker.service.call_until_answered(list).await?.runs;
            if !runs.first().is_some_and(|run| run.alive && run.trigger.is_some()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Copies files into a new tree, and runs its setup. Returns what becomes of the work if that fails.
    async fn prepare(&self, tree: &Tree) -> Result<Option<Decision>> {
        let args = &self.worker.crew.args;
        if tree.was_taken_over {
            return Ok(None);
        }
        tree.copy(&args.copy).await?;
        let Some(setup) = &args.setup else { return Ok(None) };
        let mut command = tree.setup_command(setup);
        self.set_environment(&mut command);
        let Some(Finished { end, tail, .. }) = self.supervise(command, Vec::new(), &()).await? else {
            return Ok(Some(Decision::released("its setup was not started")));
        };
        let last = tail.lines().next_back().unwrap_or_default();
        Ok(match end {
            End::Exited(0) => None,
            End::Exited(code) => Some(Decision::failed(format!("setup exited with {code}: {last}"))),
            End::Interrupted(reason) => Some(Decision::failed(format!("setup {reason}"))),
            End::Stopped => Some(Decision::released(super::settling::STOPPED)),
            End::Lost(reason) => Some(Decision::released(reason)),
        })
    }

    /// Commits for the child, if its client cannot, and merges its branch. Returns another decision if that fails. `settled`: the
    /// child completed its task itself.
    pub async fn integrate(&self, tree: &Tree, settled: bool) -> Result<Option<Decision>> {
        let crew = self.worker.crew;
        let (Some(task), Some(branch)) = (self.task(), &tree.branch) else { return Ok(None) };
        let message = format!("{}\n\nFence: {}", task.title, self.renewer.token());
        if crew.profile.worker_commits {
            let committed = match settled {
                // Nobody else can get the task any more.
                true => tree.commit_all(&message, &self.worker.agent).await,
                false => self.renewer.while_held(tree.commit_all(&message, &self.worker.agent)).await?,
            };
            if let Err(error) = committed {
                return Ok(Some(Decision::failed(format!("commit: {}", error.message()))));
            }
        }
        let Some(into) = &crew.args.merge_into else { return Ok(None) };
        let decision = self.merge(branch, into, &format!("Merge {branch}: {message}"), settled).await?;
        match decision {
            // The task is completed, and stays so. What is missing becomes a task of its own.
            Some(decision) if settled => {
                self.not_merged(task, branch, into, &decision).await?;
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
        let Some(repository) = &self.worker.crew.repository else { return Ok(None) };
        // A claim on the task is renewed with the lock if one run holds both.
        let run = if settled { unique("merge-") } else { self.trigger.run.clone() };
        let claim = lock::Claim {
            name: format!("git/{into}"),
            run: run.clone(),
            agent: Some(self.worker.agent.clone()),
            ttl_ms: Some(self.worker.crew.args.ttl),
            max_ms: None,
            wait_ms: Some(fencepost::WAIT_MAX),
            resume: false,
            request: Some(unique("")),
        };
        let locking = self.worker.service.call_until_answered(claim);
        let held = match settled {
            true => locking.await,
            false => self.renewer.while_held(locking).await?,
        }?;
        let others = if settled { Vec::new() } else { self.trigger.claims.clone() };
        let renewer = LeaseRenewer::new(
            &self.worker.service.connection,
            self.worker.crew.database_file.clone(),
            held.claim.clone(),
        );
        let mut command = repository.merge_command(branch, into, message);
        self.set_environment(&mut command);
        if !settled {
            let program = own_program().display().to_string().replace('\'', "'\\''");
            command.env("FENCE_MERGE_GUARD", format!("'{program}' guard {}", self.renewer.token()));
        }
        self.worker.service.context.pass_on(&mut command)?;
        let merged = self.supervise_under(renewer.and(others), command, Vec::new(), &()).await;
        self.unlock(&held.claim.token, settled.then_some(run)).await;
        let Some(Finished { end, output, tail, .. }) = merged? else { return Ok(None) };
        Ok(match end {
            End::Exited(0) => None,
            End::Exited(1) => {
                let files: Vec<String> = output.lines().map(str::to_owned).collect();
                Some(conflict(&[into.to_owned(), branch.to_owned()], &files))
            }
            End::Stopped => Some(Decision::released(super::settling::STOPPED)),
            End::Lost(reason) => Some(Decision::released(reason)),
            End::Exited(_) | End::Interrupted(_) => {
                let last = tail.lines().next_back().unwrap_or_default();
                Some(Decision::failed(format!("merge: {last}")))
            }
        })
    }

    /// Gives the lock back. If that fails, its lease ends soon.
    async fn unlock(&self, token: &str, run: Option<String>) {
        let release = fencepost::claim::Release::new(token);
        let _ = self.worker.service.connection.call(release).await;
        if let Some(run) = run {
            let _ = self.worker.service.connection.call(run::End { run, ..run::End::default() }).await;
        }
    }

    /// The task is done but not merged: it is done once more, from its branch. Once: a person looks at a second failure.
    async fn not_merged(&self, task: &Task, branch: &str, into: &str, decision: &Decision) -> Result<()> {
        let reason = decision.reason.clone().unwrap_or_default();
        let reason = reason.split("; ").next().unwrap_or_default();
        let told = format!("`{branch}` is not merged into `{into}`: {reason}");
        let service = &self.worker.service;
        let what = if task.reopens.is_some() || !decision.for_good {
            let note = task::Note { task: task.id.clone(), text: told.clone(), request: Some(unique("")) };
            service.call_until_answered(note).await?;
            "merge it by hand".to_owned()
        } else {
            let reopen = task::Reopen {
                task: task.id.clone(),
                reason: Some(format!(
                    "{told}. Merge `{into}` into your branch, resolve the conflicts, and commit"
                )),
                to: None,
                request: Some(unique("")),
            };
            let reopened = service.call_until_answered(reopen).await?;
            format!("it is done again as {}", reopened.task.id)
        };
        self.worker
            .crew
            .report
            .notice_line(&format!("{}: {} is done, but {told}; {what}", self.worker.agent, task.id));
        Ok(())
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
            let host = crate::environment::host();
            let text =
                format!("the work tree of {} is kept: {path} on {host}{branch}; {why}", self.trigger.run);
            let note = task::Note { task: task.id.clone(), text, request: Some(unique("")) };
            if let Err(error) = self.worker.service.call_until_answered(note).await {
                self.worker.service.warn(&error);
            }
        }
        Some(path)
    }
}

fn conflict(branches: &[String], files: &[String]) -> Decision {
    let reason = format!(
        "merge_conflict: {} conflict in {}; merge them by hand in one of the branches, then fence retry",
        branches.join(" and "),
        files.join(", ")
    );
    Decision { for_good: true, ..Decision::failed(reason) }
}

/// Is this the error of a lost claim? (`while_held` returns no other that says so; git's errors have other codes.)
pub fn lost(error: &Error) -> bool {
    matches!(error.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled)
}
