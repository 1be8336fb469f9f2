//! The rule of the guard: may this session run this command? And the words of its answers.

use crate::guarded::Found;
use fencepost::Error;

/// Lifting the guard is for a person. An agent is refused, whatever it holds.
pub const LIFT: &str = "fence lift";

/// What the fleet says about a session.
#[derive(Debug, Clone)]
pub enum Standing {
    /// It holds a live claim.
    Holds,
    /// It had a claim, and holds nothing now.
    HoldsNothing,
    NeverClaimed,
    /// Nobody can tell: the fleet cannot be reached, or is gone.
    Unknown(Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Pass,
    Tell(String),
    Deny(String),
}

/// The decision about a guarded command.
pub fn decide(
    found: &Found,
    run: &str,
    standing: &Standing,
    lifted: bool,
    strict: bool,
    claims: &str,
) -> Decision {
    let what = format!("`{}` is a guarded command", found.command);
    let lift =
        format!("A person can lift this for ten minutes, in a terminal of their own: fence lift {run}");
    if found.rule == LIFT {
        return Decision::Deny(
            "fence: only a person lifts the guard, in a terminal of their own. Ask them, and do not work around it.".into(),
        );
    }
    if lifted {
        return Decision::Pass;
    }
    match standing {
        Standing::Holds => Decision::Pass,
        Standing::HoldsNothing => Decision::Deny(format!(
            "fence: {what}, and this session (run {run}) holds no claim any more: its claim was completed, given back or lost, and \
             somebody else may be at work on the task. Do not work around this. {claims} {lift}"
        )),
        Standing::NeverClaimed if strict => Decision::Deny(format!(
            "fence: {what}, and this session (run {run}) has claimed nothing. {claims} {lift}"
        )),
        Standing::NeverClaimed => Decision::Tell(format!(
            "fence: {what}. Several agents share this repository, and this session has claimed nothing. If this work is a task, claim it \
             first. {claims}"
        )),
        Standing::Unknown(error) => {
            let hint = error.hint_text().map_or(String::new(), |hint| format!(" ({hint})"));
            Decision::Deny(format!(
                "fence: {what}, and nobody can tell whether this session (run {run}) still holds its claim: {}{hint}. {lift}",
                error.message()
            ))
        }
    }
}

/// The refusal of an event that cannot be read.
pub fn unreadable(word: &str) -> String {
    format!(
        "fence: the client's event cannot be read, and it may run a guarded command (`{word}`), so it is blocked. fence doctor checks the hooks"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(rule: &str, standing: &Standing, lifted: bool, strict: bool) -> &'static str {
        let found = Found { rule: rule.into(), command: rule.into() };
        match decide(&found, "claude-1", standing, lifted, strict, "fence claim takes one.") {
            Decision::Pass => "pass",
            Decision::Tell(_) => "tell",
            Decision::Deny(reason) => {
                assert!(rule == LIFT || reason.contains("fence lift claude-1"), "{reason}");
                "deny"
            }
        }
    }

    #[test]
    fn a_guarded_command_passes_only_under_a_live_claim() {
        let unknown = Standing::Unknown(Error::unavailable("the server does not answer"));
        // What it holds; then by default, strict, lifted, lifted and strict.
        for (standing, expected) in [
            (Standing::Holds, ["pass", "pass", "pass", "pass"]),
            (Standing::HoldsNothing, ["deny", "deny", "pass", "pass"]),
            (Standing::NeverClaimed, ["tell", "deny", "pass", "pass"]),
            (unknown, ["deny", "deny", "pass", "pass"]),
        ] {
            let cases = [(false, false), (false, true), (true, false), (true, true)];
            let decided = cases.map(|(lifted, strict)| decided("git push", &standing, lifted, strict));
            assert_eq!(decided, expected, "{standing:?}");
            for (lifted, strict) in cases {
                assert_eq!(self::decided(LIFT, &standing, lifted, strict), "deny", "{standing:?}");
            }
        }
    }
}
