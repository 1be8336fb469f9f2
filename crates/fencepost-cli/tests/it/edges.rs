//! What is easily got wrong: claims that are over, texts and paths of all kinds, outputs that nobody takes.

use crate::{on_both, sealed::Sealed};

on_both! {
    /// Who had something and has nothing any more must stop: exit 5, as with the token.
    fn without_a_token_a_lost_claim_is_over(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            done
            add one
            claim main-1 -q
            unclaim task/main-1
            done
            guard
            progress 'half of it'
        ");
        insta::assert_snapshot!("lost", told);
    }

    /// A variable outlives what it names, and a completion that is repeated is answered as the first was.
    fn a_stale_variable_completes_nothing(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three"] {
            sealed.ok(&["add", title]);
        }
        let token = sealed.ok(&["claim", "-q"]);
        let said = sealed.sh(&format!(
            "export FENCE_RUN=me FENCE_CLAIM={token}; fence done --next >/dev/null; fence done --next 2>&1; echo exit $?"
        ));
        assert_eq!(
            said.out,
            "error: FENCE_CLAIM is `task/main-1@1`, which is over\nhint: name the claim that you mean: task/main-2@1\nexit 5"
        );
        assert_eq!(sealed.ok(&["claims", "--mine"]).lines().count(), 2, "a head and one claim");
        // With nothing else in hand, saying it twice is safe.
        sealed.ok(&["done"]);
        assert_eq!(sealed.sh(&format!("FENCE_RUN=me FENCE_CLAIM={token} fence done")).code, 0);
    }

    fn a_board_that_is_stuck_says_so(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            add one --board x
            add two --board x --after x-1
            claim x-1 -q
            --run other claim --board x
            fail --reason 'cannot be done'
            claim --board x
            claim --board x --wait 10ms
            retry x-1
            claim -q
            fail --retry --reason 'try again'
            claim --board x
            park x-1 --reason later
            --json claim --board x
        ");
        insta::assert_snapshot!("stuck", told);
    }

    /// Payloads, bodies and outputs come from files and standard input. Notes, reasons and titles are what was written:
    /// they begin with mentions.
    fn only_bodies_payloads_and_outputs_come_from_elsewhere(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("why.txt", "a text\nof two lines");
        let told = sealed.story("
            add @kim --done-when @why.txt --body @why.txt
            edit main-1 --title - --done-when @kim
            note main-1 '@alice has a look'
            note main-1 -
            claim -q
            progress '@@kim has a look'
            progress '@kim has a look'
            fail --retry --delay 0s --reason @why.txt
            claim -q
            release --note @kim
            park main-1 --reason @why.txt
            unpark main-1
            claim -q
            unclaim main-1 --reason @why.txt
            show main-1
            cancel main-1 --reason @why.txt
            mail push box @why.txt
            mail push box @@kim
            mail pause box --reason @why.txt
            mail discard 1 --reason @kim
            add two
            claim -q
            done --output @why.txt
            done --output @missing.txt
        ");
        insta::assert_snapshot!("texts", told);
        // Standard input has the same two names wherever it is read.
        sealed.ok(&["agent", "join", "bob"]);
        let said = sealed.sh(r#"
            set -e
            for name in - @-; do
                echo from afar | fence add three --board piped --body $name >/dev/null
                echo from afar | fence mail push piped $name >/dev/null
                echo from afar | fence mail push piped --lines $name >/dev/null
                echo '{"title": "from afar"}' | fence add -f $name --board piped >/dev/null
                echo from afar | fence inbox send bob $name >/dev/null
                echo from afar | fence mail done $(fence mail claim piped -q) --output $name >/dev/null
            done
            for n in 1 2 3 4; do fence show piped-$n; done
            fence mail peek piped --count 9; fence mail show 3; fence mail show 4; fence inbox list bob
        "#);
        assert_eq!(said.code, 0, "{said:?}");
        // Four tasks, two payloads that are left, two outputs, two messages.
        assert_eq!(said.out.matches("from afar").count(), 10, "{said:?}");
    }

    fn what_would_move_the_cursor_does_not(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "evil\u{1b}[2Jtitle", "--body", "a\u{1b}[2Jbody\nof two lines"]);
        sealed.ok(&["note", "main-1", "and\u{7}a note"]);
        for words in [vec!["list"], vec!["show", "main-1"], vec!["board", "show", "main"], vec!["claim"], vec!["events"]] {
            let said = sealed.ok(&words);
            assert!(!said.contains(['\u{1b}', '\u{7}']), "{words:?}: {said:?}");
        }
        assert!(sealed.ok(&["show", "main-1"]).contains("    a\\u{1b}[2Jbody\n    of two lines"));
    }

    fn an_output_that_nobody_takes(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        let full = sealed.sh("fence claim -q >/dev/full");
        assert_eq!(full.code, 1, "{full:?}");
        assert!(full.err.contains("what was done cannot be told"), "{full:?}");
        let enough = sealed.sh("fence completions bash | head -1; fence list | true; echo ${PIPESTATUS[0]}");
        assert_eq!((enough.err.as_str(), enough.out.lines().last()), ("", Some("0")), "{enough:?}");
    }

    fn wrong_words_are_json_too(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            --json show
            --json nonsense
            --json claim --ttl soon
            --json list --status asleep
        ");
        insta::assert_snapshot!("wrong_json", told);
        assert!(sealed.ok(&["--json", "list", "--help"]).starts_with("List tasks"));
    }

    fn any_of_several(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three"] {
            sealed.ok(&["add", title]);
        }
        sealed.ok(&["cancel", "main-2"]);
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2", "--any"]).code, 1);
        sealed.ok(&["claim", "main-1"]);
        sealed.ok(&["done"]);
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2", "--any"]).code, 0, "one was completed");
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2"]).code, 1, "one was not");
    }

    fn an_agents_name_may_be_left_empty(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        assert_eq!(sealed.sh("FENCE_AGENT= fence claim -q").out, "task/main-1@1");
    }

    fn the_page_can_be_a_skill(sealed: Sealed) {
        assert_eq!(sealed.ok(&["prime", "--skill"]), "written to .claude/skills/fence/SKILL.md");
        let skill = std::fs::read_to_string(sealed.path().join(".claude/skills/fence/SKILL.md")).expect("a skill");
        let page = sealed.ok(&["prime"]);
        assert!(skill.starts_with("---\nname: fence\ndescription: ") && skill.trim_end().ends_with(&page), "{skill}");
        let json: serde_json::Value = serde_json::from_str(&sealed.ok(&["--json", "prime"])).expect("JSON");
        assert_eq!(json["page"].as_str().map(str::trim_end), Some(page.as_str()));
        assert!(sealed.ok(&["prime", "--board", "auth"]).contains("`fence claim --keep --wait 1m --board auth`"));
        assert_eq!(sealed.ok(&["prime", "--skill=elsewhere"]), "written to elsewhere/SKILL.md");
    }
}

/// Nobody has claimed since, and no server is there: every command says what the next claim will find.
#[test]
fn a_lease_that_is_over_is_seen_before_anyone_claims() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one", "--board", "a", "--to", "kim"]);
    sealed.ok(&["add", "two", "--board", "a"]);
    sealed.ok(&["edit", "a-2", "--max-attempts", "1"]);
    sealed.ok(&["add", "three", "--board", "a", "--after", "a-2"]);
    sealed.ok(&["mail", "push", "post", "hello"]);
    sealed.ok(&["--agent", "kim", "claim", "a-1"]);
    sealed.ok(&["--agent", "kim", "claim", "a-2"]);
    sealed.ok(&["--agent", "kim", "mail", "claim", "post"]);
    // However slow the machine is, it was not over before.
    sealed.sql("update run set expires_at = opened_at");
    let told = sealed.story(
        "
        list
        list --status in_progress
        list --status failed
        show a-1
        why a-1
        why a-2
        why a-3
        --agent kim ready
        board show a
        guard task/a-1@1
        guard task/a-2@1
        claims
        runs
        mail list
        mail list --status processing
        mail peek post
        wait --board a
    ",
    );
    insta::assert_snapshot!("lapsed", told);
    assert!(!sealed.ok(&["events"]).contains("lapsed"), "nothing was written");
    let log = sealed.ok(&["log", "a-1"]);
    assert!(log.contains("attempt @1 by run me (agent kim): lapsed: its lease is over"), "{log}");
}

#[test]
fn only_init_makes_a_fleet() {
    let sealed = Sealed::sqlite();
    sealed.write("empty.db", "");
    for db in ["empty.db", "missing.db"] {
        let said = sealed.fence(&["--db", db, "list"]);
        assert_eq!(
            (said.code, said.err.lines().next()),
            (1, Some(format!("error: there is no fleet at {db}").as_str()))
        );
    }
    assert!(!sealed.path().join("missing.db").exists());
    assert_eq!(std::fs::read(sealed.path().join("empty.db")).expect("still there"), b"");
    let postgres = Sealed::postgres();
    let said = postgres.fence(&["list"]);
    assert!(said.code == 1 && said.err.contains("there is no fleet at postgres://"), "{said:?}");
    assert!(postgres.ok(&["init"]).starts_with("the fleet is at"));
    assert!(postgres.ok(&["init"]).starts_with("the fleet was already at"));
}

#[test]
fn a_database_in_a_work_tree_stays_out_of_git() {
    let sealed = Sealed::sqlite();
    std::fs::create_dir(sealed.path().join("deep")).expect("a directory");
    std::fs::write(sealed.path().join(".git/info/exclude"), "no end of line").expect("written");
    for db in ["x.db", "deep/y.db", "deep/[a]*b?.db"] {
        sealed.ok(&["init", "--db", db]);
        sealed.ok(&["--db", db, "add", "one"]);
        sealed.ok(&["init", "--db", db]);
    }
    assert_eq!(sealed.sh("git status --porcelain").out, "");
    assert_eq!(sealed.sh("grep -c y.db .git/info/exclude").out, "1");
    // The same in a work tree of its own, whose repository has the list.
    let said = sealed
        .sh("git -c user.name=x -c user.email=x@x commit -q --allow-empty -m one && git worktree add -q tree
         cd tree && fence init --db z.db > /dev/null && git status --porcelain");
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
}

/// A repository that was cloned or unpacked can name commands that git runs, also in one that lies within it.
#[test]
fn no_command_of_a_repository_is_run() {
    let sealed = Sealed::sqlite();
    let trap = sealed.path().join("trap").display().to_string();
    sealed.script("trap", &format!("touch {trap}.sprung"));
    let sprung = || std::fs::remove_file(format!("{trap}.sprung")).is_ok();
    let set = format!(
        "git config core.fsmonitor {trap} && git init -q --bare inner && printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor={trap}\\n' > inner/config"
    );
    assert_eq!(sealed.sh(&set).code, 0);
    for directory in [".", "inner"] {
        // So that this test can fail.
        sealed.sh(&format!("cd {directory} && git status"));
        assert!(sprung(), "git does not run it in {directory}: the test shows nothing");
        let said = sealed.sh(&format!(
            "cd {directory} && for words in 'init' 'init --db x.db' 'add one --db x.db' 'doctor' 'claim' 'prime' 'whoami'; do fence $words; done"
        ));
        assert!(!sprung(), "in {directory}: {said:?}");
        assert!(said.out.contains("the fleet is at x.db"), "{said:?}");
    }
    // Nor is anything of ours written where a link leads.
    let said = sealed.sh("echo mine > rc && mkdir -p .claude/skills/fence && ln -s ../../../rc .claude/skills/fence/SKILL.md && fence prime --skill; cat rc");
    assert!(said.out == "mine" && said.err.contains("is a symbolic link, which is not followed"), "{said:?}");
    let said =
        sealed.sh("echo mine > rc && ln -sf ../../rc .git/info/exclude && fence init --db y.db && cat rc");
    assert!(said.code == 0 && said.out.ends_with("\nmine"), "{said:?}");
}

/// A path that is not text is refused, rather than another that looks like it used.
#[test]
fn paths_that_are_not_text() {
    let sealed = Sealed::sqlite();
    let said = sealed.sh("mkdir $'bad\\xff' && cd $'bad\\xff' && git init -q && fence init; ls -A ..; ls -A");
    assert!(said.err.contains("is not UTF-8"), "{said:?}");
    assert!(!said.out.contains(".fence"), "{said:?}");
    let said = sealed.sh("FENCE_DB=$'bad\\xff/x.db' fence list");
    let refused = "error: FENCE_DB is not UTF-8\nhint: the command's --help says what it takes (docs/errors.md#invalid)";
    assert_eq!((said.code, said.err.as_str()), (1, refused));
    // Nothing is looked for in a directory that is gone, where the fleet is named.
    sealed.ok(&["init"]);
    let db = sealed.url();
    let said = sealed.sh(&format!("mkdir gone && cd gone && rmdir ../gone && fence --db '{db}' list"));
    assert_eq!((said.code, said.out.as_str()), (0, "no tasks"), "{said:?}");
}
