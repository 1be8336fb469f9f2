//! The guard by the standing of a session: what it may do while it holds, after it lost, and after it acknowledged that.

use crate::{
    hooks::{
        before, claimed, denied, fleet, hook, hook_with, in_session, passes, recorded, session, told,
        variable,
    },
    on_both,
    sealed::{Finished, Sealed, eventually},
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A call of this tool is about to happen.
pub fn tool(sealed: &Sealed, client: &str, name: &str, input: Value, more: &[&str]) -> Finished {
    tool_with(sealed, client, name, input, more, &[])
}

pub fn tool_with(
    sealed: &Sealed,
    client: &str,
    name: &str,
    input: Value,
    more: &[&str],
    variables: &[(&str, &str)],
) -> Finished {
    let mut event = recorded(client, "pre-tool-use");
    event["tool_name"] = json!(name);
    event["tool_input"] = input;
    hook_with(sealed, &[&["pre-tool-use", "--client", client], more].concat(), &event, variables)
}

/// The tools by which each client writes.
pub fn edits(sealed: &Sealed, client: &str) -> Vec<Finished> {
    let names: &[&str] = match client {
        "claude" => &["Edit", "MultiEdit", "Write", "NotebookEdit", "ExitWorktree"],
        _ => &["apply_patch"],
    };
    names
        .iter()
        .map(|name| tool(sealed, client, name, json!({ "command": "git push", "new_string": "x" }), &[]))
        .collect()
}

pub fn record_file(sealed: &Sealed, run: &str) -> PathBuf {
    sealed.path().join(".local/state/fence/sessions").join(format!("session-{run}"))
}

pub fn record(sealed: &Sealed, run: &str) -> Value {
    let text = std::fs::read_to_string(record_file(sealed, run)).expect("a record");
    serde_json::from_str(&text).expect("JSON")
}

/// The lease of each claim in the record ended long ago, as if the machine had slept.
pub fn overslept(sealed: &Sealed, run: &str) {
    let mut slept = record(sealed, run);
    for held in slept["held"].as_array_mut().expect("claims") {
        held["until"] = json!("2020-01-01T00:00:00Z");
    }
    std::fs::write(record_file(sealed, run), slept.to_string()).expect("written");
}

/// Nobody listens there.
pub const GONE: [(&str, &str); 1] = [("FENCE_URL", "http://127.0.0.1:9")];

on_both! {
    fn a_session_that_lost_its_claim_is_stopped_until_it_acknowledges(sealed: Sealed) {
        fleet(&sealed, 3);
        for (client, task) in [("claude", "auth-1"), ("codex", "auth-2")] {
            let token = claimed(&sealed, client, task);
            edits(&sealed, client).iter().for_each(passes);
            sealed.ok(&["unclaim", task]);
            sealed.ok(&["claim", task, "--run", "other"]);
            assert!(told(&hook(&sealed, client, "post-tool-use")).contains(&format!("you lost claim {token}")));
            // All that writes or runs is refused, more than once.
            let lost = |said: &Finished| {
                let reason = denied(said);
                assert!(reason.contains(&format!("lost claim {token}")), "{reason}");
                assert!(reason.contains(&format!("Run other holds task/{task} now.")), "{reason}");
                assert!(reason.contains("fence ack") && reason.contains("reading is allowed"), "{reason}");
            };
            edits(&sealed, client).iter().for_each(lost);
            edits(&sealed, client).iter().for_each(lost);
            for line in [
                "ls", "cargo test", "fence ready; ls", "fence ready && rm -r x", "fence show \"$(rm x)\"", "fence lock a -- ls",
                "fence once k -- ls", "fence work --agent a", "fence mail work box -- ls", "fence loop run x", "",
                "fence setup claude --remove", "fence git install --remove", "fence export x --force",
            ] {
                lost(&before(&sealed, client, line, &[]));
            }
            lost(&tool(&sealed, client, "Bash", json!({ "command": ["ls"] }), &[]));
            let github = |more: &[&str]| tool(&sealed, client, "mcp__github__get_issue", json!({}), more);
            lost(&github(&[]));
            lost(&github(&["--reads", "mcp__github__list_*"]));
            passes(&github(&["--reads", "mcp__jira,mcp__github__get_*"]));
            passes(&tool(&sealed, client, "Read", json!({ "file_path": "x" }), &[]));
            passes(&tool(&sealed, client, "mcp__fence__look", json!({}), &[]));
            for line in ["fence ready", "fence show auth-3 --json", "fence note auth-3 'git push failed'", "fence guard"] {
                passes(&before(&sealed, client, line, &[]));
            }
            // A claim that is refused acknowledges nothing.
            let refused = in_session(&sealed, client, &format!("fence claim {task}; exit $?"));
            assert_eq!(refused.code, 4, "{refused:?}");
            // Nor does a question about it.
            for line in ["fence ack --help", "fence help ack", "fence note auth-3 ack"] {
                passes(&before(&sealed, client, line, &[]));
            }
            passes(&tool(&sealed, client, "mcp__fence__look", json!({ "how": "acknowledge" }), &[]));
            lost(&before(&sealed, client, "ls", &[]));

            // The hook acknowledges: in a client's sandbox the command could not write the record.
            passes(&before(&sealed, client, "fence ack", &[]));
            let said = in_session(&sealed, client, "fence ack; exit $?");
            assert!(said.code == 0 && said.out.contains(&format!("acknowledged: {token} is over")), "{said:?}");
            edits(&sealed, client).iter().for_each(passes);
            passes(&before(&sealed, client, "cargo test", &[]));
            let reason = denied(&before(&sealed, client, "git push", &[]));
            assert!(reason.contains("holds no claim any more"), "{reason}");
            // A new claim, too.
            claimed(&sealed, client, "auth-3");
            passes(&before(&sealed, client, "git push", &[]));
            sealed.ok(&["unclaim", "auth-3"]);
            denied(&before(&sealed, client, "git push", &[]));
            edits(&sealed, client).iter().for_each(|said| drop(denied(said)));
            claimed(&sealed, client, "auth-3");
            edits(&sealed, client).iter().for_each(passes);
            assert_eq!(in_session(&sealed, client, "fence release; exit $?").code, 0);
        }
    }

    /// Completed work may be pushed. Work that was given back may not.
    fn the_guard_after_the_end_of_a_claim(sealed: Sealed) {
        fleet(&sealed, 4);
        let push = |more: &[&str]| before(&sealed, "claude", "git push", more);
        for (end, is_completed) in
            [("done", true), ("release", false), ("fail --reason no", false), ("done", true)]
        {
            claimed(&sealed, "claude", "");
            passes(&push(&["--strict"]));
            in_session(&sealed, "claude", &format!("fence {end}"));
            if is_completed {
                assert!(told(&push(&[])).contains("completed its claim"), "{end}");
            } else {
                assert!(denied(&push(&[])).contains("gave its work back"), "{end}");
            }
            denied(&push(&["--strict"]));
            passes(&hook(&sealed, "claude", "post-tool-use"));
            edits(&sealed, "claude").iter().for_each(passes);
            passes(&before(&sealed, "claude", "cargo test", &["--strict"]));
        }
    }

    /// The fleet keeps only the last end of a task. The session's own record knows more.
    fn work_that_was_given_back_is_not_lost(sealed: Sealed) {
        fleet(&sealed, 3);
        let other = |task: &str| {
            let token = sealed.ok(&["claim", task, "--run", "other", "-q"]);
            sealed.ok(&["done", &token]);
        };
        claimed(&sealed, "claude", "auth-1");
        in_session(&sealed, "claude", "fence release");
        other("auth-1");
        passes(&hook(&sealed, "claude", "post-tool-use"));
        edits(&sealed, "claude").iter().for_each(passes);
        assert!(denied(&before(&sealed, "claude", "git push", &[])).contains("gave its work back"));
        // At the end of the session; then it is resumed.
        claimed(&sealed, "claude", "auth-2");
        passes(&hook(&sealed, "claude", "session-end"));
        other("auth-2");
        passes(&hook(&sealed, "claude", "user-prompt-submit"));
        edits(&sealed, "claude").iter().for_each(passes);
        // The next task of `done --next` is the session's, too.
        sealed.ok(&["add", "task 4", "--board", "auth"]);
        claimed(&sealed, "claude", "auth-3");
        in_session(&sealed, "claude", "fence done --next");
        passes(&before(&sealed, "claude", "git push", &[]));
        sealed.ok(&["unclaim", "auth-4"]);
        denied(&before(&sealed, "claude", "git push", &[]));
        denied(&before(&sealed, "claude", "ls", &[]));
    }

    /// The agent claims the task again before any hook noticed the loss.
    fn a_new_claim_of_the_same_task_acknowledges(sealed: Sealed) {
        fleet(&sealed, 1);
        claimed(&sealed, "claude", "auth-1");
        sealed.ok(&["unclaim", "auth-1"]);
        claimed(&sealed, "claude", "auth-1");
        passes(&hook(&sealed, "claude", "post-tool-use"));
        edits(&sealed, "claude").iter().for_each(passes);
        passes(&before(&sealed, "claude", "git push", &[]));
        in_session(&sealed, "claude", "fence done");
        edits(&sealed, "claude").iter().for_each(passes);
    }

    /// The session itself ended its claims, in other ways than by their tokens.
    fn claims_that_the_session_ended_are_not_lost(sealed: Sealed) {
        fleet(&sealed, 10);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["agent", "join", "eve"]);
        sealed.ok(&["add", "offered", "--board", "other", "--offer", "bob"]);
        sealed.ok(&["mail", "push", "box", "x"]);
        sealed.write("prd.json", r#"{ "userStories": [{ "id": "US-1", "title": "one", "acceptanceCriteria": ["x"] }] }"#);
        for script in [
            "fence claim auth-1 --run x; fence end x",
            "fence claim auth-2; fence cancel auth-2",
            "fence claim auth-3; fence unclaim auth-3",
            "run=$(fence --json poll --agent bob --accept task_offered | grep -o 'bob-[0-9a-z]*' | head -1); fence settle $run",
            "run=$(fence --json poll --agent eve --accept pool_task --board auth | grep -o 'eve-[0-9a-z]*' | head -1); fence end $run",
            "fence claim auth-5; fence call task/cancel '{\"task\": \"auth-5\"}'",
            "fence claim auth-6; fence call claim/unclaim '{\"resource\": \"task/auth-6\"}'",
            "fence claim auth-7 --run y; fence call run/end '{\"run\": \"y\"}'",
            "fence claim auth-8; fence call claim/release '{\"token\": \"task/auth-8@1\"}'",
            "fence mail claim box; fence mail reset",
            "fence mail claim box; fence mail reset box",
            "fence loop start web --prd prd.json; fence loop next web; fence loop cancel web",
            "fence loop restart web; fence loop next web; fence loop restart web",
        ] {
            let said = in_session(&sealed, "claude", &format!("set -e; {script} >/dev/null; exit 0"));
            assert_eq!((said.code, said.err.as_str()), (0, ""), "{script}: {said:?}");
            assert_eq!(record(&sealed, &session("claude"))["held"], json!([]), "{script}");
            passes(&hook(&sealed, "claude", "post-tool-use"));
            edits(&sealed, "claude").iter().for_each(passes);
        }
    }

    /// A lost claim stays lost, whatever the session ends afterwards.
    fn ops_on_other_claims_hide_no_loss(sealed: Sealed) {
        fleet(&sealed, 6);
        for (task, script) in [
            ("auth-1", "fence end"),
            ("auth-2", "fence unclaim auth-2"),
            ("auth-3", "fence cancel auth-3"),
            ("auth-4", "fence call run/end \"{\\\"run\\\": \\\"$(fence whoami --json | grep -o 'claude-[0-9a-f-]*' | head -1)\\\"}\""),
            ("auth-5", "fence release task/auth-5@2; fence done task/auth-5@2; fence mail reset"),
        ] {
            let token = claimed(&sealed, "claude", task);
            sealed.ok(&["unclaim", task]);
            let taken = sealed.ok(&["claim", task, "--run", &format!("other-{task}"), "-q"]);
            assert_ne!(taken, token);
            in_session(&sealed, "claude", &format!("{script} >/dev/null"));
            assert!(denied(&before(&sealed, "claude", "git push", &[])).contains(&token), "{script}");
            edits(&sealed, "claude").iter().for_each(|said| assert!(denied(said).contains(&token), "{script}"));
            assert_eq!(in_session(&sealed, "claude", "fence ack; exit $?").code, 0);
        }
        // A message of another mailbox is held all the same.
        sealed.ok(&["mail", "push", "box", "x"]);
        let said = in_session(&sealed, "claude", "fence mail claim box -q --run x && fence mail reset other --mine && fence mail reset other; exit $?");
        assert_eq!(said.code, 0, "{said:?}");
        assert_eq!(record(&sealed, &session("claude"))["held"][0]["token"], "message/1@1");
        sealed.ok(&["mail", "reset", "box"]);
        denied(&before(&sealed, "claude", "git push", &[]));
        edits(&sealed, "claude").iter().for_each(|said| assert!(denied(said).contains("message/1@1")));
    }

    /// By a tool of MCP. The fleet keeps only the last end of a task.
    fn a_claim_that_a_tool_gave_back_is_not_lost(sealed: Sealed) {
        fleet(&sealed, 1);
        let (name, id) = variable("claude");
        let mut client = crate::mcp::Client::start(&sealed, "claude-code", &[(name, id.as_str())]);
        client.ok("claim", json!({}));
        client.ok("finish", json!({ "how": "release" }));
        let other = sealed.ok(&["claim", "auth-1", "--run", "other", "-q"]);
        sealed.ok(&["done", &other]);
        passes(&hook(&sealed, "claude", "post-tool-use"));
        edits(&sealed, "claude").iter().for_each(passes);
        assert!(denied(&before(&sealed, "claude", "git push", &[])).contains("gave its work back"));
        assert_eq!(client.close(), 0);
    }

    /// A claim seemed to be over while the fleet could not be asked. Then the session released it, and another run finished the task.
    fn a_claim_that_only_seemed_over_can_be_given_back(sealed: Sealed) {
        fleet(&sealed, 1);
        let token = claimed(&sealed, "claude", "auth-1");
        overslept(&sealed, &session("claude"));
        denied(&tool_with(&sealed, "claude", "Edit", json!({}), &[], &GONE));
        assert_eq!(in_session(&sealed, "claude", &format!("fence release {token}; exit $?")).code, 0);
        let other = sealed.ok(&["claim", "auth-1", "--run", "other", "-q"]);
        sealed.ok(&["done", &other]);
        passes(&hook(&sealed, "claude", "post-tool-use"));
        edits(&sealed, "claude").iter().for_each(passes);
    }

    fn one_of_two_claims_is_lost(sealed: Sealed) {
        fleet(&sealed, 3);
        let (first, _) = (claimed(&sealed, "claude", "auth-1"), claimed(&sealed, "claude", "auth-2"));
        sealed.ok(&["unclaim", "auth-1"]);
        assert!(told(&hook(&sealed, "claude", "post-tool-use")).contains(&first));
        // It is told with each call, and not refused.
        for _ in 0..2 {
            assert!(edits(&sealed, "claude").iter().all(|said| told(said).contains(&format!("lost claim {first}"))));
            assert!(told(&before(&sealed, "claude", "git push", &[])).contains("you still hold another claim"));
        }
        in_session(&sealed, "claude", "fence ack");
        edits(&sealed, "claude").iter().for_each(passes);
        passes(&before(&sealed, "claude", "git push", &[]));
        sealed.ok(&["cancel", "auth-2"]);
        passes(&hook_with(&sealed, &["session-end", "--client", "claude"], &recorded("claude", "session-end"), &[("FENCE_RUN", "x")]));
        // A person's answer to the agent tells it, too.
        assert!(told(&hook(&sealed, "claude", "user-prompt-submit")).contains("was cancelled"));
        denied(&before(&sealed, "claude", "ls", &[]));
        sealed.ok(&["lift", &session("claude"), "--for", "1h"]);
        passes(&before(&sealed, "claude", "ls", &[]));
        // After the lift the loss is known, and the guard is as before.
        sealed.ok(&["lift", &session("claude"), "--for", "0s"]);
        passes(&before(&sealed, "claude", "ls", &[]));
        denied(&before(&sealed, "claude", "git push", &[]));
        // Its end acknowledges nothing that was lost meanwhile.
        sealed.ok(&["lift", &session("claude"), "--for", "1h"]);
        claimed(&sealed, "claude", "auth-3");
        sealed.ok(&["cancel", "auth-3"]);
        hook(&sealed, "claude", "post-tool-use");
        passes(&before(&sealed, "claude", "ls", &[]));
        sealed.ok(&["lift", &session("claude"), "--for", "0s"]);
        assert!(denied(&before(&sealed, "claude", "ls", &[])).contains("was cancelled"));
    }

    /// By the record alone: the lease is over, and only then is the fleet asked.
    fn a_lapse_is_met_at_once(sealed: Sealed) {
        fleet(&sealed, 2);
        let run = session("claude");
        let token = claimed(&sealed, "claude", "auth-1");
        let edit = |variables: &[(&str, &str)]| tool_with(&sealed, "claude", "Edit", json!({}), &[], variables);
        passes(&edit(&GONE));
        overslept(&sealed, &run);
        let reason = denied(&edit(&GONE));
        assert!(reason.contains("the machine slept") && reason.contains("cannot be asked"), "{reason}");
        // The claim is alive all the same: somebody renewed it.
        passes(&edit(&[]));
        passes(&edit(&GONE));
        overslept(&sealed, &run);
        sealed.ok(&["end", &run]);
        let reason = denied(&edit(&[]));
        assert!(reason.contains(&format!("lost claim {token} (its lease ended")), "{reason}");
        assert!(reason.contains("Nobody holds task/auth-1 now"), "{reason}");
        denied(&edit(&GONE));
        in_session(&sealed, "claude", "fence ack");
        passes(&edit(&[]));
    }

    fn a_subagent_stands_for_itself(sealed: Sealed) {
        fleet(&sealed, 3);
        let (parent, id) = (session("claude"), "a7d27e45c60957faa");
        let run = format!("{parent}.{id}");
        let of = |name: &str, input: Value| {
            let mut event = recorded("claude", "pre-tool-use-subagent");
            (event["tool_name"], event["tool_input"]) = (json!(name), input);
            hook_with(&sealed, &["pre-tool-use"], &event, &[])
        };
        let edit = || of("Edit", json!({}));
        claimed(&sealed, "claude", "auth-1");
        passes(&edit());
        let (name, session_id) = variable("claude");
        let claim = |task: &str| {
            let script = format!("export FENCE_RUN={run}; fence claim -q {task}");
            let mut command = sealed.command("bash");
            command.env(name, &session_id).args(["-c", &script]);
            assert_eq!(crate::sealed::finished(command.output().expect("bash")).code, 0);
        };
        claim("auth-2");
        sealed.ok(&["unclaim", "auth-2"]);
        hook_with(&sealed, &["post-tool-use"], &{
            let mut event = recorded("claude", "post-tool-use");
            event["agent_id"] = json!(id);
            event
        }, &[]);
        assert!(denied(&edit()).contains("task/auth-2@1"));
        passes(&tool(&sealed, "claude", "Edit", json!({}), &[]));
        // And the other way round.
        claim("auth-3");
        sealed.ok(&["unclaim", "auth-1"]);
        hook(&sealed, "claude", "post-tool-use");
        passes(&edit());
        assert!(denied(&tool(&sealed, "claude", "Edit", json!({}), &[])).contains("task/auth-1@1"));
        // The hooks of git tell them apart, too: the hook gives the subagent's command its run.
        sealed.first_commit();
        sealed.ok(&["git", "install"]);
        let commit = "git commit -q --allow-empty -m x && git log -1 --format=%B; exit $?";
        let refused = in_session(&sealed, "claude", commit);
        assert!(refused.code != 0 && refused.err.contains("lost claim `task/auth-1@1`"), "{refused:?}");
        let changed = |line: &str| {
            let said = of("Bash", json!({ "command": line }));
            let reply: Value = serde_json::from_str(&said.out).unwrap_or_default();
            reply["hookSpecificOutput"]["updatedInput"]["command"].as_str().map(str::to_owned)
        };
        let committed = in_session(&sealed, "claude", &changed(commit).expect("another command"));
        assert!(committed.code == 0 && committed.out.contains("Fence: task/auth-3@1 "), "{committed:?}");
        assert_eq!(changed("git status"), None);
        // A run that the command names does not make its claim the session's.
        let claim = changed("fence claim auth-2 -q --run w").expect("another command");
        in_session(&sealed, "claude", &format!("{claim}; fence release auth-2 --run w"));
        assert!(denied(&tool(&sealed, "claude", "Edit", json!({}), &[])).contains("task/auth-1@1"));
        // The subagent does not acknowledge for its session. A tool of ours does, by the hook.
        of("Bash", json!({ "command": "fence ack" }));
        denied(&tool(&sealed, "claude", "Edit", json!({}), &[]));
        passes(&tool(&sealed, "claude", "mcp__fence__finish", json!({ "how": "acknowledge" }), &[]));
        passes(&tool(&sealed, "claude", "Edit", json!({}), &[]));
        // A subagent that never claimed shares the standing of its session.
        claimed(&sealed, "claude", "auth-1");
        sealed.ok(&["unclaim", "auth-1"]);
        hook(&sealed, "claude", "post-tool-use");
        let mut other = recorded("claude", "pre-tool-use-subagent");
        (other["agent_id"], other["tool_name"]) = (json!("b1"), json!("Edit"));
        denied(&hook_with(&sealed, &["pre-tool-use"], &other, &[]));
    }

    /// The keeper records how long the claim lasts, so that an edit asks the fleet nothing while the agent thinks.
    fn the_keeper_writes_the_record(sealed: Sealed) {
        fleet(&sealed, 2);
        let run = session("claude");
        sealed.script(
            "agent",
            "fence claim -q --keep auth-1 && fence claim -q --keep auth-2\ntouch claimed\nwhile [ -e claimed ] && [ ! -e slept ]; do sleep 0.05; done\n\
             fence done task/auth-2@1\nwhile [ -e claimed ] && [ ! -e over ]; do sleep 0.05; done",
        );
        let (name, id) = variable("claude");
        let mut command = sealed.command("./agent");
        let mut agent = command.env(name, id).spawn().expect("it starts");
        let made = |file: &str| sealed.path().join(file).exists();
        eventually("both are claimed", || made("claimed").then_some(()));
        overslept(&sealed, &run);
        std::fs::write(sealed.path().join("slept"), "").expect("written");
        // The end of the other claim wakes the keeper, which renews the run.
        eventually("the keeper wrote the record", || {
            let held = record(&sealed, &run)["held"].clone();
            held.as_array()?.iter().any(|held| held["until"].as_str().is_some_and(|until| until > "2021")).then_some(())
        });
        passes(&tool_with(&sealed, "claude", "Edit", json!({}), &[], &GONE));
        std::fs::write(sealed.path().join("over"), "").expect("written");
        agent.wait().expect("its end");
    }
}
