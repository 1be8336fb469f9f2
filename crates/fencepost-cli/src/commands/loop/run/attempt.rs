//! One attempt at a story: from its claim to its verdict.

use super::{
    Chain, branch,
    command::Finished,
    config::{CHECKS, Kind, Step},
    look::{Evidence, Looking},
    printed::{Printed, read},
    resume::{self, Begin, Known},
};
use crate::{
    output::text::{fit, line},
    supervise::{self, LeaseRenewer},
    trailer::Trailer,
    worktree::{self, Finished as Left, Repository, Tree},
};
use fencepost::{
    Code, Error, Result, Token,
    claim::Claim,
    loops::{
        self, Judgement, StepView, StoryView,
        next::{Learned, NextStory},
    },
};
use serde_json::json;
use std::process::Command;

/// The longest feedback that is stored.
pub const FEEDBACK: usize = 12 * 1024;

pub struct Attempt<'c> {
    pub chain: &'c Chain<'c>,
    pub claim: Claim,
    pub token: Token,
    pub story: StoryView,
    /// The finished steps of this round.
    pub steps: Vec<StepView>,
    learned: Vec<Learned>,
    pub renewer: LeaseRenewer,
    pub repository: Repository,
}

/// How an attempt ended.
pub enum Ended {
    /// It gave a verdict.
    Judged,
    /// The chain was told to stop, and the story goes back.
    Stopped,
    /// The claim is over, with this status.
    Lost(String),
}

/// Why an attempt cannot go on.
#[derive(Debug)]
pub enum Halt {
    Stopped,
    /// The claim is over: at this boundary, with this status.
    Lost {
        at: String,
        status: String,
    },
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        // A repository may also not find something.
        match error.ends_claim() && error.code() != Code::NotFound {
            true => Halt::Lost { at: "claim".into(), status: error.code().as_str().to_owned() },
            false => Halt::Failed(error),
        }
    }
}

/// Where a step runs: in the story's tree, or in one that is exactly at the commit.
pub enum On<'a, 't> {
    Story(&'a Tree),
    Commit(&'a Evidence, &'a mut Looking<'t>),
}

/// The verdict that the steps lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Judgement,
    pub feedback: Option<String>,
}

impl Decision {
    pub fn fail(feedback: impl AsRef<str>) -> Self {
        Self { verdict: Judgement::Fail, feedback: Some(fit(feedback.as_ref(), FEEDBACK)) }
    }
}

impl<'c> Attempt<'c> {
    pub fn begin(chain: &'c Chain<'c>, next: NextStory) -> Result<Self> {
        let missing = || Error::internal("a story without a claim");
        let claim = next.claim.ok_or_else(missing)?;
        let story = next.story.ok_or_else(missing)?;
        let token: Token = claim.token.parse().map_err(Error::internal)?;
        let renewer =
            LeaseRenewer::new(&chain.service.connection, chain.database_file.clone(), claim.clone());
        let mut repository = chain.repository.clone();
        for (name, value) in chain.variables(&claim.token, &story.id) {
            repository = repository.with_variable(name, value);
        }
        Ok(Self { chain, token, story, steps: next.steps, learned: next.learned, renewer, repository, claim })
    }

    pub async fn run(mut self) -> Result<Ended> {
        let round =
            json!({ "round": self.story.retries, "attempt": self.story.attempts, "token": self.claim.token });
        self.chain.report.story(&self.story.id, "claim", "ok", round);
        match self.work().await {
            Ok(()) => Ok(Ended::Judged),
            Err(Halt::Stopped) => {
                self.chain.report.story(&self.story.id, "chain", "stopped", json!({}));
                Ok(Ended::Stopped)
            }
            Err(Halt::Lost { at, status }) => {
                self.chain.report.story(&self.story.id, &at, &status, json!({}));
                Ok(Ended::Lost(status))
            }
            Err(Halt::Failed(error)) => Err(error),
        }
    }

    async fn work(&mut self) -> Result<(), Halt> {
        self.guard("dispatch").await?;
        let tree = self.place().await?;
        let decided = self.decide(&tree).await;
        let judged = match decided {
            Ok(decision) => self.judge(decision).await,
            Err(halt) => Err(halt),
        };
        // A tree of an attempt that cannot go on is looked at by the next one.
        if judged.is_ok()
            && let Left::Kept { path, why } = tree.finish(true).await?
        {
            let kept = format!("{} is kept: {why}", path.display());
            self.chain.report.story(&self.story.id, "tree", "kept", json!({ "message": kept }));
        }
        judged
    }

    /// The guard before every side effect: the claim must be alive.
    pub async fn guard(&self, at: &str) -> Result<(), Halt> {
        let guard = loops::Guard { token: self.claim.token.clone() };
        let reply = self.chain.service.call_until_answered(guard).await?;
        match reply.ok {
            true => Ok(()),
            false => Err(Halt::Lost { at: at.to_owned(), status: reply.status }),
        }
    }

    pub fn is_recorded(&self, name: &str) -> bool {
        self.steps.iter().any(|step| step.name == name)
    }

    /// Makes the story's tree, on its branch: at the last recorded commit, at one that was made and not recorded, or at the loop's
    /// branch.
    async fn place(&mut self) -> Result<Tree, Halt> {
        let (id, story) = (self.chain.id.clone(), self.story.id.clone());
        let begin = self.held(self.where_to_begin()).await??;
        let (start, adopted) = match begin {
            Begin::At(commit) => (commit, None),
            Begin::Adopt { commit, step } => (commit, Some(step)),
        };
        let attempt = worktree::Attempt { id: self.token.resource.id().to_owned(), fence: self.token.fence };
        let name = branch::of_story(&id, &story);
        let making = self.repository.create_on(&attempt, &name, &start);
        let (tree, aside) = self.held(making).await??;
        if let Some(aside) = aside {
            let message = format!("unfinished commits are kept on {aside}");
            self.chain.report.story(&story, "branch", "reset", json!({ "message": message }));
        }
        if let Some(step) = adopted {
            let data = json!({ "adopted": true });
            self.chain.report.story(&story, &step, "adopted", json!({ "commit": start }));
            self.record(&step, Some(start), Printed { data: Some(data), ..Printed::default() }).await?;
        }
        self.prepare(&tree).await?;
        Ok(tree)
    }

    async fn where_to_begin(&self) -> Result<Begin> {
        let repository = &self.repository;
        let missing = |what: String| {
            Error::new(Code::NotFound, format!("{what} is not in this repository"))
                .hint("run the chain in the repository where it was made, or fetch it from there")
        };
        let main = branch::main(&self.chain.id);
        let base = repository.commit(&format!("refs/heads/{main}")).await?;
        let base = base.ok_or_else(|| missing(format!("the branch `{main}`")))?;
        let recorded = self.story.commit.as_deref();
        if let Some(commit) = recorded
            && repository.commit(commit).await?.is_none()
        {
            return Err(missing(format!(
                "commit {commit}, which a step of story `{}` recorded,",
                self.story.id
            )));
        }
        let newest = repository.newest(&branch::of_story(&self.chain.id, &self.story.id)).await?;
        let contains_recorded = match (&newest, recorded) {
            (Some(newest), Some(recorded)) => repository.contains(&newest.id, recorded).await?,
            (newest, None) => newest.is_some(),
            (None, _) => false,
        };
        let next = self.chain.config.steps.iter().find(|step| !self.is_recorded(&step.name));
        Ok(resume::begin(&Known {
            token: &self.token,
            fleet: &self.chain.fleet,
            recorded,
            base: &base,
            newest: newest.as_ref(),
            contains_recorded,
            next_step: next.filter(|step| step.kind == Kind::Work).map(|step| step.name.as_str()),
            round_after: self.story.round_after,
        }))
    }

    /// Copies files into a tree, and runs its setup.
    pub async fn prepare(&self, tree: &Tree) -> Result<(), Halt> {
        let config = &self.chain.config;
        self.held(tree.copy(&config.copy)).await??;
        let Some(setup) = &config.setup else { return Ok(()) };
        self.guard("setup").await?;
        let command = self.command(setup, tree, "setup")?;
        let finished =
            self.execute(self.renewer.clone(), command, Vec::new(), fencepost::Millis::minutes(30)).await?;
        match finished.is_success() {
            true => Ok(()),
            // It would fail for every story.
            false => Err(Error::new(Code::Invalid, finished.reason("`setup`")).into()),
        }
    }

    /// A command line in a tree, with the environment of the story.
    pub fn command(&self, line: &str, tree: &Tree, step: &str) -> Result<Command> {
        let words = ["sh", "-c", line].map(Into::into);
        let mut command = supervise::command(&words, &self.claim, self.chain.service.context)?;
        tree.enter(&mut command);
        command.envs(self.chain.variables(&self.claim.token, &self.story.id));
        command.env("FENCE_STEP", step).env("FENCE_ROUND", self.story.retries.to_string());
        Ok(command)
    }

    /// Runs the steps that are not recorded, and returns the verdict that they lead to.
    async fn decide(&mut self, tree: &Tree) -> Result<Decision, Halt> {
        let steps = &self.chain.config.steps;
        for step in steps.iter().filter(|step| step.kind == Kind::Work) {
            self.go_on()?;
            if !self.is_recorded(&step.name)
                && let Some(failed) = self.work_step(step, tree).await?
            {
                return Ok(failed);
            }
        }
        if self.is_merged().await? {
            // A chain died between the merge and the verdict: the commit was judged before.
            let more = json!({ "commit": self.story.commit });
            self.chain.report.story(&self.story.id, "merge", "merged before", more);
            return Ok(Decision { verdict: Judgement::Pass, feedback: None });
        }
        let evidence = match self.evidence().await? {
            Ok(evidence) => evidence,
            Err(nothing) => return Ok(nothing),
        };
        let mut looking = Looking { tree, other: None };
        let decided = self.look_at(&evidence, &mut looking).await;
        if let Some(other) = looking.other {
            let _ = other.finish(false).await;
        }
        decided
    }

    /// Does something that is no command, while the claim is renewed. A second signal gives it up.
    pub async fn held<T>(&self, work: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::select! {
            done = self.renewer.while_held(work) => match done {
                Ok(done) => Ok(done),
                // The guard says more about a claim that is over.
                Err(error) => {
                    self.guard("claim").await?;
                    Err(error.into())
                }
            },
            () = self.chain.service.stop.ending() => Err(Halt::Stopped),
        }
    }

    /// Is the recorded commit in the loop's branch? Only the merge of a story that passed brings it there.
    async fn is_merged(&self) -> Result<bool> {
        let commits: Vec<String> = self.story.commit.clone().into_iter().collect();
        let has_own = !commits.is_empty() && self.steps.iter().any(|step| step.commit == self.story.commit);
        Ok(has_own && self.repository.contains_all(&branch::main(&self.chain.id), &commits).await?)
    }

    /// A chain that is told to end does so between two steps.
    pub fn go_on(&self) -> Result<(), Halt> {
        if self.chain.service.stop.is_draining() { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// A step that changes files: runs it, and commits. Returns the failing verdict if it does not succeed.
    async fn work_step(&mut self, step: &Step, tree: &Tree) -> Result<Option<Decision>, Halt> {
        let start = tree.head().await?;
        let (finished, printed) = match self.tries(step, On::Story(tree)).await? {
            Ok(done) => done,
            Err(decision) => return Ok(Some(decision)),
        };
        self.guard("commit").await?;
        let message = self.message(step)?;
        let author = self.chain.author();
        let committing = tree.commit_step(&start, &message, &author);
        let commit = match self.held(committing).await? {
            Ok(commit) => commit,
            Err(error) => {
                // A hook of the repository refused it, perhaps because the claim is lost.
                self.guard("commit").await?;
                return Ok(Some(Decision::fail(format!(
                    "the work of step `{}` cannot be committed: {}",
                    step.name,
                    error.message()
                ))));
            }
        };
        let more = json!({ "commit": commit, "took_ms": finished.took.0 });
        self.record(&step.name, commit, printed).await?;
        self.chain.report.story(&self.story.id, &step.name, "ok", more);
        self.guard("next step").await?;
        Ok(None)
    }

    /// The message of a commit, with the trailers by which it is found again and fenced.
    fn message(&self, step: &Step) -> Result<String> {
        // A title may have several lines, and one of them could be a trailer.
        let (id, title, trailer) = (&self.story.id, line(&self.story.title), self.trailer()?);
        Ok(format!("{id}: {title} ({})\n\n{}: {}\n{trailer}\n", step.name, resume::STEP, step.name))
    }

    pub fn trailer(&self) -> Result<Trailer> {
        Trailer::new(self.token.clone(), &self.chain.fleet)
            .ok_or_else(|| Error::internal("a claim without a trailer"))
    }

    /// Runs a step, and tries it again if it fails. Returns what it printed, or the failing verdict.
    pub async fn tries(
        &self,
        step: &Step,
        mut on: On<'_, '_>,
    ) -> Result<Result<(Finished, Printed), Decision>, Halt> {
        let mut last = Decision::fail("");
        for attempt in 0..=step.retries as usize {
            let (place, evidence) = match &mut on {
                On::Story(tree) => ((*tree).clone(), None),
                // The try before may have changed something.
                On::Commit(evidence, looking) => (self.at(evidence, looking).await?, Some(*evidence)),
            };
            self.guard(&step.name).await?;
            let tool = step.tool(usize::try_from(self.story.retries).unwrap_or(0) + attempt);
            let (command, input) = self.step_command(step, tool, &place, evidence).await?;
            let finished = self.execute(self.renewer.clone(), command, input, step.timeout).await?;
            let what = format!("step `{}`", step.name);
            if let Some(why) = finished.not_the_storys() {
                return Err(Error::unavailable(format!("{what} {why}: {}", finished.last_line())).into());
            }
            let printed = read(&finished.stdout, step.json, step.kind == Kind::Judge);
            last = match (finished.is_success(), printed) {
                (true, Ok(printed)) => return Ok(Ok((finished, printed))),
                (true, Err(problem)) => Decision::fail(format!("{what} {problem}")),
                (false, _) => Decision::fail(finished.reason(&what)),
            };
            let more = json!({ "took_ms": finished.took.0, "message": last.feedback });
            self.chain.report.story(&self.story.id, &step.name, "failed", more);
        }
        Ok(Err(last))
    }

    /// The command of a step, and its context on standard input.
    async fn step_command(
        &self,
        step: &Step,
        tool: &str,
        place: &Tree,
        evidence: Option<&Evidence>,
    ) -> Result<(Command, Vec<u8>)> {
        let files = &self.chain.files;
        let commit = evidence.map(|evidence| evidence.commit.as_str()).or(self.story.commit.as_deref());
        let mut diff = None;
        if let Some(evidence) = evidence {
            let text = self.repository.diff(&evidence.base, &evidence.commit).await?;
            diff = Some(files.write_bytes("given/commit.diff", &text)?);
        }
        let checks = self.steps.iter().find(|step| step.name == CHECKS).and_then(|step| step.data.clone());
        let context = json!({
            "loop": self.chain.id, "step": step.name, "round": self.story.retries, "attempt": self.story.attempts,
            "story": {
                "id": self.story.id, "title": self.story.title, "description": self.story.description,
                "acceptance_criteria": self.story.acceptance_criteria, "task": self.story.task,
            },
            "feedback": self.story.feedback,
            "steps": self.steps.iter().map(|step| json!({
                "name": step.name, "data": step.data, "commit": step.commit,
            })).collect::<Vec<_>>(),
            "commit": commit, "base": evidence.map(|evidence| &evidence.base), "diff": diff,
            "checks": checks, "learned": self.learned,
            "branch": branch::of_story(&self.chain.id, &self.story.id), "directory": place.path,
        });
        let text = serde_json::to_string_pretty(&context).map_err(Error::internal)?;
        files.write("given/step.json", &text)?;
        let mut command = self.command(tool, place, &step.name)?;
        command.env("FENCE_STEP_FILE", files.path("given/step.json"));
        for (name, value) in [("FENCE_COMMIT", commit), ("FENCE_FEEDBACK", self.story.feedback.as_deref())] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        match diff {
            Some(file) => command.env("FENCE_DIFF", file),
            None => command.env_remove("FENCE_DIFF"),
        };
        Ok((command, text.into_bytes()))
    }

    /// Records a finished step, which renews the claim.
    pub async fn record(&mut self, name: &str, commit: Option<String>, printed: Printed) -> Result<(), Halt> {
        let step = loops::Step {
            token: self.claim.token.clone(),
            name: name.to_owned(),
            data: printed.data,
            commit,
            learned: printed.learned,
            cost: printed.cost,
            redo: false,
        };
        let recorded = match self.chain.service.call_until_answered(step.clone()).await {
            // A step may print more, or a stranger cost, than a fleet keeps.
            Err(error) if matches!(error.code(), Code::Invalid | Code::TooLarge) => {
                let kept = json!({ "not_kept": error.message() });
                let step = loops::Step { data: Some(kept), learned: None, cost: None, ..step };
                self.chain.service.call_until_answered(step).await
            }
            recorded => recorded,
        }?;
        (self.steps, self.story) =
            (recorded.steps, StoryView { claim: self.story.claim.clone(), ..recorded.story });
        Ok(())
    }

    /// Gives the verdict. A story that passes is merged first: those that wait for it start from there.
    async fn judge(&self, decision: Decision) -> Result<(), Halt> {
        let commit = self.story.commit.clone();
        let decision = match (decision.verdict, &commit) {
            (Judgement::Pass, Some(commit)) => match self.merge(commit).await? {
                None => decision,
                Some(conflict) => conflict,
            },
            _ => decision,
        };
        self.guard("verdict").await?;
        let verdict = loops::Verdict {
            token: self.claim.token.clone(),
            verdict: decision.verdict,
            commit,
            feedback: decision.feedback.clone(),
        };
        let judged = self.chain.service.call_until_answered(verdict).await?;
        let more = json!({ "verdict": decision.verdict.as_str(), "commit": self.story.commit, "message": decision.feedback });
        self.chain.report.story(&self.story.id, "verdict", judged.story.status.as_str(), more);
        Ok(())
    }
}
