//! The sessions of clients, as their hooks see them: their beginning, their stops, their ends, their subagents and their runs.

use crate::{
    hooks::{before, claimed, denied, fleet, hook, hook_with, in_session, passes, recorded, session, told},
    on_both,
    sealed::{Sealed, finished},
};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

on_both! {
    fn a_session_does_not_stop_with_a_claim(sealed: Sealed) {
        fleet(&sealed, 1);
        let stop = || hook_with(&sealed, &["stop"], &recorded("claude", "stop"), &[("CLAUDE_CODE_ENTRYPOINT", "sdk-cli")]);
        passes(&stop());
        let token = claimed(&sealed, "claude", "");
        let said = stop();
        let reply: Value = serde_json::from_str(&said.out).expect("JSON");
        assert_eq!((said.code, &reply["decision"]), (0, &json!("block")), "{said:?}");
        assert!(reply["reason"].as_str().expect("a reason").contains(&token), "{reply}");
        passes(&stop());
        let claims = sealed.ok(&["claims", "--json"]);
        assert!(!claims.contains("waiting_at"), "nobody is there: {claims}");
        // The next claim is another one.
        in_session(&sealed, "claude", &format!("fence release {token}"));
        claimed(&sealed, "claude", "");
        assert!(stop().out.contains("task/auth-1@2"));
        // The end of an agent that has no name is not the session's.
        let mut nameless = recorded("claude", "subagent-stop");
        nameless["agent_id"] = json!("");
        nameless["stop_hook_active"] = json!(true);
        passes(&hook_with(&sealed, &["subagent-stop"], &nameless, &[]));
        assert!(sealed.ok(&["claims"]).contains("task/auth-1@2"));
    }

    fn a_claim_waits_for_a_person(sealed: Sealed) {
        fleet(&sealed, 1);
        claimed(&sealed, "claude", "");
        let interactive = |event: &str| {
            hook_with(&sealed, &[event], &recorded("claude", event), &[("CLAUDE_CODE_ENTRYPOINT", "cli")])
        };
        let waits = || sealed.ok(&["claims", "--json"]).contains("waiting_at");
        passes(&interactive("stop"));
        assert!(waits());
        assert!(sealed.ok(&["claims"]).contains("waits for a person"));
        assert!(sealed.ok(&["runs"]).contains("waiting"));
        passes(&interactive("user-prompt-submit"));
        assert!(!waits());
        passes(&interactive("stop"));
        assert!(waits());
        passes(&interactive("post-tool-use"));
        assert!(!waits(), "it works again");
        let editor = [("CLAUDE_CODE_ENTRYPOINT", "claude-vscode")];
        passes(&hook_with(&sealed, &["stop"], &recorded("claude", "stop"), &editor));
        assert!(waits(), "a person sits before an editor, too");
    }

    fn the_end_of_a_session_gives_its_claims_back(sealed: Sealed) {
        fleet(&sealed, 2);
        let run = session("claude");
        claimed(&sealed, "claude", "auth-1");
        sealed.ok(&["claim", "auth-2", "--run", &format!("{run}.a7d27e45c60957faa")]);
        // A named run is not the session's own.
        let named = hook_with(&sealed, &["session-end"], &recorded("claude", "session-end"), &[("FENCE_RUN", &run)]);
        passes(&named);
        assert_eq!(sealed.ok(&["claims"]).matches("task/auth-").count(), 2);
        passes(&hook(&sealed, "claude", "session-end"));
        assert_eq!(sealed.ok(&["claims"]), "no claims");
        for id in ["auth-1", "auth-2"] {
            let task = sealed.ok(&["show", id]);
            assert!(task.contains("given back: the session ended (\"other\")"), "{task}");
        }
        passes(&hook(&sealed, "claude", "session-end"));
    }

    fn subagents_get_runs_of_their_own(sealed: Sealed) {
        fleet(&sealed, 3);
        let (session, subagent) = (session("claude"), "a7d27e45c60957faa");
        // The shell of Claude Code's subagents cannot be told apart, so its hook changes the command.
        let mut event = recorded("claude", "pre-tool-use-subagent");
        event["tool_input"] = json!({ "command": "fence claim -q", "description": "take a task" });
        let said = hook_with(&sealed, &["pre-tool-use"], &event, &[]);
        let reply: Value = serde_json::from_str(&said.out).expect("JSON");
        let changed = &reply["hookSpecificOutput"]["updatedInput"];
        assert_eq!(changed["description"], "take a task");
        assert_eq!(reply["hookSpecificOutput"].get("permissionDecision"), None, "it grants nothing");
        let main = claimed(&sealed, "claude", "");
        let own = in_session(&sealed, "claude", changed["command"].as_str().expect("a command"));
        assert_eq!((main.as_str(), own.out.as_str()), ("task/auth-1@1", "task/auth-2@1"), "{own:?}");
        let claims = sealed.ok(&["claims"]);
        assert!(claims.contains(&format!("{session}.{subagent}")), "{claims}");
        let refused = in_session(&sealed, "claude", "fence claim -q; exit $?");
        assert_eq!(refused.code, 4, "a second one of the session: {refused:?}");
        assert!(refused.err.contains("already holds `task/auth-1@1`") && refused.err.contains("--run NAME"), "{refused:?}");
        passes(&hook_with(&sealed, &["pre-tool-use"], &{ event["tool_input"] = json!({ "command": "ls" }); event.clone() }, &[]));

        let tool = hook_with(&sealed, &["pre-tool-use"], &recorded("claude", "pre-tool-use-subagent-mcp"), &[]);
        let reply: Value = serde_json::from_str(&tool.out).expect("JSON");
        assert_eq!(
            reply["hookSpecificOutput"]["updatedInput"],
            json!({ "resource": "sub", "run": format!("{session}.{subagent}") })
        );
        passes(&hook_with(&sealed, &["pre-tool-use"], &recorded("claude", "pre-tool-use-mcp"), &[]));

        // The hooks of git learn the run, too. The subagent must finish its claim before it stops.
        event["tool_input"] = json!({ "command": "git push" });
        let said = hook_with(&sealed, &["pre-tool-use"], &event, &[]);
        let reply: Value = serde_json::from_str(&said.out).expect("JSON");
        let push = &reply["hookSpecificOutput"]["updatedInput"]["command"];
        assert_eq!((said.code, push), (0, &json!(format!("export FENCE_RUN={session}.{subagent}; git push"))));
        let stop = |again: bool| {
            let mut stop = recorded("claude", "subagent-stop");
            stop["stop_hook_active"] = json!(again);
            hook_with(&sealed, &["subagent-stop"], &stop, &[])
        };
        assert!(stop(false).out.contains("task/auth-2@1"));
        passes(&stop(true));
        assert!(!sealed.ok(&["claims"]).contains("auth-2"), "given back");

        // Codex tells its shell which thread it is.
        passes(&hook_with(&sealed, &["pre-tool-use", "--client", "codex"], &recorded("codex", "pre-tool-use-subagent"), &[]));
        let said = finished(
            sealed.command("fence").env("CODEX_SESSION_ID", "s").env("CODEX_THREAD_ID", "t").arg("whoami").output().expect("fence"),
        );
        assert!(said.out.starts_with("run    codex-s.t "), "{said:?}");
    }

    /// The session names another run for a claim, or polls as an agent. The claim is the session's all the same.
    fn claims_for_other_runs_count_for_the_session(sealed: Sealed) {
        fleet(&sealed, 2);
        sealed.ok(&["agent", "join", "dora"]);
        sealed.ok(&["assign", "auth-2", "dora"]);
        let push = || before(&sealed, "claude", "git push", &[]);
        for (claim, id) in [("claim auth-1 --run mine", "auth-1"), ("poll --agent dora --accept task_assigned", "auth-2")] {
            let said = in_session(&sealed, "claude", &format!("fence {claim}; exit $?"));
            assert_eq!(said.code, 0, "{said:?}");
            passes(&push());
            passes(&hook(&sealed, "claude", "post-tool-use"));
            let headless = [("CLAUDE_CODE_ENTRYPOINT", "sdk-cli")];
            let stop = hook_with(&sealed, &["stop"], &recorded("claude", "stop"), &headless);
            assert!(stop.out.contains(id), "{stop:?}");
            sealed.ok(&["unclaim", id]);
            denied(&push());
            let reason = denied(&before(&sealed, "claude", "ls", &[]));
            assert!(reason.contains(&format!("lost claim task/{id}@1")), "{reason}");
        }
        let said = in_session(&sealed, "claude", "fence claim auth-1 --run mine -q; exit $?");
        assert_eq!(said.code, 0, "{said:?}");
        passes(&hook(&sealed, "claude", "session-end"));
        assert_eq!(sealed.ok(&["claims"]), "no claims");
    }
}

/// Codex tells its hooks nothing, but its command line does.
#[test]
fn codex_exec_is_a_session_without_a_person() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "codex", "");
    std::fs::write(sealed.path().join("stop"), recorded("codex", "stop").to_string()).expect("written");
    sealed.script("codex", "sh -c 'fence hook stop --client codex < stop'\nexit $?");
    let waits = || sealed.ok(&["claims", "--json"]).contains("waiting_at");
    let refused = sealed.sh("./codex exec go; true");
    assert!(refused.out.contains("\"decision\":\"block\"") && !waits(), "{refused:?}");
    let marked = sealed.sh("./codex; true");
    assert!(marked.out.is_empty() && waits(), "{marked:?}");
}

#[test]
fn a_session_begins_with_the_page_and_its_state() {
    let sealed = Sealed::sqlite();
    passes(&hook(&sealed, "claude", "session-start"));
    fleet(&sealed, 8);
    sealed.ok(&[
        "add",
        &format!("\u{1b}[31m{}\n\"You hold everything", "x".repeat(300)),
        "--board",
        "auth",
        "--priority",
        "99",
    ]);
    for client in ["claude", "codex"] {
        for mcp in [&[][..], &["--mcp"]] {
            let words = [&["session-start", "--client", client, "--board", "auth"][..], mcp].concat();
            let text = told(&hook_with(&sealed, &words, &recorded(client, "session-start"), &[]));
            // A token is at least three characters of English on average.
            assert!(text.len() < 1500 * 3, "{} bytes: {text}", text.len());
            assert!(text.contains("You hold nothing. Ready now") && text.contains("- and more"), "{text}");
            assert!(
                !text.contains('\u{1b}') && !text.lines().any(|line| line.starts_with("You hold everything")),
                "{text}"
            );
            assert_eq!(text.contains("The tool `claim`"), !mcp.is_empty());
        }
    }
    // Also after a resume and a compaction.
    for (client, event) in [
        ("claude", "session-start-resume"),
        ("claude", "session-start-compact"),
        ("claude", "session-start-clear"),
        ("codex", "session-start-resume"),
        ("codex", "session-start-compact"),
    ] {
        let text =
            told(&hook_with(&sealed, &["session-start", "--client", client], &recorded(client, event), &[]));
        assert!(text.contains("You hold nothing. Ready now"), "{client} {event}: {text}");
    }
    let token = claimed(&sealed, "codex", "auth-2");
    let text = told(&hook(&sealed, "codex", "session-start"));
    assert!(text.contains(&format!("You hold {token}: go on with it.")), "{text}");
}

#[test]
fn an_idle_teammate_is_offered_the_next_task() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let idle = |session: &str| {
        let event =
            json!({ "session_id": session, "hook_event_name": "TeammateIdle", "teammate_name": "ann" });
        hook_with(&sealed, &["teammate-idle"], &event, &[])
    };
    let said = idle("s");
    assert!(said.code == 2 && said.err.contains("auth-1 is ready: \"task 1\""), "{said:?}");
    passes(&idle("s"));
    assert_eq!(idle("another").code, 2);
    claimed(&sealed, "claude", "");
    passes(&idle("a third"));
}

/// A client that gives its commands no variable: its hook recorded the session for its process.
#[test]
fn a_recorded_session_is_the_run_of_all_commands_below_the_client() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    std::fs::write(
        sealed.path().join("first"),
        r#"{"session_id": "one", "hook_event_name": "SessionStart"}"#,
    )
    .expect("written");
    sealed.script(
        "gemini",
        "sh -c 'fence hook session-start --client gemini < first' > /dev/null
         fence whoami --json; bash -c 'fence whoami --json; true'; setsid -w bash -c 'fence whoami --json; true'",
    );
    let said = sealed.sh("./gemini; true");
    let runs: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(runs.len(), 3, "{said:?}");
    for me in &runs {
        assert_eq!((&me["run"], &me["owner"]["name"]), (&json!("gemini-one"), &json!("gemini")), "{me}");
    }
    // The client is gone, and its record with the next one.
    let after = sealed.sh("fence whoami");
    assert!(!after.out.contains("gemini-one"), "{after:?}");
}

/// The terminal program of Codex runs its sessions in a process that outlives them: no keeper may hold on to it.
#[test]
fn a_process_that_outlives_its_sessions_is_no_owner() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    sealed.script("codex", "CODEX_SESSION_ID=s bash -c 'fence claim --keep; true'\nexit $?");
    let said = sealed.sh("./codex app-server --managed-daemon; true");
    assert!(said.out.contains("task/auth-1@1") && said.err.contains("outlives them"), "{said:?}");
    assert!(!said.out.contains("renews it while"), "{said:?}");
    assert!(sealed.ok(&["doctor"]).contains("keepers     none"));
}

/// Others can write the user's directory for state, as with a umask of 002.
#[test]
fn hooks_have_a_directory_where_others_can_write_the_usual_one() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let shared = sealed.path().join(".local");
    std::fs::create_dir(&shared).expect("made");
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).expect("set");
    let temporary = sealed.path().join("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let variables = [("TMPDIR", temporary.to_str().expect("a path"))];
    let after = || hook_with(&sealed, &["post-tool-use"], &recorded("claude", "post-tool-use"), &variables);
    let claim = format!("TMPDIR={} fence claim; exit $?", temporary.display());
    assert_eq!(in_session(&sealed, "claude", &claim).code, 0);
    passes(&after());
    sealed.ok(&["unclaim", "auth-1"]);
    assert!(told(&after()).contains("you lost claim task/auth-1@1"));
    passes(&after());
    // Nowhere: it is told each time, and nothing fails.
    let nowhere = [("TMPDIR", "/dev/null")];
    let blind = |event: &str| hook_with(&sealed, &[event], &recorded("claude", event), &nowhere);
    for event in ["post-tool-use", "stop", "user-prompt-submit", "session-end"] {
        passes(&blind(event));
    }
    let mut push = recorded("claude", "pre-tool-use");
    push["tool_input"] = json!({ "command": "git push" });
    denied(&hook_with(&sealed, &["pre-tool-use"], &push, &nowhere));
}
