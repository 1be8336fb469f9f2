//! The rules of a loop: how a story ended, which stories are skipped because of another one, and when the loop is over.

use super::{Skip, Status, Summary};
use crate::ops::task;
use std::collections::HashMap;

/// The part of a story that the rules look at.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    pub id: String,
    /// The stories that must have passed before, as the tasks' dependencies are now.
    pub after: Vec<String>,
    /// The outcome that the plan gave.
    pub given: Option<Status>,
    /// The task's status; `None` if the outcome was given.
    pub task: Option<task::Status>,
    pub waits: bool,
    pub skipped_by: Option<Skip>,
}

impl Facts {
    pub fn status(&self) -> Status {
        use task::Status as T;
        match (self.given, self.task) {
            (Some(given), _) => given,
            (None, None) => Status::Skipped,
            (None, Some(T::Completed)) => Status::Passed,
            (None, Some(T::Failed | T::Cancelled)) => match self.skipped_by {
                Some(Skip::Dependency) => Status::DependencySkipped,
                _ => Status::Skipped,
            },
            (None, Some(T::InProgress | T::Reviewing)) => Status::Claimed,
            (None, Some(_)) if self.waits => Status::Blocked,
            (None, Some(_)) => Status::Open,
        }
    }
}

/// What follows from the state of the stories.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Consequences {
    /// Stories to be skipped, by their place.
    pub skip: Vec<(usize, Skip)>,
    /// Skipped stories that nobody waits for any more.
    pub release: Vec<usize>,
    /// Every story has ended.
    pub over: bool,
}

/// The rule. A story that waits for a skipped one is skipped, too, unless `run_dependents`; past the limit of iterations every story
/// that nobody holds is skipped.
pub(super) fn consequences(stories: &[Facts], run_dependents: bool, past_limit: bool) -> Consequences {
    let mut status: HashMap<&str, Status> =
        stories.iter().map(|story| (story.id.as_str(), story.status())).collect();
    let mut found = Consequences::default();
    let is_skipped =
        |status: Option<&Status>| matches!(status, Some(Status::Skipped | Status::DependencySkipped));
    if run_dependents {
        let waited_for = |id: &String| {
            let waits = |other: &&Facts| !status[other.id.as_str()].is_ended() && other.after.contains(id);
            stories.iter().any(|other| waits(&other))
        };
        let released =
            |(_, story): &(usize, &Facts)| is_skipped(status.get(story.id.as_str())) && waited_for(&story.id);
        found.release = stories.iter().enumerate().filter(released).map(|(n, _)| n).collect();
    }
    loop {
        let before = found.skip.len();
        for (n, story) in stories.iter().enumerate() {
            let now = status[story.id.as_str()];
            if now.is_ended() || now == Status::Claimed {
                continue;
            }
            let by_other =
                !run_dependents && story.after.iter().any(|after| is_skipped(status.get(after.as_str())));
            let skip = match (by_other, past_limit) {
                (true, _) => (Skip::Dependency, Status::DependencySkipped),
                (false, true) => (Skip::Iterations, Status::Skipped),
                (false, false) => continue,
            };
            status.insert(&story.id, skip.1);
            found.skip.push((n, skip.0));
        }
        if found.skip.len() == before {
            break;
        }
    }
    found.over = status.values().all(|status| status.is_ended());
    found
}

/// Counts stories by their status.
pub(super) fn count(statuses: impl Iterator<Item = Status>) -> Summary {
    let mut summary = Summary::default();
    for status in statuses {
        summary.stories += 1;
        match status {
            Status::Passed => summary.passed += 1,
            Status::Skipped => summary.skipped += 1,
            Status::DependencySkipped => summary.dependency_skipped += 1,
            Status::Claimed => summary.claimed += 1,
            Status::Open | Status::Blocked => summary.open += 1,
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use task::Status as T;

    fn story(id: &str, after: &[&str], task: T) -> Facts {
        let after = after.iter().map(ToString::to_string).collect::<Vec<_>>();
        Facts { id: id.into(), waits: !after.is_empty(), after, task: Some(task), ..Facts::default() }
    }

    #[test]
    fn a_story_has_one_status() {
        let cases = [
            (story("a", &[], T::Pending), Status::Open),
            (story("a", &["b"], T::Pending), Status::Blocked),
            (story("a", &[], T::Unassigned), Status::Open),
            (story("a", &[], T::InProgress), Status::Claimed),
            (story("a", &[], T::Completed), Status::Passed),
            (story("a", &[], T::Failed), Status::Skipped),
            (story("a", &[], T::Cancelled), Status::Skipped),
            (
                Facts { skipped_by: Some(Skip::Dependency), ..story("a", &[], T::Cancelled) },
                Status::DependencySkipped,
            ),
            // Somebody brought it back.
            (Facts { skipped_by: Some(Skip::Dependency), ..story("a", &[], T::Pending) }, Status::Open),
            (
                Facts { given: Some(Status::Passed), task: None, ..story("a", &[], T::Pending) },
                Status::Passed,
            ),
        ];
        for (story, status) in cases {
            assert_eq!(story.status(), status, "{story:?}");
        }
    }

    #[test]
    fn a_skipped_story_takes_those_that_wait_for_it_with_it() {
        use Skip::{Dependency, Iterations};
        let stories = [
            story("d", &["c"], T::Pending),
            story("a", &[], T::Failed),
            story("c", &["a", "b"], T::Pending),
            story("b", &[], T::InProgress),
            story("e", &["b"], T::Pending),
        ];
        let plain = consequences(&stories, false, false);
        assert_eq!(
            plain,
            Consequences { skip: vec![(2, Dependency), (0, Dependency)], release: vec![], over: false }
        );
        let run = consequences(&stories, true, false);
        assert_eq!(run, Consequences { skip: vec![], release: vec![1], over: false });
        // Past the limit everything is skipped that nobody holds.
        let limit = consequences(&stories, false, true);
        assert_eq!(limit.skip, [(0, Iterations), (2, Dependency), (4, Iterations)]);
        assert!(!limit.over, "b is held");
        let ended =
            [story("a", &[], T::Failed), story("b", &["a"], T::Pending), story("c", &[], T::Completed)];
        assert!(consequences(&ended, false, false).over);
        assert!(!consequences(&ended, true, false).over);
        let given = Facts { given: Some(Status::Skipped), task: None, ..story("a", &[], T::Pending) };
        let given = [given, story("b", &["a"], T::Pending)];
        assert_eq!(consequences(&given, false, false).skip, [(1, Dependency)]);
        assert!(consequences(&[], false, false).over);
    }
}
