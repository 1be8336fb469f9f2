//! One attempt at a story: from its claim to its verdict.

use super::{
    Chain, branch,
    command::Finished,
    config::{CHECKS, Kind, Step},
    resume::{self, Begin, Known},
};
use crate::{
    output::text::fit,
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
use serde_json::{Value, json};
use std::process::Command;

/// The longest feedback that is stored.
const FEEDBACK: usize = 12 * 1024;
/// The most of a check's output that the judge is shown.
const CHECK_OUTPUT: usize = 4 * 1024;

pub struct Attempt<'c> {
    pub chain: &'c Chain<'c>,
    pub claim: Claim,
    pub token: Token,
    pub story: StoryView,
    /// The finished steps of this round.
    steps: Vec<StepView>,
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
        match error.ends_claim() {
            true => Halt::Lost { at: "claim".into(), status: error.code().as_str().to_owned() },
            false => Halt::Failed(error),
        }
    }
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

/// The commit that is judged, and what the story changed up to it.
#[derive(Debug, Clone)]
struct Evidence {
    commit: String,
    base: String,
}

/// What a step printed.
#[derive(Debug, Default)]
struct Printed {
    data: Option<Value>,
    verdict: Option<Judgement>,
    feedback: Option<String>,
    learned: Option<String>,
    cost: Option<Value>,
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
        self.chain.report.story(&self.story.id, "plan", "claimed", round);
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

    fn is_recorded(&self, name: &str) -> bool {
        self.steps.iter().any(|step| step.name == name)
    }

    /// Makes the story's tree, on its branch: at the last recorded commit, at one that was made and not recorded, or at the loop's
    /// branch.
    async fn place(&mut self) -> Result<Tree, Halt> {
        let (id, story) = (self.chain.id.clone(), self.story.id.clone());
        let begin = self.renewer.while_held(self.where_to_begin()).await??;
        let (start, adopted) = match begin {
            Begin::At(commit) => (commit, None),
            Begin::Adopt { commit, step } => (commit, Some(step)),
        };
        let attempt = worktree::Attempt { id: self.token.resource.id().to_owned(), fence: self.token.fence };
        let name = branch::of_story(&id, &story);
        let making = self.repository.create_on(&attempt, &name, &start);
        let (tree, aside) = self.renewer.while_held(making).await??;
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
    async fn prepare(&self, tree: &Tree) -> Result<(), Halt> {
        let config = &self.chain.config;
        self.renewer.while_held(tree.copy(&config.copy)).await??;
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
    fn command(&self, line: &str, tree: &Tree, step: &str) -> Result<Command> {
        let words = ["sh", "-c", line].map(Into::into);
        let mut command = supervise::command(&words, &self.claim, self.chain.service.context)?;
        tree.enter(&mut command);
        command.envs(self.chain.variables(&self.claim.token, &self.story.id));
        command.env("FENCE_STEP", step).env("FENCE_ROUND", self.story.retries.to_string());
        Ok(command)
    }

    /// Runs the steps that are not recorded, and returns the verdict that they lead to.
    async fn decide(&mut self, tree: &Tree) -> Result<Decision, Halt> {
        let chain = self.chain;
        let mut looked_at: Option<(Evidence, Option<Tree>)> = None;
        let mut decision = None;
        for step in &chain.config.steps {
            if chain.service.stop.is_draining() {
                return Err(Halt::Stopped);
            }
            if step.kind == Kind::Work {
                if !self.is_recorded(&step.name)
                    && let Some(failed) = self.work_step(step, tree).await?
                {
                    return Ok(failed);
                }
                continue;
            }
            if looked_at.is_none() {
                looked_at = match self.evidence(tree).await? {
                    Ok(found) => Some(found),
                    Err(nothing) => return Ok(nothing),
                };
            }
            let Some((evidence, other)) = &looked_at else { continue };
            let place = other.as_ref().unwrap_or(tree);
            let (evidence, place) = (evidence.clone(), place.clone());
            self.checks(&place).await?;
            match self.look(step, &place, &evidence).await? {
                Some(decided) if step.kind == Kind::Judge || decided.verdict != Judgement::Pass => {
                    decision = Some(decided);
                    break;
                }
                _ => {}
            }
        }
        if looked_at.is_none() {
            // A config without a review: the checks decide.
            match self.evidence(tree).await? {
                Ok((evidence, other)) => {
                    self.checks(other.as_ref().unwrap_or(tree)).await?;
                    looked_at = Some((evidence, other));
                }
                Err(nothing) => return Ok(nothing),
            }
        }
        if let Some((_, Some(other))) = looked_at {
            let _ = other.finish(false).await;
        }
        Ok(decision.unwrap_or_else(|| self.by_checks()))
    }

    /// A step that changes files: runs it, and commits. Returns the failing verdict if it does not succeed.
    async fn work_step(&mut self, step: &Step, tree: &Tree) -> Result<Option<Decision>, Halt> {
        let start = tree.head().await?;
        let (finished, printed) = match self.tries(step, tree, None).await? {
            Ok(done) => done,
            Err(decision) => return Ok(Some(decision)),
        };
        self.guard("commit").await?;
        let message = self.message(step)?;
        let author = self.chain.author();
        let committing = tree.commit_step(&start, &message, &author);
        let commit = match self.renewer.while_held(committing).await? {
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
        let (id, title, trailer) = (&self.story.id, &self.story.title, self.trailer()?);
        Ok(format!("{id}: {title} ({})\n\n{}: {}\n{trailer}\n", step.name, resume::STEP, step.name))
    }

    pub fn trailer(&self) -> Result<Trailer> {
        Trailer::new(self.token.clone(), &self.chain.fleet)
            .ok_or_else(|| Error::internal("a claim without a trailer"))
    }

    /// Runs a step, and tries it again if it fails. Returns what it printed, or the failing verdict.
    async fn tries(
        &self,
        step: &Step,
        place: &Tree,
        evidence: Option<&Evidence>,
    ) -> Result<Result<(Finished, Printed), Decision>, Halt> {
        let mut last = Decision::fail("");
        for attempt in 0..=step.retries as usize {
            self.guard(&step.name).await?;
            let tool = step.tool(usize::try_from(self.story.retries).unwrap_or(0) + attempt);
            let (command, input) = self.step_command(step, tool, place, evidence).await?;
            let finished = self.execute(self.renewer.clone(), command, input, step.timeout).await?;
            let what = format!("step `{}`", step.name);
            let printed = read(&finished.stdout, step.json);
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
            files.write("given/commit.diff", &String::from_utf8_lossy(&text))?;
            diff = Some(files.path("given/commit.diff"));
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

    /// The recorded commit, with a tree of its own if the story's tree is not exactly at it. Without a change there is nothing to
    /// look at.
    async fn evidence(&self, tree: &Tree) -> Result<Result<(Evidence, Option<Tree>), Decision>, Halt> {
        let Some(commit) = self.story.commit.clone() else {
            return Ok(Err(Decision::fail("no step changed a file, so there is nothing to judge")));
        };
        let main = format!("refs/heads/{}", branch::main(&self.chain.id));
        let base = self.repository.common(&main, &commit).await?;
        let base =
            base.ok_or_else(|| Error::internal("a story's branch has nothing in common with its loop's"))?;
        if self.repository.diff(&base, &commit).await?.is_empty() {
            return Ok(Err(Decision::fail(format!(
                "the diff of commit {commit} is empty: it is evidence of nothing"
            ))));
        }
        let evidence = Evidence { commit, base };
        if tree.is_at(&evidence.commit).await? {
            return Ok(Ok((evidence, None)));
        }
        let other = self.renewer.while_held(self.repository.create_at(&evidence.commit)).await??;
        self.prepare(&other).await?;
        Ok(Ok((evidence, Some(other))))
    }

    /// Runs the checks, once in a round.
    async fn checks(&mut self, place: &Tree) -> Result<(), Halt> {
        if self.chain.config.checks.is_empty() || self.is_recorded(CHECKS) {
            return Ok(());
        }
        let mut results = Vec::new();
        for check in &self.chain.config.checks {
            self.guard(CHECKS).await?;
            let command = self.command(check, place, CHECKS)?;
            let timeout = fencepost::Millis::minutes(30);
            let finished = self.execute(self.renewer.clone(), command, Vec::new(), timeout).await?;
            let status = if finished.is_success() { "ok" } else { "failed" };
            let more = json!({ "took_ms": finished.took.0, "message": check });
            self.chain.report.story(&self.story.id, CHECKS, status, more);
            let output = &finished.tail
                [finished.tail.floor_char_boundary(finished.tail.len().saturating_sub(CHECK_OUTPUT))..];
            results.push(json!({
                "command": check, "passed": finished.is_success(), "how": finished.reason("it").lines().next(),
                "output": output,
            }));
        }
        self.record(CHECKS, None, Printed { data: Some(results.into()), ..Printed::default() }).await
    }

    /// The verdict of a config without a judge.
    fn by_checks(&self) -> Decision {
        let checks = self.steps.iter().find(|step| step.name == CHECKS).and_then(|step| step.data.clone());
        let failed: Vec<String> = checks
            .as_ref()
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|check| check["passed"] == false)
            .map(|check| {
                format!(
                    "`{}` failed:\n{}",
                    check["command"].as_str().unwrap_or(""),
                    check["output"].as_str().unwrap_or("")
                )
            })
            .collect();
        match failed.is_empty() {
            true => Decision { verdict: Judgement::Pass, feedback: None },
            false => Decision::fail(failed.join("\n")),
        }
    }

    /// A review or a judgement of the commit. `None`: a review that has nothing to object.
    async fn look(
        &mut self,
        step: &Step,
        place: &Tree,
        evidence: &Evidence,
    ) -> Result<Option<Decision>, Halt> {
        if let Some(recorded) = self.steps.iter().find(|recorded| recorded.name == step.name) {
            let recorded = recorded.data.as_ref();
            let verdict = recorded.and_then(|data| judgement(&data["verdict"]));
            let feedback = recorded.and_then(|data| data["feedback"].as_str()).map(str::to_owned);
            return Ok(verdict.map(|verdict| Decision { verdict, feedback }));
        }
        let (took, mut printed) = match self.tries(step, place, Some(evidence)).await? {
            Ok((finished, printed)) => (finished.took, printed),
            // A tool that fails says no.
            Err(decision) => return Ok(Some(decision)),
        };
        let verdict = printed.verdict.unwrap_or(Judgement::Pass);
        let decision = match (verdict, printed.feedback.take()) {
            (Judgement::Fail, feedback) => {
                Decision::fail(feedback.as_deref().unwrap_or("the judge gave no reason"))
            }
            (verdict, feedback) => Decision { verdict, feedback: feedback.map(|text| fit(&text, FEEDBACK)) },
        };
        if step.kind == Kind::Judge || verdict == Judgement::Pass {
            // A judgement is recorded, so that a chain that takes over gives the same verdict.
            let mut data = printed.data.take().filter(Value::is_object).unwrap_or_else(|| json!({}));
            if step.kind == Kind::Judge {
                data["verdict"] = decision.verdict.as_str().into();
                data["feedback"] = decision.feedback.clone().into();
            }
            printed.data = Some(data);
            self.record(&step.name, None, printed).await?;
        }
        let more = json!({ "commit": evidence.commit, "took_ms": took.0, "message": decision.feedback });
        self.chain.report.story(&self.story.id, &step.name, decision.verdict.as_str(), more);
        self.guard("next step").await?;
        Ok(Some(decision))
    }

    /// Records a finished step, which renews the claim.
    async fn record(&mut self, name: &str, commit: Option<String>, printed: Printed) -> Result<(), Halt> {
        let step = loops::Step {
            token: self.claim.token.clone(),
            name: name.to_owned(),
            data: printed.data,
            commit,
            learned: printed.learned,
            cost: printed.cost,
            redo: false,
        };
        let recorded = self.chain.service.call_until_answered(step).await?;
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

fn judgement(value: &Value) -> Option<Judgement> {
    Judgement::ALL.into_iter().find(|one| Some(one.as_str()) == value.as_str())
}

/// Reads what a step printed. With `json` it must be a JSON object, alone or on the last line.
fn read(stdout: &[u8], json: bool) -> Result<Printed, String> {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    let object = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
    let found = object(text).or_else(|| object(text.lines().next_back().unwrap_or_default().trim()));
    let Some(found) = found else {
        return match json {
            true => Err(format!("printed no JSON object: it printed `{}`", fit(text, 200))),
            false => Ok(Printed::default()),
        };
    };
    let text = |name: &str| found[name].as_str().map(str::to_owned);
    let verdict = match &found["verdict"] {
        Value::Null => None,
        given => Some(
            judgement(given)
                .ok_or_else(|| format!("printed the verdict {given}, which is not pass, fail or skip"))?,
        ),
    };
    Ok(Printed {
        verdict,
        feedback: text("feedback"),
        learned: text("learned").map(|text| fit(&text, FEEDBACK)).filter(|text| !text.trim().is_empty()),
        cost: Some(found["cost"].clone()).filter(Value::is_object),
        data: Some(found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_prints_json_or_anything() {
        let told = |text: &str, json| read(text.as_bytes(), json);
        assert!(told("all is well", false).unwrap().data.is_none());
        assert_eq!(
            told("all is well", true).unwrap_err(),
            "printed no JSON object: it printed `all is well`"
        );
        assert!(told("[1]", true).is_err());
        let judged = told(
            "thinking …\n{\"verdict\": \"fail\", \"feedback\": \"no tests\", \"cost\": {\"usd\": 0.1}}\n",
            true,
        )
        .unwrap();
        assert_eq!((judged.verdict, judged.feedback.as_deref()), (Some(Judgement::Fail), Some("no tests")));
        assert_eq!(judged.cost, Some(json!({"usd": 0.1})));
        let pretty = told("{\n  \"learned\": \"use jq\",\n  \"cost\": 3\n}", false).unwrap();
        assert_eq!((pretty.learned.as_deref(), pretty.cost), (Some("use jq"), None));
        assert!(told("{\"verdict\": \"maybe\"}", false).unwrap_err().contains("not pass, fail or skip"));
    }
}
