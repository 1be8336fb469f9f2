//! A loop with its stories: reading the rows, and storing the consequences of a change.

use super::{
    Brief, LoopStatus, Skip, Status, StepView, StoryView, Summary, not_found,
    plan::{self, Plan},
    rule::{self, Facts},
};
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx},
    error::{Code, Error, Result},
    ids::TaskId,
    lease::{Under, overdue::Overdue},
    log::Event,
    ops::task::{self, Lock, Phase, Record, columns, depend::lock_edges, done, load_set, save_set},
    params,
    topic::Topic,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// The prefix of the name that a loop's stories are assigned to. An agent's name has no slash.
const ASSIGNEE: &str = "loop/";

pub(super) fn assignee(id: &str) -> String {
    format!("{ASSIGNEE}{id}")
}

/// Is this task a story?
pub(crate) fn is_story(task: &Record) -> bool {
    task.assignee.as_ref().is_some_and(|assignee| assignee.starts_with(ASSIGNEE))
}

/// Refuses a verb that would change a story behind the back of its loop.
pub(crate) fn refuse_story(task: &Record, verb: &str) -> Result<()> {
    if !is_story(task) {
        return Ok(());
    }
    let message = format!("task `{}` is a story of a loop: `{verb}` is not for stories", task.id);
    Err(Error::new(Code::NotReady, message)
        .hint("fence loop verdict ends a story; fence loop restart runs stories again"))
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub id: String,
    pub plan: Plan,
    pub status: LoopStatus,
    pub reason: Option<String>,
    pub iterations: i64,
    pub started_at: Time,
    pub ended_at: Option<Time>,
    /// Stored when it ended.
    summary: Option<Summary>,
    /// The costs that steps reported.
    costs: Vec<Value>,
    /// In the order of the plan.
    pub stories: Vec<Entry>,
}

/// A story: its place in the plan, its row and its task.
#[derive(Debug)]
pub(super) struct Entry {
    pub story: plan::Story,
    pub task: Option<Record>,
    pub given: Option<Status>,
    pub skipped_by: Option<Skip>,
    pub retries: i64,
    pub claims: i64,
    pub feedback: Option<String>,
    pub commit: Option<String>,
    pub round_after: i64,
    /// The unfinished dependencies of its task, by story.
    pub after: Vec<String>,
}

impl Entry {
    /// For the tables of cases beside the rules.
    #[cfg(test)]
    pub fn sample() -> Self {
        Self {
            story: plan::Story { id: "S-1".into(), title: "a story".into(), ..plan::Story::default() },
            task: None,
            given: None,
            skipped_by: None,
            retries: 0,
            claims: 1,
            feedback: None,
            commit: None,
            round_after: 0,
            after: Vec::new(),
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            id: self.story.id.clone(),
            // A dependency that the plan gave an outcome to has no task.
            after: self.after.clone(),
            given: self.given,
            task: self.task.as_ref().map(Record::status),
            waits: self.task.as_ref().is_some_and(|task| task.ready() == 0),
            skipped_by: self.skipped_by,
        }
    }

    pub fn status(&self) -> Status {
        self.facts().status()
    }

    pub fn view(&self, now: Time) -> StoryView {
        let status = self.status();
        let is_skipped = status.is_ended() && status != Status::Passed;
        let task = self.task.clone().map(|task| task.view(now));
        StoryView {
            id: self.story.id.clone(),
            title: self.story.title.clone(),
            description: self.story.description.clone(),
            acceptance_criteria: self.story.acceptance_criteria.clone(),
            priority: task
                .as_ref()
                .map_or(self.story.priority.unwrap_or(task::PRIORITY), |task| task.priority),
            after: self.story.after.clone(),
            status,
            skipped_by: self.skipped_by.filter(|_| is_skipped),
            retries: self.retries,
            attempts: self.claims,
            feedback: self.feedback.clone(),
            commit: self.commit.clone(),
            reason: task.as_ref().and_then(|task| task.failure_reason.clone()).filter(|_| is_skipped),
            round_after: self.round_after,
            claim: task.as_ref().and_then(|task| task.claim.clone()),
            task: task.map(|task| task.id),
        }
    }

    /// Skips the story. Its claim, if there is one, ends by this verb.
    pub fn skip(&mut self, skip: Skip, verb: &str, reason: &str, now: Time) -> Option<(task::Was, Event)> {
        let task = self.task.as_mut()?;
        let was = task.was();
        task.failure_reason = Some(reason.to_owned());
        (task.updated_at, task.lapsed) = (now, false);
        task.end_claim(verb, &[], Phase::Cancelled(now));
        self.skipped_by = Some(skip);
        let hold = was.phase.hold();
        let event = Event {
            agent: None,
            run: hold.map(|hold| hold.run.clone()),
            fence: hold.map(|hold| hold.fence),
            ..task.event(
                if skip == Skip::Cancelled { "task.cancelled" } else { "task.skipped" },
                was.phase.status(),
            )
        };
        Some((was, event.details(json!({ "reason": reason, "skipped_by": skip.as_str() }))))
    }
}

impl Loop {
    /// Locks the loop and reads it. A loop whose dependents run may change dependencies: their lock comes first.
    pub async fn locked(tx: &mut Tx<'_>, id: &str) -> Result<Self> {
        let rows = tx.query("select plan from loop where id = ?1", params![id]).await?;
        let plan: Option<Plan> = rows.first().map_or(Ok(None), |row| json_of(row, "plan"))?;
        if plan.ok_or_else(|| not_found(id))?.run_dependents {
            tx.one(lock_edges()).await?;
        }
        tx.one(Stmt::lock("select 1 from loop where id = ?1 for update", params![id])).await?;
        Self::find(tx, id).await?.ok_or_else(|| not_found(id))
    }

    /// The loop as it is stored; a dead holder's claim is still there.
    pub async fn find(tx: &mut Tx<'_>, id: &str) -> Result<Option<Self>> {
        let mut batch = Batch::new();
        let head = batch.add(Stmt::read(
            "select plan, iterations, status, reason, started_at, ended_at, summary from loop where id = ?1",
            params![id],
        ));
        let rows = batch.add(Stmt::read(
            "select id, task, given, skipped_by, retries, claims, feedback, commit_id, round_after from story
             where loop = ?1 order by n",
            params![id],
        ));
        let tasks = batch.add(Stmt::read(
            columns!("join story on story.task = task.seq where story.loop = ?1 order by task.seq"),
            params![id],
        ));
        let edges = batch.add(Stmt::read(
            "select waiting.id as story, other.id as after from story as waiting
             join edge on edge.task = waiting.task join story as other on other.task = edge.depends_on
             where waiting.loop = ?1 and other.loop = ?1",
            params![id],
        ));
        let costs = batch
            .add(Stmt::read("select cost from story_step where loop = ?1 and cost is not null", params![id]));
        let mut answers = tx.send(batch).await?;
        let Some(head) = answers.take(head).rows.into_iter().next() else { return Ok(None) };
        let plan: Plan = json_of(&head, "plan")?.ok_or_else(|| Error::internal("a loop without a plan"))?;
        let mut by_seq = HashMap::new();
        for row in answers.take(tasks).rows {
            let task = Record::read(row)?;
            by_seq.insert(task.seq, task);
        }
        let mut after: HashMap<String, Vec<String>> = HashMap::new();
        for row in answers.take(edges).rows {
            after.entry(row.get("story")?).or_default().push(row.get("after")?);
        }
        let mut by_id: HashMap<String, plan::Story> =
            plan.stories.iter().map(|story| (story.id.clone(), story.clone())).collect();
        let mut stories = Vec::new();
        for row in answers.take(rows).rows {
            let id: String = row.get("id")?;
            let story =
                by_id.remove(&id).ok_or_else(|| Error::internal("a story that is not in its plan"))?;
            let given: Option<String> = row.get("given")?;
            let skipped_by: Option<String> = row.get("skipped_by")?;
            stories.push(Entry {
                story,
                task: row.get::<Option<i64>>("task")?.and_then(|seq| by_seq.remove(&seq)),
                given: given.map(|given| if given == "passed" { Status::Passed } else { Status::Skipped }),
                skipped_by: skipped_by.as_deref().map(Skip::read).transpose()?,
                retries: row.get("retries")?,
                claims: row.get("claims")?,
                feedback: row.get("feedback")?,
                commit: row.get("commit_id")?,
                round_after: row.get("round_after")?,
                after: after.remove(&id).unwrap_or_default(),
            });
        }
        let costs = answers.take(costs).rows;
        let mut found = Self {
            id: id.to_owned(),
            plan,
            status: LoopStatus::read(&head.get::<String>("status")?)?,
            reason: head.get("reason")?,
            iterations: head.get("iterations")?,
            started_at: head.get("started_at")?,
            ended_at: head.get("ended_at")?,
            summary: json_of(&head, "summary")?,
            costs: costs
                .iter()
                .map(|row| json_of(row, "cost"))
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .collect(),
            stories,
        };
        found.wait_for_given();
        Ok(Some(found))
    }

    /// A story that the plan skipped has no task, and so no dependencies that the database would know.
    pub(super) fn wait_for_given(&mut self) {
        let skipped = |row: &&Entry| row.given == Some(Status::Skipped);
        let skipped: Vec<String> =
            self.stories.iter().filter(skipped).map(|row| row.story.id.clone()).collect();
        for row in &mut self.stories {
            let waits = row.story.after.iter().filter(|id| skipped.contains(id) && !row.after.contains(id));
            let waits: Vec<String> = waits.cloned().collect();
            row.after.extend(waits);
        }
    }

    /// The loop as it is now: lost claims are given back, and stories that will never run are skipped.
    pub fn now(mut self, overdue: &Overdue<Record>, now: Time) -> Self {
        if self.status != LoopStatus::Active {
            return self;
        }
        for row in &mut self.stories {
            row.task = row.task.take().map(|task| overdue.of(task));
        }
        let found = self.consequences();
        for (n, skip) in found.skip {
            let _ = self.stories[n].skip(skip, "skip", "", now);
        }
        if found.over {
            (self.status, self.ended_at) = (LoopStatus::Finished, Some(now));
        }
        self
    }

    fn consequences(&self) -> rule::Consequences {
        let facts: Vec<Facts> = self.stories.iter().map(Entry::facts).collect();
        let past_limit = self.iterations >= self.plan.max_iterations;
        rule::consequences(&facts, self.plan.run_dependents, past_limit)
    }

    pub fn story(&self, id: &str) -> Option<usize> {
        self.stories.iter().position(|row| row.story.id == id)
    }

    /// The story of a task.
    pub fn story_of(&self, task: &TaskId) -> Result<usize> {
        let is_it = |row: &Entry| row.task.as_ref().is_some_and(|own| own.id == *task);
        self.stories.iter().position(is_it).ok_or_else(|| {
            Error::new(Code::Invalid, format!("task `{task}` is no story of loop `{}`", self.id))
                .with("field", "token")
        })
    }

    /// Refuses a loop that is over.
    pub fn active(&self) -> Result<()> {
        let restart = format!("fence loop restart {} runs the stories again that did not pass", self.id);
        match self.status {
            LoopStatus::Active => Ok(()),
            LoopStatus::Finished => {
                Err(Error::new(Code::AlreadyFinished, format!("loop `{}` is finished", self.id))
                    .hint(restart))
            }
            LoopStatus::Cancelled => {
                let reason = self.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
                Err(Error::new(Code::Cancelled, format!("loop `{}` was cancelled{reason}", self.id))
                    .hint(restart))
            }
        }
    }

    /// Locks the tasks of these stories, and reads them again.
    pub async fn lock_tasks(&mut self, tx: &mut Tx<'_>, places: impl Iterator<Item = usize>) -> Result<()> {
        let places: Vec<usize> = places.filter(|n| self.stories[*n].task.is_some()).collect();
        let ids: Vec<TaskId> = places
            .iter()
            .filter_map(|n| self.stories[*n].task.as_ref().map(|task| task.id.clone()))
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut found = load_set(tx, ids.iter(), Lock::ToWrite).await?;
        for (n, id) in places.into_iter().zip(ids) {
            self.stories[n].task = found.remove(&id);
        }
        Ok(())
    }

    /// Stores the consequences of the stories' present state: stories that will never run are skipped, and the loop ends when every
    /// story has ended. The caller has locked the loop.
    pub async fn settle(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        if self.status != LoopStatus::Active {
            return Ok(());
        }
        let expected = self.consequences();
        self.lock_tasks(tx, expected.skip.iter().map(|(n, _)| *n)).await?;
        // A task may have changed until it was locked.
        let found = self.consequences();
        let (mut changes, mut events) = (Vec::new(), Vec::new());
        for &(n, skip) in found.skip.iter().filter(|skip| expected.skip.contains(skip)) {
            let reason = self.skip_reason(n, skip);
            if let Some((was, event)) = self.stories[n].skip(skip, "skip", &reason, tx.now) {
                changes.extend(self.stories[n].task.clone().map(|task| (was, task)));
                events.push(event);
            }
        }
        if !changes.is_empty() {
            save_set(tx, &changes, Under::NoClaim).await?;
            let events = Event::insert_many(tx, events)?;
            let skipped = found.skip.iter().map(|(n, _)| self.save_story(*n));
            tx.send(skipped.chain([events]).collect()).await?;
        }
        if !found.release.is_empty() {
            self.release(tx, &found.release).await?;
        }
        if self.consequences().over {
            self.end(tx, LoopStatus::Finished, None).await?;
        }
        Ok(())
    }

    fn skip_reason(&self, n: usize, skip: Skip) -> String {
        match skip {
            Skip::Iterations => {
                format!("the loop reached its limit of {} iterations", self.plan.max_iterations)
            }
            _ => {
                let is_skipped = |id: &&String| {
                    self.story(id).is_some_and(|n| {
                        matches!(self.stories[n].status(), Status::Skipped | Status::DependencySkipped)
                    })
                };
                let skipped = self.stories[n].after.iter().find(is_skipped);
                format!("it waited for story `{}`, which was skipped", skipped.map_or("", String::as_str))
            }
        }
    }

    /// The dependents of these skipped stories wait for them no longer.
    async fn release(&mut self, tx: &mut Tx<'_>, places: &[usize]) -> Result<()> {
        let keys: Vec<i64> =
            places.iter().filter_map(|n| Some(self.stories[*n].task.as_ref()?.seq)).collect();
        let ids: Vec<String> = places.iter().map(|n| self.stories[*n].story.id.clone()).collect();
        if !keys.is_empty() {
            let waiting = tx.one(done::dependents(&keys)).await?.rows;
            done::unblock(tx, waiting).await?;
            tx.execute(
                "delete from edge where depends_on in (select cast(value ->> 'k' as bigint) from json_each(?1))",
                params![crate::db::key_set(keys)],
            )
            .await?;
        }
        for row in &mut self.stories {
            let waited = row.after.len();
            row.after.retain(|after| !ids.contains(after));
            let released = (waited - row.after.len()) as i64;
            if let Some(task) = &mut row.task {
                task.waiting_on = (task.waiting_on - released).max(0);
            }
        }
        Ok(())
    }

    /// Ends the loop, with its summary.
    pub async fn end(&mut self, tx: &mut Tx<'_>, status: LoopStatus, reason: Option<&str>) -> Result<()> {
        (self.status, self.reason, self.ended_at) = (status, reason.map(str::to_owned), Some(tx.now));
        let summary = self.count(tx.now);
        let text = serde_json::to_string(&summary).map_err(Error::internal)?;
        self.summary = Some(summary.clone());
        let kind = if status == LoopStatus::Cancelled { "loop.cancelled" } else { "loop.finished" };
        let details = json!({
            "passed": summary.passed, "skipped": summary.skipped + summary.dependency_skipped,
            "attempts": summary.attempts,
        });
        let event = self.event(kind, LoopStatus::Active).details(details).because(reason);
        let update = Stmt::write(
            "update loop set status = ?2, reason = ?3, ended_at = ?4, summary = ?5 where id = ?1",
            params![&self.id, status.as_str(), reason, tx.now, text],
        );
        tx.send(Batch::from([update, event.insert(tx)])).await?;
        Ok(())
    }

    /// An event of this loop. It wakes those who wait for a story.
    pub fn event(&self, kind: &'static str, from: LoopStatus) -> Event {
        Event {
            topic: Some(Topic::agent(&assignee(&self.id))),
            ..Event::new(kind, format!("loop/{}", self.id)).states(from.as_str(), self.status.as_str())
        }
    }

    /// Writes a story's own columns.
    pub fn save_story(&self, n: usize) -> Stmt {
        let row = &self.stories[n];
        Stmt::write(
            "update story set skipped_by = ?3, retries = ?4, claims = ?5, feedback = ?6, commit_id = ?7, round_after = ?8
             where loop = ?1 and id = ?2",
            params![
                &self.id,
                &row.story.id,
                row.skipped_by.map(Skip::as_str),
                row.retries,
                row.claims,
                row.feedback.as_deref(),
                row.commit.as_deref(),
                row.round_after,
            ],
        )
    }

    fn count(&self, now: Time) -> Summary {
        let mut cost: BTreeMap<String, f64> = BTreeMap::new();
        for (name, value) in self.costs.iter().filter_map(Value::as_object).flatten() {
            if let Some(number) = value.as_f64() {
                *cost.entry(name.clone()).or_default() += number;
            }
        }
        Summary {
            attempts: self.iterations,
            time_ms: self.ended_at.unwrap_or(now).since(self.started_at),
            cost,
            ..rule::count(self.stories.iter().map(Entry::status))
        }
    }

    pub fn brief(&self, now: Time) -> Brief {
        let is_over = self.status != LoopStatus::Active;
        Brief {
            id: self.id.clone(),
            project: self.plan.project.clone(),
            status: self.status,
            reason: self.reason.clone(),
            started_at: self.started_at,
            ended_at: self.ended_at,
            max_retries: self.plan.max_retries,
            max_iterations: self.plan.max_iterations,
            run_dependents: self.plan.run_dependents,
            summary: self.summary.clone().filter(|_| is_over).unwrap_or_else(|| self.count(now)),
        }
    }

    pub fn views(&self, now: Time) -> Vec<StoryView> {
        self.stories.iter().map(|row| row.view(now)).collect()
    }
}

/// Reads a loop's row without its stories, for a list. `summary` is that of a loop that is over.
pub(super) fn brief(row: &Row) -> Result<(Brief, bool)> {
    let plan: Plan = json_of(row, "plan")?.ok_or_else(|| Error::internal("a loop without a plan"))?;
    let summary: Option<Summary> = json_of(row, "summary")?;
    let is_counted = summary.is_some();
    let brief = Brief {
        id: row.get("id")?,
        project: plan.project,
        status: LoopStatus::read(&row.get::<String>("status")?)?,
        reason: row.get("reason")?,
        started_at: row.get("started_at")?,
        ended_at: row.get("ended_at")?,
        max_retries: plan.max_retries,
        max_iterations: plan.max_iterations,
        run_dependents: plan.run_dependents,
        summary: summary.unwrap_or_default(),
    };
    Ok((brief, is_counted))
}

/// The finished steps of a story, in their order.
pub(super) async fn steps(tx: &mut Tx<'_>, id: &str, story: &str) -> Result<Vec<StepView>> {
    let rows = tx
        .query(
            "select name, round, at, run, fence, commit_id, data, learned, cost from story_step
             where loop = ?1 and story = ?2 order by round, n",
            params![id, story],
        )
        .await?;
    rows.iter().map(step).collect()
}

fn step(row: &Row) -> Result<StepView> {
    Ok(StepView {
        name: row.get("name")?,
        round: row.get("round")?,
        at: row.get("at")?,
        run: row.get("run")?,
        fence: row.get("fence")?,
        commit: row.get("commit_id")?,
        data: json_of(row, "data")?,
        learned: row.get("learned")?,
        cost: json_of(row, "cost")?,
    })
}

fn json_of<T: serde::de::DeserializeOwned>(row: &Row, column: &str) -> Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)
}
