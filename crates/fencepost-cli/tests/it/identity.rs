//! The run that a command acts for, with real processes, sessions and terminals.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
};
use serde_json::Value;
use std::io::Write;

/// The replies of `fence whoami --json` in a file, one per line.
fn answers(sealed: &Sealed, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sealed.path().join(file)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn runs(sealed: &Sealed, file: &str) -> Vec<String> {
    answers(sealed, file).iter().map(|me| me["run"].as_str().expect("a run").to_owned()).collect()
}

/// Runs a script as the leader of a pseudo terminal's session.
fn in_a_terminal(sealed: &Sealed, script: &str) {
    sealed.script("terminal", script);
    // `exec`: otherwise the leader could be the shell that `script` starts.
    let shown =
        sealed.command("script").args(["-qec", "exec ./terminal", "/dev/null"]).output().expect("script");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stdout));
}

/// Runs a command line as cron does: in a session without a terminal, and below processes without one. It returns when the output
/// is closed.
fn as_a_job(sealed: &Sealed, line: &str) {
    let job = sealed.command("setsid").args(["-f", "sh", "-c", line]).output().expect("setsid");
    assert!(job.status.success(), "{job:?}");
}

const WHOAMI: &str = "fence whoami --json >> said";

#[test]
fn all_shells_of_a_terminal_are_one_run() {
    let sealed = Sealed::sqlite();
    sealed.script("inner", &format!("{WHOAMI}; ({WHOAMI}); bash -c '{WHOAMI}; true'; bash -c '{WHOAMI}'"));
    in_a_terminal(&sealed, &format!("echo $$ > leader; {WHOAMI}; bash ./inner; ./inner"));
    let leader = std::fs::read_to_string(sealed.path().join("leader")).expect("its id");
    let me = answers(&sealed, "said");
    assert_eq!(me.len(), 9);
    assert!(me.iter().all(|answer| *answer == me[0]), "{me:#?}");
    assert!(
        me[0]["run"].as_str().expect("a run").starts_with(&format!("shell-{}-", leader.trim())),
        "{}",
        me[0]
    );
    assert_eq!(
        me[0]["owner"],
        serde_json::json!({ "pid": leader.trim().parse::<i32>().expect("an id"), "name": "terminal" })
    );
    assert_eq!(me[0]["run_because"], "no agent session is set, so this terminal's session is the run");

    in_a_terminal(&sealed, WHOAMI);
    assert_ne!(runs(&sealed, "said")[9], runs(&sealed, "said")[0], "two terminals are two runs");
}

#[test]
fn shells_for_one_command_belong_to_their_terminal() {
    let sealed = Sealed::sqlite();
    // A shell with one command replaces itself by the command.
    let stays = "setsid -w bash -c 'fence whoami --json; true'";
    let becomes = "setsid -w bash -c 'fence whoami --json'";
    let options = "setsid -w bash -eo pipefail -c 'fence whoami --json; true'";
    sealed.script("worker", &format!("{stays}; {becomes}"));
    in_a_terminal(
        &sealed,
        &format!(
            "{{ fence whoami --json; {stays}; {becomes}; {options}; }} > said; setsid -w ./worker > worker-said"
        ),
    );
    let said = runs(&sealed, "said");
    assert_eq!(said.len(), 4);
    assert!(said.iter().all(|run| *run == said[0]), "{said:?}");
    let worker = runs(&sealed, "worker-said");
    assert_eq!(worker.len(), 2);
    assert_eq!(worker[0], worker[1], "a session of its own, that stays");
    assert_ne!(worker[0], said[0]);
}

#[test]
fn a_script_outlives_its_terminal() {
    let sealed = Sealed::sqlite();
    sealed.script("work", &format!("touch started; while kill -0 $1 2>/dev/null; do sleep 0.05; done; {WHOAMI}; ({WHOAMI}; true); setsid -w bash -c '{WHOAMI}'; touch over"));
    in_a_terminal(
        &sealed,
        "fence whoami --json > before
         nohup ./work $$ >/dev/null 2>&1 &
         # Not before nohup has its effect.
         until test -e started; do sleep 0.05; done",
    );
    eventually("the script is finished", || sealed.path().join("over").exists().then_some(()));
    let me = answers(&sealed, "said");
    assert_eq!(me.len(), 3);
    assert_eq!(me[0], me[1]);
    assert_eq!(me[0]["owner"]["name"], "work");
    assert!(me[0]["run_because"].as_str().expect("why").contains("leader is gone"), "{}", me[0]);
    // In a new session, and with no terminal above, a command stands for itself.
    assert_ne!(me[2]["run"], me[0]["run"]);
    assert_ne!(runs(&sealed, "before")[0], me[0]["run"], "a terminal that is closed is nobody's any more");
}

#[test]
fn each_job_of_cron_is_a_run() {
    let sealed = Sealed::sqlite();
    for job in ["one", "two"] {
        as_a_job(
            &sealed,
            &format!(
                "fence whoami --json >> {job}; bash -c 'fence whoami --json; true' >> {job}; (fence whoami --json) >> {job}"
            ),
        );
    }
    let (one, two) = (runs(&sealed, "one"), runs(&sealed, "two"));
    assert_eq!((one.len(), two.len()), (3, 3));
    assert!(one.iter().all(|run| *run == one[0]), "{one:?}");
    assert!(two.iter().all(|run| *run == two[0]), "{two:?}");
    assert_ne!(one[0], two[0]);
}

/// Scripts that behave as agents do: they pass their session's id to their children, and do not have it themselves.
fn agents(sealed: &Sealed) {
    sealed.script("claude", "CLAUDE_CODE_SESSION_ID=$1 setsid -w bash -c \"$2\"\nexit $?");
    sealed.script("codex", "CODEX_SESSION_ID=$1 bash -c \"$2\"\nexit $?");
}

#[test]
fn the_innermost_agent_acts() {
    let sealed = Sealed::sqlite();
    agents(&sealed);
    for (line, run, owner, variable) in [
        ("./claude c 'fence whoami --json; true'", "claude-c", "claude", "CLAUDE_CODE_SESSION_ID"),
        ("./claude c 'fence whoami --json'", "claude-c", "claude", "CLAUDE_CODE_SESSION_ID"),
        ("./codex x 'bash -c \"fence whoami --json; true\"'", "codex-x", "codex", "CODEX_SESSION_ID"),
        ("./claude c './codex x \"fence whoami --json\"; true'", "codex-x", "codex", "CODEX_SESSION_ID"),
        (
            "./codex x './claude c \"fence whoami --json; true\"'",
            "claude-c",
            "claude",
            "CLAUDE_CODE_SESSION_ID",
        ),
        ("./claude c './claude d \"fence whoami --json\"'", "claude-d", "claude", "CLAUDE_CODE_SESSION_ID"),
    ] {
        let said = sealed.sh(line);
        let me: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{line}: {e}: {said:?}"));
        assert_eq!((me["run"].as_str(), me["owner"]["name"].as_str()), (Some(run), Some(owner)), "{line}");
        assert_eq!(me["run_because"], format!("{variable} names the innermost agent session"));
    }
    // A named run comes first.
    let said =
        sealed.sh("./claude c 'FENCE_RUN=mine fence whoami --json; FENCE_RUN=mine fence --run yours whoami'");
    assert!(said.out.contains(r#""run":"mine","run_because":"FENCE_RUN names it""#), "{said:?}");
    assert!(said.out.contains("run    yours  (--run names it)"), "{said:?}");
}

#[test]
fn a_process_left_behind_is_not_kept_for_its_adopter() {
    let sealed = Sealed::sqlite();
    sealed.script(
        "left",
        "while kill -0 $1 2>/dev/null; do sleep 0.05; done; fence whoami --json > said.new; mv said.new said",
    );
    sealed.script("claude", "CLAUDE_CODE_SESSION_ID=c setsid -f ./left $$ >/dev/null 2>&1");
    sealed.sh("./claude");
    eventually("it said who it is", || sealed.path().join("said").exists().then_some(()));
    let me = &answers(&sealed, "said")[0];
    assert_eq!((me["run"].as_str(), me["owner"]["name"].as_str()), (Some("claude-c"), Some("left")), "{me}");
}

on_both! {
    fn two_subagents_share_a_session_and_never_a_task(sealed: Sealed) {
        sealed.ok(&["init"]);
        agents(&sealed);
        for title in ["one", "two"] {
            sealed.ok(&["add", title, "--board", "auth"]);
        }
        // Neither names a task, so only one of them gets one.
        let raced = sealed.sh("./claude s '(fence claim -q > a) & (fence claim -q > b) & wait; cat a b'");
        assert_eq!(raced.out, "task/auth-1@1", "{raced:?}");
        assert!(raced.err.contains("run `claude-s` already holds `task/auth-1@1`") && raced.err.contains("--run NAME"), "{raced:?}");
        assert_eq!(sealed.sh("./claude s 'fence claim auth-2 -q; true'").out, "task/auth-2@1");
        let claims = sealed.ok(&["call", "claim/list", "{\"run\": \"claude-s\"}"]);
        assert_eq!(claims.matches("\"run\": \"claude-s\"").count(), 2, "{claims}");

        let refused = sealed.sh("./claude s 'fence --json claim auth-1; exit $?'");
        assert_eq!(refused.code, 4, "{refused:?}");
        let error: Value = serde_json::from_str(&refused.err).expect("an error");
        assert_eq!(error["error"]["code"], "already_claimed");
        assert_eq!(error["error"]["own"], true, "{error}");
        let resumed = sealed.sh("./claude s 'fence claim auth-1 --resume -q; true'");
        assert_eq!(resumed.out, "task/auth-1@1", "{resumed:?}");
        let other = sealed.sh("./codex s 'fence --json claim auth-1 --resume; exit $?'");
        assert_eq!(other.code, 4, "another agent's session of the same id is another run: {other:?}");
    }

    /// By its own command or by the name of the op, and whatever run it names.
    fn an_agent_does_not_record_that_a_person_lifted_its_guard(sealed: Sealed) {
        sealed.ok(&["init"]);
        agents(&sealed);
        std::fs::write(sealed.path().join("lift.json"), r#"{"run": "claude-s"}"#).expect("written");
        let call = "fence call run/lift @lift.json";
        for words in ["fence lift claude-s", call, &format!("FENCE_RUN=me {call}")] {
            let said = sealed.sh(&format!("./claude s '{words}; exit $?'"));
            assert!(said.code == 1 && said.err.contains("only a person lifts the guard"), "{words}: {said:?}");
        }
        // A child of fence work, whatever client it is.
        let said = sealed.sh(&format!("FENCE_TRIGGER=pool_task {call}"));
        assert!(said.code == 1 && said.err.contains("only a person lifts the guard"), "{said:?}");
        // A trusted file sets the guarded list.
        std::fs::write(sealed.path().join("fence.toml"), "[hook]\nguard = [\"nothing\"]\n").expect("written");
        for (words, expected) in [
            ("setup claude --remove", "removes the guard"),
            ("git install --remove", "removes the git fence"),
            ("git forget auth-1", "forgets accepted fences"),
            ("trust", "trusts a file"),
        ] {
            let said = sealed.sh(&format!("./claude s 'fence {words}; exit $?'"));
            assert!(said.code == 1 && said.err.contains(&format!("only a person {expected}")), "{said:?}");
        }
        let is_logged = || {
            sealed.readable();
            sealed.ok(&["events", "--since", "start", "--json"]).contains("run.lifted")
        };
        assert!(!is_logged());
        sealed.ok(&["call", "run/lift", "@lift.json"]);
        assert!(is_logged());
    }
}

/// In a pid namespace the session's leader can be invisible: `getsid` is 0 there.
#[test]
fn a_leader_out_of_sight() {
    let sealed = Sealed::sqlite();
    let Some(apart) = ["unshare -pf", "unshare -Upf --map-root-user"]
        .into_iter()
        .find(|unshare| sealed.sh(&format!("{unshare} --mount-proc true")).code == 0)
    else {
        // Not by `eprintln!`, which the test harness swallows.
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: a_leader_out_of_sight: this machine does not permit `unshare -pf`; the rule itself is tested in whose.rs"
        );
        return;
    };
    for file in ["one", "two"] {
        let said = sealed.sh(&format!(
            "{apart} --mount-proc bash -c 'fence whoami --json; (fence whoami --json); true' > {file}"
        ));
        assert_eq!(said.code, 0, "{said:?}");
    }
    let (one, two) = (answers(&sealed, "one"), answers(&sealed, "two"));
    assert_eq!(one.len(), 2);
    assert_eq!(one[0], one[1]);
    assert!(one[0]["run"].as_str().expect("a run").starts_with("shell-1-"), "{}", one[0]);
    assert!(one[0]["run_because"].as_str().expect("why").contains("leader is gone"), "{}", one[0]);
    assert_ne!(one[0]["run"], two[0]["run"], "both are process 1, each in its own world");

    // Alone in the namespace, and with the `/proc` of the outer one.
    let alone = sealed.sh(&format!("{apart} --mount-proc fence whoami"));
    assert!(alone.out.starts_with("run    shell-1-"), "{alone:?}");
    let outside =
        sealed.sh(&format!("{apart} bash -c 'fence whoami --json; fence whoami --json; true' > outside"));
    assert_eq!(outside.code, 0, "{outside:?}");
    let outside = answers(&sealed, "outside");
    assert_eq!(outside[0], outside[1]);
    let here: Value = serde_json::from_str(&sealed.sh("fence whoami --json; true").out).expect("an answer");
    assert_eq!(outside[0]["owner"], here["owner"], "the ids are those that `/proc` knows");
}
