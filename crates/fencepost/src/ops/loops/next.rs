use super::{
    Brief, LoopStatus, Status, StepView, StoryView, TTL,
    plan::check_name,
    row::{self, Loop, assignee},
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    lease::{delivery::redeliver, run, run::Holder},
    limits::check,
    ops::{
        claim,
        task::{Purpose, Record, claim as task_claim, claimable::REDELIVERY},
    },
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Claim the next story of a loop for a run, or say why there is none. A run that holds a story gets it again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Next {
    #[serde(rename = "loop")]
    pub id: String,
    /// The run that will hold the story: one chain. It is opened if it does not exist.
    pub run: String,
    #[serde(default)]
    pub agent: Option<String>,
    /// Lease: others may claim this run's story if it is not renewed for this long (default 30 min). Every step renews it.
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// If no story can be claimed yet, wait up to this long (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
}

/// Why a chain gets no story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Other chains hold all stories that could be done now.
    AlreadyClaimed,
    /// Every story that is left waits for something else than a chain.
    NoneReady,
    /// Every story has ended.
    Finished,
    Cancelled,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::AlreadyClaimed => "already_claimed",
            Reason::NoneReady => "none_ready",
            Reason::Finished => "finished",
            Reason::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NextStory {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<claim::Claim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub story: Option<StoryView>,
    /// The finished steps of the story's present round, in their order. A chain goes on after them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepView>,
    /// What the steps of other stories reported as learned, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<Learned>,
    /// Why there is no story.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(rename = "loop")]
    pub brief: Brief,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Learned {
    pub story: String,
    pub text: String,
}

/// The most that stories learned, for the next one.
const LEARNED_MAX: i64 = 50;

impl Op for Next {
    const NAME: &'static str = "loop/next";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"loop":"auth-v1","run":"chain-1"}"#;
    refuses![LeaseExpired];
    type Reply = NextStory;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, Some(self.ttl_ms.unwrap_or(TTL)))
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: Result<&NextStory, &Error>) -> bool {
        answer.is_ok_and(|next| matches!(next.reason, Some(Reason::AlreadyClaimed | Reason::NoneReady)))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<NextStory> {
        check_name("loop", &self.id)?;
        run::check_name(&self.run)?;
        check::optional_name("agent", self.agent.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        let mut found = Loop::locked(tx, &self.id).await?;
        found.settle(tx).await?;
        if let Some(own) = self.own(tx, &found).await? {
            return Ok(own);
        }
        // No run is opened for nothing. A story of a loop that is over is not handed out, whatever its task is.
        let is_open = |row: &row::Entry| row.status() == Status::Open;
        if found.status != LoopStatus::Active || !found.stories.iter().any(is_open) {
            return Ok(self.nothing(tx, &found));
        }
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), Some(self.ttl_ms.unwrap_or(TTL)))?;
        let mut batch = Batch::new();
        let entered = batch.add(holder.enter(tx.now));
        let picked = batch.add(task_claim::pick_assigned(&assignee(&self.id), &self.id, 1));
        let mut answers = tx.send(batch).await?;
        let run_key = holder.key(&answers.take(entered).rows)?;
        let Some(task) = answers.take(picked).rows.into_iter().next().map(Record::read).transpose()? else {
            // Another transaction has locked it.
            return Ok(self.nothing(tx, &found));
        };
        let n = found.story_of(&task.id)?;
        let claimed =
            task_claim::take(tx, vec![(task.was(), task, Purpose::Work)], &holder, run_key, None, Vec::new())
                .await?;
        let claimed = claimed.into_iter().next().ok_or_else(|| Error::internal("nothing was claimed"))?;
        found.stories[n].claims += 1;
        found.iterations += 1;
        let counted =
            Stmt::write("update loop set iterations = ?2 where id = ?1", params![&self.id, found.iterations]);
        tx.send(Batch::from([counted, found.save_story(n)])).await?;
        let story = StoryView {
            status: Status::Claimed,
            claim: Some(claimed.claim.clone()),
            ..found.stories[n].view(tx.now)
        };
        self.reply(tx, &found, claimed.claim, story).await
    }
}

impl Next {
    /// The story that this run holds already: it asked before, and did not get the answer.
    async fn own(&self, tx: &mut Tx<'_>, found: &Loop) -> Result<Option<NextStory>> {
        let held = found.stories.iter().find_map(|row| {
            let task = row.task.as_ref()?;
            let hold = task.hold().filter(|hold| hold.run == self.run && hold.is_alive(tx.now))?;
            Some((row, task.seq, hold.clone(), task.resource()))
        });
        let Some((row, seq, hold, resource)) = held else { return Ok(None) };
        tx.caller.may_use(&hold.run, hold.agent.as_deref())?;
        let story = row.view(tx.now);
        tx.notes.delivered = redeliver(tx, &REDELIVERY, &[(seq, hold.token(&resource))]).await?;
        self.reply(tx, found, hold.claim(&resource), story).await.map(Some)
    }

    async fn reply(
        &self,
        tx: &mut Tx<'_>,
        found: &Loop,
        claim: claim::Claim,
        story: StoryView,
    ) -> Result<NextStory> {
        let mut steps = row::steps(tx, &self.id, &story.id).await?;
        steps.retain(|step| step.round == story.retries);
        let learned = tx
            .query(
                "select story, learned from story_step where loop = ?1 and story <> ?2 and learned is not null
                 order by at desc, story, n desc limit ?3",
                params![&self.id, &story.id, LEARNED_MAX],
            )
            .await?;
        let learned = learned
            .iter()
            .rev()
            .map(|row| Ok(Learned { story: row.get("story")?, text: row.get("learned")? }));
        Ok(NextStory {
            claim: Some(claim),
            story: Some(story),
            steps,
            learned: learned.collect::<Result<_>>()?,
            reason: None,
            message: None,
            brief: found.brief(tx.now),
        })
    }

    fn nothing(&self, tx: &mut Tx<'_>, found: &Loop) -> NextStory {
        let topics = [Topic::tasks(), Topic::agent(&assignee(&self.id))];
        tx.notes.subscriptions = vec![Subscription::new(("loop", &self.id), topics)];
        let held: Vec<String> = found
            .stories
            .iter()
            .filter_map(|row| {
                let hold = row.task.as_ref()?.hold()?;
                Some(format!("story `{}` is held by {}", row.story.id, hold.describe()))
            })
            .collect();
        let (reason, message) = match found.status {
            LoopStatus::Finished => (Reason::Finished, format!("loop `{}` is finished", self.id)),
            LoopStatus::Cancelled => (Reason::Cancelled, format!("loop `{}` was cancelled", self.id)),
            LoopStatus::Active if held.is_empty() => {
                (Reason::NoneReady, format!("no story of loop `{}` can be claimed now", self.id))
            }
            LoopStatus::Active => (Reason::AlreadyClaimed, held.join("; ")),
        };
        NextStory {
            claim: None,
            story: None,
            steps: Vec::new(),
            learned: Vec::new(),
            reason: Some(reason),
            message: Some(message),
            brief: found.brief(tx.now),
        }
    }
}
