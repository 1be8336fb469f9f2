use super::{
    Brief, LoopStatus, MAX_ITERATIONS, MAX_RETRIES, Story, StoryView,
    plan::{Plan, check_name, read_prd},
    row::{Loop, assignee},
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    limits::check,
    ops::task::plan::{Item, insert_for},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Start a loop: a board with a task for each story. A second start of the same loop changes nothing, and returns the loop as it is
/// now. A different plan under the same id is refused, and so is the id of a loop that is over.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The loop's id: letters, digits and any of `._-`. It is also the name of its board.
    #[serde(rename = "loop")]
    pub id: String,
    /// The project that the loop works on.
    #[serde(default)]
    pub project: Option<String>,
    /// The stories.
    #[serde(default)]
    pub stories: Vec<Story>,
    /// A `prd.json` instead of the stories. In it the lowest priority runs first.
    #[serde(default)]
    pub prd: Option<Value>,
    /// How many failing verdicts a story may have and be tried again (default 2).
    #[serde(default)]
    pub max_retries: Option<i64>,
    /// How often stories may be claimed in all (default 100). Then those that are left are skipped.
    #[serde(default)]
    pub max_iterations: Option<i64>,
    /// Run the stories that wait for a skipped one, instead of skipping them, too.
    #[serde(default)]
    pub run_dependents: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// False if the loop was started before.
    pub started: bool,
    #[serde(rename = "loop")]
    pub brief: Brief,
    /// In the order of the plan.
    pub stories: Vec<StoryView>,
}

impl Op for Start {
    const NAME: &'static str = "loop/start";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"loop":"auth-v1","stories":[{"id":"S-1","title":"write the parser"}]}"#;
    refuses![AlreadyFinished, Cancelled];
    type Reply = Started;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Started> {
        check_name("loop", &self.id)?;
        let id = self.id.clone();
        let plan = self.plan()?;
        plan.check()?;
        let text = serde_json::to_string(&plan).map_err(Error::internal)?;
        // Of two first starts at the same time, the second one waits here until the first is committed.
        let inserted = tx
            .execute(
                "insert into loop(id, plan, status, started_at) values (?1, ?2, 'active', ?3) on conflict (id) do nothing",
                params![&id, text, tx.now],
            )
            .await?;
        if inserted == 0 {
            return again(tx, &id, &plan).await;
        }
        refuse_board(tx, &id).await?;
        add_stories(tx, &id, &plan).await?;
        let mut started = Loop::find(tx, &id).await?.ok_or_else(|| super::not_found(&id))?;
        let event = started.event("loop.started", LoopStatus::Active).details(json!({
            "project": plan.project, "stories": plan.stories.len(),
        }));
        tx.one(event.insert(tx)).await?;
        started.settle(tx).await?;
        Ok(Started { started: true, brief: started.brief(tx.now), stories: started.views(tx.now) })
    }
}

impl Start {
    fn plan(self) -> Result<Plan> {
        let (project, stories) = match &self.prd {
            Some(_) if !self.stories.is_empty() => {
                return Err(Error::invalid("prd", "and `stories` cannot both be given"));
            }
            Some(prd) => {
                check::json("prd", &prd.to_string(), crate::limits::OUTPUT_MAX)?;
                read_prd(prd)?
            }
            None => (None, self.stories),
        };
        Ok(Plan {
            project: self.project.or(project),
            stories,
            max_retries: self.max_retries.unwrap_or(MAX_RETRIES),
            max_iterations: self.max_iterations.unwrap_or(MAX_ITERATIONS),
            run_dependents: self.run_dependents,
        })
    }
}

/// A loop that was started before.
async fn again(tx: &mut Tx<'_>, id: &str, plan: &Plan) -> Result<Started> {
    let overdue = crate::ops::task::overdue(tx, Some(id)).await?;
    let found = Loop::find(tx, id).await?.ok_or_else(|| super::not_found(id))?.now(&overdue, tx.now);
    let differences = found.plan.differences(plan);
    if !differences.is_empty() {
        const SHOWN: usize = 5;
        let mut shown: Vec<String> = differences.iter().take(SHOWN).cloned().collect();
        if differences.len() > SHOWN {
            shown.push(format!("and {} more", differences.len() - SHOWN));
        }
        let message = format!("loop `{id}` was started with another plan: {}", shown.join("; "));
        return Err(Error::new(Code::Invalid, message)
            .with("field", "loop")
            .with("differences", &differences)
            .hint("start it under another id, or cancel this one: fence loop cancel"));
    }
    found.active()?;
    Ok(Started { started: false, brief: found.brief(tx.now), stories: found.views(tx.now) })
}

/// Refuses the name of a board that is in use for something else.
async fn refuse_board(tx: &mut Tx<'_>, id: &str) -> Result<()> {
    match tx.query("select 1 as there from board where name = ?1", params![id]).await?.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid("loop", format!("is `{id}`, and there is a board of that name already"))),
    }
}

/// Adds a row for each story, and a task for each that is to be done.
async fn add_stories(tx: &mut Tx<'_>, id: &str, plan: &Plan) -> Result<()> {
    let given = |story: &Story| match (story.passes, story.skipped) {
        (true, _) => Some("passed"),
        (false, true) => Some("skipped"),
        (false, false) => None,
    };
    let is_open = |id: &String| plan.stories.iter().any(|story| story.id == *id && given(story).is_none());
    let open: Vec<&Story> = plan.stories.iter().filter(|story| given(story).is_none()).collect();
    let items = open.iter().map(|story| Item {
        name: Some(story.id.clone()),
        title: story.title.clone(),
        body: story.description.clone(),
        done_when: story.criteria(),
        priority: story.priority,
        origin: Some(json!({ "loop": id, "story": story.id })),
        after: story.after.iter().filter(|after| is_open(after)).cloned().collect(),
        ..Item::default()
    });
    let items: Vec<Item> = items.collect();
    let tasks = match items.is_empty() {
        true => Vec::new(),
        false => insert_for(tx, id, items, &assignee(id)).await?.tasks,
    };
    let mut numbers = tasks.iter().filter_map(|task| task.id.rsplit_once('-')?.1.parse::<i64>().ok());
    let rows = plan.stories.iter().enumerate().map(|(n, story)| {
        let given = given(story);
        let number = if given.is_none() { numbers.next() } else { None };
        json!({ "id": story.id, "n": n, "given": given, "number": number })
    });
    let rows = set(rows.collect::<Vec<_>>())?;
    let insert = Stmt::write(
        "insert into story(loop, id, n, given, task)
         select ?1, item.value ->> 'id', cast(item.value ->> 'n' as bigint), item.value ->> 'given', task.seq
         from json_each(?2) as item
         left join task on task.board = ?1 and task.n = cast(item.value ->> 'number' as bigint)
         order by item.key",
        params![id, rows],
    );
    tx.send(Batch::from([insert])).await?;
    Ok(())
}
