//! Looking at the commit of a story: the checks, the reviews and the judge. They see the commit that was recorded, wherever HEAD is.

use super::{
    attempt::{Attempt, Decision, FEEDBACK, Halt, On},
    branch,
    config::{CHECKS, Kind, Step},
    printed::{Printed, judgement},
};
use crate::{output::text::fit, worktree::Tree};
use fencepost::{Error, Result, loops::Judgement};
use serde_json::{Value, json};

/// The most of a check's output that the judge is shown.
const CHECK_OUTPUT: usize = 4 * 1024;

/// The commit that is judged, and what the story changed up to it.
#[derive(Debug, Clone)]
pub struct Evidence {
    pub commit: String,
    pub base: String,
}

/// The trees in which a commit is looked at.
pub struct Looking<'t> {
    /// The story's.
    pub tree: &'t Tree,
    /// A detached one.
    pub other: Option<Tree>,
}

impl Attempt<'_> {
    /// Runs the checks, the reviews and the judge on a commit.
    pub async fn look_at(
        &mut self,
        evidence: &Evidence,
        looking: &mut Looking<'_>,
    ) -> Result<Decision, Halt> {
        self.checks(evidence, looking).await?;
        for step in self.chain.config.steps.iter().filter(|step| step.kind != Kind::Work) {
            self.go_on()?;
            let decided = self.look(step, evidence, looking).await?;
            if step.kind == Kind::Judge || decided.verdict != Judgement::Pass {
                return Ok(decided);
            }
        }
        Ok(self.by_checks())
    }

    /// A tree that is exactly at the commit: the story's own, or else a detached one. Somebody may have moved HEAD since.
    pub async fn at(&self, evidence: &Evidence, looking: &mut Looking<'_>) -> Result<Tree, Halt> {
        for tree in [Some(looking.tree), looking.other.as_ref()].into_iter().flatten() {
            if tree.is_at(&evidence.commit).await? {
                return Ok(tree.clone());
            }
        }
        let other = self.held(self.repository.create_at(&evidence.commit)).await??;
        self.prepare(&other).await?;
        if let Some(before) = looking.other.replace(other.clone()) {
            let _ = before.finish(false).await;
        }
        Ok(other)
    }

    /// The recorded commit, if it changes something. Else there is nothing to judge.
    pub async fn evidence(&self) -> Result<Result<Evidence, Decision>, Halt> {
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
        Ok(Ok(Evidence { commit, base }))
    }

    /// Runs the checks, once in a round.
    async fn checks(&mut self, evidence: &Evidence, looking: &mut Looking<'_>) -> Result<(), Halt> {
        if self.chain.config.checks.is_empty() || self.is_recorded(CHECKS) {
            return Ok(());
        }
        let mut results = Vec::new();
        for check in &self.chain.config.checks {
            let place = self.at(evidence, looking).await?;
            self.guard(CHECKS).await?;
            let command = self.command(check, &place, CHECKS)?;
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

    /// A review or a judgement of the commit.
    async fn look(
        &mut self,
        step: &Step,
        evidence: &Evidence,
        looking: &mut Looking<'_>,
    ) -> Result<Decision, Halt> {
        if let Some(recorded) = self.steps.iter().find(|recorded| recorded.name == step.name) {
            let recorded = recorded.data.as_ref();
            let verdict = recorded.and_then(|data| judgement(&data["verdict"])).unwrap_or(Judgement::Pass);
            let feedback = recorded.and_then(|data| data["feedback"].as_str()).map(str::to_owned);
            return Ok(Decision { verdict, feedback });
        }
        let (took, mut printed) = match self.tries(step, On::Commit(evidence, looking)).await? {
            Ok((finished, printed)) => (finished.took, printed),
            // A tool that fails says no.
            Err(decision) => return Ok(decision),
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
        Ok(decision)
    }
}
