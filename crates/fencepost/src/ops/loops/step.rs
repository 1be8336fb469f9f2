use super::{
    StepView, StoryView,
    plan::check_commit,
    row::{self, Loop},
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::{Under, hold::check_written},
    limits::{BODY_MAX, TEXT_MAX, check},
    ops::task::{
        done::{held, task_token},
        load_locked, save,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Record a finished step of the story held under a token, and renew its lease. A chain that takes over after a crash goes on after
/// the last recorded step.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub token: String,
    /// `implement`
    pub name: String,
    /// Any JSON, for the steps that follow.
    #[serde(default)]
    pub data: Option<Value>,
    /// The commit that the step made. A verdict judges the last one.
    #[serde(default)]
    pub commit: Option<String>,
    /// A note for the chains of other stories.
    #[serde(default)]
    pub learned: Option<String>,
    /// Numbers by name, such as `{"usd": 0.12}`. The loop's summary adds them up.
    #[serde(default)]
    pub cost: Option<Value>,
    /// Replace the record of this step, and forget the steps after it: they are done again.
    #[serde(default)]
    pub redo: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    pub story: StoryView,
    /// The finished steps of the present round.
    pub steps: Vec<StepView>,
}

impl Op for Step {
    const NAME: &'static str = "loop/step";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-v1-1@1","name":"implement","commit":"0a1b2c3d"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Recorded;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Recorded> {
        let (token, id) = task_token(&self.token)?;
        check::plain_name("name", &self.name)?;
        check_commit(self.commit.as_deref())?;
        check::optional_text("learned", self.learned.as_deref(), TEXT_MAX)?;
        let text = |value: &Option<Value>| value.as_ref().map(ToString::to_string);
        let (data, cost) = (text(&self.data), text(&self.cost));
        check::optional_json("data", data.as_deref(), BODY_MAX)?;
        check::optional_json("cost", cost.as_deref(), TEXT_MAX)?;
        check_cost(self.cost.as_ref())?;
        let mut found = Loop::locked(tx, &id.board).await?;
        let task = held(load_locked(tx, &id).await?, &token, tx)?;
        let n = found.story_of(&id)?;
        let story = found.stories[n].story.id.clone();
        let round = found.stories[n].retries;
        let steps = row::steps(tx, &found.id, &story).await?;
        let mut steps: Vec<StepView> = steps.into_iter().filter(|step| step.round == round).collect();
        let hold = task.hold().ok_or_else(|| Error::internal("a held task without a claim"))?;
        let new = StepView {
            name: self.name,
            round,
            at: tx.now,
            run: hold.run.clone(),
            fence: hold.fence,
            commit: self.commit,
            data: self.data,
            learned: self.learned,
            cost: self.cost,
        };
        let at = steps.iter().position(|step| step.name == new.name);
        match at {
            Some(at) if is_same(&steps[at], &new) && !self.redo => {
                return Ok(Recorded { story: found.stories[n].view(tx.now), steps });
            }
            Some(_) if !self.redo => {
                let message =
                    format!("step `{}` of story `{story}` is recorded already, with other content", new.name);
                return Err(Error::new(Code::AlreadyFinished, message).hint(
                    "the first record is kept; --redo replaces it, and the steps after it are done again",
                ));
            }
            Some(at) => steps.truncate(at),
            None => {}
        }
        let place = steps.len() as i64;
        let commit = new.commit.clone().or_else(|| steps.iter().rev().find_map(|step| step.commit.clone()));
        // Without a commit in this round, that of the round before is the last one.
        found.stories[n].commit = commit.or_else(|| found.stories[n].commit.clone());
        let mut batch = Batch::new();
        let mut touched = task.clone();
        touched.updated_at = tx.now;
        let saved = save(&mut batch, &task.was(), &touched, Under::Claim, tx.now);
        batch.add(Stmt::write(
            "delete from story_step where loop = ?1 and story = ?2 and round = ?3 and n >= ?4",
            params![&found.id, &story, round, place],
        ));
        batch.add(Stmt::write(
            "insert into story_step(loop, story, round, n, name, at, run, fence, commit_id, data, learned, cost)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                &found.id,
                &story,
                round,
                place,
                &new.name,
                tx.now,
                &new.run,
                new.fence,
                new.commit.as_deref(),
                data,
                new.learned.as_deref(),
                cost,
            ],
        ));
        batch.add(found.save_story(n));
        let details = json!({ "step": new.name, "round": round, "commit": new.commit });
        batch.add(touched.event("task.step", touched.status()).details(details).insert(tx));
        check_written(tx.send(batch).await?.affected(saved), &token)?;
        steps.push(new);
        Ok(Recorded { story: found.stories[n].view(tx.now), steps })
    }
}

/// Was the step recorded with the same content? Another claim may have done so.
fn is_same(stored: &StepView, new: &StepView) -> bool {
    (&stored.commit, &stored.data, &stored.learned, &stored.cost)
        == (&new.commit, &new.data, &new.learned, &new.cost)
}

/// The highest number of a cost: a loop adds them up, and the sum must stay a number.
const COST_MAX: f64 = 1e12;

fn check_cost(cost: Option<&Value>) -> Result<()> {
    let is_number = |value: &Value| value.as_f64().is_some_and(|number| (0.0..=COST_MAX).contains(&number));
    match cost {
        None => Ok(()),
        Some(Value::Object(costs)) if costs.values().all(is_number) => Ok(()),
        Some(_) => Err(Error::invalid("cost", format!("is not an object with numbers from 0 to {COST_MAX}"))),
    }
}
