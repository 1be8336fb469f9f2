//! The outcomes of `fence work`: work trees, verdicts, limits, pauses, output.

use crate::{
    on_both,
    running::{ask, members, read, until},
    sealed::Sealed,
    work::{WAITS, add, begun, begun_one, go, json, runs, succeeded, task, work},
};
use fencepost::admin;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

/// A git repository with one commit, in the directory of the fleet.
pub fn repository(sealed: &Sealed) {
    let made = sealed.sh(
        "git config user.name test; git config user.email test@example.com; git checkout -q -b main
         printf '.env\\nmine.toml\\nplan.jsonl\\nbegun.*\\ngo\\ncmd\\n' > .gitignore; echo one > file; git add .gitignore file; git commit -qm first",
    );
    succeeded(&made);
}

on_both! {
    /// A task starts from the branches of the tasks that it waited for, and its own branch is merged when it is done.
    fn a_work_tree_for_each_child(sealed: Sealed) {
        sealed.ok(&["init"]);
        repository(&sealed);
        fs::write(sealed.path().join(".env"), "SECRET").expect("written");
        sealed.script("cmd", r#"
            case "$FENCE_CLAIM" in
                task/b-1@*) echo a > a; git add a; git commit -qm a;;
                task/b-2@*) cat a > b || exit 1; git add b; git commit -qm b; fence done --output mine;;
                task/b-3@*) echo two > file; git commit -qam two; echo left > dirty;;
                mentions/*) git symbolic-ref -q HEAD && exit 1; echo "$PWD" > detached; exit 0;;
            esac
            [ -e .env ] && [ -e set-up ] && git symbolic-ref --short HEAD"#);
        let cmd = sealed.path().join("cmd").display().to_string();
        add(&sealed, 1);
        sealed.ok(&["add", "second", "--board", "b", "--after", "b-1"]);
        sealed.ok(&["add", "third", "--board", "b"]);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["channel", "create", "general"]);
        sealed.ok(&["channel", "post", "general", "@bob hello", "--agent", "lead"]);
        let said = work(&sealed, &["--agent", "bob", "--drain", "--worktree", "--merge-into", "main", "--copy", ".env", "--setup", "touch set-up; echo set-up >> .git/info/exclude 2>/dev/null || echo set-up >> $(git rev-parse --git-common-dir)/info/exclude", "--", &cmd]).end();
        succeeded(&said);
        assert_eq!(["b-1", "b-2", "b-3"].map(|id| task(&sealed, id).0), ["completed"; 3], "{said:?}");
        assert_eq!(json(&sealed, &["show", "b-1"])["task"]["output"], "fence/b-1@1");
        // Both branches are in main, and a person's files follow.
        assert_eq!(["a", "b", "file"].map(|file| read(&sealed.path().join(file))), ["a\n", "a\n", "two\n"]);
        // A clean tree is gone. One with uncommitted files is kept, and the task says where.
        let trees = sealed.sh("ls .fence/trees | grep -v busy").out;
        let kept: Vec<&str> = trees.lines().collect();
        assert!(kept.len() == 2 && kept[0] == "b-3@1" && kept[1].starts_with("detached-"), "{trees}");
        let shown = sealed.ok(&["show", "b-3"]);
        assert!(shown.contains("is kept") && shown.contains("b-3@1") && shown.contains("dirty"), "{shown}");
    }

    at once:

    /// Branches that do not fit together are a state of the task, which a person mends.
    fn a_merge_conflict_is_a_failure_with_a_reason(sealed: Sealed) {
        sealed.ok(&["init"]);
        repository(&sealed);
        sealed.script("cmd", r#"
            n=${FENCE_CLAIM#task/b-}; n=${n%@*}
            [ "$n" = 3 ] && { cat file; exit 0; }
            echo "$n" > file; git commit -qam "$n""#);
        let cmd = sealed.path().join("cmd").display().to_string();
        add(&sealed, 2);
        sealed.ok(&["add", "third", "--board", "b", "--after", "b-1", "--after", "b-2"]);
        let said = work(&sealed, &["--agent", "bob", "--drain", "--worktree", "--", &cmd]).end();
        succeeded(&said);
        let (status, attempts, reason) = task(&sealed, "b-3");
        assert_eq!((status.as_str(), attempts), ("failed", 1));
        assert!(reason.starts_with("merge_conflict: fence/b-1@1 and fence/b-2@1 conflict in file"), "{reason}");
        // As the reason says: a person merges one branch into the other, and the task is tried again.
        let mended = sealed.sh("git checkout -q fence/b-1@1; git merge -q fence/b-2@1 || { echo both > file; git commit -qam both; }; git checkout -q main");
        succeeded(&mended);
        sealed.ok(&["retry", "b-3"]);
        succeeded(&work(&sealed, &["--agent", "bob", "--drain", "--worktree", "--", &cmd]).end());
        assert_eq!((task(&sealed, "b-3").0.as_str(), json(&sealed, &["show", "b-3"])["task"]["output"].as_str()), ("completed", Some("both")));
        // A branch that does not fit into the one it is merged into.
        sealed.ok(&["add", "fourth", "--board", "c"]);
        let clash = "echo theirs > file; git commit -qam theirs; cd $(git rev-parse --git-common-dir)/..; echo ours > file; git commit -qam ours";
        let said = work(&sealed, &["--agent", "bob", "--drain", "--worktree", "--merge-into", "main", "--", "bash", "-c", clash]).end();
        succeeded(&said);
        let (status, _, reason) = task(&sealed, "c-1");
        assert!(status == "failed" && reason.starts_with("merge_conflict: main and fence/c-1@1 conflict in file"), "{reason}");
        assert_eq!(read(&sealed.path().join("file")), "ours\n", "nothing was changed");
    }

    /// Where the client's sandbox keeps .git read-only, the worker commits; a task that waits for it starts after that commit.
    fn the_worker_commits_for_its_child(sealed: Sealed) {
        sealed.ok(&["init"]);
        repository(&sealed);
        sealed.script("cmd", r#"
            case "$FENCE_CLAIM" in
                task/b-1@*) echo a > a; fence done --output own > /dev/null; until [ -e "${0%/*}/go" ]; do sleep 0.02; done;;
                task/b-2@*) cat a; fence done --output "$(cat a)" > /dev/null;;
            esac"#);
        let cmd = sealed.path().join("cmd").display().to_string();
        fs::write(sealed.path().join("mine.toml"), format!("command = ['{cmd}']\nworker_commits = true\n")).expect("written");
        add(&sealed, 1);
        sealed.ok(&["add", "second", "--board", "b", "--after", "b-1"]);
        let worker = work(&sealed, &["--profile", "mine.toml", "--agents", "2", "--count", "2", "--worktree"]);
        // The run of the first child stays alive after its claim has ended: the second child waits for the commit.
        until("the first task is done", || task(&sealed, "b-1").0 == "completed");
        let lease = || runs(&sealed).iter().find(|run| run.trigger.is_some() && run.alive && run.claims.is_empty()).map(|run| run.expires_at);
        let first = lease();
        until("its run is renewed", || lease().is_some() && lease() > first);
        go(&sealed);
        let said = worker.end();
        succeeded(&said);
        assert_eq!(json(&sealed, &["show", "b-2"])["task"]["output"], "a", "{said:?}");
        let made = sealed.sh("git log -1 --format='%an: %B' fence/b-1@1");
        let fleet = ask(&sealed, async |fleet| fleet.call(admin::About {}).await).expect("the fleet").fleet;
        assert_eq!(made.out.trim_end(), format!("test: task 1\n\nFence: task/b-1@1 {}", &fleet[..8]));
    }

    /// A client that reports a usage limit pauses its agent; the work goes back without an attempt, and the session is resumed later.
    fn a_usage_limit_pauses_the_agent(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 1);
        sealed.script("client", r#"
            echo "$@" >> calls; cat > /dev/null
            if [ ! -e limit-is-over ]; then
                echo '{"type":"system","subtype":"init","session_id":"s-1"}'
                echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4102444800}}'
                echo '{"type":"result","is_error":true,"api_error_status":429,"result":"You have hit your limit \u0000'"$(printf '%040000d' 0)"'","total_cost_usd":0.25,"usage":{"input_tokens":3,"output_tokens":4}}'
                exit 1
            fi
            fence done --output "by the client" > /dev/null
            echo '{"type":"result","is_error":false,"result":"fine"}'"#);
        let profile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/work/profiles/claude.toml")).expect("the profile");
        fs::write(sealed.path().join("mine.toml"), profile.replace("\"claude\", \"-p\"", "\"./client\", \"-p\"")).expect("written");
        let worker = work(&sealed, &["--agent", "bob", "--profile", "mine.toml", "--count", "2"]);
        until("the agent is paused", || sealed.ok(&["agent"]).contains("usage limit: You have hit your limit"));
        until("the work is back", || task(&sealed, "b-1").0 == "unassigned");
        assert_eq!(task(&sealed, "b-1").1, 0, "no attempt");
        let said = sealed.fence(&["poll", "--agent", "bob"]);
        assert!(said.code == 6 && said.err.contains("is paused: usage limit: You have hit your limit"), "{said:?}");
        assert!(sealed.ok(&["top", "--once"]).contains("usage limit"), "{}", sealed.ok(&["top", "--once"]));
        let cost = runs(&sealed)[0].cost.clone().expect("its cost");
        assert_eq!((&cost["usd"], &cost["tokens_in"], &cost["session"]), (&Value::from(0.25), &Value::from(3), &Value::from("s-1")));
        fs::write(sealed.path().join("limit-is-over"), "").expect("written");
        sealed.ok(&["agent", "resume", "bob"]);
        succeeded(&worker.end());
        assert_eq!(json(&sealed, &["show", "b-1"])["task"]["output"], "by the client");
        let calls = read(&sealed.path().join("calls"));
        let calls: Vec<&str> = calls.lines().collect();
        assert!(calls.len() == 2 && !calls[0].contains("--resume") && calls[1].ends_with("--resume s-1"), "{calls:?}");
    }

    /// No new work while it is paused, also for a worker that waits; running children go on, or are ended with --now.
    fn a_pause(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["agent", "pause", "bob"]);
        let waiting = work(&sealed, &["--agent", "bob", "--max-concurrent", "2", "--", "bash", "-c", WAITS]);
        until("it tells of its pause", || waiting.out().contains("it is paused"));
        add(&sealed, 3);
        sealed.ok(&["agent", "resume", "bob"]);
        until("two children have begun", || begun(&sealed).len() == 2);
        until("the end of the pause is told", || waiting.out().contains("bob: resumed"));
        sealed.ok(&["agent", "pause", "bob", "--reason", "lunch"]);
        assert_eq!(sealed.fence(&["poll", "--agent", "bob"]).code, 6);
        go(&sealed);
        until("the children have ended", || ["b-1", "b-2"].iter().all(|id| task(&sealed, id).0 == "completed"));
        assert_eq!(task(&sealed, "b-3"), ("unassigned".into(), 0, String::new()), "it waits for its pause to end");
        fs::remove_file(sealed.path().join("go")).expect("removed");
        sealed.ok(&["agent", "resume", "bob"]);
        until("the third child has begun", || begun(&sealed).len() == 3);
        let running = |run: &str| runs(&sealed).iter().any(|one| one.name == run && one.alive);
        let (run, child) = begun(&sealed).into_iter().find(|(run, _)| running(run)).expect("the third");
        let said = sealed.ok(&["agent", "pause", "bob", "--now"]);
        assert!(!running(&run), "{said}");
        until("its child is ended", || members(child).is_empty());
        assert_eq!(task(&sealed, "b-3"), ("unassigned".into(), 0, String::new()));
        waiting.send(Signal::TERM);
        succeeded(&waiting.end());
        // A worker that would end when there is nothing to do lets its children end first.
        sealed.ok(&["agent", "resume", "bob"]);
        sealed.ok(&["add", "another", "--board", "b"]);
        let own_go = format!("n=${{FENCE_CLAIM#task/}}\n{}", WAITS.replace("-e go", "-e go.${n%@*}"));
        let draining = work(&sealed, &["--agent", "bob", "--max-concurrent", "2", "--drain", "--", "bash", "-c", &own_go]);
        until("two more children have begun", || begun(&sealed).len() == 5);
        sealed.ok(&["agent", "pause", "bob"]);
        sealed.ok(&["add", "while it is paused", "--board", "b"]);
        fs::write(sealed.path().join("go.b-3"), "").expect("written");
        // It has room for another trigger then, and is refused.
        until("the first has ended", || task(&sealed, "b-3").0 == "completed");
        fs::write(sealed.path().join("go.b-4"), "").expect("written");
        assert_eq!(draining.end().code, 6, "it is paused");
        assert_eq!(["b-4", "b-5"].map(|id| task(&sealed, id).0), ["completed", "unassigned"]);
    }

    /// At a spend limit the worker waits and says so once. The cost that its child printed is what counts.
    fn a_spend_limit(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 2);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["spend", "set", "--agent", "bob", "--usd", "0.25"]);
        sealed.script("client", r#"
            cat > /dev/null
            fence done > /dev/null
            echo '{"type":"result","is_error":false,"result":"fine","total_cost_usd":0.25,"usage":{"input_tokens":3,"output_tokens":4}}'"#);
        let profile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/work/profiles/claude.toml")).expect("the profile");
        fs::write(sealed.path().join("mine.toml"), profile.replace("\"claude\", \"-p\"", "\"./client\", \"-p\"")).expect("written");
        let worker = work(&sealed, &["--agent", "bob", "--profile", "mine.toml", "--count", "2"]);
        until("it tells of the limit", || worker.out().contains("bob: waits, because agent `bob` is at its spend limit: $0.25 of $0.25 in 1d"));
        assert_eq!(task(&sealed, "b-1").0, "completed");
        assert_eq!(task(&sealed, "b-2"), ("unassigned".into(), 0, String::new()), "it is held back");
        let draining = work(&sealed, &["--agent", "bob", "--drain", "--", "true"]);
        assert_eq!(draining.end().code, 6);
        sealed.ok(&["spend", "set", "--agent", "bob", "--usd", "1"]);
        let ended = worker.end();
        succeeded(&ended);
        assert_eq!(ended.out.matches("waits, because").count(), 1, "{ended:?}");
        assert_eq!(task(&sealed, "b-2").0, "completed");
        let fleet = json(&sealed, &["spend"])["fleet"].clone();
        assert_eq!(fleet.to_string(), r#"{"runs":2,"tokens_in":6,"tokens_out":8,"usd":0.5}"#);
    }

    /// A notice about the pool starts one child, with a prompt of the user. What the child claimed goes back in a drain, without an
    /// attempt.
    fn a_notice_about_the_pool(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 2);
        fs::create_dir(sealed.path().join("mine")).expect("made");
        fs::write(sealed.path().join("mine/pool_tasks_available.md"), "Mine, for {{agent}}:\n{{trigger}}\n").expect("written");
        let cmd = format!("cat > prompt; fence claim > /dev/null\n{WAITS}");
        let words = ["--agent", "bob", "--pool", "notify", "--prompts", "mine", "--shutdown-timeout", "0"];
        let worker = work(&sealed, &[&words[..], &["--", "bash", "-c", &cmd]].concat());
        let (run, child) = begun_one(&sealed);
        let prompt = read(&sealed.path().join("prompt"));
        assert!(prompt.starts_with("Mine, for bob:\n") && prompt.contains('2'), "{prompt}");
        assert_eq!(json(&sealed, &["show", "b-1"])["task"]["claim"]["run"], run);
        worker.send(Signal::TERM);
        succeeded(&worker.end());
        assert!(members(child).is_empty());
        assert_eq!(task(&sealed, "b-1"), ("unassigned".into(), 0, String::new()));
    }

    /// Two workers of one agent: the agent's own limit counts for both.
    fn two_workers_for_one_agent(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["agent", "join", "bob", "--max-concurrent", "2"]);
        add(&sealed, 8);
        sealed.script("cmd", r#"
            touch "in.$FENCE_RUN"; set -- in.*; [ $# -le 2 ] || touch too-many
            echo "$FENCE_CLAIM" >> done; sleep 0.1; rm "in.$FENCE_RUN""#);
        let words = ["--agent", "bob", "--max-concurrent", "4", "--drain", "--", "./cmd"];
        let workers = [work(&sealed, &words), work(&sealed, &words)];
        workers.into_iter().for_each(|worker| succeeded(&worker.end()));
        // A worker that was at the limit found nothing to do and ended. The rest is done by one more.
        succeeded(&work(&sealed, &words).end());
        assert!(!sealed.path().join("too-many").exists(), "the limit counts for both");
        let mut done: Vec<String> = read(&sealed.path().join("done")).lines().map(str::to_owned).collect();
        done.sort();
        assert_eq!(done, (1..=8).map(|n| format!("task/b-{n}@1")).collect::<Vec<_>>());
        assert_eq!(json(&sealed, &["agent"])["agents"][0]["max_concurrent"], 2, "starting a worker changes nothing");
    }

    /// Verdicts: what exit 0 means, a verdict before a crash, an offer without a decision, and failures.
    fn verdicts(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 8);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["offer", "b-6", "bob"]);
        sealed.script("cmd", r#"
            case "$FENCE_CLAIM" in
                task/b-6@*) ;;
                # None of the seven ends before all have begun: the first that fails can be claimed again after ten seconds.
                *) : > "in.$FENCE_RUN"; until set -- in.*; [ $# -eq 7 ]; do sleep 0.02; done;;
            esac
            case "$FENCE_CLAIM" in
                task/b-1@*) echo "no verdict";;
                task/b-2@*) fence done --output "its own word" > /dev/null; kill -SEGV $$;;
                task/b-3@*) echo "last words"; exit 3;;
                task/b-4@*) exit 75;;
                task/b-5@*) fence settle "$FENCE_RUN" --output settled > /dev/null; exit 1;;
                task/b-6@*) exit 0;;
                task/b-7@*) fence fail --reason "its own reason" > /dev/null;;
                task/b-8@*) fence release > /dev/null;;
            esac"#);
        let said = work(&sealed, &["--agent", "bob", "--count", "1", "--accept", "task_offered", "--", "./cmd"]).end();
        assert_eq!((said.code, task(&sealed, "b-6").0.as_str()), (0, "offered"), "{said:?}");
        let words = ["--agent", "bob", "--count", "7", "--max-concurrent", "7", "--accept", "pool_task"];
        let said = work(&sealed, &[&words[..], &["--no-verdict", "fail", "--", "./cmd"]].concat()).end();
        assert_eq!(said.code, 0, "{said:?}");
        for told in ["b-2 task 2 done", "b-5 task 5 done", "b-7 task 7 failed", "b-8 task 8 given back"] {
            assert!(said.out.contains(&format!("bob: {told} after")), "{said:?}");
        }
        let state = |id: &str| { let (status, attempts, reason) = task(&sealed, id); format!("{status} {attempts} {reason}") };
        assert_eq!(state("b-1"), "unassigned 1 no_verdict: its command ended without saying whether the work is done");
        assert_eq!(state("b-2"), "completed 1 ");
        assert_eq!(state("b-3"), "unassigned 1 its command exited with 3");
        assert_eq!(state("b-4"), "unassigned 0 ");
        assert_eq!(state("b-5"), "completed 1 ");
        assert_eq!(state("b-7"), "failed 1 its own reason");
        sealed.readable();
        let log = sealed.ok(&["log", "b-3"]);
        assert!(log.contains("exit 3") && log.contains("last words"), "{log}");
    }

    /// A prompt that is too long for an argument is a failure of this task alone.
    fn a_prompt_that_is_too_long_for_an_argument(sealed: Sealed) {
        sealed.ok(&["init"]);
        let long = format!("{{\"title\": \"long\", \"max_attempts\": 1, \"body\": \"{}\"}}\n", "x".repeat(200_000));
        fs::write(sealed.path().join("plan.jsonl"), long + "{\"title\": \"short\"}\n").expect("written");
        sealed.ok(&["add", "-f", "plan.jsonl", "--board", "b"]);
        fs::write(sealed.path().join("mine.toml"), "command = ['true']\nprompt = 'argument'\nno_verdict = 'done'\n").expect("written");
        succeeded(&work(&sealed, &["--agent", "bob", "--profile", "mine.toml", "--count", "2"]).end());
        let (status, _, reason) = task(&sealed, "b-1");
        assert!(status == "failed" && reason.contains("Argument list too long"), "{reason}");
        assert_eq!(task(&sealed, "b-2").0, "completed");
    }

    /// Output of any kind is kept up to a limit, and the log of a run can be followed.
    fn output_of_any_kind(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 2);
        sealed.script("cmd", r#"
            case "$FENCE_CLAIM" in
                task/b-1@*) echo begun; echo $$ > new; mv new "begun.$FENCE_RUN"; until [ -e go ]; do sleep 0.02; done; printf '\377\000 no newline';;
                task/b-2@*) head -c 100000000 /dev/zero | tr '\0' x; echo; echo the end;;
            esac"#);
        let worker = work(&sealed, &["--agent", "bob", "--count", "2", "--", "./cmd"]);
        let (run, _) = begun_one(&sealed);
        let mut follower = sealed.spawn(&["log", &run, "-f"]);
        go(&sealed);
        succeeded(&worker.end());
        let followed = follower.wait().expect("it ends with the run");
        assert!(followed.success());
        let mut out = String::new();
        std::io::Read::read_to_string(&mut follower.stdout.take().expect("its output"), &mut out).expect("text");
        assert_eq!(out, "begun\n\u{fffd}\\u{0} no newline\n");
        let output = |id: &str| json(&sealed, &["show", id])["task"]["output"].as_str().expect("a text").to_owned();
        assert_eq!(output("b-1"), "begun\n\u{fffd}\u{fffd} no newline");
        let long = output("b-2");
        assert!(long.len() <= 16 * 1024 && long.ends_with("x\nthe end"), "{}", long.len());
        let kept = sealed.sh("du -s --apparent-size -B1 .local/state/fence/runs | cut -f1").out;
        assert!(kept.parse::<u64>().is_ok_and(|bytes| bytes < 20_000_000), "{kept}");
    }

    /// A command that does not exist, or that always fails at once, stops the worker instead of using up attempts.
    fn a_command_that_does_not_work_stops_the_worker(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 16);
        let said = work(&sealed, &["--agent", "bob", "--", "no-such-program"]).end();
        assert_eq!((said.code, said.err.as_str()), (127, "error: `no-such-program`: not found"));
        assert!(runs(&sealed).is_empty(), "nothing was claimed");
        let said = work(&sealed, &["--agent", "bob", "--", "./no-such-file"]).end();
        assert_eq!((said.code, said.err.as_str(), task(&sealed, "b-1").1), (127, "error: `./no-such-file`: not found", 0));
        let said = work(&sealed, &["--agent", "bob", "--", "sh", "-c", "echo broken; exit 1"]).end();
        assert!(said.code == 1 && said.err.contains("bob: its command failed at once 5 times in a row: broken"), "{said:?}");
        // On a busy machine one of them may not have failed at once, and then it took more.
        assert!((1..=16).map(|n| task(&sealed, &format!("b-{n}")).1).sum::<i64>() >= 5);
        assert!(sealed.ok(&["agent"]).contains("its command failed at once 5 times in a row: broken"));
        // A client that says nothing at all and exits with 0 does not work either.
        let said = work(&sealed, &["--agents", "2", "--no-verdict", "fail", "--", "true"]).end();
        assert!(said.code == 1 && said.err.contains("its command failed at once 5 times in a row"), "{said:?}");
        assert_eq!(sealed.ok(&["agent"]).matches("its command failed at once 5 times").count(), 3, "all agents of the process");
        // Until a person resumes the agent, a worker that is started again burns nothing.
        let said = work(&sealed, &["--agent", "bob", "--drain", "--", "true"]).end();
        assert_eq!(said.code, 6, "{said:?}");
    }
}

/// The server goes away while a child runs, and comes back: the child goes on, and its work counts.
#[test]
fn a_child_survives_the_restart_of_its_server() {
    let fleet = Sealed::sqlite();
    fleet.ok(&["init"]);
    let address = crate::sealed::lasting_address();
    let mut server = crate::sealed::Serving::start(&fleet, &["--listen", &address]);
    let sealed = fleet.over(&server.url);
    add(&fleet, 1);
    let worker = work(&sealed, &["--agent", "bob", "--count", "1", "--ttl", "5m", "--", "bash", "-c", WAITS]);
    begun_one(&sealed);
    server.kill();
    go(&sealed);
    until("it wants to settle", || worker.err().contains("trying again"));
    let _server = crate::sealed::Serving::start(&fleet, &["--listen", &address]);
    succeeded(&worker.end());
    assert_eq!(task(&fleet, "b-1"), ("completed".into(), 1, String::new()));
}

/// Options that only the command line knows: role, board and tag, the base of a work tree, the variables of other systems, and JSON.
#[test]
fn options_reach_the_worker() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    repository(&sealed);
    succeeded(&sealed.sh("echo old > base.txt; git add base.txt; git commit -qm old; git branch older; git rm -q base.txt; git commit -qm new"));
    for (title, board, tag) in
        [("wanted", "b", "docs"), ("another tag", "b", "code"), ("another board", "c", "docs")]
    {
        sealed.ok(&["add", title, "--board", board, "--tag", tag]);
    }
    let words =
        ["--json", "work", "--agent", "bob", "--board", "b", "--tag", "docs", "--base", "older", "--drain"];
    let said = sealed.fence(&[&words[..], &["--", "cat", "base.txt"]].concat());
    succeeded(&said);
    let events: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(
        (told, &events[2]["outcome"]),
        (vec!["joined", "started", "ended"], &Value::from("done")),
        "{said:?}"
    );
    assert_eq!(json(&sealed, &["show", "b-1"])["task"]["output"], "old");
    assert_eq!(["b-2", "c-1"].map(|id| task(&sealed, id).1), [0, 0], "they are not wanted");
    succeeded(&work(&sealed, &["--agent", "eve", "--role", "lead", "--drain", "--", "true"]).end());
    let agents = json(&sealed, &["agent"]);
    let agents = agents["agents"].as_array().expect("a list");
    let role =
        |name: &str| agents.iter().find(|agent| agent["name"] == name).map(|agent| agent["role"].clone());
    assert_eq!([role("bob"), role("eve")], [Some("worker".into()), Some("lead".into())]);
    for variable in ["SHUTDOWN_TIMEOUT", "MAX_CONCURRENT_TASKS", "TRIGGERING_LEASE_TIMEOUT_MS"] {
        let said = sealed.sh(&format!("{variable}=soon fence work --agent bob --drain -- true"));
        assert!(said.code == 2 && said.err.contains("soon"), "{variable}: {said:?}");
    }
}
