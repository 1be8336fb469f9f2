//! Whose run it is when nobody says: that of the innermost agent session, else that of this terminal, so that
//! every command typed into it acts for the same run, and two terminals never do.

use crate::{
    context::digest,
    process::{self, Process},
};
use std::collections::HashMap;

/// Agents that tell the processes they start which session they belong to, and what we call their runs.
const AGENTS: [(&str, &str); 2] = [("CODEX_SESSION_ID", "codex"), ("CLAUDE_CODE_SESSION_ID", "claude")];

/// Names the run itself.
pub const RUN: &str = "FENCE_RUN";

/// The run that short verbs act for, and why it is that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub run: String,
    pub why: Why,
    /// The terminal or agent for whose life `claim --keep` keeps the run.
    pub owner: Option<Process>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// `--run`
    Flag,
    /// `FENCE_RUN`
    Variable,
    /// An agent's session, by its variable.
    Agent(&'static str),
    /// The session of a terminal, or of whatever started a session.
    Session,
    /// The session's leader is gone or out of sight, so the first of our ancestors in it stands for it.
    Orphan,
}

impl Why {
    pub fn describe(&self) -> String {
        match self {
            Why::Flag => "--run says so".into(),
            Why::Variable => "FENCE_RUN says so".into(),
            Why::Agent(variable) => format!("{variable} names the innermost agent session"),
            Why::Session => "no agent session is set, so this terminal's session is the run".into(),
            Why::Orphan => {
                "no agent session is set and the session's leader is gone, so the oldest process here is the run"
                    .into()
            }
        }
    }
}

/// The variables that tell a process for which run it acts.
pub fn variables() -> [&'static str; 3] {
    [RUN, AGENTS[0].0, AGENTS[1].0]
}

/// Was this process told to act for the run?
pub fn is_told(process: &Process, run: &str) -> bool {
    let of = |variable| process.variables.get(variable).filter(|value| !value.is_empty());
    let agents =
        AGENTS.iter().any(|&(variable, prefix)| of(variable).is_some_and(|id| agent_run(prefix, id) == run));
    of(RUN).map_or(agents, |named| named == run)
}

fn agent_run(prefix: &str, id: &str) -> String {
    format!("{prefix}-{}", plain(id))
}

/// Who we are, by what we were told and where we run.
pub fn identify(flag: Option<String>, variable: Option<String>) -> Identity {
    let names = AGENTS.map(|(variable, _)| variable);
    let environment =
        names.iter().filter_map(|&name| Some((name, std::env::var(name).ok()?))).collect::<HashMap<_, _>>();
    let find = |pid| Process::read(pid, &names);
    decide(flag, variable, &environment, &process::lineage(&names), find, &process::realm())
}

/// The rule. `line` is this process, its parent, and so on; `find` knows every process; `realm` is where their ids
/// mean something.
fn decide(
    flag: Option<String>,
    variable: Option<String>,
    environment: &HashMap<&'static str, String>,
    line: &[Process],
    find: impl Fn(i32) -> Option<Process>,
    realm: &str,
) -> Identity {
    let found = agent_session(environment, line).or_else(|| session(line, find, realm));
    let named = flag.map(|run| (run, Why::Flag)).or(variable.map(|run| (run, Why::Variable)));
    match (named, found) {
        (Some((run, why)), found) => Identity { run, why, owner: found.and_then(|found| found.owner) },
        (None, Some(found)) => found,
        (None, None) => {
            Identity { run: format!("process-{}", std::process::id()), why: Why::Orphan, owner: None }
        }
    }
}

/// Agents start agents. A variable is handed down to everyone below, so the innermost session is the one whose
/// variable the fewest of our ancestors were started with; the first without it is the agent that set it.
fn agent_session(environment: &HashMap<&'static str, String>, line: &[Process]) -> Option<Identity> {
    let ancestors = line.get(1..).unwrap_or_default();
    let set = AGENTS.iter().filter_map(|&(variable, prefix)| {
        let id = environment.get(variable).filter(|id| !id.is_empty())?;
        let depth =
            ancestors.iter().take_while(|process| process.variables.get(variable) == Some(id)).count();
        Some((depth, variable, prefix, agent_run(prefix, id)))
    });
    let (depth, variable, agent, run) = set.min_by_key(|&(depth, ..)| depth)?;
    // If the agent is gone, whoever adopts orphans stands in its place, and would be the owner for ever: then the
    // outermost that it left behind is the owner.
    let owner = ancestors.get(depth).filter(|above| !adopts_orphans(above, agent));
    let owner = owner.or_else(|| ancestors.get(depth.checked_sub(1)?));
    Some(Identity { run, why: Why::Agent(variable), owner: owner.cloned() })
}

/// The first process, or a user's systemd; unless it is the agent itself, alone in its container.
fn adopts_orphans(process: &Process, agent: &str) -> bool {
    (process.pid == 1 || process.name == "systemd") && ![agent, "node"].contains(&process.name.as_str())
}

/// The leader of our session. An agent may start every command in a session of its own, in a shell that often
/// becomes the command itself: such a leader is skipped when there is a terminal further up. (A job of cron or of
/// sshd has none above it, and stands for itself.)
fn session(line: &[Process], find: impl Fn(i32) -> Option<Process>, realm: &str) -> Option<Identity> {
    let of =
        |leader: &Process, why| Some(Identity { run: name(leader, realm), why, owner: Some(leader.clone()) });
    let mut rest = line;
    loop {
        let session = rest.first()?.session;
        let Some(at) = rest.iter().position(|process| process.pid == session) else {
            if let Some(leader) = find(session).filter(|leader| leader.session == session) {
                return of(&leader, Why::Session);
            }
            let oldest = rest.iter().take_while(|process| process.session == session).last()?;
            return of(oldest, Why::Orphan);
        };
        let is_us = rest.len() == line.len() && at == 0;
        let above = &rest[at + 1..];
        // Beyond whoever adopts orphans is nobody who started us.
        let mut starters = above.iter().take_while(|process| !adopts_orphans(process, ""));
        if !(is_us || rest[at].is_throwaway) || !starters.any(|process| process.has_terminal) {
            return of(&rest[at], Why::Session);
        }
        rest = above;
    }
}

/// `shell-4711-5f0c9a3e`: a process id, and a digest of when it started and where. Ids are used again, and machines
/// and containers that share a fleet count alike.
fn name(leader: &Process, realm: &str) -> String {
    format!("shell-{}-{}", leader.pid, digest(&format!("{realm} {}", leader.started)))
}

/// A session id as a part of a run's name.
fn plain(id: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    id.chars().take(100).map(|c| if allowed(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pid session name[*][!] [VARIABLE=value…]`, innermost first: `*` has a terminal, `!` is thrown away.
    fn line(text: &str) -> Vec<Process> {
        let rows: Vec<Vec<&str>> = text.trim().lines().map(|row| row.split_whitespace().collect()).collect();
        let pid = |row: &[&str]| row[0].parse().unwrap();
        let process = |(at, row): (usize, &Vec<&str>)| Process {
            pid: pid(row),
            parent: rows.get(at + 1).map_or(0, |row| pid(row)),
            session: row[1].parse().unwrap(),
            started: 1000 + u64::try_from(pid(row)).unwrap(),
            has_terminal: row[2].contains('*'),
            is_throwaway: row[2].contains('!'),
            name: row[2].trim_end_matches(['*', '!']).into(),
            variables: row[3..]
                .iter()
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap();
                    (AGENTS.iter().find(|(agent, _)| agent.starts_with(name)).unwrap().0, value.to_owned())
                })
                .collect(),
        };
        rows.iter().enumerate().map(process).collect()
    }

    fn decided(text: &str) -> Identity {
        let line = line(text);
        decide(None, None, &line[0].variables, &line, |_| None, "here")
    }

    fn whose(text: &str) -> (String, Option<String>) {
        let decided = decided(text);
        (decided.run, decided.owner.map(|owner| owner.name))
    }

    #[test]
    fn every_command_of_a_terminal_is_one_run() {
        let cases = [
            ("a shell", "9 5 fence*\n5 5 bash*\n2 2 tmux", 5, Why::Session),
            ("a shell in a shell", "9 5 fence*\n8 5 bash*\n7 5 bash*!\n5 5 zsh*\n1 1 init", 5, Why::Session),
            (
                "an agent that starts each command in a session of its own",
                "9 8 fence\n8 8 bash!\n6 5 gemini*\n5 5 bash*\n1 1 init",
                5,
                Why::Session,
            ),
            ("and whose shell became the command", "9 9 fence\n6 5 gemini*\n5 5 bash*", 5, Why::Session),
            (
                "and that is itself started by something without a terminal",
                "9 8 fence\n8 8 bash!\n7 7 worker\n6 5 gemini*\n5 5 bash*",
                7,
                Why::Session,
            ),
            ("a script in a session of its own", "9 8 fence\n8 8 bash\n5 5 bash*", 8, Why::Session),
            ("a job of cron", "9 8 fence\n8 8 sh!\n6 4 cron\n4 4 cron\n1 1 init", 8, Why::Session),
            (
                "a job of cron in a container with a terminal",
                "9 8 fence\n8 8 sh!\n6 4 cron\n4 4 cron\n1 1 bash*",
                8,
                Why::Session,
            ),
            ("a job of cron that is one command", "9 9 fence\n4 4 cron\n1 1 init", 9, Why::Session),
            ("a command over ssh", "9 8 fence\n8 8 bash!\n6 6 sshd\n1 1 init", 8, Why::Session),
            ("a leader that is gone", "9 5 fence\n8 5 bash\n1 1 init", 8, Why::Orphan),
            ("a leader out of sight", "9 0 fence\n8 0 bash\n7 0 make", 7, Why::Orphan),
        ];
        for (what, line, owner, why) in cases {
            let decided = decided(line);
            let leader = Process { pid: owner, started: 1000 + owner as u64, ..Process::default() };
            assert_eq!((decided.run, decided.why), (name(&leader, "here"), why), "{what}");
            assert_eq!(decided.owner.map(|owner| owner.pid), Some(owner), "{what}");
        }
    }

    #[test]
    fn no_two_terminals_have_one_name() {
        let leader = Process { pid: 5, started: 1005, ..Process::default() };
        let names = [
            name(&leader, "here"),
            name(&leader, "another machine, boot or container"),
            name(&Process { started: 1006, ..leader.clone() }, "here"),
            name(&Process { pid: 6, ..leader.clone() }, "here"),
        ];
        assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{names:?}");
        assert_eq!(names[0], name(&leader, "here"));
    }

    #[test]
    fn nobody_is_kept_for_whoever_adopts_orphans() {
        let orphan = "9 8 fence CLAUDE=c\n8 8 bash CLAUDE=c\n7 7 nohup CLAUDE=c\n";
        for above in ["1 1 init", "1 1 process_api", "2 2 systemd\n1 1 init"] {
            assert_eq!(whose(&format!("{orphan}{above}")), ("claude-c".into(), Some("nohup".into())));
        }
        assert_eq!(whose(&format!("{orphan}1 1 claude")).1.as_deref(), Some("claude"));
        assert_eq!(whose("9 9 fence CLAUDE=c\n1 1 init"), ("claude-c".into(), None));
    }

    #[test]
    fn the_innermost_agent_is_who_we_are() {
        let claude = "9 8 fence CLAUDE=c\n8 8 bash! CLAUDE=c\n6 5 claude*\n5 5 bash*";
        assert_eq!(whose(claude), ("claude-c".into(), Some("claude".into())));
        let codex_in_claude = "9 8 fence CLAUDE=c CODEX=x\n8 8 bash! CLAUDE=c CODEX=x\n7 7 codex CLAUDE=c
            6 6 bash! CLAUDE=c\n5 4 claude*\n4 4 bash*";
        assert_eq!(whose(codex_in_claude), ("codex-x".into(), Some("codex".into())));
        let claude_in_codex = "9 8 fence CLAUDE=c CODEX=x\n8 8 bash! CLAUDE=c CODEX=x\n7 7 claude CODEX=x
            6 6 bash! CODEX=x\n5 4 codex*\n4 4 bash*";
        assert_eq!(whose(claude_in_codex), ("claude-c".into(), Some("claude".into())));
        let claude_in_claude =
            "9 8 fence CLAUDE=d\n8 8 bash CLAUDE=d\n7 7 claude CLAUDE=c\n6 6 bash CLAUDE=c";
        assert_eq!(whose(claude_in_claude), ("claude-d".into(), Some("claude".into())));
        assert_eq!(decided("9 5 fence* CLAUDE=\n5 5 bash*").why, Why::Session, "an empty variable is none");
        assert_eq!(whose("9 5 fence* CODEX=a/b!c\n5 5 bash*").0, "codex-a-b-c");
    }

    #[test]
    fn what_was_said_goes_first() {
        let line = line("9 8 fence CLAUDE=c\n8 8 bash CLAUDE=c\n6 5 claude*");
        let say = |flag: Option<&str>, variable: Option<&str>| {
            let decided = decide(
                flag.map(Into::into),
                variable.map(Into::into),
                &line[0].variables,
                &line,
                |_| None,
                "",
            );
            (decided.run, decided.why, decided.owner.map(|owner| owner.pid))
        };
        assert_eq!(say(Some("a"), Some("b")), ("a".into(), Why::Flag, Some(6)));
        assert_eq!(say(None, Some("b")), ("b".into(), Why::Variable, Some(6)));
        assert_eq!(say(None, None), ("claude-c".into(), Why::Agent("CLAUDE_CODE_SESSION_ID"), Some(6)));
    }
}
