//! Loops: a chain of steps for each story of a plan. A loop is a board that is started once, its stories are tasks of the board, and
//! the run of a chain holds the claim on the story that it works on.
//!
//! - The stories are assigned to `loop/ID`. No agent can have such a name, so a poll or a claim never gets a story: `loop/next`
//!   does.
//! - A verdict ends the claim: the story has passed, is tried again with feedback, or is skipped. `task/done` and `task/fail`
//!   refuse a story.
//! - Every op that changes a loop locks its row first, before runs and tasks.
//! - A story that waits for a skipped one never becomes ready. `rule::consequences` says what follows; the ops that write store
//!   it (`Loop::settle`), and the ops that read show it.

mod plan;
mod row;
mod rule;

use crate::{
    clock::{Millis, Time},
    engine::op::verbs,
    error::{Code, Error, Result},
    ops::claim::Claim,
};
pub use plan::{MAX_ITERATIONS, MAX_RETRIES, Story};
pub(crate) use row::{is_story, refuse_story};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use verdict::Judgement;

verbs![
    start::Start,
    status::Show,
    list::List,
    next::Next,
    step::Step,
    guard::Guard,
    verdict::Verdict,
    cancel::Cancel,
    restart::Restart,
];

/// The lease of a story: longer than any single step. Every step renews it.
pub const TTL: Millis = Millis::minutes(30);

/// The status of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A chain may claim it.
    Open,
    /// It waits for other stories, or for a delay.
    Blocked,
    /// A chain works on it.
    Claimed,
    Passed,
    /// It failed too often, or was left out.
    Skipped,
    /// It waited for a story that was skipped.
    DependencySkipped,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Open => "open",
            Status::Blocked => "blocked",
            Status::Claimed => "claimed",
            Status::Passed => "passed",
            Status::Skipped => "skipped",
            Status::DependencySkipped => "dependency_skipped",
        }
    }
    pub fn is_ended(self) -> bool {
        matches!(self, Status::Passed | Status::Skipped | Status::DependencySkipped)
    }
}

/// Why an unfinished story was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// A verdict said so.
    Verdict,
    /// It had more failing verdicts than `max_retries`.
    Retries,
    /// It waited for a story that was skipped.
    Dependency,
    /// The loop reached `max_iterations`.
    Iterations,
    /// The loop was cancelled.
    Cancelled,
}

impl Skip {
    pub fn as_str(self) -> &'static str {
        match self {
            Skip::Verdict => "verdict",
            Skip::Retries => "retries",
            Skip::Dependency => "dependency",
            Skip::Iterations => "iterations",
            Skip::Cancelled => "cancelled",
        }
    }
    fn read(text: &str) -> Result<Self> {
        let all = [Skip::Verdict, Skip::Retries, Skip::Dependency, Skip::Iterations, Skip::Cancelled];
        let skip = all.into_iter().find(|skip| skip.as_str() == text);
        skip.ok_or_else(|| Error::internal("a story was skipped for a reason that this fence does not know"))
    }
}

/// The status of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoopStatus {
    Active,
    /// Every story has ended.
    Finished,
    Cancelled,
}

impl LoopStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            LoopStatus::Active => "active",
            LoopStatus::Finished => "finished",
            LoopStatus::Cancelled => "cancelled",
        }
    }
    fn read(text: &str) -> Result<Self> {
        let all = [LoopStatus::Active, LoopStatus::Finished, LoopStatus::Cancelled];
        let status = all.into_iter().find(|status| status.as_str() == text);
        status.ok_or_else(|| Error::internal("a loop has a status that this fence does not know"))
    }
}

/// A loop in numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub stories: i64,
    pub passed: i64,
    pub skipped: i64,
    pub dependency_skipped: i64,
    /// Stories that a chain works on.
    pub claimed: i64,
    /// Stories that nobody works on yet.
    pub open: i64,
    /// How often a story was claimed.
    pub attempts: i64,
    /// The time since the start, until the end.
    pub time_ms: Millis,
    /// The sums of the numbers that steps reported as their cost, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cost: BTreeMap<String, f64>,
}

/// A loop without its stories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Brief {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub status: LoopStatus,
    /// The reason, if it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub started_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// How many failing verdicts a story may have and be tried again.
    pub max_retries: i64,
    /// How often stories may be claimed in all.
    pub max_iterations: i64,
    /// Stories that wait for a skipped one are not skipped.
    pub run_dependents: bool,
    pub summary: Summary,
}

/// A story as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoryView {
    pub id: String,
    /// Its task. A story whose outcome the plan gave has none, and so has one whose task was pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acceptance_criteria: Vec<String>,
    /// 0 to 100, higher first.
    pub priority: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    pub status: Status,
    /// Why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_by: Option<Skip>,
    /// The number of failing verdicts.
    pub retries: i64,
    /// How often it was claimed.
    pub attempts: i64,
    /// Of the last failing verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// The commit that the last step recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Why it was skipped, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The present round began after this fence: a commit with this fence or a lower one belongs to an earlier round.
    pub round_after: i64,
    /// The claim, while a chain works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// A finished step of a story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepView {
    pub name: String,
    /// The number of failing verdicts before it.
    pub round: i64,
    pub at: Time,
    /// The run and the fence under which it was recorded.
    pub run: String,
    pub fence: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<serde_json::Value>,
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no loop `{}`", crate::ids::clip(id)))
        .hint("fence loop list shows the loops there are; fence loop start begins one")
}
