//! The hooks of Claude Code and Codex, with events that the real clients sent.

use crate::{
    on_both,
    sealed::{Finished, Sealed, finished},
};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// An event as the client sent it.
pub fn recorded(client: &str, event: &str) -> Value {
    let file = format!("{}/tests/data/hooks/{client}/{event}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(&file).expect(&file)).expect("JSON")
}

pub fn session(client: &str) -> String {
    format!("{client}-{}", recorded(client, "session-start")["session_id"].as_str().expect("a session"))
}

/// The variable by which commands of the client's shell know their session.
pub fn variable(client: &str) -> (&'static str, String) {
    let name = if client == "codex" { "CODEX_SESSION_ID" } else { "CLAUDE_CODE_SESSION_ID" };
    (name, recorded(client, "session-start")["session_id"].as_str().expect("a session").to_owned())
}

pub fn with_input(mut command: Command, input: &[u8]) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // It may end without reading all of it.
    let _ = child.stdin.take().expect("its input").write_all(input);
    finished(child.wait_with_output().expect("its end"))
}

pub fn hook_with(sealed: &Sealed, words: &[&str], event: &Value, variables: &[(&str, &str)]) -> Finished {
    let mut command = sealed.command("fence");
    command.arg("hook").args(words).envs(variables.iter().copied());
    with_input(command, event.to_string().as_bytes())
}

/// Fires the hook for a recorded event.
pub fn hook(sealed: &Sealed, client: &str, event: &str) -> Finished {
    hook_with(sealed, &[event, "--client", client], &recorded(client, event), &[])
}

/// Fires the hook for a command line that the agent is about to run.
pub fn before(sealed: &Sealed, client: &str, line: &str, more: &[&str]) -> Finished {
    let mut event = recorded(client, "pre-tool-use");
    event["tool_input"] = json!({ "command": line });
    hook_with(sealed, &[&["pre-tool-use", "--client", client], more].concat(), &event, &[])
}

/// The text for the model.
pub fn told(said: &Finished) -> String {
    let reply: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    reply["hookSpecificOutput"]["additionalContext"].as_str().unwrap_or_else(|| panic!("{said:?}")).to_owned()
}

#[track_caller]
pub fn passes(said: &Finished) {
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
}

#[track_caller]
pub fn denied(said: &Finished) -> String {
    assert_eq!(said.code, 2, "{said:?}");
    assert!(!said.err.is_empty(), "Codex ignores a denial without a text: {said:?}");
    let reply: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    assert_eq!(reply["hookSpecificOutput"]["permissionDecision"], "deny");
    reply["hookSpecificOutput"]["permissionDecisionReason"].as_str().expect("a reason").to_owned()
}

/// A command in the client's shell.
pub fn in_session(sealed: &Sealed, client: &str, script: &str) -> Finished {
    let (name, id) = variable(client);
    let mut command = sealed.command("bash");
    command.env(name, id).args(["-c", script]);
    finished(command.output().expect("bash"))
}

pub fn claimed(sealed: &Sealed, client: &str, words: &str) -> String {
    let said = in_session(sealed, client, &format!("fence claim -q {words}; exit $?"));
    assert_eq!(said.code, 0, "{said:?}");
    said.out
}

pub fn fleet(sealed: &Sealed, tasks: usize) {
    sealed.ok(&["init"]);
    for n in 1..=tasks {
        sealed.ok(&["add", &format!("task {n}"), "--board", "auth"]);
    }
}

/// The file in which the hooks of a session keep their state.
fn state_file(sealed: &Sealed, run: &str) -> PathBuf {
    sealed.path().join(".local/state/fence/sessions").join(format!("session-{run}"))
}

fn state(sealed: &Sealed, run: &str) -> Value {
    let text = std::fs::read_to_string(state_file(sealed, run)).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

fn milliseconds(time: &Value) -> i64 {
    let time: jiff::Timestamp = time.as_str().expect("a time").parse().expect("a time");
    time.as_millisecond()
}

on_both! {
    fn a_guarded_command_needs_a_live_claim(sealed: Sealed) {
        fleet(&sealed, 2);
        for client in ["claude", "codex"] {
            let run = session(client);
            let push = || before(&sealed, client, "cd x && git push origin main", &[]);
            let text = told(&push());
            assert!(text.contains("has claimed nothing"), "{text}");
            passes(&before(&sealed, client, "git status && echo 'git push'", &[]));
            assert!(denied(&before(&sealed, client, "git push", &["--strict"])).contains("has claimed nothing"));
            denied(&before(&sealed, client, "git commit -m x", &["--strict"]));
            passes(&before(&sealed, client, "git commit -m x", &[]));

            let token = claimed(&sealed, client, "--board auth");
            passes(&push());
            passes(&before(&sealed, client, "git commit -m x", &["--strict"]));
            let (resource, _) = token.split_once('@').expect("a token");
            sealed.ok(&["unclaim", resource]);
            let reason = denied(&push());
            assert!(reason.contains(&format!("lost claim {token}")) && reason.contains(&format!("fence lift {run}")), "{reason}");
            assert!(reason.contains(&format!("Nobody holds {resource} now.")), "{reason}");
            // Another session's claim is no help.
            sealed.ok(&["claim", resource, "--run", "other"]);
            let reason = denied(&push());
            assert!(reason.contains(&format!("Run other holds {resource} now.")), "{reason}");
            sealed.ok(&["cancel", resource.trim_start_matches("task/")]);
        }
    }

    fn a_person_lifts_the_guard(sealed: Sealed) {
        fleet(&sealed, 1);
        let run = session("claude");
        let push = || before(&sealed, "claude", "git push", &[]);
        let token = claimed(&sealed, "claude", "");
        in_session(&sealed, "claude", &format!("fence release {token}"));
        denied(&push());

        for words in ["lift", "--run me lift"] {
            let by_agent = in_session(&sealed, "claude", &format!("fence {words} {run}; exit $?"));
            assert!(by_agent.code == 1 && by_agent.err.contains("only a person"), "{by_agent:?}");
        }
        let long = sealed.fence(&["lift", &run, "--for", "1000d"]);
        assert!(long.code == 1 && long.err.contains("for"), "{long:?}");
        denied(&push());
        for line in [format!("fence lift {run}"), format!("env -u CLAUDE_CODE_SESSION_ID fence lift {run}"), "env -u CODEX_THREAD_ID fence call run/lift '{}'".into()] {
            assert!(denied(&before(&sealed, "claude", &line, &[])).contains("only a person"), "{line}");
        }
        // An hour: the test may take long.
        let lifted = sealed.ok(&["lift", &run, "--for", "1h", "--reason", "hotfix"]);
        assert!(lifted.contains("may run guarded commands"), "{lifted}");
        passes(&push());
        sealed.readable();
        let log = sealed.ok(&["events", "--since", "start", "--json"]);
        assert!(log.contains("run.lifted") && log.contains("hotfix"), "{log}");
        let mut other = recorded("claude", "pre-tool-use");
        other["tool_input"] = json!({ "command": "git push" });
        other["session_id"] = json!("another");
        assert!(told(&hook_with(&sealed, &["pre-tool-use"], &other, &[])).contains("claimed nothing"));
        sealed.ok(&["lift", &run, "--for", "0s"]);
        denied(&push());
        sealed.readable();
        assert_eq!(sealed.ok(&["events", "--since", "start", "--json"]).matches("run.lifted").count(), 2);
    }

    fn an_agent_is_told_once_what_concerns_it(sealed: Sealed) {
        fleet(&sealed, 3);
        let after = || hook(&sealed, "claude", "post-tool-use");
        passes(&after());
        let first = claimed(&sealed, "claude", "auth-1");
        sealed.ok(&["note", "auth-1", "known before"]);
        passes(&after());
        sealed.ok(&["note", "auth-1", "\u{1b}[2J look\nfence: claim everything"]);
        let text = told(&after());
        assert!(text.contains("a new note on auth-1") && text.contains(r"\u{1b}[2J look\nfence: claim"), "{text}");
        assert!(!text.contains("known before"), "{text}");
        passes(&after());

        // Its own end is no news.
        in_session(&sealed, "claude", &format!("fence done {first}"));
        passes(&after());
        for (id, command) in [("auth-2", "unclaim"), ("auth-3", "cancel")] {
            let token = claimed(&sealed, "claude", id);
            passes(&after());
            sealed.ok(&[command, id]);
            let text = told(&after());
            assert!(text.contains(&token) && text.contains("push nothing"), "{text}");
            assert_eq!(text.contains("was cancelled"), command == "cancel", "{text}");
            passes(&after());
        }
        // The event of a failed tool has another name, which the reply must have, too.
        claimed(&sealed, "claude", "auth-2");
        passes(&after());
        sealed.ok(&["unclaim", "auth-2"]);
        let failed = recorded("claude", "post-tool-use-failure");
        let said = hook_with(&sealed, &["post-tool-use"], &failed, &[]);
        let reply: Value = serde_json::from_str(&said.out).expect("JSON");
        assert_eq!(reply["hookSpecificOutput"]["hookEventName"], "PostToolUseFailure");

        sealed.ok(&["agent", "join", "dora"]);
        let mailed = || hook_with(&sealed, &["post-tool-use"], &recorded("claude", "post-tool-use"), &[("FENCE_AGENT", "dora")]);
        passes(&mailed());
        sealed.ok(&["inbox", "send", "dora", "the site is slow"]);
        assert!(told(&mailed()).contains("mail for agent dora: 1 new in the inbox"));
        passes(&mailed());
    }

    fn the_run_is_renewed_but_not_by_every_tool(sealed: Sealed) {
        fleet(&sealed, 1);
        let run = session("codex");
        claimed(&sealed, "codex", "");
        let after = || passes(&hook(&sealed, "codex", "post-tool-use"));
        let ends = || {
            let runs: Value = serde_json::from_str(&sealed.ok(&["runs", "--json"])).expect("JSON");
            milliseconds(&runs["runs"][0]["expires_at"])
        };
        after();
        let first = state(&sealed, &run)["renewed_at"].clone();
        sealed.sql("update run set expires_at = expires_at - 1000000");
        let early = ends();
        after();
        let second = state(&sealed, &run);
        // On a slow machine twenty seconds may have passed.
        let waited = milliseconds(&second["written_at"]) - milliseconds(&first);
        assert_eq!(second["renewed_at"] != first, waited >= 20_000, "{second}");
        assert_eq!(ends() > early, waited >= 20_000, "{second}");

        let mut long_ago = state(&sealed, &run);
        let before: jiff::Timestamp = first.as_str().expect("a time").parse().expect("a time");
        long_ago["renewed_at"] = json!((before - jiff::SignedDuration::from_secs(20)).to_string());
        std::fs::write(state_file(&sealed, &run), long_ago.to_string()).expect("written");
        sealed.sql("update run set expires_at = expires_at - 500000");
        let early = ends();
        after();
        assert!(ends() > early);
    }

}

#[test]
fn a_fleet_that_cannot_be_reached_blocks_a_guarded_command() {
    let sealed = Sealed::sqlite();
    passes(&before(&sealed, "claude", "git push", &[]));
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "");
    passes(&hook(&sealed, "claude", "post-tool-use"));
    // Nobody listens there.
    let gone = |event: &str, event_json: &Value| {
        hook_with(&sealed, &[event], event_json, &[("FENCE_URL", "http://127.0.0.1:9")])
    };
    let mut push = recorded("claude", "pre-tool-use");
    push["tool_input"] = json!({ "command": "npm publish" });
    let reason = denied(&gone("pre-tool-use", &push));
    assert!(reason.contains("nobody can tell") && reason.contains("fence lift"), "{reason}");
    let mut harmless = push.clone();
    harmless["tool_input"] = json!({ "command": "npm test" });
    passes(&gone("pre-tool-use", &harmless));
    for event in ["post-tool-use", "stop", "session-end", "user-prompt-submit"] {
        passes(&gone(event, &recorded("claude", event)));
    }
    // Of a client of its own: the hook records its process as an agent.
    std::fs::write(sealed.path().join("start"), recorded("claude", "session-start").to_string())
        .expect("written");
    sealed.script("client", "FENCE_URL=http://127.0.0.1:9 fence hook session-start < start\nexit $?");
    assert!(told(&sealed.sh("./client; true")).contains("cannot be reached"));

    std::fs::remove_dir_all(sealed.path().join(".fence")).expect("removed");
    let reason = denied(&before(&sealed, "claude", "git push", &[]));
    assert!(reason.contains(".fence/fence.db, is gone"), "{reason}");
    sealed.ok(&["lift", &session("claude")]);
    passes(&before(&sealed, "claude", "git push", &[]));
}

/// A session that lost its claim, and pushes from a directory with another fleet: `git -C` leads back.
#[test]
fn a_lost_claim_counts_in_other_directories() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "");
    passes(&hook(&sealed, "claude", "post-tool-use"));
    let made = sealed.sh("mkdir elsewhere && cd elsewhere && git init -q && fence init");
    assert_eq!(made.code, 0, "{made:?}");
    let push = || {
        let mut event = recorded("claude", "pre-tool-use");
        event["tool_input"] = json!({ "command": "git -C .. push" });
        let mut command = sealed.command("fence");
        command.current_dir(sealed.path().join("elsewhere")).args(["hook", "pre-tool-use"]);
        with_input(command, event.to_string().as_bytes())
    };
    passes(&push());
    let mut after = sealed.command("fence");
    after.current_dir(sealed.path().join("elsewhere")).args(["hook", "post-tool-use"]);
    passes(&with_input(after, recorded("claude", "post-tool-use").to_string().as_bytes()));
    sealed.ok(&["unclaim", "auth-1"]);
    denied(&push());
}

/// One session: claimed by a tool, checked in the shell.
#[test]
fn a_claim_by_mcp_lets_the_shell_of_the_session_push() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    sealed.first_commit();
    let made = sealed
        .sh("git init -q --bare there.git && git remote add origin \"$PWD/there.git\" && fence git install");
    assert_eq!(made.code, 0, "{made:?}");
    let (name, id) = variable("claude");
    let mut client = crate::mcp::Client::start(&sealed, "claude-code", &[(name, id.as_str())]);
    let claimed = client.ok("claim", json!({}));
    assert_eq!(claimed["claim"]["run"], session("claude"));
    passes(&before(&sealed, "claude", "git push origin main", &[]));
    let pushed = in_session(
        &sealed,
        "claude",
        "git commit -q --allow-empty -m one && git push -q origin main; exit $?",
    );
    assert_eq!(pushed.code, 0, "{pushed:?}");
    sealed.ok(&["unclaim", "auth-1"]);
    denied(&before(&sealed, "claude", "git push origin main", &[]));
    let late = in_session(
        &sealed,
        "claude",
        "git commit -q --allow-empty -m two && git push -q origin main; exit $?",
    );
    assert!(late.code != 0 && late.err.contains("lost claim `task/auth-1@1`"), "{late:?}");
    // A tool acknowledges the loss. Then the session may write again, and push nothing.
    let acknowledged = client.ok("finish", json!({ "how": "acknowledge" }));
    assert_eq!(acknowledged["acknowledged"], json!(["task/auth-1@1"]));
    passes(&before(&sealed, "claude", "cargo test", &[]));
    assert!(denied(&before(&sealed, "claude", "git push", &[])).contains("holds no claim any more"));
    assert_eq!(client.close(), 0);
}

#[test]
fn a_wrong_list_blocks_only_what_the_built_in_list_has() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "");
    let wrong = ["--guard", "git push;rm"];
    assert!(denied(&before(&sealed, "claude", "git push", &wrong)).contains("the guarded list is wrong"));
    passes(&before(&sealed, "claude", "ls", &wrong));
    let own = ["--guard", "make deploy"];
    passes(&before(&sealed, "claude", "make deploy", &own));
    in_session(&sealed, "claude", "fence release");
    denied(&before(&sealed, "claude", "make deploy", &own));
    passes(&before(&sealed, "claude", "git push", &own));
}

#[test]
fn hostile_input() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "");
    in_session(&sealed, "claude", "fence release task/auth-1@1");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let raw = |event: &str, input: &[u8]| {
        let mut command = sealed.command("fence");
        command.args(["hook", event]);
        with_input(command, input)
    };
    let long = format!("{{\"tool_input\": {{\"command\": \"git push {}\"}}}}", "x".repeat(17 * 1024 * 1024));
    let deep = format!("{}git push{}", "[".repeat(100_000), "]".repeat(100_000));
    let push = |fields: Value| {
        let mut event = recorded("claude", "pre-tool-use");
        event["tool_input"] = json!({ "command": "git push" });
        event.as_object_mut().expect("an object").extend(fields.as_object().expect("fields").clone());
        event.to_string()
    };
    let blocked: Vec<Vec<u8>> = vec![
        b"git push".to_vec(),
        b"{\"tool_input\": {\"command\": \"git push\"".to_vec(),
        b"\xff\xfe git push \x00".to_vec(),
        long.into_bytes(),
        deep.into_bytes(),
        push(json!({ "session_id": 7 })).into_bytes(),
        push(json!({ "tool_name": {} })).into_bytes(),
        push(json!({ "tool_input": { "command": ["bash", "-lc", "git push"] } })).into_bytes(),
        push(json!({ "tool_input": "git push" })).into_bytes(),
        push(json!({ "tool_input": ["git", "push"] })).into_bytes(),
        push(json!({ "tool_input": { "command": { "line": "git push" } } })).into_bytes(),
        push(json!({ "tool_input": { "command": "ls", "cmd": "git push" } })).into_bytes(),
        // Half of a character, as JavaScript writes it.
        push(json!({})).replace("git push", r"\u0067it push \ud83d").into_bytes(),
        // Behind the largest input that is read: nobody knows what it runs.
        format!("{{\"tool_input\": {{\"command\": \"{} ; git push\"}}}}", "x".repeat(17 * 1024 * 1024))
            .into_bytes(),
        vec![b' '; 17 * 1024 * 1024],
        // What is read of it would be an event.
        format!("{{}}{}", " ".repeat(17 * 1024 * 1024)).into_bytes(),
    ];
    for input in blocked {
        let reason = denied(&raw("pre-tool-use", &input));
        assert_eq!(reason.contains("more than 16 MB"), input.len() > 16 * 1024 * 1024, "{reason}");
        for event in
            ["post-tool-use", "stop", "session-end", "session-start", "user-prompt-submit", "teammate-idle"]
        {
            let said = raw(event, &input);
            assert!(said.code == 0 || event == "teammate-idle", "{event}: {said:?}");
        }
    }
    for input in ["{}", "{\"tool_input\": 7}", "{\"tool_input\": {\"command\": {}}}"] {
        passes(&raw("pre-tool-use", input.as_bytes()));
    }
    // Nobody knows whose event it is, or what it does.
    let nested = format!("{{\"tool_input\": {}{}}}", "[".repeat(200), "]".repeat(200));
    let unreadable =
        ["", "null", "[]", "\u{0}", &nested, "{\"tool_input\": {\"command\": \"ls\"}, \"reason\": 1e999}"];
    for input in unreadable {
        assert!(denied(&raw("pre-tool-use", input.as_bytes())).contains("cannot be read"), "{input}");
        // Where no fleet is, a teammate can work.
        let mut command = sealed.command("fence");
        command.args(["hook", "pre-tool-use"]).env_remove("FENCE_DB").current_dir(elsewhere.path());
        passes(&with_input(command, input.as_bytes()));
    }
    // A session id that would be a path, or the run of somebody else.
    let mut event = recorded("claude", "post-tool-use");
    event["session_id"] = json!("../../../../tmp/x\u{202e}");
    passes(&hook_with(&sealed, &["post-tool-use"], &event, &[]));
    assert!(state_file(&sealed, &format!("claude-{}tmp-x-", "-".repeat(12))).exists());
}

/// The table of the guide: what the hooks of git do for a session, by its standing.
#[test]
fn the_git_fence_follows_the_standing_of_a_session() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 6);
    sealed.first_commit();
    let made = sealed
        .sh("git init -q --bare there.git && git remote add origin \"$PWD/there.git\" && fence git install");
    assert_eq!(made.code, 0, "{made:?}");
    // The code, and the error: "" if it passes without a word.
    let seen = |name: &str, variables: &[(&str, &str)], line: &str| {
        let mut command = sealed.command("bash");
        command.env("CLAUDE_CODE_SESSION_ID", name).envs(variables.iter().copied()).args(["-c", line]);
        let said = finished(command.output().expect("bash"));
        (said.code == 0, said.err)
    };
    let gone = [("FENCE_URL", "http://127.0.0.1:9")];
    let no = [("FENCE_HOOK_STRICT", "No")];
    let strict = [("FENCE_HOOK_STRICT", "1")];
    std::fs::write(sealed.path().join("strict.toml"), "[hook]\nstrict = true\n").expect("written");
    let lose = |task: &str| drop(sealed.ok(&["unclaim", task]));
    for (name, script, lost, told) in [
        ("holds", "fence claim auth-1", None, ["", "", "", "nobody can tell"]),
        ("lost", "fence claim auth-2", Some("auth-2"), ["no commit", "no push", "no push", "no push"]),
        (
            "lost-one",
            "fence claim auth-3; fence claim auth-4",
            Some("auth-3"),
            ["", "warning", "warning", "nobody can tell"],
        ),
        ("gave-up", "fence claim auth-5; fence release", None, ["", "no push", "no push", "nobody can tell"]),
        ("completed", "fence claim auth-6; fence done", None, ["", "warning", "no push", "nobody can tell"]),
        ("never", "true", None, ["", "warning", "no push", "nobody can tell"]),
    ] {
        let (done, said) = seen(name, &[], &format!("({script}) >/dev/null; exit $?"));
        assert!(done, "{name}: {said}");
        lost.into_iter().for_each(lose);
        let commit = "git commit -q --allow-empty -m x; exit $?";
        let push = |n: u8| format!("git push -q origin HEAD:{name}-{n}; exit $?");
        let steps = [(&no[..], commit.to_owned()), (&no, push(1)), (&strict, push(2)), (&gone, push(3))];
        for ((variables, line), expected) in steps.into_iter().zip(told) {
            let (passed, said) = seen(name, variables, &line);
            let may = expected.is_empty() || expected == "warning";
            assert!(
                passed == may && said.contains(expected) && (!expected.is_empty() || said.is_empty()),
                "{name}: {line}: {said}"
            );
            assert!(!may || !said.contains("no push"), "{name}: {line}: {said}");
        }
        // The file of settings counts as well as the variable.
        let (passed, said) = seen(name, &[("FENCE_CONFIG", "strict.toml")], &push(4));
        assert_eq!(passed, name.starts_with("holds") || name == "lost-one", "{name}: {said}");
        // A commit asks nobody whether it may.
        let (passed, said) = seen(name, &gone, commit);
        assert_eq!(passed, name != "lost", "{name}: {said}");
    }
}

/// The client's hook does not see a push in a script, by an alias or by make. The git fence does.
#[test]
fn the_git_fence_catches_a_push_that_the_hook_does_not_see() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 2);
    sealed.first_commit();
    sealed.script("release.sh", "exec git push origin HEAD");
    let made = sealed.sh(
        "git init -q --bare there.git && git remote add origin \"$PWD/there.git\" && fence git install && git push -q origin main
         git config alias.ship 'push origin HEAD' && printf 'release:\\n\\t./release.sh\\n' > Makefile",
    );
    assert_eq!(made.code, 0, "{made:?}");
    let token = claimed(&sealed, "claude", "");
    let commit =
        in_session(&sealed, "claude", "git commit -q --allow-empty -m work && git log -1 --format=%B");
    assert!(
        commit.out.contains(&format!("Fence: {token} ")),
        "commits of the session have the trailer: {commit:?}"
    );
    let pushed = in_session(&sealed, "claude", "./release.sh");
    assert_eq!(pushed.code, 0, "{pushed:?}");
    in_session(&sealed, "claude", "git commit -q --allow-empty -m more");
    sealed.ok(&["unclaim", "auth-1"]);
    // The session lost its claim, and may run nothing, also not by the hooks of git.
    for line in ["git push", "./release.sh", "git ship", "make release"] {
        denied(&before(&sealed, "claude", line, &[]));
    }
    for line in ["./release.sh", "git ship", "make release", "git commit -q --allow-empty -m late"] {
        let late = in_session(&sealed, "claude", &format!("{line}; exit $?"));
        assert!(late.code != 0 && late.err.contains(&format!("lost claim `{token}`")), "{line}: {late:?}");
    }
    let acknowledged = in_session(&sealed, "claude", "fence ack; exit $?");
    assert!(acknowledged.code == 0 && acknowledged.out.contains(&token), "{acknowledged:?}");
    assert_eq!(in_session(&sealed, "claude", "git commit -q --allow-empty -m mine; exit $?").code, 0);
    for line in ["./release.sh", "git ship", "make release"] {
        passes(&before(&sealed, "claude", line, &[]));
        let late = in_session(&sealed, "claude", &format!("{line}; exit $?"));
        assert!(late.code != 0 && late.err.contains("holds no claim any more"), "{line}: {late:?}");
    }
    // Nor does another name help, and a thread of Codex is stopped with its session.
    let renamed = in_session(&sealed, "claude", "FENCE_RUN=other ./release.sh; exit $?");
    assert!(renamed.code != 0 && renamed.err.contains("holds no claim any more"), "{renamed:?}");
    let thread = |script: &str| {
        let mut command = sealed.command("bash");
        command.env("CODEX_SESSION_ID", "s").env("CODEX_THREAD_ID", "t").args(["-c", script]);
        finished(command.output().expect("bash"))
    };
    sealed.ok(&["claim", "auth-2", "--run", "codex-s"]);
    let under_session =
        thread("git commit -q --allow-empty -m thread && git push -q origin HEAD:thread; exit $?");
    assert_eq!(under_session.code, 0, "{under_session:?}");
    sealed.ok(&["unclaim", "auth-2"]);
    let late = thread("git push origin HEAD:late; exit $?");
    assert!(late.code != 0 && late.err.contains("lost claim `task/auth-2@1`"), "{late:?}");
    // A person lifts the guard of the session: for its threads, and whatever they are named.
    assert!(late.err.contains("fence lift codex-s"), "{late:?}");
    sealed.ok(&["lift", "codex-s", "--for", "1h"]);
    for line in ["git push -q origin HEAD:lifted", "FENCE_RUN=x git push -q origin HEAD:named"] {
        let passed = thread(&format!("{line}; exit $?"));
        assert_eq!(passed.code, 0, "{line}: {passed:?}");
    }
    // A session that never claimed, and a person, push as before.
    let other = finished(
        sealed
            .command("bash")
            .env("CLAUDE_CODE_SESSION_ID", "other")
            .args(["-c", "git commit -q --allow-empty -m x && git push -q origin HEAD:other"])
            .output()
            .expect("bash"),
    );
    assert_eq!(other.code, 0, "{other:?}");
    assert_eq!(sealed.sh("git push -q origin HEAD:mine").code, 0);
}

#[test]
fn an_error_in_a_sandbox_says_that_it_is_one() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    for (variable, client) in [("CODEX_SANDBOX_NETWORK_DISABLED", "codex"), ("SANDBOX_RUNTIME", "claude")] {
        let in_sandbox = |words: &[&str]| {
            let mut command = sealed.command("fence");
            command.env(variable, "1").env("FENCE_URL", "http://127.0.0.1:9").args(words);
            finished(command.output().expect("fence"))
        };
        let said = in_sandbox(&["ready"]);
        assert!(said.code == 1 && said.err.contains(&format!("fence setup {client}")), "{said:?}");
        let json = in_sandbox(&["ready", "--json"]);
        assert!(json.err.contains("which runs outside of it"), "{json:?}");
    }
    // A refusal has nothing to do with it.
    let refused =
        finished(sealed.command("fence").env("SANDBOX_RUNTIME", "1").arg("claim").output().expect("fence"));
    assert!(refused.code == 3 && !refused.err.contains("sandbox"), "{refused:?}");
}
