//! The work trees of `fence work` when something goes wrong: nothing is lost in silence, and nothing waits for ever.

use crate::{
    running::{Running, members, until},
    sealed::Sealed,
    work::{WAITS, add, begun_one, go, json, succeeded, task, work},
    work_outcomes::repository,
};
use rustix::process::Signal;
use std::fs;

fn sample() -> Sealed {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    repository(&sealed);
    sealed
}

/// The log of events may be pruned, and PostgreSQL does not show the newest events at once.
fn a_finished_branch_is_found_without_the_log(sealed: &Sealed) {
    sealed.ok(&["init"]);
    repository(sealed);
    add(sealed, 1);
    sealed.ok(&["add", "second", "--board", "b", "--after", "b-1"]);
    sealed.ok(&["add", "third", "--board", "b", "--after", "b-2"]);
    let one = |words: &[&str]| work(sealed, &[&["--agent", "bob", "--count", "1"], words].concat()).end();
    succeeded(&one(&["--worktree", "--", "bash", "-c", "echo a > a; git add a; git commit -qm a"]));
    sealed.sql("delete from event");
    // The first attempt leaves a branch with commits, too.
    let fails = "echo wrong > wrong; git add wrong; git commit -qm wrong; exit 1";
    succeeded(&one(&["--worktree", "--", "bash", "-c", fails]));
    sealed.sql("update task set delayed_until = null");
    succeeded(&one(&["--worktree", "--", "bash", "-c", "cat a; echo b > b; git add b; git commit -qm b"]));
    assert_eq!(json(sealed, &["show", "b-2"])["task"]["output"], "a");
    sealed.sql("delete from event");
    let said = one(&["--worktree", "--", "bash", "-c", "ls"]);
    assert_eq!(json(sealed, &["show", "b-3"])["task"]["output"], "a\nb\nfile", "{said:?}");
    assert!(!said.out.contains("starts without"), "{said:?}");
    // A task that was done elsewhere.
    sealed.ok(&["add", "by hand", "--board", "c"]);
    sealed.ok(&["claim", "c-1"]);
    sealed.ok(&["done", "task/c-1@1"]);
    sealed.ok(&["add", "after it", "--board", "c", "--after", "c-1"]);
    let said = one(&["--worktree", "--", "true"]);
    assert!(
        said.out
            .contains("c-2 after it starts without the files of c-1: this repository has no branch of it"),
        "{said:?}"
    );
}

#[test]
fn a_finished_branch_is_found_without_the_log_of_sqlite() {
    a_finished_branch_is_found_without_the_log(&Sealed::sqlite());
}

#[test]
fn a_finished_branch_is_found_without_the_log_of_postgres() {
    a_finished_branch_is_found_without_the_log(&Sealed::postgres());
}

/// A hook refuses the commit of the worker, after the child said that it is done.
#[test]
fn a_commit_that_is_refused_is_told() {
    let sealed = sample();
    sealed.script(".git/hooks/pre-commit", "echo no tests >&2; exit 1");
    sealed.script("cmd", "echo a > a; fence done --output own > /dev/null");
    let cmd = sealed.path().join("cmd").display().to_string();
    fs::write(sealed.path().join("mine.toml"), format!("command = ['{cmd}']\nworker_commits = true\n"))
        .expect("written");
    add(&sealed, 1);
    let said = work(
        &sealed,
        &["--profile", "mine.toml", "--agent", "bob", "--count", "1", "--worktree", "--merge-into", "main"],
    )
    .end();
    succeeded(&said);
    let tree = fs::canonicalize(sealed.path()).expect("a path").join(".fence/trees/b-1@1");
    let shown = sealed.ok(&["show", "b-1"]);
    let told = format!("the changes in {} on ", tree.display());
    assert!(
        shown.contains(&told) && shown.contains("are not committed: commit: git failed: no tests"),
        "{shown}"
    );
    assert!(said.out.contains("b-1 is done, but the changes in"), "{said:?}");
}

/// A tree that cannot be made because of the branches of other tasks is a failed attempt, and not one more try for ever. So is one
/// whose setup failed; the next attempt sets it up again.
#[test]
fn a_tree_that_cannot_be_made_is_a_failed_attempt() {
    let sealed = sample();
    add(&sealed, 2);
    sealed.ok(&["add", "third", "--board", "b", "--after", "b-1", "--after", "b-2"]);
    let alone = "echo $RANDOM > $RANDOM; git add .; git update-ref HEAD $(git commit-tree -m alone $(git write-tree)); git status --short";
    succeeded(
        &work(&sealed, &["--agent", "bob", "--count", "3", "--worktree", "--", "bash", "-c", alone]).end(),
    );
    let (status, attempts, reason) = task(&sealed, "b-3");
    assert_eq!((status.as_str(), attempts), ("unassigned", 1), "{reason}");
    assert!(reason.contains("work tree: git failed: refusing to merge unrelated histories"), "{reason}");

    sealed.ok(&["add", "set up", "--board", "c"]);
    let setup = "echo left > dirty; [ -e ../../../ready ]";
    let attempt = || {
        work(
            &sealed,
            &[
                "--agent",
                "bob",
                "--board",
                "c",
                "--count",
                "1",
                "--reuse-tree",
                "--setup",
                setup,
                "--",
                "cat",
                "dirty",
            ],
        )
        .end()
    };
    succeeded(&attempt());
    assert!(task(&sealed, "c-1").2.contains("setup exited with 1"), "{:?}", task(&sealed, "c-1"));
    sealed.sql("update task set delayed_until = null");
    succeeded(&attempt());
    assert!(
        task(&sealed, "c-1").2.contains("setup exited with 1"),
        "it was set up again: {:?}",
        task(&sealed, "c-1")
    );
    fs::write(sealed.path().join("ready"), "").expect("written");
    sealed.sql("update task set delayed_until = null");
    succeeded(&attempt());
    assert_eq!(json(&sealed, &["show", "c-1"])["task"]["output"], "left");
}

/// A second signal ends a worker that waits for the lock of a branch, and its work goes back.
#[test]
fn a_merge_waits_for_its_lock_until_the_worker_ends() {
    let sealed = sample();
    succeeded(&sealed.sh("git branch 'fix#12'; git tag v1"));
    let refused = work(&sealed, &["--agent", "bob", "--drain", "--merge-into", "v1", "--", "true"]).end();
    assert!(
        refused.err.contains("`v1`, given with --merge-into, is no branch of this repository"),
        "{refused:?}"
    );
    add(&sealed, 1);
    let holder = Running::fence(&sealed, &["lock", "git/fix:2312", "--", "bash", "-c", WAITS]);
    begun_one(&sealed);
    let cmd = "echo a > a; git add a; git commit -qm a; touch ../../../done-with-it";
    let words = ["--agent", "bob", "--drain", "--merge-into", "fix#12", "--", "bash", "-c", cmd];
    let worker = work(&sealed, &words);
    until("the child has ended", || sealed.path().join("done-with-it").exists());
    worker.send(Signal::TERM);
    until("it drains", || worker.err().contains("another signal ends them"));
    worker.send(Signal::TERM);
    assert_ne!(worker.end().code, 0);
    assert_eq!(task(&sealed, "b-1"), ("unassigned".into(), 0, String::new()), "a drain costs no attempt");
    go(&sealed);
    succeeded(&holder.end());
    succeeded(&work(&sealed, &words).end());
    assert_eq!(task(&sealed, "b-1").0, "completed");
    assert_eq!(sealed.sh("git show 'fix#12:a'").out.trim_end(), "a");
    // The merge has its own guard, whatever the environment of the worker says, also after `fence done`.
    sealed.ok(&["add", "second", "--board", "b"]);
    let child = "echo b > b; git add b; git commit -qm b; fence done";
    let said = sealed.sh(&format!(
        "FENCE_MERGE_GUARD=false fence work --agent bob --drain --merge-into 'fix#12' -- bash -c '{child}'"
    ));
    assert_eq!(sealed.sh("git show 'fix#12:b'").out.trim_end(), "b", "{said:?}");
}

/// The tree of a killed worker is looked at by the next one that can, and the notes of the task say where it is.
#[test]
fn the_tree_of_a_killed_worker_is_named_in_the_notes() {
    let sealed = sample();
    add(&sealed, 1);
    let child = format!("echo left > dirty; cd ../../..\n{WAITS}");
    let killed = work(&sealed, &["--agent", "bob", "--worktree", "--ttl", "1h", "--", "bash", "-c", &child]);
    let (_, child) = begun_one(&sealed);
    killed.send(Signal::KILL);
    killed.end();
    until("its child is ended", || members(child).is_empty());
    // A worker without work trees gives the work back, and leaves the tree to another.
    let idle = |words: &[&str]| {
        work(&sealed, &[&["--agent", "bob", "--drain", "--board", "none"], words, &["--", "true"]].concat())
            .end()
    };
    let said = idle(&[]);
    assert!(said.out.contains("is ended") && !said.out.contains("is kept"), "{said:?}");
    assert!(!sealed.ok(&["show", "b-1"]).contains("is kept"));
    let said = idle(&["--worktree"]);
    assert!(!said.out.contains("is ended") && said.out.contains("is kept"), "{said:?}");
    let shown = sealed.ok(&["show", "b-1"]);
    assert!(shown.contains("b-1@1") && shown.contains("it has uncommitted changes: dirty"), "{shown}");
    let said = idle(&["--worktree"]);
    assert!(!said.out.contains("is kept"), "once: {said:?}");
}
