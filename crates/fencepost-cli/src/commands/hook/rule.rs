//! The rule of the guard: may this session call this tool? And the words of its answers.

use crate::{
    guarded::Found,
    session::{Lost, Standing},
};
use fencepost::Error;

/// Lifting the guard is for a person. An agent is refused, whatever it holds. `fence call run/lift` would write it in the log.
pub const LIFT: &str = "fence lift|run/lift";

/// A tool that writes or runs, and the session that is about to call it.
#[derive(Debug)]
pub struct Question<'a> {
    /// The guarded command that it names.
    pub found: Option<&'a Found>,
    /// The run of the session, for a person who lifts its guard.
    pub session: &'a str,
    pub standing: &'a Standing,
    /// The fleet could not be asked.
    pub unknown: Option<&'a Error>,
    pub is_lifted: bool,
    pub is_strict: bool,
    /// It works with the tools of `fence mcp`.
    pub by_mcp: bool,
    /// Who holds the work now: a sentence, or nothing.
    pub holder: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Pass,
    Tell(String),
    Deny(String),
}

/// The first row that applies.
pub fn decide(question: &Question<'_>) -> Decision {
    let Question { found, standing, unknown, is_strict, .. } = question;
    let run = question.session;
    if found.is_some_and(|found| found.rule == LIFT) {
        return Decision::Deny(
            "fence: only a person lifts the guard, in a terminal of their own. Ask them, and do not work around it.".into(),
        );
    }
    if question.is_lifted {
        return Decision::Pass;
    }
    let lift =
        format!("A person can lift this for ten minutes, in a terminal of their own: fence lift {run}");
    let (ack, claims) = match question.by_mcp {
        true => (
            "The tool `finish` with how=acknowledge, or `fence ack` alone on a line,",
            "The tool `claim` takes a task.",
        ),
        false => ("`fence ack`, alone on a line,", "fence claim --keep takes a task."),
    };
    match standing {
        // A guarded command needs a claim that is alive for sure.
        Standing::LostOne(lost) if found.is_none() || unknown.is_none() => {
            return Decision::Tell(format!(
                "fence: this session {}. {} Stop that work and push nothing of it; you still hold another claim. {ack} acknowledges this, and ends this message.",
                described(lost),
                question.holder
            ));
        }
        Standing::Lost(lost) => {
            return Decision::Deny(format!(
                "fence: blocked. This session (run {run}) {}. {} Stop that work: until you acknowledge the loss, nothing may be written or \
                 run; reading is allowed. {ack} acknowledges it; so does a new claim. {claims} {lift}",
                described(lost),
                question.holder
            ));
        }
        _ => {}
    }
    let Some(found) = found else { return Decision::Pass };
    let what = format!("`{}` is a guarded command", found.command);
    if let Some(error) = unknown {
        let hint = error.hint_text().map_or(String::new(), |hint| format!(" ({hint})"));
        return Decision::Deny(format!(
            "fence: {what}, and nobody can tell whether this session (run {run}) still holds its claim: {}{hint}. {lift}",
            error.message()
        ));
    }
    let deny = |why: &str| {
        Decision::Deny(format!("fence: {what}, and this session (run {run}) {why}. {claims} {lift}"))
    };
    let tell = |why: &str| {
        Decision::Tell(format!(
            "fence: {what}. Several agents share this repository, and this session {why}. If this belongs to a task, claim it first. {claims}"
        ))
    };
    match (standing, *is_strict) {
        (Standing::GaveUp, _) => deny(
            "holds no claim any more: it gave its work back or lost it, and somebody else may be at work on the task. Do not work around this",
        ),
        (Standing::NeverClaimed, true) => deny("has claimed nothing"),
        (Standing::Completed, true) => deny("completed its claim and holds no other"),
        (Standing::NeverClaimed, false) => tell("has claimed nothing"),
        (Standing::Completed, false) => tell("completed its claim and holds no other"),
        (Standing::Holds | Standing::Lost(_) | Standing::LostOne(_), _) => Decision::Pass,
    }
}

/// "lost claim task/auth-3@42 (the task was cancelled)"
fn described(lost: &[Lost]) -> String {
    let one = |lost: &Lost| format!("{} ({})", lost.token, lost.describe());
    let shown = lost.iter().rev().take(3).map(one).collect::<Vec<_>>().join(" and ");
    let claims = if lost.len() == 1 { "claim" } else { "claims" };
    format!("lost {claims} {shown}{}", if lost.len() > 3 { " and others" } else { "" })
}

/// The refusal of an event that cannot be read.
pub fn unreadable(found: Option<&Found>) -> String {
    let may = found.map_or(String::new(), |found| format!(" (it may run `{}`)", found.command));
    format!(
        "fence: the client's event cannot be read, so nobody can tell what it does{may}, and it is blocked. fence doctor checks the hooks"
    )
}

/// The refusal of an event that is too large to be searched.
pub fn too_large(limit: u64) -> String {
    format!(
        "fence: the client's event has more than {} MB and cannot be checked, so it is blocked. Write it to a file in parts",
        limit >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Loss;
    use fencepost::Time;

    fn decided(
        rule: Option<&str>,
        standing: &Standing,
        reachable: bool,
        lifted: bool,
        strict: bool,
    ) -> &'static str {
        let found = rule.map(|rule| Found { rule: rule.into(), command: rule.into() });
        let error = Error::unavailable("the server does not answer");
        let question = Question {
            found: found.as_ref(),
            session: "claude-1",
            standing,
            unknown: (!reachable).then_some(&error),
            is_lifted: lifted,
            is_strict: strict,
            by_mcp: false,
            holder: "Run x holds it.",
        };
        match decide(&question) {
            Decision::Pass => "pass",
            Decision::Tell(_) => "tell",
            Decision::Deny(reason) => {
                assert!(rule == Some(LIFT) || reason.contains("fence lift claude-1"), "{reason}");
                "deny"
            }
        }
    }

    #[test]
    fn the_table() {
        let lost =
            || vec![Lost { token: "task/a-1@1".into(), fleet: "f".into(), how: Loss::Taken, at: Time(0) }];
        // A guarded command, the same if the fleet cannot be reached, the same with --strict, any other tool, that one without the fleet.
        for (standing, expected) in [
            (Standing::LostOne(lost()), ["tell", "deny", "tell", "tell", "tell"]),
            (Standing::Lost(lost()), ["deny", "deny", "deny", "deny", "deny"]),
            (Standing::Holds, ["pass", "deny", "pass", "pass", "pass"]),
            (Standing::GaveUp, ["deny", "deny", "deny", "pass", "pass"]),
            (Standing::Completed, ["tell", "deny", "deny", "pass", "pass"]),
            (Standing::NeverClaimed, ["tell", "deny", "deny", "pass", "pass"]),
        ] {
            let push = Some("git push");
            let cases = [
                (push, true, false),
                (push, false, false),
                (push, true, true),
                (None, true, true),
                (None, false, false),
            ];
            let seen =
                cases.map(|(rule, reachable, strict)| decided(rule, &standing, reachable, false, strict));
            assert_eq!(seen, expected, "{standing:?}");
            for (rule, reachable, strict) in cases {
                assert_eq!(decided(rule, &standing, reachable, true, strict), "pass", "lifted: {standing:?}");
                assert_eq!(decided(Some(LIFT), &standing, reachable, true, strict), "deny", "{standing:?}");
            }
        }
    }
}
