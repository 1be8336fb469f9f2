use super::{Brief, LoopStatus, Skip, StoryView, plan::check_name, row::Loop};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased, refuses},
    error::Result,
    lease::Under,
    limits::{TEXT_MAX, check},
    log::Event,
    ops::task::save_set,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cancel a loop: stories that have not ended are skipped, and the claims on them end. Their chains stop, with the commands they run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    #[serde(rename = "loop")]
    pub id: String,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    #[serde(rename = "loop")]
    pub brief: Brief,
    pub stories: Vec<StoryView>,
}

impl Op for Cancel {
    const NAME: &'static str = "loop/cancel";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"loop":"auth-v1","reason":"the plan is wrong"}"#;
    refuses![AlreadyFinished];
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check_name("loop", &self.id)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let mut found = Loop::locked(tx, &self.id).await?;
        found.settle(tx).await?;
        // Repeating it changes nothing.
        if found.status != LoopStatus::Cancelled {
            found.active()?;
            let reason = self.reason.as_deref();
            found.lock_tasks(tx, 0..found.stories.len()).await?;
            let (mut changes, mut events) = (Vec::new(), Vec::new());
            for n in 0..found.stories.len() {
                if found.stories[n].status().is_ended() {
                    continue;
                }
                let told = reason.map_or("its loop was cancelled".into(), |reason| {
                    format!("its loop was cancelled: {reason}")
                });
                if let Some((was, event)) = found.stories[n].skip(Skip::Cancelled, "cancel", &told, tx.now) {
                    changes.extend(found.stories[n].task.clone().map(|task| (was, task)));
                    events.push(event);
                }
            }
            if !changes.is_empty() {
                save_set(tx, &changes, Under::NoClaim).await?;
                let events = Event::insert_many(tx, events)?;
                let skipped = (0..found.stories.len()).map(|n| found.save_story(n));
                tx.send(skipped.chain([events]).collect()).await?;
            }
            found.end(tx, LoopStatus::Cancelled, reason).await?;
        }
        Ok(Changed { brief: found.brief(tx.now), stories: found.views(tx.now) })
    }
}
