//! The words of the command line: the same word means the same everywhere, and common other words are understood.

use crate::{on_both, sealed::Sealed};

on_both! {
    /// Every error says what to do.
    fn an_error_says_what_to_do(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            add one
            add two
            dep add main-2 main-2
            claim main-1 -q
            park task/main-1@1 --reason later
            unclaim task/main-1@1
            progress task/main-1@1 'half of it'
            edit main-2
            claim main-2 --ttl 1ms
            mail configure box --ttl 1ms
            call task/claim '{\"run\": \"x\", \"ttl_ms\": 1}'
            add three -p high
            route add slack --text deploy --to nobody
            inbox send nobody hello
            agent join nobody
            route add slack --text deploy --to nobody
        ");
        insta::assert_snapshot!("what_to_do", shown);
        for words in [["show", "task/main-1@1"], ["why", "main-1@7"], ["log", "task/main-1@1"]] {
            assert_eq!(sealed.fence(&words).code, 0, "{words:?}");
        }
    }

    /// A shorter lease than the current one has no effect.
    fn a_lease_is_never_shortened(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.transcript("
            add one
            add two
            mail push box hello
            claim -q
        ");
        let stays = "the lease stays 30m: run me has this lease already, and a lease is never shortened";
        for words in [&["claim", "--ttl", "5s"][..], &["mail", "claim", "box", "--ttl", "5s"], &["renew", "task/main-1@1", "--ttl", "5s"]] {
            let said = sealed.ok(words);
            assert!(said.lines().any(|line| line == stays), "{words:?}: {said}");
        }
        assert!(!sealed.ok(&["renew", "task/main-1@1"]).contains("stays"));
        // With -q the note goes to standard error.
        sealed.ok(&["add", "three"]);
        let quiet = sealed.fence(&["claim", "-q", "--ttl", "5s"]);
        assert_eq!((quiet.out.as_str(), quiet.err), ("task/main-3@1", format!("warning: {stays}")));
        assert!(!sealed.ok(&["renew", "task/main-1@1", "--ttl", "1h"]).contains("stays"));
    }

    fn states_are_asked_for_as_they_are_shown(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            add one
            add two --after main-1 --done-when 'the tests pass'
            add three --done-when 'the tests pass'
            park main-3 --reason later
            add four --done-when 'the tests pass'
            list
            list --status blocked
            list --status parked
            list --status ready
            ready
            claim main-1 -q
            done
            list --open
            list --status open
            board show main
            mail push box x --delay 1h
            mail list --status delayed
            mail list --status pending
        ");
        insta::assert_snapshot!("states", crate::sealed::without_times(&shown));
    }

    /// The history of a task, attempt by attempt, and the task that reopens it.
    fn a_task_has_its_log(sealed: Sealed) {
        sealed.ok(&["init"]);
        let commands = "
            add 'write the parser' --board a
            note a-1 'the old one is in git'
            claim a-1 -q
            progress 'half of it'
            release --note 'the grammar is wrong'
            edit a-1 -p 80
            --run other --agent kim claim a-1 -q
            --run other --agent kim fail task/a-1@2 --retry --delay 0s --reason 'the network is down'
            claim a-1 -q
            unclaim a-1 --reason 'it hangs'
            claim a-1 -q
            done --output 'see parser.rs'
            reopen a-1 --reason 'it breaks on empty files'
            reopen a-1
        ";
        sealed.transcript(commands);
        sealed.readable();
        let log = crate::sealed::without_times(&sealed.ok(&["log", "a-1"]));
        let log = log.lines().map(|line| line.split(" after ").next().unwrap_or_default());
        insta::assert_snapshot!("log", log.collect::<Vec<_>>().join("\n"));
        let shown: serde_json::Value = serde_json::from_str(&sealed.ok(&["--json", "log", "a-1"])).expect("JSON");
        let attempts = shown["parts"].as_array().expect("parts").iter().filter_map(|part| part["attempt"]["fence"].as_i64());
        assert_eq!(attempts.collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!((&shown["pruned"], &shown["now"]["status"]), (&false.into(), &"completed".into()));
        assert_eq!(shown["now"]["reopened_as"], "a-2");
        let shown = sealed.ok(&["show", "a-2"]);
        for line in ["reopens: a-1", "after: a-1 (completed, output: see parser.rs)", "note: it breaks on empty files"] {
            assert!(shown.lines().any(|shown| shown == line), "{shown}");
        }
        assert!(sealed.ok(&["show", "a-1"]).contains("\nreopened as: a-2\n"));
        assert_eq!(sealed.fence(&["log", "a-9"]).code, 1);
    }
}

/// A word that means one command is its alias. A word that could mean several is answered with all of them.
#[test]
fn words_that_people_type() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let shown = sealed.transcript(
        "
        new one --board a
        create two --board a -p 60
        ls --board a
        start a-1 -q
        heartbeat --help
        comment a-1 'a note'
        update a-1 --title changed
        complete
        take -q
        finish
        view a-1
        ps
        undo
        next
        rm a-1
        send bob hello
        complet
        mail next
        --json next
    ",
    );
    let (before, help) = shown.split_once("$ fence heartbeat").expect("the help of an alias");
    let after = help.split_once("$ fence comment").expect("what comes after it").1;
    assert!(help.contains("fence renew"), "{help}");
    insta::assert_snapshot!("words", format!("{before}$ fence comment{after}"));
}

#[test]
fn aliases_do_the_same() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    for words in [&["add", "one"][..], &["add", "two", "--after", "main-1"], &["agent", "join", "bob"]] {
        sealed.ok(words);
    }
    // A noun without a verb lists.
    for noun in ["board", "agent", "channel", "route", "key"] {
        let alone = sealed.ok(&[noun]);
        assert_eq!(alone, sealed.ok(&[noun, "list"]), "{noun}");
        assert_eq!(alone, sealed.ok(&[noun, "ls"]), "{noun}");
    }
    // Aliases for removing.
    for word in ["rm", "remove", "delete"] {
        sealed.ok(&["dep", "add", "main-2", "main-1"]);
        assert_eq!(sealed.ok(&["dep", word, "main-2", "main-1"]), "main-2  unassigned  50  two", "{word}");
        let route = sealed.ok(&["route", "add", "slack", "--to", "bob", "--text", word]);
        let id = route.split_whitespace().next().expect("its number");
        assert_eq!(sealed.ok(&["route", word, id]), format!("route {id} is removed"), "{word}");
    }
    // --start-after begins a page; --after names a dependency.
    for payload in ["a", "b", "c"] {
        sealed.ok(&["mail", "push", "box", payload]);
        sealed.ok(&["inbox", "send", "bob", payload]);
    }
    sealed.ok(&["mail", "push", "crate", "x"]);
    for words in [
        &["list", "main-1"][..],
        &["mail", "list", "1"],
        &["mail", "stats", "box"],
        &["inbox", "list", "2", "bob"],
        &["route", "unmatched", "1"],
    ] {
        let (verb, rest) = if words.len() == 2 { words.split_at(1) } else { words.split_at(2) };
        let page = |flag: &str| sealed.ok(&[verb, &[flag, rest[0]], &rest[1..]].concat());
        assert_eq!(page("--start-after"), page("--after"), "{words:?}");
    }
    assert_eq!(sealed.ok(&["list", "--start-after", "main-1"]), "main-2  unassigned  50  two");
    assert!(sealed.ok(&["list", "--limit", "1"]).ends_with("... and more: --start-after main-1"));
    // --count is how many, as for `mail claim`; --max is how long.
    for flag in ["--count", "--max"] {
        sealed.ok(&["mail", "work", "box", flag, "1", "--", "cat"]);
    }
    assert_eq!(sealed.ok(&["mail", "list", "box", "--status", "processed"]).lines().count(), 2);
}

#[test]
fn invalid_numbers() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let shown = sealed.transcript(
        "
        add x -p high
        edit main-1 -p low
        mail push box x -p urgent
        list --limit ten
        mail claim box --count 99999999999999999999
        mail work box --batch few -- cat
        --json add x -p high
    ",
    );
    insta::assert_snapshot!("numbers", shown);
}

/// An agent's key cannot use a run that was opened without a key. The error says how to open one.
#[test]
fn an_agents_key_and_a_run_without_an_agent() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.transcript(
        "
        add one
        add two
        claim main-1 -q
    ",
    );
    let key = sealed.ok(&["key", "add", "codex", "--role", "agent", "-q"]);
    let server = crate::serve::Served::start(&sealed, &[]);
    let there = sealed.over(&format!("http://{}", server.address));
    let said = there.fence(&["--key", &key, "claim"]);
    insta::assert_snapshot!(said.err, @"
    error: key `codex` is for agent `codex`: run `me` was begun without an agent
    hint: --run NAME or FENCE_RUN begins a run of codex's own; an admin's key can use this one
    ");
    assert_eq!(there.fence(&["--key", &key, "--run", "mine", "claim"]).code, 0);
}
