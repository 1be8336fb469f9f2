//! The git fence, with real repositories: the trailer of a commit, hooks that check a claim, and a repository that refuses late pushes.

use crate::{
    on_both,
    running::{Running, members, read, until},
    sealed::{Finished, Sealed},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Stdio};

/// The same fleet from a directory with a clone `work` of `hub.git`, both with the hooks of fence.
fn repositories(sealed: &Sealed) -> Sealed {
    sealed.ok(&["init"]);
    let place = sealed.over(&sealed.server().unwrap_or_else(|| sealed.url()));
    ok(
        &place,
        "git config --global user.name Kim; git config --global user.email kim@example.com
         git config --global init.defaultBranch main; git config --global advice.detachedHead false
         git init -q --bare hub.git; git clone -q hub.git work 2> /dev/null
         cd work; git commit -q --allow-empty -m begin; git push -q origin HEAD:main
         fence git install > /dev/null; cd ../hub.git; fence git install > /dev/null",
    );
    place
}

fn run(place: &Sealed, script: &str) -> Finished {
    let script = format!("set -e\n{script}");
    place.sh(&script)
}

#[track_caller]
fn ok(place: &Sealed, script: &str) -> String {
    let said = run(place, script);
    assert_eq!(said.code, 0, "{script}\n{said:?}");
    said.out
}

/// The errors of a script that must fail.
#[track_caller]
fn refused(place: &Sealed, script: &str) -> String {
    let said = run(place, script);
    assert!(said.code > 0, "{script}\n{said:?}");
    said.err
}

#[track_caller]
fn says(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in:\n{text}");
}

/// The short id of the fleet.
fn fleet(place: &Sealed) -> String {
    let facts: serde_json::Value = serde_json::from_str(&place.ok(&["call", "admin/about"])).expect("JSON");
    facts["fleet"].as_str().expect("an id")[..8].to_owned()
}

/// The accepted fences of a repository: `auth-1 2 3fa9c1d2`, one per line.
fn accepted(place: &Sealed, repository: &str) -> Vec<String> {
    let status = ok(place, &format!("cd {repository}; fence git status --json"));
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let all = status["accepted"].as_array().expect("a list").iter();
    all.map(|one| format!("{} {}", one["task"].as_str().expect("a task"), one["fence"])).collect()
}

/// The first task of a board, claimed by run `one`, then by run `two`.
const TWO_CLAIMS: &str = "fence add 'log in' --board auth > /dev/null
     test $(fence claim auth-1 --run one -q) = task/auth-1@1";
const TAKEN_OVER: &str = "fence end one --reason 'its process died' > /dev/null
     test $(fence claim auth-1 --run two -q) = task/auth-1@2";

on_both! {
    fn a_late_push_is_refused_in_either_order(sealed: Sealed) {
        let place = repositories(&sealed);
        ok(&place, "git init -q --bare ask.git; cd ask.git; fence git install --ask > /dev/null");
        ok(&place, TWO_CLAIMS);
        ok(&place, "cd work; echo one > a.txt; git add a.txt; FENCE_CLAIM=task/auth-1@1 git commit -q -m 'work of one'");
        let message = ok(&place, "cd work; git log -1 --format=%B");
        assert_eq!(message, format!("work of one\n\nFence: task/auth-1@1 {}", fleet(&place)));
        // Alive, it pushes.
        ok(&place, "cd work; FENCE_CLAIM=task/auth-1@1 git push -q ../ask.git HEAD:early");
        ok(&place, TAKEN_OVER);

        // The late push comes first: its own hooks refuse it, and a repository that asks the fleet.
        let late = "cd work; export FENCE_CLAIM=task/auth-1@1; git commit -q --allow-empty";
        let said = refused(&place, &format!("{late} -m late"));
        says(&said, "error: no commit under claim `task/auth-1@1`: run `two` holds it until ");
        says(&said, "hint: stop: ");
        says(&said, "env -u FENCE_CLAIM git commit");
        ok(&place, &format!("{late} --no-verify -m 'late, past its own hooks'"));
        let said = refused(&place, "cd work; FENCE_CLAIM=task/auth-1@1 git push ../ask.git HEAD:late");
        says(&said, "error: no push under claim `task/auth-1@1`: run `two` holds it until ");
        let said = refused(&place, "cd work; git push ../ask.git HEAD:late");
        says(&said, "late push: claim `task/auth-1@1` is over (already_claimed, run `two` holds it now)");

        // The successor carries its predecessor's commits: the highest fence counts.
        ok(
            &place,
            "cd work; git branch late; export FENCE_CLAIM=task/auth-1@2; git commit -q --allow-empty -m 'work of two'
             git push -q ../ask.git HEAD:two; git push -q origin HEAD:two",
        );
        assert_eq!([accepted(&place, "hub.git"), accepted(&place, "ask.git")], [["auth-1 2"], ["auth-1 2"]]);
        ok(&place, "cd work; git checkout -q late; git commit -q --allow-empty --no-verify -m 'later still
            
Fence: task/auth-1@1 '$(git log -1 --format=%B | sed -n 's/^Fence: [^ ]* //p')");

        // The late push comes after its successor's, and the repository needs no fleet to refuse it.
        let gone = "cd work; unset FENCE_URL; export FENCE_DB=postgres://127.0.0.1:1/nothing";
        let said = refused(&place, &format!("{gone}; git push origin HEAD:late"));
        says(&said, "late push: task `auth-1` was already pushed under fence 2, and these commits have fence 1");
        says(&said, "fence git forget auth-1");
        says(&refused(&place, "cd work; git push ../ask.git HEAD:late"), "late push: ");

        // A completed task is not late: its commits may be rebased and pushed by somebody else.
        ok(&place, "fence done task/auth-1@2 > /dev/null");
        ok(&place, "cd work; git checkout -q -B done origin/two; git commit -q --allow-empty --amend -m \"again: $(git log -1 --format=%B)\"; git push -q ../ask.git HEAD:done");
        let said = refused(&place, "cd work; FENCE_CLAIM=task/auth-1@2 git push origin HEAD:done");
        says(&said, "error: no push under claim `task/auth-1@2`: `task/auth-1` is finished");
    }

    /// A made-up fence would make the task's real pushes late.
    fn a_repository_that_asks_takes_only_claims_that_its_fleet_issued(sealed: Sealed) {
        let place = repositories(&sealed);
        let id = fleet(&place);
        ok(&place, "git init -q --bare ask.git; cd ask.git; fence git install --ask > /dev/null");
        ok(&place, TWO_CLAIMS);
        for (made_up, why) in [
            (
                "task/auth-1@1000 00000000".to_owned(),
                format!("no push: claim `task/auth-1@1000` is of fleet 00000000, and this repository asks fleet {id}"),
            ),
            (format!("task/auth-1@1000 {id}"), "no push: the fleet does not know claim `task/auth-1@1000`".to_owned()),
            (format!("task/auth-9@1 {id}"), "no push: the fleet does not know claim `task/auth-9@1`".to_owned()),
        ] {
            // One good trailer does not help.
            let message = format!("x\n\nFence: task/auth-1@1 {id}\nFence: {made_up}");
            ok(&place, &format!("cd work; git checkout -q -B liar main; git commit -q --allow-empty -m '{message}'"));
            says(&refused(&place, "cd work; git push ../ask.git liar"), &why);
            assert!(accepted(&place, "ask.git").is_empty(), "{made_up}");
        }
        ok(
            &place,
            "cd work; git checkout -q -b honest main; export FENCE_CLAIM=task/auth-1@1; git commit -q --allow-empty -m work
             git push -q ../ask.git honest",
        );
        assert_eq!(accepted(&place, "ask.git"), ["auth-1 1"]);
        // A repository that does not ask compares only, and forgets when it is told to.
        ok(&place, &format!(
            "cd work; git checkout -q -B liar main; git commit -q --allow-empty -m 'x\n\nFence: task/auth-1@1000 {id}'; git push -q origin liar"
        ));
        says(&refused(&place, "cd work; git push origin honest"), "`fence git forget auth-1` in the receiving repository");
        ok(&place, "cd hub.git; fence git forget auth-1 > /dev/null; cd ../work; git push -q origin honest");
    }

    at once:

    /// The whole machine sleeps past the lease: the guard, its watchdog and the command. Another takes over, and then all go on, the
    /// command first.
    fn a_command_that_was_frozen_past_its_lease_cannot_push(sealed: Sealed) {
        let place = repositories(&sealed);
        let id = fleet(&place);
        ok(&place, "git init -q --bare ask.git; cd ask.git; fence git install --ask > /dev/null");
        // Both orders at once: board `after` pushes after its successor, board `before` before it.
        for board in ["after", "before"] {
            ok(&place, &format!(
                "fence add x --board {board} > /dev/null; cp -a work {board}; cd {board}
                 git commit -q --allow-empty -m 'work of one\n\nFence: task/{board}-1@1 {id}'"
            ));
        }
        let command = "echo $$ > pid.new; mv pid.new pid; until [ -e go ]; do sleep 0.05; done
             git push \"$TO\" HEAD:refs/heads/late 2> checked; echo $? >> checked
             git push --no-verify \"$TO\" HEAD:refs/heads/late 2> unchecked; echo $? >> unchecked
             : > pushed; sleep 1000";
        let start = |board: &str, to: &str| {
            let claim = format!("fence claim {board}-1 --run {board} --ttl 20s -q");
            let guard = format!("cd {board}; exec fence guard $({claim}) --grace 100ms -- sh -c \"$COMMAND\"");
            Running::start(place.command("bash").env("COMMAND", command).env("TO", to), &["-c", &guard])
        };
        let frozen = [("after", start("after", "../hub.git")), ("before", start("before", "../ask.git"))];
        let mut stopped = Vec::new();
        for (board, guard) in &frozen {
            let file = place.path().join(board).join("pid");
            until("the command runs", || file.exists());
            let command: i32 = read(&file).trim().parse().expect("a number");
            let guard = i32::try_from(guard.id()).expect("a number");
            let others: Vec<i32> = children(guard).into_iter().filter(|child| *child != command).collect();
            assert!(!others.is_empty(), "a watchdog");
            for process in std::iter::once(&guard).chain(&others) {
                send(*process, Signal::STOP);
            }
            send(-command, Signal::STOP);
            stopped.push((*board, guard, others, command));
        }
        for (board, ..) in &stopped {
            let claim = format!("fence claim {board}-1 --run successor -q");
            until("the lease is over", || run(&place, &claim).code == 0);
            assert_eq!(ok(&place, "fence claims").matches(&format!("task/{board}-1@2")).count(), 1);
        }
        ok(&place, &format!(
            "git clone -q hub.git successor; cd successor
             git commit -q --allow-empty -m 'work of two\n\nFence: task/after-1@2 {id}'; git push -q origin HEAD:two"
        ));
        for (board, _, _, command) in &stopped {
            ok(&place, &format!(": > {board}/go"));
            send(-command, Signal::CONT);
            until("it has pushed", || place.path().join(board).join("pushed").exists());
        }
        let said = |board: &str, file: &str| read(&place.path().join(board).join(file));
        for board in ["after", "before"] {
            let said = said(board, "checked");
            says(&said, &format!("no push under claim `task/{board}-1@1`: run `successor` holds it until "));
            assert!(said.ends_with("\n1\n"), "{said}");
        }
        says(&said("after", "unchecked"), "late push: task `after-1` was already pushed under fence 2");
        says(&said("before", "unchecked"), "late push: claim `task/before-1@1` is over (already_claimed");
        for repository in ["hub.git", "ask.git"] {
            assert_eq!(ok(&place, &format!("git -C {repository} branch --list late")), "");
        }
        for (_, guard, others, _) in &stopped {
            others.iter().chain([guard]).for_each(|process| send(*process, Signal::CONT));
        }
        for ((board, guard), (.., command)) in frozen.into_iter().zip(stopped) {
            let said = guard.end();
            assert_eq!(said.code, 5, "{board}: {said:?}");
            until("the command is ended", || members(command).is_empty());
        }
        // Nothing of this disturbs the successor that pushes second.
        ok(&place, &format!(
            "cd successor; git commit -q --allow-empty -m 'work of two\n\nFence: task/before-1@2 {id}'; git push -q ../ask.git HEAD:two"
        ));
    }
}

/// Sends a signal to a process, or to a group by its negative number.
fn send(process: i32, signal: Signal) {
    let id = Pid::from_raw(process.abs()).expect("an id");
    let sent =
        if process < 0 { rustix::process::kill_process_group(id, signal) } else { kill_process(id, signal) };
    sent.expect("it is there");
}

fn children(of: i32) -> Vec<i32> {
    let is_child = |process: &i32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent.is_some_and(|parent| parent == of.to_string())
    };
    let all = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(is_child).collect()
}

/// Commits under a claim: the message of each, without the fleet's id.
fn messages(place: &Sealed, count: usize) -> String {
    let all = ok(place, &format!("cd work; git log -{count} --format=%B%x00"));
    let all: Vec<_> = all.split('\0').map(str::trim).filter(|message| !message.is_empty()).collect();
    all.join("\n--\n").replace(&format!(" {}", fleet(place)), " ID")
}

/// A fleet with tasks `auth-1` and `auth-2`. Run `me` holds both; the token of the first is in `C`.
fn with_claims() -> (Sealed, Sealed) {
    let sealed = Sealed::sqlite();
    let place = repositories(&sealed);
    ok(
        &place,
        "fence add one --board auth > /dev/null; fence add two --board auth > /dev/null
         fence claim auth-1 --run me -q > /dev/null; fence claim auth-2 --run me -q > /dev/null",
    );
    (sealed, place)
}

const UNDER_1: &str = "cd work; export FENCE_CLAIM=task/auth-1@1;";
const UNDER_2: &str = "cd work; export FENCE_CLAIM=task/auth-2@1;";

#[test]
fn the_trailer_is_written_and_replaced() {
    let (_sealed, place) = with_claims();
    let commit = "git commit -q --allow-empty";
    // On the command line, with a mark of comments, past the hooks that check, and under a claim that leaves no trailer.
    ok(&place, &format!("{UNDER_1} {commit} -m '#12 fix'"));
    assert_eq!(messages(&place, 1), "#12 fix\n\nFence: task/auth-1@1 ID");
    ok(&place, &format!("{UNDER_1} {commit} --no-verify -m 'fix: it\n\nSigned-off-by: Kim <k@k>'"));
    assert_eq!(messages(&place, 1), "fix: it\n\nSigned-off-by: Kim <k@k>\nFence: task/auth-1@1 ID");
    ok(&place, &format!("cd work; {commit} -m plain; fence lock x -- {commit} -m locked"));
    assert_eq!(messages(&place, 2), "locked\n--\nplain");
    ok(
        &place,
        &format!("fence lock y -- sh -c 'cd work; FENCE_CLAIM=$FENCE_LOCK {commit} -m \"under a lock\"'"),
    );
    assert_eq!(messages(&place, 1), "under a lock");
    let said = refused(&place, &format!("cd work; FENCE_CLAIM=auth-1 {commit} -m x"));
    says(&said, "error: FENCE_CLAIM: `auth-1` is not a claim token");

    // Amended: by the same task, then by another, and by a later claim.
    ok(
        &place,
        &format!("{UNDER_1} {commit} -m one; {commit} --amend -m 'one, better'; {commit} --amend --no-edit"),
    );
    assert_eq!(messages(&place, 1), "one, better\n\nFence: task/auth-1@1 ID");
    ok(&place, &format!("{UNDER_2} {commit} --amend --no-edit"));
    assert_eq!(messages(&place, 1), "one, better\n\nFence: task/auth-1@1 ID\nFence: task/auth-2@1 ID");
    ok(&place, "fence release task/auth-1@1 > /dev/null; fence claim auth-1 --run me -q > /dev/null");
    ok(&place, &format!("cd work; FENCE_CLAIM=task/auth-1@2 {commit} --amend --no-edit"));
    assert_eq!(messages(&place, 1), "one, better\n\nFence: task/auth-2@1 ID\nFence: task/auth-1@2 ID");

    // Another fleet's task of the same name is another task, also in a message that comes with its trailer.
    ok(
        &place,
        &format!("{UNDER_2} {commit} -m 'x\n\nFence: task/auth-2@1 00000000'; {commit} --amend --no-edit"),
    );
    assert_eq!(messages(&place, 1), "x\n\nFence: task/auth-2@1 00000000\nFence: task/auth-2@1 ID");

    // An editor: a message that stays empty is given up, and one that is written gets the trailer.
    let before = ok(&place, "cd work; git rev-parse HEAD");
    let said = refused(&place, &format!("{UNDER_2} export GIT_EDITOR=true; {commit}"));
    says(&said, "empty commit message");
    assert_eq!(ok(&place, "cd work; git rev-parse HEAD"), before);
    place.script("editor", r#"{ echo written; cat "$1"; } > "$1.new"; mv "$1.new" "$1""#);
    ok(
        &place,
        &format!(
            "{UNDER_2} export GIT_EDITOR=$PWD/../editor; git config core.commentChar ';'; {commit}; {commit} -v"
        ),
    );
    assert_eq!(messages(&place, 2), ["written\n\nFence: task/auth-2@1 ID"; 2].join("\n--\n"));
    // Without a claim nothing is written, also if there is no fleet and no fence.
    ok(&place, &format!("cd work; PATH=/usr/bin:/bin FENCE_DB=/nowhere/fence.db {commit} -m person"));
    assert_eq!(messages(&place, 1), "person");
}

#[test]
fn rebase_squash_merge_and_amend_pass_the_fence() {
    let (_sealed, place) = with_claims();
    let commit = "git commit -q --allow-empty";
    let file = |name: &str| format!("echo {name} > {name}; git add {name}; git commit -q -m {name}");
    // Two commits of task 1 and one of task 2, squashed by hand: the message has the trailers of both, and one of each.
    ok(&place, &format!("{UNDER_1} git checkout -q -b squash main; {}; {}", file("a"), file("b")));
    ok(&place, &format!("{UNDER_2} {}", file("c")));
    ok(&place, "fence release task/auth-1@1 > /dev/null; fence claim auth-1 --run me -q > /dev/null");
    let rebase =
        "export GIT_SEQUENCE_EDITOR='sed -i 2,3s/^pick/squash/' GIT_EDITOR=true; git rebase -q -i main 2>&1";
    ok(&place, &format!("cd work; export FENCE_CLAIM=task/auth-1@2; {rebase}"));
    let squashed = messages(&place, 1);
    assert_eq!(squashed.matches("Fence: task/auth-1@").count(), 1, "{squashed}");
    assert!(squashed.ends_with("Fence: task/auth-1@2 ID"), "{squashed}");
    says(&squashed, "Fence: task/auth-2@1 ID");
    ok(&place, "cd work; FENCE_CLAIM=task/auth-1@2 git push -q origin squash");
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 2", "auth-2 1"]);

    // A squash by somebody without hooks leaves trailers in the middle of its message. The highest counts.
    ok(&place, &format!(
        "cd work; git checkout -q -b by-hand main; {commit} -m 'all of it\n\n* one\n\nFence: task/auth-1@1 ID\n\n* two\n\nFence: task/auth-1@2 ID\n\nand so on'
         git commit -q --allow-empty --amend -m \"$(git log -1 --format=%B | sed s/ID/{}/)\"; git push -q origin by-hand",
        fleet(&place)
    ));

    // A rebase writes new commits: those of the predecessor alone are late, and under the new claim they are not.
    ok(
        &place,
        &format!(
            "cd work; git checkout -q -b rebased main; {commit} -m 'old\n\nFence: task/auth-1@1 {}'",
            fleet(&place)
        ),
    );
    says(&refused(&place, "cd work; git push origin rebased"), "late push: task `auth-1`");
    ok(&place, &format!("{UNDER_2} git checkout -q -b base main; {}; git push -q origin base", file("d")));
    ok(
        &place,
        "cd work; git checkout -q rebased; FENCE_CLAIM=task/auth-1@2 git rebase -q base; FENCE_CLAIM=task/auth-1@2 git push -q origin rebased",
    );
    assert_eq!(messages(&place, 1), "old\n\nFence: task/auth-1@2 ID");

    // A merge commit gets the trailer, and the hook of a merge checks the claim.
    ok(
        &place,
        &format!(
            "cd work; git checkout -q -b merged main; {}; export FENCE_CLAIM=task/auth-1@2; git merge -q --no-edit base; git push -q origin merged",
            file("e")
        ),
    );
    assert!(messages(&place, 1).ends_with("Fence: task/auth-1@2 ID"), "{}", messages(&place, 1));
    ok(&place, &format!("cd work; git checkout -q -b stale main; {}", file("f")));
    let said = refused(&place, "cd work; FENCE_CLAIM=task/auth-1@1 git merge --no-edit base");
    says(&said, "no commit under claim `task/auth-1@1`");
    ok(
        &place,
        "cd work; git merge --abort; git merge -q --squash base 2> /dev/null; FENCE_CLAIM=task/auth-1@2 git commit -q --no-edit",
    );
    assert!(messages(&place, 1).ends_with("Fence: task/auth-1@2 ID"), "{}", messages(&place, 1));

    // A cherry-pick with its origin, and an amended commit, pushed by force.
    ok(
        &place,
        "cd work; git checkout -q -b picked main; FENCE_CLAIM=task/auth-1@2 git cherry-pick -x base > /dev/null; git push -q origin picked",
    );
    assert!(messages(&place, 1).contains(")\nFence: task/auth-1@2 ID"), "{}", messages(&place, 1));
    ok(
        &place,
        "cd work; export FENCE_CLAIM=task/auth-1@2; git commit -q --amend -m amended; git push -q --force origin picked",
    );
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 2", "auth-2 1"]);
}

#[test]
fn nothing_is_committed_or_pushed_if_the_claim_cannot_be_checked() {
    let (_sealed, place) = with_claims();
    ok(
        &place,
        "git init -q --bare ask.git; cd ask.git; fence git install --ask > /dev/null; cd ../work; FENCE_CLAIM=task/auth-1@1 git commit -q --allow-empty -m one",
    );
    let commit = "git commit --allow-empty -m x";
    let said = refused(&place, &format!("{UNDER_1} FENCE_DB=/nowhere/fence.db {commit}"));
    says(&said, "error: no commit: the claim cannot be checked: there is no fleet at ");
    says(&said, "env -u FENCE_CLAIM git commit");
    let unreachable = "FENCE_DB=postgres://127.0.0.1:1/nothing";
    says(
        &refused(&place, &format!("{UNDER_1} {unreachable} git push origin HEAD:x")),
        "error: no push: the claim cannot be checked",
    );
    // The checks are not the only ones: the trailer needs the fleet, too.
    says(&refused(&place, &format!("{UNDER_1} {unreachable} {commit} --no-verify")), "cannot be checked");
    // A repository that asks refuses what it cannot ask about; it asks the fleet of its installation, whatever the pusher's is.
    ok(&place, "cd work; FENCE_DB=/nowhere/fence.db git push -q ../ask.git HEAD:one");
    ok(&place, "git -C ask.git config fence.ask /nowhere/fence.db");
    ok(&place, "cd work; git push -q ../ask.git main~0:refs/heads/old");
    let said = refused(
        &place,
        &format!(
            "{UNDER_1} git commit -q --allow-empty -m more; unset FENCE_CLAIM; git push ../ask.git HEAD:one"
        ),
    );
    says(&said, "error: no push: the fleet of this repository cannot be asked: ");
    says(&said, "git config --unset fence.ask");
    // There is no program: the hooks name it, and know another way to find it.
    for directory in ["work/.git", "hub.git"] {
        ok(
            &place,
            &format!(
                "cd {directory}/hooks; sed -i 's,^fence=/.*,fence=/nowhere/fence,' pre-commit pre-receive"
            ),
        );
    }
    ok(&place, &format!("{UNDER_1} {commit}"));
    let without = "PATH=/usr/bin:/bin";
    let said = refused(&place, &format!("{UNDER_1} {without} {commit}"));
    says(&said, "error: there is a claim or a session of an agent, and no program fence to check it");
    says(&said, "unsets FENCE_CLAIM");
    let said = refused(&place, &format!("cd work; {without} git push origin HEAD:x"));
    says(&said, "error: this repository compares fences, and has no program fence to do it");
    // A memory that cannot be read accepts nothing.
    ok(&place, "cd work; git push -q origin HEAD:x; echo '{' > ../hub.git/fence/accepted.json");
    let said = refused(&place, &format!("{UNDER_1} {commit}; git push origin HEAD:y"));
    says(&said, "the accepted fences cannot be used: ");
}

/// A hook that writes its name, its arguments and its input to `called`.
const RECORDS: &str = r#"#!/bin/sh
{ echo "$(basename "$0") [$*]"; case $0 in *pre-push*|*pre-receive*) cat;; esac; } >> CALLED
exit ${HOOK_EXIT:-0}
"#;

fn record(place: &Sealed, hook: &str) {
    let called = place.path().join("called").display().to_string();
    let path = place.path().join(hook);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(&path, RECORDS.replace("CALLED", &called)).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("a mode");
}

fn called(place: &Sealed) -> String {
    let path = place.path().join("called");
    let text = read(&path);
    let _ = fs::remove_file(path);
    text
}

/// Every file below a directory, with its mode, and its content or the target of a link.
fn files(place: &Sealed, directory: &str) -> String {
    ok(
        place,
        &format!(
            "cd {directory}; find . -printf '%p %M %l\\n' | sort; find . -type f | sort | xargs sha256sum"
        ),
    )
}

#[test]
fn hooks_that_are_there_are_called_and_come_back() {
    let (_sealed, place) = with_claims();
    ok(
        &place,
        "cd work; fence git install --remove > /dev/null; cd ../hub.git; fence git install --remove > /dev/null",
    );
    for hook in ["pre-commit", "pre-push"] {
        record(&place, &format!("work/.git/hooks/{hook}"));
    }
    record(&place, "hub.git/hooks/pre-receive");
    record(&place, "scripts/msg");
    // A link, a hook that is switched off, and one of a kind that fence does not use.
    ok(
        &place,
        "cd work/.git/hooks; ln -s ../../../scripts/msg prepare-commit-msg; printf '#!/bin/sh\\nexit 1\\n' > commit-msg; chmod 640 commit-msg",
    );
    record(&place, "work/.git/hooks/post-commit");
    let before = [files(&place, "work/.git/hooks"), files(&place, "hub.git/hooks")];
    let config = read(&place.path().join("work/.git/config"));
    let said = ok(&place, "cd hub.git; fence git install > /dev/null; cd ../work; fence git install");
    says(&said, "installed  pre-commit  calls ");
    says(&said, "pre-commit.before-fence first");
    let installed = files(&place, "work/.git/hooks");
    let again = ok(&place, "cd work; fence git install --json");
    assert_eq!(again.matches(r#""done":"unchanged""#).count(), 6, "{again}");
    assert_eq!(files(&place, "work/.git/hooks"), installed);

    ok(&place, &format!("{UNDER_1} git commit -q --allow-empty -m one"));
    assert_eq!(
        called(&place),
        "pre-commit.before-fence []\nprepare-commit-msg.before-fence [.git/COMMIT_EDITMSG message]\npost-commit []\n"
    );
    assert_eq!(messages(&place, 1), "one\n\nFence: task/auth-1@1 ID");
    ok(&place, &format!("{UNDER_1} git push -q origin HEAD:one"));
    let commit = ok(&place, "cd work; git rev-parse HEAD");
    let none = "0".repeat(40);
    let hub = place.path().join("hub.git").display().to_string();
    assert_eq!(
        called(&place),
        format!(
            "pre-push.before-fence [origin {hub}]\nHEAD {commit} refs/heads/one {none}\npre-receive.before-fence []\n{none} {commit} refs/heads/one\n"
        )
    );
    // Their failure is ours, with and without a claim, and a refused push is not remembered.
    for claim in ["", "FENCE_CLAIM=task/auth-1@1 "] {
        assert_ne!(
            run(&place, &format!("cd work; {claim}HOOK_EXIT=3 git commit -q --allow-empty -m no")).code,
            0
        );
    }
    ok(&place, &format!("{UNDER_2} git commit -q --allow-empty -m two"));
    ok(&place, "cd work; git config core.hooksPath /nowhere");
    assert_ne!(run(&place, "cd work; HOOK_EXIT=3 git push -q origin HEAD:two").code, 0);
    ok(&place, "cd work; git config --unset core.hooksPath");
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 1"]);

    // A hook of ours that somebody changed is not overwritten and not removed, nor is anything else.
    let commit_hook = place.path().join("work/.git/hooks/pre-commit");
    let ours = read(&commit_hook);
    fs::write(&commit_hook, format!("{ours}make lint\n")).expect("written");
    let changed = files(&place, "work/.git/hooks");
    for words in ["", "--remove"] {
        says(
            &refused(&place, &format!("cd work; fence git install {words}")),
            "pre-commit` was changed since fence wrote it, and is not touched",
        );
    }
    // The same for one that replaced it.
    record(&place, "work/.git/hooks/pre-commit");
    for words in ["", "--remove"] {
        says(
            &refused(&place, &format!("cd work; fence git install {words}")),
            "pre-commit` was replaced since the installation",
        );
    }
    fs::write(&commit_hook, format!("{ours}make lint\n")).expect("written");
    ok(&place, "chmod 755 work/.git/hooks/pre-commit");
    assert_eq!(files(&place, "work/.git/hooks"), changed);
    fs::write(&commit_hook, ours).expect("written");
    let said = ok(
        &place,
        "cd hub.git; fence git install --remove > /dev/null; cd ../work; fence git install --remove",
    );
    says(&said, "restored   pre-commit  as it was before");
    assert_eq!([files(&place, "work/.git/hooks"), files(&place, "hub.git/hooks")], before);
    assert_eq!(read(&place.path().join("work/.git/config")), config);
    says(&ok(&place, "cd work; fence git install --remove"), "no hooks of fence are in ");
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 1"], "it is not forgotten");
}

/// Hooks elsewhere: tracked in the repository, in a clone of it, the user's, or behind a link.
#[test]
fn a_directory_of_hooks_that_is_not_the_repositorys_own_is_not_touched() {
    let (_sealed, place) = with_claims();
    record(&place, "work/.githooks/pre-commit");
    record(&place, "work/.githooks/post-checkout");
    record(&place, "mine/pre-commit");
    ok(&place, "cd work; git add .githooks; git commit -q -m hooks; git push -q origin HEAD:main");
    let commit = "FENCE_CLAIM=task/auth-1@1 git commit -q --allow-empty -m x";
    for (case, setting, directory) in [
        ("tracked", "git config core.hooksPath .githooks", ".githooks"),
        ("the user's", "git config --global core.hooksPath '~/mine'", "../mine"),
        ("a link", "rm -r .git/hooks; ln -s ../../mine .git/hooks", "../mine"),
    ] {
        let clone = "git clone -q hub.git 'a clone' 2> /dev/null; cd 'a clone'";
        ok(&place, &format!("{clone}; {setting}"));
        let before = files(&place, &format!("'a clone'/{directory}"));
        let config = read(&place.path().join("a clone/.git/config"));
        drop(called(&place));
        let said = ok(&place, "cd 'a clone'; fence git install");
        says(&said, "/a clone/.git/fence/hooks");
        says(&said, "every hook here calls the one of the same name there first");
        ok(&place, "cd 'a clone'; fence git install > /dev/null; fence git status | grep -q '^hooks in'");
        assert_eq!(files(&place, &format!("'a clone'/{directory}")), before, "{case}");
        ok(&place, &format!("cd 'a clone'; {commit}"));
        assert_eq!(called(&place), "pre-commit []\n", "{case}");
        says(&ok(&place, "cd 'a clone'; git log -1 --format=%B"), "Fence: task/auth-1@1 ");
        assert_ne!(run(&place, &format!("cd 'a clone'; HOOK_EXIT=1 {commit}")).code, 0, "{case}");
        drop(called(&place));
        // Work trees share the hooks, and tracked hooks are those of the work tree.
        ok(&place, "cd 'a clone'; git worktree add -q ../tree");
        assert_eq!(called(&place).contains("post-checkout ["), case == "tracked");
        ok(
            &place,
            &format!(
                "cd tree; {commit}; fence git status | grep -q '^hooks in'; git worktree remove --force ."
            ),
        );
        assert_eq!(called(&place), "pre-commit []\n", "{case}");
        ok(&place, "cd 'a clone'; fence git install --remove > /dev/null");
        assert_eq!(read(&place.path().join("a clone/.git/config")), config, "{case}");
        assert_eq!(files(&place, &format!("'a clone'/{directory}")), before, "{case}");
        ok(&place, &format!("cd 'a clone'; {commit}"));
        assert_eq!(
            (called(&place).as_str(), ok(&place, "cd 'a clone'; git log -1 --format=%B").as_str()),
            ("pre-commit []\n", "x"),
            "{case}"
        );
        ok(&place, "rm -rf 'a clone'; git config --global --unset core.hooksPath || true");
    }
    // A tool that sets core.hooksPath again switches the fence off: the status shows it, and installing again helps.
    ok(
        &place,
        "cd work; git config core.hooksPath .githooks; fence git install > /dev/null; git config core.hooksPath .githooks",
    );
    says(&ok(&place, "cd work; fence git status"), "the hooks of fence are not active here");
    ok(&place, "cd work; fence git install > /dev/null; fence git status | grep -q '^hooks in'");
    ok(
        &place,
        "cd work; git config core.hooksPath .githooks; fence git install --remove > /dev/null; test $(git config core.hooksPath) = .githooks",
    );
    says(&refused(&place, "cd /; fence git install"), "there is no git repository here");
}

#[test]
fn a_branch_may_require_trailers_and_a_push_is_one_decision() {
    let (_sealed, place) = with_claims();
    let said = ok(
        &place,
        "cd hub.git; fence git install --require main --require 'release/*'; fence git install --require main > /dev/null; git config --get-all fence.require",
    );
    says(&said, "only commits with a Fence: trailer are accepted on main, release/*");
    assert!(said.ends_with("\nmain\nrelease/*"), "{said}");
    let commit = "git commit -q --allow-empty";
    ok(&place, &format!("cd work; {commit} -m plain; git push -q origin HEAD:topic"));
    for branch in ["main", "release/1"] {
        // The commit is known from the branch topic: the detour does not help where the branch is.
        let said = run(&place, &format!("cd work; git push origin HEAD:refs/heads/{branch}"));
        assert_eq!(said.code == 0, branch == "release/1", "{said:?}");
    }
    let said = refused(&place, "cd work; git push origin HEAD:main");
    says(&said, "`main` takes only commits with a Fence: trailer, and ");
    says(
        &refused(&place, &format!("cd work; {commit} -m more; git push origin HEAD:refs/heads/release/1")),
        "`release/1` takes only",
    );
    ok(
        &place,
        &format!("{UNDER_1} git reset -q --hard origin/main; {commit} -m work; git push -q origin HEAD:main"),
    );
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 1"]);
    // A trailer that is none.
    says(
        &refused(
            &place,
            &format!("cd work; {commit} -m 'x\n\nFence: task/auth-1@x 12345678'; git push origin HEAD:main"),
        ),
        "takes only commits with",
    );

    // All or nothing: one late branch refuses the other, which is not remembered.
    let id = fleet(&place);
    ok(&place, &format!(
        "cd work; git checkout -q -b early origin/main; {commit} -m 'x\n\nFence: task/auth-1@5 {id}'; git push -q origin early
         git checkout -q -b good origin/main; {commit} -m 'x\n\nFence: task/auth-2@7 {id}'
         git checkout -q -b bad origin/main; {commit} -m 'y\n\nFence: task/auth-1@4 {id}'"
    ));
    says(
        &refused(&place, "cd work; git push origin good bad"),
        "task `auth-1` was already pushed under fence 5, and these commits have fence 4",
    );
    assert_eq!(
        (accepted(&place, "hub.git"), ok(&place, "git -C hub.git branch --list good bad")),
        (vec!["auth-1 5".to_owned()], String::new())
    );
    // Known commits under another name, deletions, tags and things that are no commits pass.
    ok(
        &place,
        "cd work; git push -q origin early:refs/heads/again; git push -q origin :again early:more; git push -q origin :early :more",
    );
    ok(
        &place,
        "cd work; git tag -a -m t v1 good; git push -q origin v1; git push -q origin $(echo text | git hash-object -w --stdin):refs/odd/blob",
    );
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 5", "auth-2 7"]);
    // Forgotten, any fence is accepted once more.
    says(&refused(&place, "cd work; git push origin bad"), "late push");
    assert_eq!(
        ok(&place, "cd hub.git; fence git forget task/auth-1"),
        format!("forgot fence 5 of auth-1 (fleet {id})")
    );
    says(
        &refused(&place, "cd hub.git; fence git forget auth-1"),
        "no push for task `auth-1` was accepted here",
    );
    ok(&place, "cd work; git push -q origin bad");
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 4", "auth-2 7"]);
    // A repository with a work tree can receive, too; another fleet's task of the same name is another task.
    ok(
        &place,
        &format!(
            "cd work; {commit} -m 'z\n\nFence: task/auth-1@1 00000000'; git push -q origin bad; git init -q ../other; cd ../other; fence git install > /dev/null"
        ),
    );
    ok(&place, "cd work; git push -q ../other bad");
    assert_eq!(
        [accepted(&place, "hub.git"), accepted(&place, "other")],
        [vec!["auth-1 1", "auth-1 4", "auth-2 7"], vec!["auth-1 1", "auth-1 4"]]
    );
}

/// Sixteen pushes at once, each under another fence: no push is accepted after one with a higher fence.
#[test]
fn pushes_that_race_are_accepted_in_the_order_of_their_fences() {
    let sealed = Sealed::sqlite();
    let place = repositories(&sealed);
    // The hook says which push it has accepted, in the order of the decisions: git has only our word for that.
    ok(&place, "cd hub.git/hooks; cp pre-receive ours; printf '#!/bin/sh\\nexec flock order.lock ./hooks/decide\\n' > pre-receive
         printf '#!/bin/sh\\npushed=$(cat); printf \"%%s\\\\n\" \"$pushed\" | ./hooks/ours || exit; echo \"${pushed##*/}\" >> order\\n' > decide; chmod 755 decide");
    ok(
        &place,
        "cd work; git checkout -q -b n
         for n in $(seq 16); do git checkout -q -b f$n main; git commit -q --allow-empty -m \"$n

Fence: task/auth-1@$n 12345678\"; done",
    );
    for round in 0..2 {
        if round == 1 {
            // Without the test's lock around it, to let the hooks meet.
            ok(
                &place,
                "cd hub.git/hooks; mv ours pre-receive; cd ..; fence git forget auth-1 > /dev/null; git branch | grep '^  f' | xargs -r git branch -q -D",
            );
        }
        let pushes: Vec<_> = (1..=16)
            .map(|n| {
                let push = format!("cd work; git push -q origin f{n}");
                (n, place.command("bash").args(["-c", &push]).stderr(Stdio::piped()).spawn().expect("a push"))
            })
            .collect();
        let mut landed = Vec::new();
        for (n, push) in pushes {
            let output = push.wait_with_output().expect("its end");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.success() {
                true => landed.push(n),
                false => says(&said, &format!("and these commits have fence {n}")),
            }
        }
        assert!(landed.contains(&16), "{landed:?}");
        assert_eq!(accepted(&place, "hub.git"), ["auth-1 16"]);
        if round == 0 {
            let order: Vec<u32> = read(&place.path().join("hub.git/order"))
                .lines()
                .map(|f| f[1..].parse().expect("a number"))
                .collect();
            assert!(order.is_sorted() && order.len() == landed.len(), "{order:?} {landed:?}");
        }
        for n in 1..16 {
            let said = run(&place, &format!("cd work; git push origin f{n}:refs/heads/late{n} 2>&1"));
            assert_eq!(
                said.code == 0,
                landed.contains(&n),
                "{n}: commits that are there may get another name: {said:?}"
            );
        }
        ok(&place, "git -C hub.git branch | grep '^  late' | xargs -r git -C hub.git branch -q -D");
    }
}

/// The hook is killed after it stored the fence and before git accepts the push, alone and together with git.
#[test]
fn a_crash_between_storing_and_accepting_loses_nothing() {
    let sealed = Sealed::sqlite();
    let place = repositories(&sealed);
    ok(
        &place,
        "cd hub.git/hooks; cp pre-receive ours; cd ../../work
         for n in 1 2 3; do git checkout -q -b f$n main; git commit -q --allow-empty -m \"$n

Fence: task/auth-1@$n 12345678\"; done",
    );
    for (n, victims) in [(2, "$$"), (3, "$PPID $$")] {
        ok(
            &place,
            &format!(
                "cd hub.git/hooks; printf '#!/bin/sh\\n./hooks/ours || exit\\nkill -9 {victims}\\n' > pre-receive"
            ),
        );
        assert_ne!(run(&place, &format!("cd work; git push -q origin f{n}")).code, 0);
        assert_eq!(ok(&place, &format!("git -C hub.git branch --list f{n}")), "", "it was not accepted");
        assert_eq!(accepted(&place, "hub.git"), [format!("auth-1 {n}")], "but it counts");
        // A crash while the memory was written leaves a draft.
        ok(&place, "cd hub.git; echo '{' > fence/accepted.json.new; cp hooks/ours hooks/pre-receive");
        says(
            &refused(&place, &format!("cd work; git push origin f{}", n - 1)),
            &format!("already pushed under fence {n}"),
        );
        ok(&place, &format!("cd work; git push -q origin f{n}"));
        ok(&place, &format!("cd hub.git; git update-ref -d refs/heads/f{n}"));
    }
}

/// Commits of somebody who means no good: the repository takes them as commits without a trailer, or refuses, and soon.
#[test]
fn hostile_trailers_are_only_text() {
    let sealed = Sealed::sqlite();
    let place = repositories(&sealed);
    let mut import = Vec::new();
    let mut commit = |branch: &str, n: usize, message: &[u8]| {
        let head = format!(
            "commit refs/heads/{branch}\ncommitter x <x@x> {} +0000\ndata {}\n",
            1_000_000 + n,
            message.len()
        );
        import.extend(head.bytes());
        import.extend(message);
        import.push(b'\n');
    };
    let long = "x".repeat(1_000_000);
    for (n, message) in [
        "Fence: task/auth-1@99999999999999999999999999 12345678".to_owned(),
        "Fence: task/auth-1@-5 12345678\nFence: task/auth-1@0 12345678\nFence: task/auth-1@1e9 12345678".into(),
        "Fence: task/../../../etc/passwd-1@9 12345678\nFence: task/$(touch pwned)-1@9 12345678".into(),
        "Fence:\nFence: \nFence: task/\nFence: @\nFence: task/auth-1@9\n\x1b[31mFence: task/auth-1@9 12345678".into(),
        format!("Fence: task/{long}-1@9 12345678\n{long}\n\nFence: task/auth-1@7 12345678"),
        "commit 0000000000000000000000000000000000000000\n\ntree x\n\nFence: task/auth-1@3\t12345678\r".into(),
    ]
    .into_iter()
    .enumerate()
    {
        commit("hostile", n, format!("subject {n}\n\n{message}\n").as_bytes());
    }
    commit("hostile", 90, b"\xff\xfe\n\nFence: task/auth-1@8\xff 12345678\n");
    for n in 0..10_000 {
        commit("many", 1000 + n, format!("n\n\nFence: task/many-{}@{} 12345678\n", n + 1, n + 1).as_bytes());
    }
    fs::write(place.path().join("import"), import).expect("written");
    ok(
        &place,
        "cd work; git fast-import --quiet < ../import; git push -q origin hostile; test ! -e ../hub.git/pwned",
    );
    assert_eq!(accepted(&place, "hub.git"), ["auth-1 7"]);
    // A message with a NUL ends there, for git as for us.
    ok(&place, "cd work; printf 'tree %s\\nauthor x <x@x> 1 +0000\\ncommitter x <x@x> 1 +0000\\n\\na\\0b\\n\\nFence: task/auth-1@1 12345678\\n' $(git write-tree) > ../raw
         git push -q origin $(git hash-object -t commit -w --literally ../raw):refs/heads/nul");
    ok(&place, "cd work; git push -q origin many");
    assert_eq!(accepted(&place, "hub.git").len(), 10_001);
    // The highest fence there is cannot be passed, and can be forgotten.
    let id = "12345678";
    ok(
        &place,
        &format!(
            "cd work; git checkout -q -b max main; git commit -q --allow-empty -m 'x\n\nFence: task/auth-1@{} {id}'; git push -q origin max",
            i64::MAX
        ),
    );
    ok(
        &place,
        &format!(
            "cd work; git checkout -q -b honest main; git commit -q --allow-empty -m 'x\n\nFence: task/auth-1@8 {id}'"
        ),
    );
    says(
        &refused(&place, "cd work; git push origin honest"),
        &format!("already pushed under fence {}", i64::MAX),
    );
    ok(&place, "cd hub.git; fence git forget auth-1 > /dev/null; cd ../work; git push -q origin honest");
    // Input that git never sends.
    for input in ["x", "a b c", "--all --not x", "\\377"] {
        refused(&place, &format!("cd hub.git; printf -- '{input}\\n' | fence git hook pre-receive"));
    }
}

/// Paths with spaces and quotes, a work tree, a separate git directory, and a bare repository with work trees.
#[test]
fn every_kind_of_repository() {
    let (_sealed, place) = with_claims();
    let commit = "FENCE_CLAIM=task/auth-1@1 git commit -q --allow-empty -m x; git log -1 --format=%B | grep -q '^Fence: task/auth-1@1 '";
    ok(
        &place,
        &format!(
            "mkdir \"it's a\"; git init -q \"it's a/re po\"; cd \"it's a/re po\"; fence git install > /dev/null; {commit}"
        ),
    );
    ok(
        &place,
        &format!(
            "git init -q --separate-git-dir apart.git apart; cd apart; fence git install > /dev/null; {commit}"
        ),
    );
    ok(
        &place,
        &format!(
            "git clone -q --bare work bare.git; cd bare.git; fence git install > /dev/null; git worktree add -q ../from-bare; cd ../from-bare; {commit}"
        ),
    );
    ok(
        &place,
        &format!(
            "cd work; git worktree add -q ../linked; cd ../linked; fence git install --json | grep -q '\"done\":\"unchanged\"'; mkdir deep; cd deep; {commit}"
        ),
    );
    // Moved, it works on: nothing in it names its place.
    ok(&place, &format!("mv work moved; cd moved; {commit}"));
    // A setting of one work tree wins over the repository's.
    ok(
        &place,
        "cd moved; git config extensions.worktreeConfig true; git config --worktree core.hooksPath /nowhere",
    );
    says(
        &refused(&place, "cd moved; fence git install"),
        "core.hooksPath is `/nowhere`, and is set for the worktree alone",
    );
    // A group that pushes to one repository can write its memory.
    ok(
        &place,
        "git init -q --bare --shared=group shared.git; cd shared.git; fence git install > /dev/null; cd ../moved; git config --worktree --unset core.hooksPath; git push -q ../shared.git HEAD:x",
    );
    let mode =
        |file: &str| fs::metadata(place.path().join(file)).expect("a file").permissions().mode() & 0o7777;
    assert_eq!(mode("shared.git/fence"), mode("shared.git"));
    assert_eq!([mode("shared.git/fence/accepted.json"), mode("shared.git/fence/accepted.lock")], [0o664; 2]);
    assert!(!Path::new("/nowhere").exists());
}
