use super::{
    Brief, Skip, StoryView,
    plan::check_commit,
    row::{Entry, Loop},
};
use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::{
        Under,
        hold::{check_written, is_repeat},
    },
    limits::{TEXT_MAX, check},
    ops::task::{
        Phase, Record,
        done::{dependents, held, task_token, unblock},
        load_locked, release, save,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Give the verdict on the story held under a token: it has passed, is tried again with feedback, or is skipped. The verdict names
/// the commit that it judged, which must be the one that the last step recorded. The same verdict again returns the first reply;
/// another one is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub token: String,
    pub verdict: Judgement,
    /// The commit that was judged. A story cannot pass without one.
    #[serde(default)]
    pub commit: Option<String>,
    /// The defects, for the next attempt. A failing verdict needs it; that of a skipped story is its reason.
    #[serde(default)]
    pub feedback: Option<String>,
}

/// A story that fails is tried again, if retries are left. A story that is skipped is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Pass,
    #[default]
    Fail,
    Skip,
}

impl Judgement {
    pub const ALL: [Judgement; 3] = [Judgement::Pass, Judgement::Fail, Judgement::Skip];

    pub fn as_str(self) -> &'static str {
        match self {
            Judgement::Pass => "pass",
            Judgement::Fail => "fail",
            Judgement::Skip => "skip",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    pub story: StoryView,
    #[serde(rename = "loop")]
    pub brief: Brief,
}

impl Op for Verdict {
    const NAME: &'static str = "loop/verdict";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-v1-1@1","verdict":"pass","commit":"0a1b2c3d"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Judged;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Judged> {
        let (token, id) = task_token(&self.token)?;
        check_commit(self.commit.as_deref())?;
        match (self.verdict, self.feedback.as_deref()) {
            (Judgement::Fail, feedback) => check::line("feedback", feedback.unwrap_or_default(), TEXT_MAX)?,
            (_, feedback) => check::optional_text("feedback", feedback, TEXT_MAX)?,
        }
        let mut found = Loop::locked(tx, &id.board).await?;
        let task = load_locked(tx, &id).await?;
        let n = found.story_of(&id)?;
        if let Some(task) = &task
            && is_repeat(tx, task.last.as_ref(), &token, VERB, &self.content())?
        {
            return Ok(Judged { story: found.stories[n].view(tx.now), brief: found.brief(tx.now) });
        }
        let task = held(task, &token, tx)?;
        self.refuse_other_commit(&found.stories[n])?;
        let was = task.was();
        let max_retries = found.plan.max_retries;
        let kind = self.apply(&mut found.stories[n], task, max_retries, tx.now);
        let story = &found.stories[n];
        let after = story.task.as_ref().ok_or_else(|| Error::internal("a story without a task"))?;
        let details = json!({
            "verdict": self.verdict.as_str(), "commit": self.commit, "reason": self.feedback, "attempt": after.attempts,
        });
        let mut batch = Batch::new();
        let saved = save(&mut batch, &was, after, Under::Claim, tx.now);
        batch.add(release::ended(after, &was, kind, Some(details)).insert(tx));
        batch.add(found.save_story(n));
        let mut waiting = None;
        if self.verdict == Judgement::Pass {
            let output = self.commit.as_ref().map(|commit| format!("commit {commit}"));
            batch.add(Stmt::write(
                "update task_doc set output = ?2 where task = ?1",
                params![after.seq, output],
            ));
            waiting = Some(batch.add(dependents(&[after.seq])));
        }
        let mut answers = tx.send(batch).await?;
        check_written(answers.affected(saved), &token)?;
        if let Some(waiting) = waiting {
            unblock(tx, answers.take(waiting).rows).await?;
            // The stories that waited for it have changed.
            found = Loop::find(tx, &id.board).await?.ok_or_else(|| super::not_found(&id.board))?;
        }
        found.settle(tx).await?;
        Ok(Judged { story: found.stories[n].view(tx.now), brief: found.brief(tx.now) })
    }
}

/// The verb by which a verdict ends its claim.
const VERB: &str = "verdict";

impl Verdict {
    fn content(&self) -> [Option<&str>; 3] {
        [Some(self.verdict.as_str()), self.commit.as_deref(), self.feedback.as_deref()]
    }

    /// Refuses a verdict on another commit than the one that the last step recorded.
    fn refuse_other_commit(&self, story: &Entry) -> Result<()> {
        let recorded = story.commit.as_deref();
        let refused = |message: String| Err(Error::new(Code::NotReady, message).with("commit", recorded));
        match (self.verdict, self.commit.as_deref()) {
            (Judgement::Pass, None) => {
                Err(Error::invalid("commit", "is missing: a pass names the commit that was judged"))
            }
            // Nothing was judged.
            (Judgement::Fail | Judgement::Skip, None) => Ok(()),
            (_, judged) if judged == recorded => Ok(()),
            (_, judged) => refused(format!(
                "the verdict is about commit {}, and story `{}` has {}",
                judged.unwrap_or_default(),
                story.story.id,
                recorded.map_or("no commit recorded".into(), |commit| format!("commit {commit} recorded"))
            )),
        }
    }

    /// The rule. A failing verdict costs a retry and gives the attempt back; past its retries the story is skipped. Returns the kind
    /// of the event.
    fn apply(&self, story: &mut Entry, task: Record, max_retries: i64, now: Time) -> &'static str {
        let mut task =
            Record { lapsed: false, updated_at: now, failure_reason: self.feedback.clone(), ..task };
        let (kind, next) = match self.verdict {
            Judgement::Pass => {
                task.failure_reason = None;
                ("task.completed", Phase::Completed(now))
            }
            Judgement::Skip => {
                story.skipped_by = Some(Skip::Verdict);
                ("task.skipped", Phase::Cancelled(now))
            }
            Judgement::Fail => {
                story.retries += 1;
                story.round_after = task.fence;
                story.feedback = self.feedback.clone();
                if story.retries > max_retries {
                    story.skipped_by = Some(Skip::Retries);
                    ("task.failed", Phase::Failed(now))
                } else {
                    // Attempts count claims that were lost. This one was not.
                    task.attempts = 0;
                    ("task.retrying", task.home())
                }
            }
        };
        task.end_claim(VERB, &self.content(), next);
        story.task = Some(task);
        kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lease::Hold,
        ops::{loops::Status, task},
    };

    fn story(retries: i64, commit: Option<&str>) -> Entry {
        Entry { retries, commit: commit.map(str::to_owned), ..Entry::sample() }
    }

    fn verdict(verdict: Judgement, commit: Option<&str>) -> Verdict {
        Verdict {
            token: "task/b-1@1".into(),
            verdict,
            commit: commit.map(str::to_owned),
            feedback: Some("the tests fail".into()),
        }
    }

    #[test]
    fn a_verdict_is_about_the_recorded_commit() {
        use Judgement::{Fail, Pass, Skip};
        let code =
            |given: Verdict, recorded| given.refuse_other_commit(&story(0, recorded)).map_err(|e| e.code());
        let (one, two) = (Some("aaaaaaa"), Some("bbbbbbb"));
        for (given, recorded, expected) in [
            (verdict(Pass, one), one, Ok(())),
            (verdict(Pass, two), one, Err(Code::NotReady)),
            (verdict(Pass, one), None, Err(Code::NotReady)),
            (verdict(Pass, None), one, Err(Code::Invalid)),
            (verdict(Fail, one), one, Ok(())),
            (verdict(Fail, two), one, Err(Code::NotReady)),
            (verdict(Fail, None), one, Ok(())),
            (verdict(Skip, None), None, Ok(())),
            (verdict(Skip, two), one, Err(Code::NotReady)),
        ] {
            assert_eq!(code(given.clone(), recorded), expected, "{given:?} with {recorded:?}");
        }
    }

    #[test]
    fn a_story_is_tried_again_until_its_retries_are_used_up() {
        use Judgement::{Fail, Pass, Skip};
        for (given, retries, status, after, skipped_by) in [
            (Pass, 0, Status::Passed, 0, None),
            (Skip, 0, Status::Skipped, 0, Some(super::Skip::Verdict)),
            (Fail, 0, Status::Open, 1, None),
            (Fail, 1, Status::Open, 2, None),
            (Fail, 2, Status::Skipped, 3, Some(super::Skip::Retries)),
        ] {
            let held = Record {
                assignee: Some("loop/b".into()),
                attempts: 3,
                ..Record::sample(Phase::InProgress(Hold::sample("r", 1, Time(10))))
            };
            let mut story = story(retries, Some("aaaaaaa"));
            verdict(given, Some("aaaaaaa")).apply(&mut story, held, 2, Time(5));
            assert_eq!(
                (story.status(), story.retries, story.skipped_by),
                (status, after, skipped_by),
                "{given:?} {retries}"
            );
            let task = story.task.expect("its task");
            assert_eq!(task.last.as_ref().expect("how the claim ended").verb, VERB);
            // All attempts are left for the next round.
            assert_eq!(task.attempts, if task.status() == task::Status::Pending { 0 } else { 3 });
        }
    }
}
