//! The rule: where an attempt at a story begins. A chain may have died between its commit and the record of it.

use crate::{trailer::Trailer, worktree::Commit};
use fencepost::Token;

/// The trailer that names the step of a commit.
pub const STEP: &str = "Fence-Step";

/// Where an attempt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// At this commit: the recorded one, or the start of the story.
    At(String),
    /// At a commit that a chain made for this step, and did not record.
    Adopt { commit: String, step: String },
}

/// What is known when an attempt begins.
#[derive(Debug)]
pub struct Known<'k> {
    /// The claim of this attempt.
    pub token: &'k Token,
    pub fleet: &'k str,
    /// The commit of the last recorded step.
    pub recorded: Option<&'k str>,
    /// The tip of `loop/LOOP/main`.
    pub base: &'k str,
    /// The newest commit of the story's branch, and whether it contains the recorded one.
    pub newest: Option<&'k Commit>,
    pub contains_recorded: bool,
    /// The first step that is not recorded.
    pub next_step: Option<&'k str>,
    /// Commits with this fence or a lower one belong to an earlier round.
    pub round_after: i64,
}

/// The newest commit is adopted if a chain made it for the next step, under a claim of this round. Anything else on the branch is
/// half a step, and is done again.
pub fn begin(known: &Known<'_>) -> Begin {
    let start = Begin::At(known.recorded.unwrap_or(known.base).to_owned());
    let (Some(newest), Some(next_step)) = (known.newest, known.next_step) else { return start };
    if known.recorded == Some(newest.id.as_str()) || !known.contains_recorded {
        return start;
    }
    let step = newest.message.lines().rev().find_map(|line| line.strip_prefix(STEP)?.strip_prefix(": "));
    let is_ours = |trailer: &Trailer| {
        trailer.token.resource == known.token.resource
            && known.fleet.starts_with(&trailer.fleet)
            && trailer.token.fence > known.round_after
            && trailer.token.fence <= known.token.fence
    };
    match step {
        Some(step) if step == next_step && Trailer::all(&newest.message).iter().any(is_ours) => {
            Begin::Adopt { commit: newest.id.clone(), step: step.to_owned() }
        }
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_adopted_only_if_it_is_the_next_step_of_this_round() {
        let token: Token = "task/l-1@5".parse().unwrap();
        let commit = |step: &str, trailer: &str| Commit {
            id: "newest".into(),
            message: format!("a story\n\n{STEP}: {step}\nFence: {trailer}\n"),
        };
        let at = |id: &str| Begin::At(id.into());
        let adopt = || Begin::Adopt { commit: "newest".into(), step: "implement".into() };
        let ours = commit("implement", "task/l-1@4 3fa9c1d2");
        let cases = [
            (None, None, true, at("base")),
            (Some("old"), None, true, at("old")),
            (Some("old"), Some(ours.clone()), true, adopt()),
            (None, Some(ours.clone()), true, adopt()),
            // It was recorded.
            (Some("newest"), Some(ours.clone()), true, at("newest")),
            // Somebody moved the branch.
            (Some("old"), Some(ours.clone()), false, at("old")),
            // Another step, another task, another fleet, another round, a claim that does not exist yet.
            (Some("old"), Some(commit("plan", "task/l-1@4 3fa9c1d2")), true, at("old")),
            (Some("old"), Some(commit("implement", "task/l-2@4 3fa9c1d2")), true, at("old")),
            (Some("old"), Some(commit("implement", "task/l-1@4 00000000")), true, at("old")),
            (Some("old"), Some(commit("implement", "task/l-1@2 3fa9c1d2")), true, at("old")),
            (Some("old"), Some(commit("implement", "task/l-1@6 3fa9c1d2")), true, at("old")),
            // A commit of the step's own command.
            (Some("old"), Some(Commit { id: "newest".into(), message: "wip".into() }), true, at("old")),
        ];
        for (recorded, newest, contains_recorded, expected) in cases {
            let known = Known {
                token: &token,
                fleet: "3fa9c1d2e5f60718",
                recorded,
                base: "base",
                newest: newest.as_ref(),
                contains_recorded,
                next_step: Some("implement"),
                round_after: 2,
            };
            assert_eq!(begin(&known), expected, "{known:?}");
        }
    }
}
