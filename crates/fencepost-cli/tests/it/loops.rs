//! `fence loop run`: chains of real processes, in real git repositories, that race, are killed, and lose their claims.

use crate::{
    on_both,
    running::{Running, members, read, until},
    sealed::{Finished, Sealed},
    work::{json, succeeded},
};
use rustix::process::Signal;
use serde_json::{Value, json as value};
use std::fs;

/// A command that says that it began, with its process, and waits.
const WAITS: &str = r#"echo $$ > "$OUT/begun.new"; mv "$OUT/begun.new" "$OUT/begun"; until [ -e "$OUT/go" ]; do sleep 0.02; done"#;

/// A config with a lease that does not run out. `out` is the directory of the test, outside of the trees.
pub fn config(sealed: &Sealed, name: &str, top: &str, steps: &[(&str, &str)]) {
    let names: Vec<&str> = steps.iter().map(|(name, _)| *name).collect();
    let out = sealed.path().display();
    let lines: String = steps
        .iter()
        .map(|(name, run)| format!("[step.{name}]\nrun = '''OUT={out}; {run}'''\njson = false\n"))
        .collect();
    let text = format!("steps = {names:?}\n{top}\n{lines}");
    fs::write(sealed.path().join(name), text).expect("written");
}

/// A repository, a fleet and a plan: stories with those that they wait for.
pub fn begin(sealed: &Sealed, stories: &[(&str, &[&str])]) {
    sealed.ok(&["init"]);
    succeeded(&sealed.sh(
        "git config user.name test; git config user.email test@example.com; git checkout -q -b main
         printf '*\n!file\n!*.txt\n' > .gitignore; echo one > file; git add -f .gitignore file; git commit -qm first",
    ));
    let stories = stories.iter().map(|(id, after)| {
        value!({ "id": id, "title": format!("story {id}"), "description": "do it", "acceptance_criteria": ["it is done"],
            "dependencies": after })
    });
    let prd = value!({ "project": "test", "stories": stories.collect::<Vec<_>>() });
    fs::write(sealed.path().join("prd.json"), prd.to_string()).expect("written");
}

fn start(sealed: &Sealed, words: &[&str]) {
    sealed.ok(&[&["loop", "start", "l", "--prd", "prd.json"], words].concat());
}

fn chain(sealed: &Sealed, words: &[&str]) -> Running {
    Running::fence(sealed, &[&["--json", "loop", "run", "l"], words].concat())
}

/// Runs a chain to its end.
fn run(sealed: &Sealed, words: &[&str]) -> Finished {
    chain(sealed, words).end()
}

/// The lines of a chain, as `story step status`.
pub fn told(said: &Finished) -> Vec<String> {
    lines(&said.out)
}

fn lines(out: &str) -> Vec<String> {
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or("-").to_owned();
    let whole = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    whole.map(|line| ["story", "step", "status"].map(|name| text(&line, name)).join(" ")).collect()
}

/// The status of each story.
fn statuses(sealed: &Sealed) -> Vec<(String, String)> {
    let shown = json(sealed, &["loop", "status", "l"]);
    let text = |story: &Value, name: &str| story[name].as_str().expect(name).to_owned();
    shown["stories"].as_array().expect("stories").iter().map(|s| (text(s, "id"), text(s, "status"))).collect()
}

fn are(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect()
}

pub fn git(sealed: &Sealed, words: &str) -> String {
    let said = sealed.sh(&format!("git {words}"));
    assert_eq!(said.code, 0, "git {words}: {said:?}");
    said.out
}

/// The lines of a file that commands append to.
pub fn appended(sealed: &Sealed, file: &str) -> Vec<String> {
    read(&sealed.path().join(file)).lines().map(str::to_owned).collect()
}

fn begun(sealed: &Sealed) -> i32 {
    let file = sealed.path().join("begun");
    until("the command has begun", || file.exists());
    read(&file).trim().parse().expect("a process")
}

fn go(sealed: &Sealed) {
    fs::write(sealed.path().join("go"), "").expect("written");
}

fn trees(sealed: &Sealed) -> Vec<String> {
    let entries = fs::read_dir(sealed.path().join(".fence/trees")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.ends_with(".busy"));
    names.sort();
    names
}

/// A step that leaves a file named after its story, and counts itself.
pub const IMPLEMENT: &str =
    r#"echo "$FENCE_STORY" >> "$OUT/ran"; echo "$FENCE_STORY $FENCE_ROUND" > "$FENCE_STORY.txt""#;

on_both! {
    /// Two starts and two chains at once: one starts the loop, and each story is executed by one of them.
    fn two_chains_do_each_story_once(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[]), ("c", &["a", "b"]), ("d", &[]), ("e", &["c"])]);
        config(&sealed, "l.toml", "checks = ['test -e $FENCE_STORY.txt']", &[
            ("plan", "echo '{\"files\": 1, \"learned\": \"it is easy\", \"cost\": {\"usd\": 0.5}}'"),
            ("implement", IMPLEMENT),
            ("review", "grep -q \"+$FENCE_STORY $FENCE_ROUND\" \"$FENCE_DIFF\""),
            // Those that a story waited for are there.
            ("judge", "test $FENCE_STORY != e || test -e a.txt -a -e b.txt -a -e c.txt"),
        ]);
        let words = ["--prd", "prd.json", "--config", "l.toml", "--wait"];
        let chains = [(); 2].map(|()| chain(&sealed, &words)).map(Running::end);
        let starts = chains.iter().filter(|said| said.out.contains("\"started\":true")).count();
        assert_eq!((starts, chains[0].code, chains[1].code), (1, 0, 0), "{chains:?}");
        let mut ran = appended(&sealed, "ran");
        ran.sort();
        assert_eq!(ran, ["a", "b", "c", "d", "e"]);
        assert_eq!(statuses(&sealed), are(&["a", "b", "c", "d", "e"].map(|id| (id, "passed"))));
        let shown = json(&sealed, &["loop", "status", "l"])["loop"].clone();
        assert_eq!((&shown["status"], &shown["summary"]["attempts"], &shown["summary"]["cost"]["usd"]), (&value!("finished"), &value!(5), &value!(2.5)));
        // Each was merged once, and nothing is left behind.
        let merges = git(&sealed, "log --merges --format=%s loop/l/main");
        assert_eq!(merges.lines().count(), 5, "{merges}");
        assert!(["a", "b", "c", "d", "e"].iter().all(|id| git(&sealed, &format!("show loop/l/main:{id}.txt")) == format!("{id} 0")));
        assert_eq!((trees(&sealed), json(&sealed, &["claims"])["claims"].clone()), (vec![], value!([])));
        assert_eq!(git(&sealed, "status --porcelain --untracked-files=no"), "");
        // The loop is over for good.
        let again = run(&sealed, &words);
        assert!(again.code == 0 && told(&again).contains(&"- plan finished".to_owned()), "{again:?}");
        let other = sealed.fence(&["loop", "start", "l", "--prd", "prd.json"]);
        assert_eq!(other.code, 5, "{other:?}");
        assert_eq!(run(&sealed, &["--config", "l.toml"]).code, 0);
    }

    fn a_second_chain_is_told_that_the_story_is_claimed(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &["a"])]);
        config(&sealed, "l.toml", "", &[("implement", &format!("{IMPLEMENT}; {WAITS}"))]);
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "l.toml"]);
        begun(&sealed);
        let second = run(&sealed, &["--config", "l.toml"]);
        assert_eq!((second.code, told(&second)), (4, vec!["- plan already_claimed".to_owned()]));
        assert!(second.out.contains("story `a` is held by run `loop-l-"), "{second:?}");
        // A start changes nothing either.
        let started = json(&sealed, &["loop", "start", "l", "--prd", "prd.json"]);
        assert_eq!((&started["started"], &started["stories"][0]["status"]), (&value!(false), &value!("claimed")));
        go(&sealed);
        let first = first.end();
        succeeded(&first);
        assert_eq!(statuses(&sealed), are(&[("a", "passed"), ("b", "passed")]));
        assert_eq!(appended(&sealed, "ran"), ["a", "b"]);
    }

    without a server:

    /// Another chain on the same machine cleans up at once.
    fn a_chain_killed_while_it_implements_is_resumed_by_another(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "", &[
            ("plan", "echo plan >> $OUT/ran; echo '{\"files\": 3}'"),
            ("implement", &format!("{IMPLEMENT}; {WAITS}")),
        ]);
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "l.toml"]);
        let command = begun(&sealed);
        first.send(Signal::KILL);
        assert_eq!(first.end().code, -1);
        until("its command is ended", || members(command).is_empty());
        go(&sealed);
        let second = run(&sealed, &["--config", "l.toml"]);
        succeeded(&second);
        // It goes on after the recorded step, from the loop's branch, under a new claim.
        assert_eq!(appended(&sealed, "ran"), ["plan", "a", "a"]);
        assert!(told(&second).contains(&"a implement ok".to_owned()) && second.out.contains("task/l-1@2"), "{second:?}");
        assert_eq!(git(&sealed, "log --format=%s loop/l/a -1"), "a: story a (implement)");
        let steps = json(&sealed, &["loop", "status", "l", "--story", "a"])["steps"].clone();
        assert_eq!((&steps[0]["name"], &steps[0]["fence"], &steps[0]["data"]["files"]), (&value!("plan"), &value!(1), &value!(3)));
        assert_eq!((&steps[1]["name"], &steps[1]["fence"]), (&value!("implement"), &value!(2)));
        // The tree of the first one has uncommitted work, which is never removed.
        assert_eq!(trees(&sealed), ["l-1@1"]);
    }

    /// On another machine the lease has to end.
    fn a_chain_that_is_gone_is_followed_after_its_lease(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "waits.toml", "", &[("implement", WAITS)]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT)]);
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "waits.toml"]);
        begun(&sealed);
        first.send(Signal::KILL);
        assert_eq!(first.end().code, -1);
        fs::rename(sealed.path().join(".local"), sealed.path().join("elsewhere")).expect("renamed");
        assert_eq!(run(&sealed, &["--config", "l.toml"]).code, 4, "not before");
        sealed.sql("update run set expires_at = opened_at where ended_at is null");
        let second = run(&sealed, &["--config", "l.toml"]);
        succeeded(&second);
        assert!(second.out.contains("task/l-1@2"), "{second:?}");
        assert_eq!(statuses(&sealed), are(&[("a", "passed")]));
    }

    /// The commit is there, and its record is not: no second commit is made.
    fn a_chain_killed_between_commit_and_record_is_resumed_without_a_second_commit(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT), ("judge", "echo judged >> $OUT/ran")]);
        sealed.script(".git/hooks/post-commit", &format!(
            "cd {}; [ -e block ] || exit 0; rm block; touch committed; until [ -e go ]; do sleep 0.02; done", sealed.path().display()));
        fs::write(sealed.path().join("block"), "").expect("written");
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "l.toml"]);
        until("the commit is made", || sealed.path().join("committed").exists());
        first.send(Signal::KILL);
        assert_eq!(first.end().code, -1);
        let commit = git(&sealed, "rev-parse loop/l/a");
        let second = run(&sealed, &["--config", "l.toml"]);
        go(&sealed);
        succeeded(&second);
        assert!(told(&second).contains(&"a implement adopted".to_owned()), "{second:?}");
        assert_eq!(appended(&sealed, "ran"), ["a", "judged"]);
        assert_eq!(git(&sealed, "rev-parse loop/l/a"), commit);
        assert_eq!(git(&sealed, "log --topo-order --format=%s loop/l/main --no-merges"), "a: story a (implement)\nfirst");
        let message = git(&sealed, "log -1 --format=%B loop/l/a");
        assert!(message.contains("Fence-Step: implement\nFence: task/l-1@1 "), "{message}");
        let merge = git(&sealed, "log -1 --format=%B loop/l/main");
        assert!(merge.contains("Fence: task/l-1@2 "), "{merge}");
    }

    /// The claim is lost between the guard and the commit. Meanwhile another chain passes the story and pushes it: the late commit is
    /// on no branch, its record is refused, and so is its push.
    fn a_late_commit_after_a_parallel_pass_is_refused(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "at_end = 'push'\nremote = './hub.git'", &[("implement", IMPLEMENT)]);
        succeeded(&sealed.sh("git init -q --bare hub.git && cd hub.git && fence git install"));
        sealed.script(".git/hooks/pre-commit", &format!(
            "cd {}; [ -e block ] || exit 0; rm block; touch blocked; until [ -e go ]; do sleep 0.02; done", sealed.path().display()));
        fs::write(sealed.path().join("block"), "").expect("written");
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "l.toml"]);
        until("the guard has passed, and git commits", || sealed.path().join("blocked").exists());
        first.send(Signal::STOP);
        sealed.ok(&["unclaim", "l-1"]);
        let second = run(&sealed, &["--config", "l.toml"]);
        succeeded(&second);
        assert!(told(&second).contains(&"- end pushed".to_owned()), "{second:?}");
        let tips = || ["loop/l/a", "loop/l/main"].map(|branch| git(&sealed, &format!("rev-parse {branch}")));
        let before = tips();
        go(&sealed);
        let late = || sealed.sh("git -C .fence/trees/l-1@1 log -1 --format=%B").out;
        until("the late commit is made", || late().contains("Fence: task/l-1@1 "));
        first.send(Signal::CONT);
        let first = first.end();
        assert_eq!(first.code, 5, "{first:?}");
        assert_eq!((tips(), statuses(&sealed)), (before, are(&[("a", "passed")])));
        let guarded = sealed.fence(&["loop", "guard", "task/l-1@1"]);
        assert_eq!((guarded.code, guarded.out.as_str()), (5, "already_passed"));
        let pushed = sealed.sh("git -C .fence/trees/l-1@1 push ../../../hub.git HEAD:refs/heads/late");
        assert!(pushed.code != 0 && pushed.err.contains("late push: task `l-1` was already pushed under fence 2, and these commits have fence 1"), "{pushed:?}");
    }

    /// The claim is lost while the tool runs, between its guard and its effect: the chain ends it, and the push that it had begun is
    /// refused.
    fn a_tool_that_outlives_its_claim_cannot_push(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        succeeded(&sealed.sh("git init -q --bare hub.git && cd hub.git && fence git install"));
        // It leaves its group and its run, as a daemon does, so the chain cannot end it.
        sealed.script("daemon", "touch begun; until [ -e go ]; do sleep 0.02; done
            git push hub $(cat commit):refs/heads/late > pushed.new 2>&1; mv pushed.new pushed");
        sealed.script("tool", r#"fleet=$(fence call admin/about | tr -d '\n' | sed 's/.*"fleet": *"\(........\).*/\1/')
            echo late > a.txt; git add .; git commit -qm "late

Fence: $FENCE_CLAIM $fleet"
            git rev-parse HEAD > "$1/commit"; cd "$1"; env -u FENCE_RUN -u FENCE_CLAIM setsid ./daemon & exec sleep 1000"#);
        config(&sealed, "late.toml", "", &[("implement", "exec $OUT/tool $OUT")]);
        config(&sealed, "l.toml", "at_end = 'push'\nremote = 'hub'", &[("implement", IMPLEMENT)]);
        git(&sealed, &format!("remote add hub {}", sealed.path().join("hub.git").display()));
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "late.toml"]);
        until("the tool has begun", || sealed.path().join("begun").exists());
        sealed.ok(&["unclaim", "l-1"]);
        let first = first.end();
        assert_eq!((first.code, told(&first).last().map(String::as_str)), (5, Some("a claim lease_expired")), "{first:?}");
        let second = run(&sealed, &["--config", "l.toml"]);
        succeeded(&second);
        go(&sealed);
        until("the push has ended", || sealed.path().join("pushed").exists());
        let pushed = read(&sealed.path().join("pushed"));
        assert!(pushed.contains("late push: task `l-1` was already pushed under fence 2"), "{pushed}");
    }

    /// The story is merged, and its verdict is not given: it has passed, and nothing is done again.
    fn a_chain_killed_between_merge_and_verdict_is_resumed_at_the_verdict(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &["a"])]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT), ("judge", "echo judged >> $OUT/ran")]);
        sealed.script(".git/hooks/reference-transaction", &format!(
            "[ $1 = committed ] || exit 0; cd {}; while read -r old new name; do [ $name != refs/heads/loop/l/main ] || [ ! -e block ] || \
             {{ rm block; touch merged; until [ -e go ]; do sleep 0.02; done; }}; done", sealed.path().display()));
        start(&sealed, &[]);
        git(&sealed, "branch loop/l/main");
        fs::write(sealed.path().join("block"), "").expect("written");
        let first = chain(&sealed, &["--config", "l.toml"]);
        until("the story is merged", || sealed.path().join("merged").exists());
        first.send(Signal::KILL);
        assert_eq!(first.end().code, -1);
        let second = run(&sealed, &["--config", "l.toml"]);
        go(&sealed);
        succeeded(&second);
        assert!(told(&second).contains(&"a merge merged before".to_owned()), "{second:?}");
        assert_eq!(appended(&sealed, "ran"), ["a", "judged", "b", "judged"]);
        assert_eq!(statuses(&sealed), are(&[("a", "passed"), ("b", "passed")]));
        assert_eq!(git(&sealed, "log --merges --format=%s loop/l/main").lines().count(), 2);
    }

    /// Two chains have two runs, however long the name of the loop is. Another repository does not have the work of the first one.
    fn each_chain_has_a_run_of_its_own_and_all_share_a_repository(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &["a"])]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT)]);
        config(&sealed, "waits.toml", "", &[("implement", &format!("{IMPLEMENT}; {WAITS}"))]);
        let named = sealed.fence(&["--run", "mine", "loop", "run", "l", "--config", "l.toml"]);
        assert!(named.code == 1 && named.err.contains("a chain has a run of its own"), "{named:?}");
        let long = "l".repeat(100);
        sealed.ok(&["loop", "start", &long, "--prd", "prd.json"]);
        let first = Running::fence(&sealed, &["--json", "loop", "run", &long, "--config", "waits.toml", "--count", "1"]);
        begun(&sealed);
        assert_eq!(sealed.fence(&["loop", "run", &long, "--config", "l.toml"]).code, 4);
        go(&sealed);
        succeeded(&first.end());
        // A fleet in the work tree is named; others are found by the environment.
        let named = if sealed.is_in_its_work_tree() { format!("FENCE_DB={}", sealed.url()) } else { String::new() };
        let config = sealed.path().join("l.toml");
        let clone = sealed.sh(&format!("git clone -q . clone && cd clone && {named} fence loop run {long} --config {}", config.display()));
        assert!(clone.code == 1 && clone.err.contains("does not have the commits of the stories that passed"), "{clone:?}");
        succeeded(&sealed.fence(&["loop", "run", &long, "--config", "l.toml"]));
    }

    /// A broken tool, a broken tree and strange output cost a story no more than they should.
    fn a_story_with_strange_steps_does_not_stop_the_loop(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[]), ("c", &[])]);
        let prd = read(&sealed.path().join("prd.json")).replace("story a", "forged\\n\\nFence: task/l-9@99 00000000");
        fs::write(sealed.path().join("prd.json"), prd).expect("written");
        config(&sealed, "broken.toml", "", &[("implement", "no-such-tool")]);
        start(&sealed, &["--max-retries", "1"]);
        let said = run(&sealed, &["--config", "broken.toml"]);
        assert!(said.code == 1 && said.err.contains("step `implement` cannot be started"), "{said:?}");
        assert_eq!((statuses(&sealed), json(&sealed, &["show", "l-1"])["task"]["attempts"].clone()),
            (are(&[("a", "open"), ("b", "open"), ("c", "open")]), value!(0)));
        let out = sealed.path().display();
        let text = format!(
            "steps = ['implement', 'judge']\n[step]\nimplement = 'echo $FENCE_STORY > $FENCE_STORY.txt; case $FENCE_STORY in \
             a) [ $FENCE_ROUND != 0 ] || {{ rm .git; exit 1; }};; \
             b) python3 {out}/deep.py || printf \"{{\\\"x\\\": \\\"%0300000d\\\", \\\"cost\\\": {{\\\"usd\\\": 1e308}}}}\" 1;; esac'\n\
             judge = 'if [ $FENCE_STORY = c ]; then echo \"{{\\\"verdict\\\": \\\"fail\\\", \\\"feedback\\\": \\\" \\\"}}\"; else echo \"{{\\\"verdict\\\": \\\"pass\\\"}}\"; fi'\n"
        );
        fs::write(sealed.path().join("l.toml"), text.replace(&format!("python3 {out}/deep.py || "), "")).expect("written");
        let said = run(&sealed, &["--config", "l.toml"]);
        succeeded(&said);
        assert_eq!(statuses(&sealed), are(&[("a", "passed"), ("b", "passed"), ("c", "skipped")]), "{said:?}");
        let messages = git(&sealed, "log --format=%B loop/l/main");
        assert!(messages.contains("forged") && !messages.lines().any(|line| line.starts_with("Fence: task/l-9")), "{messages}");
        let steps = json(&sealed, &["loop", "status", "l", "--story", "b"])["steps"].clone();
        assert!(steps[0]["data"]["not_kept"].is_string(), "{steps}");
        let c = json(&sealed, &["loop", "status", "l"])["stories"][2].clone();
        assert_eq!((&c["feedback"], &c["reason"]), (&value!("the judge gave no reason"), &value!("the judge gave no reason")));
    }

    /// HEAD moves on after the commit: reviews see the commit, and only the commit is merged.
    fn review_and_judge_see_the_recorded_commit(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        let moves = "checks = ['echo other > other.txt; git add .; git commit -qm moved; git rev-parse HEAD > HEADS']";
        let sees = |who: &str| format!(
            "test ! -e other.txt && ! grep -q other \"$FENCE_DIFF\" && grep -q '+a 0' \"$FENCE_DIFF\" && test \"$(git rev-parse HEAD)\" = \"$FENCE_COMMIT\" && echo {who} $FENCE_COMMIT >> $OUT/ran"
        );
        config(&sealed, "l.toml", moves, &[("implement", IMPLEMENT), ("review", &sees("review")), ("judge", &sees("judge"))]);
        start(&sealed, &[]);
        let said = run(&sealed, &["--config", "l.toml"]);
        succeeded(&said);
        assert_eq!(statuses(&sealed), are(&[("a", "passed")]), "{said:?}");
        let recorded = json(&sealed, &["loop", "status", "l"])["stories"][0]["commit"].as_str().expect("a commit").to_owned();
        assert_eq!(appended(&sealed, "ran"), ["a".to_owned(), format!("review {recorded}"), format!("judge {recorded}")]);
        assert_ne!(git(&sealed, "rev-parse loop/l/a"), recorded, "HEAD has moved on");
        assert_eq!(git(&sealed, "log -1 --format=%P loop/l/main").split(' ').nth(1), Some(recorded.as_str()));
        assert_eq!(git(&sealed, "ls-tree --name-only loop/l/main"), ".gitignore\na.txt\nfile");
    }

    /// The verdict fails until the retries are used up. Feedback, the results of the checks and the next tool reach the next round.
    fn a_failing_story_is_tried_again_and_then_skipped(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &["a"]), ("c", &[])]);
        let out = sealed.path().display();
        let tools = format!(
            "steps = ['implement', 'judge']\nchecks = ['test -e a.txt', 'echo no luck; false']\n[step]\nimplement = [\
             'echo \"first $FENCE_ROUND\" >> {out}/ran; echo 1 > \"$FENCE_STORY.txt\"',\
             'echo \"second $FENCE_ROUND $FENCE_FEEDBACK\" >> {out}/ran; echo \"$FENCE_ROUND\" >> \"$FENCE_STORY.txt\"']\n\
             [step.judge]\njson = true\nrun = '''cat \"$FENCE_STEP_FILE\" > {out}/context.$FENCE_STORY; cat > {out}/stdin.$FENCE_STORY; \
             if [ $FENCE_STORY = a ]; then echo '{{\"verdict\": \"fail\", \"feedback\": \"not good\"}}'; else echo '{{\"verdict\": \"pass\"}}'; fi'''\n"
        );
        fs::write(sealed.path().join("l.toml"), tools).expect("written");
        start(&sealed, &["--max-retries", "1"]);
        let said = run(&sealed, &["--config", "l.toml"]);
        succeeded(&said);
        assert_eq!(statuses(&sealed), are(&[("a", "skipped"), ("b", "dependency_skipped"), ("c", "passed")]), "{said:?}");
        assert_eq!(appended(&sealed, "ran"), ["first 0", "second 1 not good", "first 0"]);
        let context: Value = serde_json::from_str(&read(&sealed.path().join("context.a"))).expect("JSON");
        assert_eq!((&context["round"], &context["feedback"], &context["story"]["acceptance_criteria"][0]), (&value!(1), &value!("not good"), &value!("it is done")));
        assert_eq!((&context["checks"][0]["passed"], &context["checks"][1]["passed"], &context["checks"][1]["output"]), (&value!(true), &value!(false), &value!("no luck")));
        assert_eq!(read(&sealed.path().join("context.a")), read(&sealed.path().join("stdin.a")));
        assert!(said.out.contains("\"skipped\":1,\"dependency_skipped\":1"), "{said:?}");
    }

    /// Two stories change the same line. The second one to be merged has a conflict, which is a failed verdict.
    fn a_merge_conflict_is_a_failed_verdict(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[])]);
        config(&sealed, "waits.toml", "", &[("implement", &format!(
            "if [ $FENCE_ROUND = 0 ]; then echo mine > file; {WAITS}; else echo \"$FENCE_FEEDBACK\" > $OUT/feedback; git merge -q -X ours -m both loop/l/main; fi"))]);
        config(&sealed, "l.toml", "", &[("implement", "echo theirs > file")]);
        start(&sealed, &[]);
        let first = chain(&sealed, &["--config", "waits.toml"]);
        begun(&sealed);
        let second = run(&sealed, &["--config", "l.toml"]);
        assert_eq!((second.code, statuses(&sealed)), (4, are(&[("a", "claimed"), ("b", "passed")])), "{second:?}");
        go(&sealed);
        let first = first.end();
        succeeded(&first);
        assert!(told(&first).contains(&"a merge conflict".to_owned()), "{first:?}");
        assert!(read(&sealed.path().join("feedback")).contains("merge conflict with `loop/l/main` in file"));
        assert_eq!((statuses(&sealed), git(&sealed, "show loop/l/main:file")), (are(&[("a", "passed"), ("b", "passed")]), "mine".into()));
    }

    fn work_without_a_change_or_json_fails(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[]), ("c", &[])]);
        let text = "steps = ['implement', 'judge']\n[step]\nimplement = 'case $FENCE_STORY in a) ;; b) echo x > x.txt; git add .; git commit -qm x; git revert --no-edit HEAD > /dev/null;; c) echo c > c.txt;; esac'\n[step.judge]\nrun = 'echo fine'\njson = true\n";
        fs::write(sealed.path().join("l.toml"), text).expect("written");
        start(&sealed, &["--max-retries", "0"]);
        succeeded(&run(&sealed, &["--config", "l.toml"]));
        let shown = json(&sealed, &["loop", "status", "l"]);
        let feedback = |n: usize| shown["stories"][n]["feedback"].as_str().expect("feedback").to_owned();
        assert_eq!(feedback(0), "no step changed a file, so there is nothing to judge");
        assert!(feedback(1).contains("is empty: it is evidence of nothing"), "{}", feedback(1));
        assert_eq!(feedback(2), "step `judge` printed no JSON object: it printed `fine`");
        assert_eq!(shown["loop"]["summary"]["skipped"], 3);
    }

    /// A step has a maximum time and retries; the repository's own hooks are obeyed.
    fn a_step_that_fails_is_tried_again_and_then_fails_the_story(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[]), ("c", &[])]);
        start(&sealed, &["--max-retries", "0"]);
        let feedback = |n: usize| json(&sealed, &["loop", "status", "l"])["stories"][n]["feedback"].as_str().unwrap_or_default().to_owned();
        let text = "steps = ['implement']\n[step.implement]\ntimeout = '300ms'\nrun = 'sleep 1000'\n";
        fs::write(sealed.path().join("slow.toml"), text).expect("written");
        succeeded(&run(&sealed, &["--config", "slow.toml", "--count", "1"]));
        assert_eq!(feedback(0), "step `implement` ran for more than 300ms and was ended");
        let out = sealed.path().display();
        let text = format!("steps = ['implement']\n[step.implement]\nretries = 1\nrun = ['echo one >> {out}/ran; exit 3', 'echo two >> {out}/ran; echo no >&2; exit 7']\n");
        fs::write(sealed.path().join("fails.toml"), text).expect("written");
        succeeded(&run(&sealed, &["--config", "fails.toml", "--count", "1"]));
        assert_eq!((appended(&sealed, "ran"), feedback(1)), (vec!["one".to_owned(), "two".to_owned()], "step `implement` exited with 7:\nno".to_owned()));
        sealed.script(".git/hooks/pre-commit", "echo no tests >&2; exit 1");
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT)]);
        succeeded(&run(&sealed, &["--config", "l.toml"]));
        assert!(feedback(2).contains("cannot be committed: git failed: no tests"), "{}", feedback(2));
    }

    /// The lease is 30 minutes, so the chain does not end because of it.
    fn a_cancelled_loop_ends_its_chain_and_the_running_command(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &[])]);
        config(&sealed, "l.toml", "", &[("implement", WAITS)]);
        start(&sealed, &[]);
        let running = chain(&sealed, &["--config", "l.toml"]);
        let command = begun(&sealed);
        sealed.ok(&["loop", "cancel", "l", "--reason", "wrong plan"]);
        let said = running.end();
        assert_eq!((said.code, told(&said).last().map(String::as_str)), (5, Some("a claim cancelled")), "{said:?}");
        assert_eq!(members(command), Vec::<String>::new());
        assert_eq!(statuses(&sealed), are(&[("a", "skipped"), ("b", "skipped")]));
        assert_eq!(run(&sealed, &["--config", "l.toml"]).code, 5);
    }

    fn a_restart_ends_the_chain_that_runs_and_another_begins_anew(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "waits.toml", "", &[("plan", "true"), ("implement", WAITS)]);
        config(&sealed, "l.toml", "", &[("plan", "echo plan >> $OUT/ran"), ("implement", IMPLEMENT)]);
        start(&sealed, &[]);
        let running = chain(&sealed, &["--config", "waits.toml"]);
        let command = begun(&sealed);
        sealed.ok(&["loop", "restart", "l"]);
        let said = running.end();
        assert_eq!((said.code, told(&said).last().map(String::as_str)), (5, Some("a claim lease_expired")), "{said:?}");
        assert_eq!(members(command), Vec::<String>::new());
        succeeded(&run(&sealed, &["--config", "l.toml"]));
        assert_eq!(appended(&sealed, "ran"), ["plan", "a"]);
        assert_eq!(statuses(&sealed), are(&[("a", "passed")]));
    }

    /// The first signal ends the chain after its step, and the story goes back without an attempt.
    fn a_chain_that_is_told_to_end_gives_its_story_back(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "", &[("plan", WAITS), ("implement", IMPLEMENT)]);
        start(&sealed, &[]);
        let running = Running::fence(&sealed, &["loop", "run", "l", "--config", "l.toml"]);
        begun(&sealed);
        running.send(Signal::TERM);
        until("it was heard", || running.err().contains("another signal ends them"));
        go(&sealed);
        let said = running.end();
        assert!(said.code == 0 && said.out.ends_with("a  chain: stopped"), "{said:?}");
        assert_eq!(json(&sealed, &["show", "l-1"])["task"]["attempts"], 0);
        assert_eq!((statuses(&sealed), json(&sealed, &["claims"])["claims"].clone()), (are(&[("a", "open")]), value!([])));
        // The finished step is recorded.
        let said = run(&sealed, &["--config", "l.toml"]);
        assert!(!told(&said).contains(&"a plan ok".to_owned()) && said.code == 0, "{said:?}");
    }

    fn the_end_of_a_loop_is_merged_or_pushed(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "merge.toml", "at_end = 'merge'\ninto = 'main'", &[("implement", IMPLEMENT)]);
        config(&sealed, "push.toml", "at_end = 'push'\nremote = './bare'", &[("implement", IMPLEMENT)]);
        succeeded(&sealed.sh("git init -q --bare bare"));
        start(&sealed, &[]);
        let said = run(&sealed, &["--config", "merge.toml"]);
        succeeded(&said);
        assert!(told(&said).contains(&"- end merged".to_owned()), "{said:?}");
        assert_eq!(read(&sealed.path().join("a.txt")), "a 0\n", "main is checked out, and follows");
        // Once more does no harm: a chain may have died before it did so.
        for (config, status) in [("merge.toml", "- end merged"), ("push.toml", "- end pushed"), ("push.toml", "- end pushed")] {
            let said = run(&sealed, &["--config", config]);
            assert!(told(&said).contains(&status.to_owned()), "{said:?}");
        }
        assert_eq!(git(&sealed, "-C bare rev-parse loop/l/main"), git(&sealed, "rev-parse loop/l/main"));
    }

    fn mistakes_are_told_and_nothing_is_started(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT)]);
        let refused = |words: &[&str], says: &str| {
            let said = sealed.fence(&[&["loop", "run", "l", "--prd", "prd.json"], words].concat());
            assert!(said.code == 1 && said.err.contains(says), "{says}: {said:?}");
        };
        let named = ["--config", "l.toml"];
        refused(&[], "there is no loop.toml in");
        config(&sealed, "loop.toml", "", &[("implement", IMPLEMENT)]);
        refused(&[], "loop.toml is not trusted: its commands are not run");
        fs::write(sealed.path().join("wrong.toml"), "steps = ['a']\nstep.a = 'x'\nstep.b = 'y'").expect("written");
        refused(&["--config", "wrong.toml"], "wrong.toml: `step.b` is not in `steps`");
        fs::write(sealed.path().join("wrong.toml"), "stepz = 1").expect("written");
        refused(&["--config", "wrong.toml"], "unknown field `stepz`");
        fs::write(sealed.path().join("file"), "changed").expect("written");
        refused(&named, "the work tree has changes that are not committed");
        git(&sealed, "checkout -q file");
        git(&sealed, "checkout -q --detach");
        refused(&named, "HEAD is detached");
        git(&sealed, "checkout -q main");
        config(&sealed, "based.toml", "base = 'nowhere'", &[("implement", IMPLEMENT)]);
        refused(&["--config", "based.toml"], "`base` is `nowhere`, and there is no such branch or commit");
        for (prd, says) in [
            (r#"{"stories": [{"id": "a", "title": "a", "dependencies": ["b"]}, {"id": "b", "title": "b", "dependencies": ["a"]}]}"#, "forms a cycle through a, b"),
            (r#"{"stories": [{"id": "a", "title": "a", "dependencies": ["x"]}]}"#, "names `x`, which is no story of the plan"),
            (r#"{"stories": [{"id": "a", "title": "a"}, {"id": "a", "title": "b"}]}"#, "the id of story 1 already"),
            (r#"{"stories": [{"id": "a"}]}"#, "missing field `title`"),
            ("{", "`prd.json` is not JSON"),
        ] {
            fs::write(sealed.path().join("prd.json"), prd).expect("written");
            refused(&named, says);
        }
        assert_eq!(json(&sealed, &["loop", "list", "--all"])["loops"], value!([]));
        assert_eq!(git(&sealed, "branch --list loop/*"), "");
        let empty = sealed.sh("mkdir empty && cd empty && git init -q && fence loop run l --config ../l.toml");
        assert!(empty.code == 1 && empty.err.contains("has no commit yet"), "{empty:?}");
        let missing = sealed.fence(&["loop", "run", "nobody", "--config", "l.toml"]);
        assert!(missing.code == 1 && missing.err.contains("there is no loop `nobody`"), "{missing:?}");

        // A project's config is read once it is trusted, as it is now.
        begin_again(&sealed);
        let trusted = sealed.ok(&["trust", "loop.toml"]);
        assert!(trusted.contains("step.implement.run = "), "{trusted}");
        succeeded(&sealed.fence(&["loop", "run", "l", "--prd", "prd.json"]));
        config(&sealed, "loop.toml", "lease = '1h'", &[("implement", IMPLEMENT)]);
        refused_again(&sealed, "loop.toml changed since you trusted it");
    }

    /// A commit that a step recorded may be in another repository.
    fn a_commit_that_is_not_here_is_named(sealed: Sealed) {
        begin(&sealed, &[("a", &[])]);
        config(&sealed, "l.toml", "", &[("implement", IMPLEMENT), ("review", "true")]);
        start(&sealed, &[]);
        sealed.ok(&["loop", "next", "l"]);
        sealed.ok(&["loop", "step", "implement", "--commit", "0123456789012345678901234567890123456789"]);
        sealed.ok(&["release"]);
        let said = run(&sealed, &["--config", "l.toml"]);
        assert!(said.code == 1 && said.err.contains("commit 0123456789012345678901234567890123456789, which a step of story `a` recorded, is not in this repository"), "{said:?}");
        assert_eq!((statuses(&sealed), json(&sealed, &["claims"])["claims"].clone()), (are(&[("a", "open")]), value!([])));
    }

    /// A chain of one's own, with the verbs.
    fn the_verbs_of_a_chain(sealed: Sealed) {
        begin(&sealed, &[("a", &[]), ("b", &["a"])]);
        start(&sealed, &[]);
        let other = |words: &[&str]| sealed.fence(&[&["--run", "other"], words].concat());
        assert_eq!(sealed.ok(&["loop", "next", "l", "-q"]), "task/l-1@1");
        assert_eq!(other(&["loop", "next", "l"]).code, 4);
        assert!(sealed.ok(&["loop", "guard"]).starts_with("ok: held by run me until"));
        sealed.ok(&["loop", "step", "implement", "--commit", "0123456", "--data", "{\"n\": 1}", "--learned", "use jq"]);
        assert_eq!(sealed.fence(&["loop", "verdict", "pass", "--commit", "6543210"]).code, 4);
        assert_eq!(sealed.fence(&["loop", "verdict", "maybe"]).code, 1);
        let done = sealed.fence(&["done"]);
        assert!(done.code == 4 && done.err.contains("`done` is not for stories"), "{done:?}");
        sealed.ok(&["loop", "verdict", "pass", "task/l-1@1", "--commit", "0123456"]);
        sealed.ok(&["loop", "verdict", "pass", "task/l-1@1", "--commit", "0123456"]);
        assert_eq!(sealed.fence(&["loop", "verdict", "fail", "task/l-1@1", "--feedback", "no"]).code, 5);
        let passed = sealed.fence(&["loop", "guard", "task/l-1@1"]);
        assert_eq!((passed.code, passed.out.as_str()), (5, "already_passed"));
        let next = other(&["--json", "loop", "next", "l"]);
        let next: Value = serde_json::from_str(&next.out).expect("JSON");
        assert_eq!((&next["story"]["id"], &next["learned"][0]["text"]), (&value!("b"), &value!("use jq")));
        sealed.ok(&["loop", "restart", "l"]);
        let late = other(&["loop", "guard", "task/l-2@1"]);
        assert_eq!((late.code, late.out.as_str()), (5, "lease_expired"));
        assert_eq!(other(&["loop", "verdict", "skip", "task/l-2@1"]).code, 5);
        assert!(sealed.ok(&["loop"]).contains("1 of 2 passed"));
        assert!(sealed.ok(&["loop", "list"]).contains("l     active"));
        sealed.ok(&["loop", "cancel", "l"]);
        assert_eq!(other(&["loop", "next", "l"]).code, 5);
    }
}

fn begin_again(sealed: &Sealed) {
    let prd = value!({ "stories": [{ "id": "a", "title": "story a" }] });
    fs::write(sealed.path().join("prd.json"), prd.to_string()).expect("written");
}

fn refused_again(sealed: &Sealed, says: &str) {
    let said = sealed.fence(&["loop", "run", "l"]);
    assert!(said.code == 1 && said.err.contains(says), "{says}: {said:?}");
}
