use super::{Brief, StepView, StoryView, plan::check_name, row::Loop};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    limits::check,
    ops::task,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a loop and its stories as they are now.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// The loop (default: the active one).
    #[serde(default, rename = "loop")]
    pub id: Option<String>,
    /// Show the finished steps of this story, too.
    #[serde(default)]
    pub story: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    #[serde(rename = "loop")]
    pub brief: Brief,
    /// In the order of the plan. A loop that ended long ago has none.
    pub stories: Vec<StoryView>,
    /// Of the story that was named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepView>,
}

impl Op for Show {
    const NAME: &'static str = "loop/status";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Shown;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Shown> {
        let id = match self.id {
            Some(id) => id,
            None => active(tx).await?,
        };
        check_name("loop", &id)?;
        check::optional_name("story", self.story.as_deref())?;
        let overdue = task::overdue(tx, Some(&id)).await?;
        let found = Loop::find(tx, &id).await?.ok_or_else(|| super::not_found(&id))?.now(&overdue, tx.now);
        let steps = match &self.story {
            Some(story) if found.story(story).is_none() => {
                return Err(Error::new(Code::NotFound, format!("loop `{id}` has no story `{story}`"))
                    .hint(format!("fence loop status {id} lists its stories")));
            }
            Some(story) => super::row::steps(tx, &id, story).await?,
            None => Vec::new(),
        };
        Ok(Shown { brief: found.brief(tx.now), stories: found.views(tx.now), steps })
    }
}

/// The only loop that is active.
async fn active(tx: &mut Tx<'_>) -> Result<String> {
    let rows = tx
        .query("select id from loop where ended_at is null order by started_at desc, id limit 11", params![])
        .await?;
    let mut ids = rows.iter().map(|row| row.get("id")).collect::<Result<Vec<String>>>()?;
    match ids.len() {
        0 => Err(Error::new(Code::NotFound, "no loop is active")
            .hint("fence loop list --all shows those that ended")),
        1 => Ok(ids.remove(0)),
        _ => Err(Error::new(Code::Invalid, format!("several loops are active: {}", ids.join(", ")))
            .with("field", "loop")
            .hint("name one of them")),
    }
}
