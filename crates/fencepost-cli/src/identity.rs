//! The run that a command acts for if nobody names one: the run of the innermost agent session, else of this terminal. All
//! commands of a terminal act for the same run, and those of two terminals never do.

pub mod process;
pub mod recorded;

use crate::names::digest;
use process::Process;
use recorded::Record;
use std::collections::HashMap;

/// Agents that give their processes a variable with the session, and the prefix of the run's name. Of two variables that an agent
/// set together the first counts.
const AGENTS: [(&str, &str); 3] =
    [("CODEX_SESSION_ID", "codex"), ("CODEX_THREAD_ID", "codex"), ("CLAUDE_CODE_SESSION_ID", "claude")];
/// A session and its thread. A thread of its own is a subagent of the session.
const THREADS: (&str, &str) = ("CODEX_SESSION_ID", "CODEX_THREAD_ID");

/// Programs that start commands, outlive them, and are no agents.
const DAEMONS: [&str; 8] = ["cron", "crond", "anacron", "atd", "sshd", "systemd", "init", "containerd-shim"];

/// The variable that names the run itself.
pub const RUN: &str = "FENCE_RUN";

/// The run that a command acts for, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub run: String,
    pub reason: Reason,
    /// The terminal or agent. `claim --keep` keeps the run while this process lives.
    pub owner: Option<Process>,
}

/// Why a command acts for its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// `--run`
    Flag,
    /// `FENCE_RUN`
    Variable,
    /// The session of an agent, named by this variable.
    Agent(&'static str),
    /// The session that a hook of the client recorded for an ancestor.
    Recorded,
    /// The session of a terminal, or of another process that started a session.
    Session,
    /// The session's leader is gone or out of sight, so our oldest ancestor in the session stands for it.
    Orphan,
}

impl Reason {
    /// Is it an agent's session, which its subagents may share?
    pub fn is_agent(&self) -> bool {
        matches!(self, Reason::Agent(_) | Reason::Recorded)
    }

    pub fn describe(&self) -> String {
        match self {
            Reason::Flag => "--run names it".into(),
            Reason::Variable => "FENCE_RUN names it".into(),
            Reason::Agent(variable) => format!("{variable} names the innermost agent session"),
            Reason::Recorded => "the client's hook recorded its session".into(),
            Reason::Session => "no agent session is set, so this terminal's session is the run".into(),
            Reason::Orphan => {
                "no agent session is set and the session's leader is gone, so the oldest process here is the run"
                    .into()
            }
        }
    }
}

/// The variables from which a process learns the run that it acts for.
pub fn variables() -> [&'static str; 4] {
    [RUN, AGENTS[0].0, AGENTS[1].0, AGENTS[2].0]
}

/// Do the variables of this process name the run?
pub fn acts_for(process: &Process, run: &str) -> bool {
    let of = |variable| process.variables.get(variable).filter(|value| !value.is_empty());
    // The run of a subagent ends with its session.
    let session = run.split_once('.').map_or(run, |(session, _)| session);
    let agents = AGENTS
        .iter()
        .any(|&(variable, prefix)| of(variable).is_some_and(|id| agent_run(prefix, id) == session));
    of(RUN).map_or(agents, |named| named == run)
}

/// The run of an agent's session: `claude-7f3a`.
pub fn agent_run(prefix: &str, id: &str) -> String {
    // A dot separates the subagent.
    format!("{prefix}-{}", plain(id).replace('.', "-"))
}

/// The run of a subagent: `claude-7f3a.a12`.
pub fn subagent_run(session: &str, agent: &str) -> String {
    format!("{session}.{}", plain(agent).replace('.', "-"))
}

/// Programs that start another one and wait for it. They live as long as the client that started them, but say nothing about it.
const WRAPPERS: [&str; 6] = ["env", "timeout", "nice", "nohup", "setsid", "sudo"];

/// The client that started this process: its parent, or the process above shells and wrappers that only run one command. `None` if
/// the client is gone.
pub fn client() -> Option<Process> {
    client_in(&process::lineage(&[]))
}

fn client_in(lineage: &[Process]) -> Option<Process> {
    let is_wrapper = |process: &&Process| process.is_throwaway || WRAPPERS.contains(&process.name.as_str());
    let client = lineage.iter().skip(1).find(|process| !is_wrapper(process))?;
    (!adopts_orphans(client, "") && !is_daemon(client)).then(|| client.clone())
}

/// Is this the run of a subagent of the session?
fn is_subagent(run: &str, session: &str) -> bool {
    run.strip_prefix(session).is_some_and(|rest| rest.starts_with('.'))
}

/// The runs under whose claims a run may act: its own, and that of its session.
pub fn with_session(run: &str) -> Vec<String> {
    match run.split_once('.') {
        Some((session, _)) => vec![run.to_owned(), session.to_owned()],
        None => vec![run.to_owned()],
    }
}

/// The run of this process, by its flags, its variables and its ancestors.
pub fn identify(flag: Option<String>, variable: Option<String>) -> Identity {
    let names = AGENTS.map(|(variable, _)| variable);
    let environment =
        names.iter().filter_map(|&name| Some((name, std::env::var(name).ok()?))).collect::<HashMap<_, _>>();
    let find = |pid| Process::read(pid, &names);
    decide(flag, variable, &environment, &process::lineage(&names), find, recorded::of, &process::realm())
}

/// The same for an MCP server. Its client may begin or resume another session after it has started the server (seen: `claude
/// --continue` gives its servers the variable of a session that it then does not use), so the hook's record comes before the variable.
pub fn identify_server(flag: Option<String>, variable: Option<String>) -> Identity {
    let identity = identify(flag, variable);
    let record = identity.owner.as_ref().and_then(recorded::of);
    by_record(identity, record)
}

/// `record`: of the identity's owner.
fn by_record(identity: Identity, record: Option<Record>) -> Identity {
    match record {
        Some(record) if identity.reason.is_agent() => Identity { run: record.run, ..identity },
        _ => identity,
    }
}

/// The rule. `lineage` is this process, its parent, and so on. `find` reads any process. `recorded` reads the session that a hook
/// recorded for a process. `realm` is the scope in which process ids are unique.
fn decide(
    flag: Option<String>,
    variable: Option<String>,
    environment: &HashMap<&'static str, String>,
    lineage: &[Process],
    find: impl Fn(i32) -> Option<Process>,
    recorded: impl Fn(&Process) -> Option<Record>,
    realm: &str,
) -> Identity {
    let ancestors = lineage.get(1..).unwrap_or_default();
    let record = || ancestors.iter().find_map(|process| Some((process, recorded(process)?)));
    let found = agent_session(environment, lineage).or_else(|| {
        let (client, record) = record()?;
        Some(Identity { run: record.run, reason: Reason::Recorded, owner: Some(client.clone()) })
    });
    let found = found.or_else(|| session(lineage, find, realm));
    let named = flag.map(|run| (run, Reason::Flag)).or(variable.map(|run| (run, Reason::Variable)));
    match (named, found) {
        // The client's hook names the runs of subagents so. They belong to the session, and end with it.
        (Some((run, _)), Some(found)) if found.reason.is_agent() && is_subagent(&run, &found.run) => {
            Identity { run, ..found }
        }
        (Some((run, reason)), found) => {
            let owner = found.and_then(|found| found.owner);
            // A client that starts each command in a session of its own: the named run lives longer than the command.
            let owner = owner.map(|owner| {
                match owner.is_throwaway || Some(owner.pid) == lineage.first().map(|us| us.pid) {
                    true => lasting(lineage).cloned().unwrap_or(owner),
                    false => owner,
                }
            });
            Identity { run, reason, owner }
        }
        (None, Some(found)) => found,
        (None, None) => {
            Identity { run: format!("process-{}", std::process::id()), reason: Reason::Orphan, owner: None }
        }
    }
}

/// The nearest ancestor outside of our session, if it may be an agent.
fn lasting(lineage: &[Process]) -> Option<&Process> {
    let ours = lineage.first()?.session;
    let above = lineage.iter().find(|process| process.session != ours && !process.is_throwaway)?;
    (!adopts_orphans(above, "") && !is_daemon(above)).then_some(above)
}

fn is_daemon(process: &Process) -> bool {
    DAEMONS.contains(&process.name.as_str())
}

/// The innermost agent session. An agent sets its variable, and all processes below inherit it; agents start other agents. So the
/// session that started last has its variable in the fewest ancestors. The first ancestor without the variable is the agent that
/// set it.
fn agent_session(environment: &HashMap<&'static str, String>, lineage: &[Process]) -> Option<Identity> {
    let ancestors = lineage.get(1..).unwrap_or_default();
    let set = AGENTS.iter().filter_map(|&(variable, prefix)| {
        let id = environment.get(variable).filter(|id| !id.is_empty())?;
        let depth =
            ancestors.iter().take_while(|process| process.variables.get(variable) == Some(id)).count();
        Some((depth, variable, prefix, agent_run(prefix, id)))
    });
    let (depth, variable, agent, run) = set.min_by_key(|&(depth, ..)| depth)?;
    let thread = environment.get(THREADS.1).filter(|thread| {
        variable == THREADS.0 && !thread.is_empty() && environment.get(THREADS.0) != Some(thread)
    });
    let run = thread.map_or(run.clone(), |thread| subagent_run(&run, thread));
    // If the agent is gone, the process that adopts orphans is our ancestor, and would be the owner for ever. Then the
    // outermost process that the agent left behind is the owner.
    let owner = ancestors.get(depth).filter(|above| !adopts_orphans(above, agent));
    let owner = owner.or_else(|| ancestors.get(depth.checked_sub(1)?));
    Some(Identity { run, reason: Reason::Agent(variable), owner: owner.cloned() })
}

/// The first process or a user's systemd, except for an agent that is alone in its container.
fn adopts_orphans(process: &Process, agent: &str) -> bool {
    (process.pid == 1 || process.name == "systemd") && ![agent, "node"].contains(&process.name.as_str())
}

/// The leader of our session. An agent may start every command in a new session, with a shell that often replaces itself by
/// the command: such a leader is skipped if a process further up has a terminal. (A job of cron or of sshd has no terminal
/// above it, and stands for itself.)
fn session(lineage: &[Process], find: impl Fn(i32) -> Option<Process>, realm: &str) -> Option<Identity> {
    let of = |leader: &Process, reason| {
        Some(Identity { run: name(leader, realm), reason, owner: Some(leader.clone()) })
    };
    let mut rest = lineage;
    loop {
        let session = rest.first()?.session;
        let Some(at) = rest.iter().position(|process| process.pid == session) else {
            if let Some(leader) = find(session).filter(|leader| leader.session == session) {
                return of(&leader, Reason::Session);
            }
            let oldest = rest.iter().take_while(|process| process.session == session).last()?;
            return of(oldest, Reason::Orphan);
        };
        let is_us = rest.len() == lineage.len() && at == 0;
        let above = &rest[at + 1..];
        // No ancestor beyond the one that adopts orphans started us.
        let mut starters = above.iter().take_while(|process| !adopts_orphans(process, ""));
        if !(is_us || rest[at].is_throwaway) || !starters.any(|process| process.has_terminal) {
            return of(&rest[at], Reason::Session);
        }
        rest = above;
    }
}

/// `shell-4711-5f0c9a3e`: a process id, and a digest of its start time and its realm. A system uses ids again, and machines and
/// containers that share a fleet have the same ids.
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

    /// `pid session name[*][!] [VARIABLE=value…]`, innermost first: `*` has a terminal, `!` runs one command only.
    fn lineage(text: &str) -> Vec<Process> {
        let rows: Vec<Vec<&str>> = text.trim().lines().map(|row| row.split_whitespace().collect()).collect();
        let pid = |row: &[&str]| row[0].parse().unwrap();
        let process = |(at, row): (usize, &Vec<&str>)| Process {
            pid: pid(row),
            parent: rows.get(at + 1).map_or(0, |row| pid(row)),
            group: 0,
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
        let lineage = lineage(text);
        decide(None, None, &lineage[0].variables, &lineage, |_| None, |_| None, "here")
    }

    fn run_and_owner(text: &str) -> (String, Option<String>) {
        let decided = decided(text);
        (decided.run, decided.owner.map(|owner| owner.name))
    }

    #[test]
    fn every_command_of_a_terminal_is_one_run() {
        let cases = [
            ("a shell", "9 5 fence*\n5 5 bash*\n2 2 tmux", 5, Reason::Session),
            (
                "a shell in a shell",
                "9 5 fence*\n8 5 bash*\n7 5 bash*!\n5 5 zsh*\n1 1 init",
                5,
                Reason::Session,
            ),
            (
                "an agent that starts each command in a session of its own",
                "9 8 fence\n8 8 bash!\n6 5 gemini*\n5 5 bash*\n1 1 init",
                5,
                Reason::Session,
            ),
            ("and whose shell became the command", "9 9 fence\n6 5 gemini*\n5 5 bash*", 5, Reason::Session),
            (
                "and that is itself started by something without a terminal",
                "9 8 fence\n8 8 bash!\n7 7 worker\n6 5 gemini*\n5 5 bash*",
                7,
                Reason::Session,
            ),
            ("a script in a session of its own", "9 8 fence\n8 8 bash\n5 5 bash*", 8, Reason::Session),
            ("a job of cron", "9 8 fence\n8 8 sh!\n6 4 cron\n4 4 cron\n1 1 init", 8, Reason::Session),
            (
                "a job of cron in a container with a terminal",
                "9 8 fence\n8 8 sh!\n6 4 cron\n4 4 cron\n1 1 bash*",
                8,
                Reason::Session,
            ),
            ("a job of cron that is one command", "9 9 fence\n4 4 cron\n1 1 init", 9, Reason::Session),
            ("a command over ssh", "9 8 fence\n8 8 bash!\n6 6 sshd\n1 1 init", 8, Reason::Session),
            ("a leader that is gone", "9 5 fence\n8 5 bash\n1 1 init", 8, Reason::Orphan),
            ("a leader out of sight", "9 0 fence\n8 0 bash\n7 0 make", 7, Reason::Orphan),
        ];
        for (what, lineage, owner, reason) in cases {
            let decided = decided(lineage);
            let leader = Process { pid: owner, started: 1000 + owner as u64, ..Process::default() };
            assert_eq!((decided.run, decided.reason), (name(&leader, "here"), reason), "{what}");
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
    fn a_process_that_adopts_orphans_is_no_owner() {
        let orphan = "9 8 fence CLAUDE=c\n8 8 bash CLAUDE=c\n7 7 nohup CLAUDE=c\n";
        for above in ["1 1 init", "1 1 process_api", "2 2 systemd\n1 1 init"] {
            assert_eq!(run_and_owner(&format!("{orphan}{above}")), ("claude-c".into(), Some("nohup".into())));
        }
        assert_eq!(run_and_owner(&format!("{orphan}1 1 claude")).1.as_deref(), Some("claude"));
        assert_eq!(run_and_owner("9 9 fence CLAUDE=c\n1 1 init"), ("claude-c".into(), None));
    }

    #[test]
    fn the_client_is_above_shells_for_one_command() {
        let client = |text| client_in(&lineage(text)).map(|client| client.name);
        assert_eq!(client("9 5 fence\n6 5 claude*\n5 5 bash*").as_deref(), Some("claude"));
        assert_eq!(client("9 5 fence\n8 5 timeout\n7 5 sh!\n6 5 codex\n5 5 node").as_deref(), Some("codex"));
        assert_eq!(client("9 5 fence\n8 5 sh!\n1 1 init"), None);
        assert_eq!(client("9 9 fence"), None);
    }

    #[test]
    fn the_innermost_agent_session_is_the_run() {
        let claude = "9 8 fence CLAUDE=c\n8 8 bash! CLAUDE=c\n6 5 claude*\n5 5 bash*";
        assert_eq!(run_and_owner(claude), ("claude-c".into(), Some("claude".into())));
        let codex_in_claude = "9 8 fence CLAUDE=c CODEX=x\n8 8 bash! CLAUDE=c CODEX=x\n7 7 codex CLAUDE=c
            6 6 bash! CLAUDE=c\n5 4 claude*\n4 4 bash*";
        assert_eq!(run_and_owner(codex_in_claude), ("codex-x".into(), Some("codex".into())));
        let claude_in_codex = "9 8 fence CLAUDE=c CODEX=x\n8 8 bash! CLAUDE=c CODEX=x\n7 7 claude CODEX=x
            6 6 bash! CODEX=x\n5 4 codex*\n4 4 bash*";
        assert_eq!(run_and_owner(claude_in_codex), ("claude-c".into(), Some("claude".into())));
        let claude_in_claude =
            "9 8 fence CLAUDE=d\n8 8 bash CLAUDE=d\n7 7 claude CLAUDE=c\n6 6 bash CLAUDE=c";
        assert_eq!(run_and_owner(claude_in_claude), ("claude-d".into(), Some("claude".into())));
        assert_eq!(
            decided("9 5 fence* CLAUDE=\n5 5 bash*").reason,
            Reason::Session,
            "an empty variable is none"
        );
        assert_eq!(run_and_owner("9 5 fence* CODEX=a/b!c\n5 5 bash*").0, "codex-a-b-c");
    }

    #[test]
    fn a_thread_of_codex_is_a_session_or_a_subagent() {
        let of =
            |variables: &str| decided(&format!("9 8 fence {variables}\n8 8 bash! {variables}\n6 5 codex*"));
        for (variables, run, variable) in [
            ("CODEX_T=t", "codex-t", "CODEX_THREAD_ID"),
            ("CODEX_S=s CODEX_T=s", "codex-s", "CODEX_SESSION_ID"),
            ("CODEX_S=s CODEX_T=t", "codex-s.t", "CODEX_SESSION_ID"),
            ("CODEX_S=s CODEX_T=", "codex-s", "CODEX_SESSION_ID"),
        ] {
            assert_eq!(
                (of(variables).run, of(variables).reason),
                (run.into(), Reason::Agent(variable)),
                "{variables}"
            );
        }
        let subagent = lineage("9 8 fence CODEX_S=s CODEX_T=t").remove(0);
        assert!(acts_for(&subagent, "codex-s.t") && !acts_for(&subagent, "codex-u.t"));
    }

    /// The client is process 6.
    #[test]
    fn a_recorded_session_comes_before_the_terminal() {
        let recorded = |process: &Process| {
            let record = Record { run: "gemini-2".into(), ..Record::default() };
            (process.pid == 6).then_some(record)
        };
        let run = |text: &str| {
            let lineage = lineage(text);
            let decided = decide(None, None, &lineage[0].variables, &lineage, |_| None, recorded, "here");
            (decided.run, decided.reason, decided.owner.map(|owner| owner.pid))
        };
        let variable = Reason::Agent("CLAUDE_CODE_SESSION_ID");
        for (text, expected) in [
            ("9 8 fence\n8 8 bash!\n6 5 gemini*\n5 5 bash*", ("gemini-2", Reason::Recorded, 6)),
            ("9 6 fence\n6 6 gemini\n1 1 init", ("gemini-2", Reason::Recorded, 6)),
            ("9 6 fence CLAUDE=3\n6 6 claude\n1 1 init", ("claude-3", variable, 6)),
        ] {
            let (run, reason, owner) = run(text);
            assert_eq!((run.as_str(), reason, owner), (expected.0, expected.1, Some(expected.2)), "{text}");
        }
    }

    #[test]
    fn a_server_acts_for_the_session_that_its_client_resumed() {
        let record = || Some(Record { run: "claude-resumed".into(), ..Record::default() });
        let identity = |reason| Identity { run: "own".into(), reason, owner: None };
        for (reason, record, expected) in [
            (Reason::Agent("CLAUDE_CODE_SESSION_ID"), record(), "claude-resumed"),
            (Reason::Agent("CLAUDE_CODE_SESSION_ID"), None, "own"),
            (Reason::Variable, record(), "own"),
            (Reason::Flag, record(), "own"),
        ] {
            assert_eq!(by_record(identity(reason.clone()), record).run, expected, "{reason:?}");
        }
    }

    /// Clients without a variable that start each command in a session of its own, without a terminal above.
    #[test]
    fn a_named_run_lives_as_long_as_its_client() {
        for (what, text, owner) in [
            ("a shell that stays", "9 8 fence\n8 8 bash!\n6 6 gemini\n1 1 init", 6),
            ("a shell that became the command", "9 9 fence\n6 6 gemini\n1 1 init", 6),
            ("a wrapper in the session", "9 7 fence\n8 7 timeout\n7 7 bash!\n6 6 gemini\n1 1 init", 6),
            ("a script", "9 8 fence\n8 8 bash\n6 6 gemini\n1 1 init", 8),
            ("a job of cron", "9 8 fence\n8 8 sh!\n6 4 cron\n1 1 init", 8),
            ("a command over ssh", "9 8 fence\n8 8 bash!\n6 6 sshd\n1 1 init", 8),
            ("an orphan", "9 8 fence\n8 8 bash!\n1 1 init", 8),
        ] {
            let lineage = lineage(text);
            let named =
                decide(Some("r".into()), None, &lineage[0].variables, &lineage, |_| None, |_| None, "here");
            assert_eq!(named.owner.map(|owner| owner.pid), Some(owner), "{what}");
        }
    }

    #[test]
    fn a_named_run_comes_first() {
        let lineage = lineage("9 8 fence CLAUDE=c\n8 8 bash CLAUDE=c\n6 5 claude*");
        let identify = |flag: Option<&str>, variable: Option<&str>| {
            let decided = decide(
                flag.map(Into::into),
                variable.map(Into::into),
                &lineage[0].variables,
                &lineage,
                |_| None,
                |_| None,
                "",
            );
            (decided.run, decided.reason, decided.owner.map(|owner| owner.pid))
        };
        assert_eq!(identify(Some("a"), Some("b")), ("a".into(), Reason::Flag, Some(6)));
        assert_eq!(identify(None, Some("b")), ("b".into(), Reason::Variable, Some(6)));
        assert_eq!(identify(None, Some("claude-c2.d")), ("claude-c2.d".into(), Reason::Variable, Some(6)));
        // A subagent of the session is an agent.
        let agent = Reason::Agent("CLAUDE_CODE_SESSION_ID");
        assert_eq!(identify(None, Some("claude-c.d")), ("claude-c.d".into(), agent.clone(), Some(6)));
        assert_eq!(identify(Some("claude-c.d"), None), ("claude-c.d".into(), agent, Some(6)));
        assert_eq!(
            identify(None, None),
            ("claude-c".into(), Reason::Agent("CLAUDE_CODE_SESSION_ID"), Some(6))
        );
    }
}
