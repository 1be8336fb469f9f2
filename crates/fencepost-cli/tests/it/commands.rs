//! Every command: its output, its refusals and its exit codes.

use crate::{on_both, sealed::Sealed};

on_both! {
    fn a_task_through_its_life(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown: Vec<String> = [
            vec!["add", "design the schema", "--board", "auth", "--done-when", "tables are drawn"],
            vec!["add", "write the parser", "--board", "auth", "--after", "auth-1", "-p", "80", "--tag", "rust"],
            vec!["add", "again", "--board", "auth", "--key", "k"],
            vec!["add", "again", "--board", "auth", "--key", "k"],
            vec!["ready"],
            vec!["claim", "auth-2"],
            vec!["claim", "auth-1", "--ttl", "10m"],
            vec!["claim", "auth-1"],
            vec!["claim", "auth-1", "--resume", "-q"],
            vec!["--run", "other", "claim", "auth-1"],
            vec!["guard", "task/auth-1@1"],
            vec!["renew", "task/auth-1@1", "--ttl", "1h"],
            vec!["release", "task/auth-1@1", "--note", "the old schema is in git"],
            vec!["guard", "task/auth-1@1"],
            vec!["done", "task/auth-1@1"],
            vec!["claim"],
            vec!["done", "task/auth-1@2", "--output", "see schema.sql"],
            vec!["done", "task/auth-1@2", "--output", "see schema.sql"],
            vec!["done", "task/auth-1@2", "--output", "something else"],
            vec!["claim", "--tag", "rust", "-q"],
            vec!["fail", "task/auth-2@1", "--reason", "the grammar is wrong"],
            vec!["show", "auth-2"],
            vec!["list", "--status", "failed"],
            vec!["claim", "-q"],
            vec!["claim"],
            vec!["done", "task/auth-3@1"],
            vec!["claim"],
        ]
        .iter()
        .map(|words| sealed.show(words))
        .collect();
        let shown = shown.join("\n");
        insta::assert_snapshot!("life", shown);
    }

    fn errors_are_explained(sealed: Sealed) {
        sealed.ok(&["init"]);
        let long = "x".repeat(501);
        let shown: Vec<String> = [
            vec!["add", ""],
            vec!["add", "x", "-p", "101"],
            vec!["add", "x", "--board", "a b"],
            vec!["add", "x", "--after", "nobody-1"],
            vec!["add", "x", "--after", "nobody"],
            vec!["add", "x", "--body", "@missing.md"],
            vec!["claim", "--ttl", "-5s"],
            vec!["claim", "--ttl", "5000d"],
            vec!["claim", "--ttl", "soon"],
            vec!["claim"],
            vec!["show", "auth-1"],
            vec!["show", "Auth"],
            vec!["done", "task/auth-1"],
            vec!["done", "lock/deploy@1"],
            vec!["guard", "task/auth-1@1"],
            vec!["list", "--status", "asleep"],
            vec!["call", "task/clam"],
            vec!["call", "task/add", "{\"titel\": \"x\"}"],
            vec!["call", "task/add", "{\"title\": 1}"],
            vec!["call", "task/add", "{\"title\": \"x\""],
            vec!["--json", "show", "auth-1"],
        ]
        .iter()
        .map(|words| sealed.show(words))
        .collect();
        let shown = shown.join("\n");
        insta::assert_snapshot!("wrong", shown);
        let said = sealed.fence(&["add", &long]);
        let refused = "error: `title` has 501 bytes; at most 500 are allowed\n\
            hint: make it smaller, or split it (docs/errors.md#too_large)";
        assert_eq!((said.code, said.err.as_str()), (1, refused));
        // That hint is for people: the error itself has none.
        let json = sealed.fence(&["--json", "add", &long]);
        let refused = r#"{"error":{"code":"too_large","message":"`title` has 501 bytes; at most 500 are allowed","field":"title","max":500}}"#;
        assert_eq!((json.code, json.err.as_str()), (1, refused));
    }

    fn planning(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            add 'design the schema' --board auth --kind design --tag sql --tag urgent --done-when 'tables are drawn'
            add 'write the parser' --board auth --after auth-1 --body 'in Rust'
            add 'test the parser' --board auth --after auth-2
            add 'write the docs' --board auth --after auth-1
            add 'ship it' --board auth --after auth-3 auth-4
            add 'tell everyone' --board news --after auth-5
            board list
            board show auth
            board show news
            board show nothing
            dep add auth-4 auth-3
            dep add auth-1 auth-5
            dep add auth-4 nobody-1
            dep rm auth-4 auth-3
            dep rm auth-4 auth-3
            edit auth-2 --title 'write the new parser' -p 80 --tag rust --done-when 'it parses itself'
            edit auth-2 --tag ''
            edit auth-2 --max-attempts 0
            note auth-2 'the old one is in git'
            note auth-99 hello
            show auth-2
            list --board auth --tag sql
            list --limit 2
            list --after auth-5
            list --to kim
            why auth-1
            why auth-5
            why auth-99
            --json board list
            --json board show news
            --json why auth-5
        ");
        insta::assert_snapshot!("planning", shown);
    }

    fn working(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            add one --board a
            add two --board a
            add three --board a
            add elsewhere --board b
            done
            claim a-1
            progress 'half of it'
            checkpoint 1 'schema drawn'
            checkpoint 2 'schema migrated' --data '{\"rows\": 3}'
            checkpoint 1 'late'
            checkpoint 3 x --data nonsense
            show a-1
            status
            claims --mine
            --run other claims --mine
            --run other done
            done --output 'see schema.sql' --next
            done task/a-1@1 --output 'see schema.sql'
            claim b-1
            done
            done task/a-2@1 --next
            fail task/a-3@1 --reason 'no idea' --delay 5m
            fail task/a-3@1 --reason 'the network is down' --retry --delay 5m
            why a-3
            release --note 'half of it is there'
            claim b-1 -q
            done --next
            runs
            status
            --json status
            --json claims
        ");
        insta::assert_snapshot!("working", shown);
    }

    fn steering(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            add one
            add two --to kim
            add three --offer kim
            offer main-1 kim
            offer main-2 kim
            accept main-1
            accept main-1 --agent sam
            accept main-1 --agent kim
            claim main-3 --agent kim
            --run other reject main-3 --agent kim --reason 'not mine'
            reject main-3 --agent kim --reason 'not my language'
            show main-3
            assign main-3 sam
            assign main-3 kim
            claim main-3 --agent kim
            park main-3 --reason 'waits for the review'
            claim main-3 --agent sam
            --run sam-1 claim main-3 --agent sam
            why main-3
            unpark main-3
            --run sam-1 claim main-3 --agent sam
            park main-3 --reason 'too late'
            cancel main-3 --reason 'done by hand'
            done task/main-3@1
            guard task/main-3@1
            cancel main-3
            retry main-3
            retry main-1
            ready --agent sam
            --json park main-1 --reason x
        ");
        insta::assert_snapshot!("steering", shown);
    }

    fn looking_after(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            claims
            runs
            add one
            add two
            --run r1 claim main-1 --agent kim
            --run r2 claim main-2
            claims
            runs
            unclaim task/main-1 --reason 'stuck since this morning'
            unclaim task/main-1
            unclaim task/main-9
            unclaim nonsense
            done task/main-1@1
            end r2 --reason 'its process died'
            end r2
            end nobody
            end
            guard task/main-2@1
            runs --all
            claim main-1
            end
            claims
            --json runs --all
        ");
        insta::assert_snapshot!("looking_after", shown);
    }

    fn a_stuck_board_is_explained(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
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
        insta::assert_snapshot!("stuck", shown);
    }

    fn usage_errors_are_json_too(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            --json show
            --json nonsense
            --json claim --ttl soon
            --json list --status asleep
        ");
        insta::assert_snapshot!("wrong_json", shown);
        assert!(sealed.ok(&["--json", "list", "--help"]).starts_with("List tasks"));
    }
}

#[test]
fn there_is_no_fleet_until_init() {
    let sealed = Sealed::sqlite();
    let here = std::fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    let show = |words: &[&str]| sealed.show(words).replace(&here, "HERE");
    insta::assert_snapshot!(show(&["list"]), @r"
    $ fence list
    error: there is no fleet at HERE/.fence/fence.db
    hint: fence init creates it; --db or FENCE_DB names another
    (exit 1)
    ");
    insta::assert_snapshot!(show(&["init"]), @r"
    $ fence init
    the fleet is at HERE/.fence/fence.db: every work tree of this git repository shares it
    ");
    insta::assert_snapshot!(show(&["init"]), @r"
    $ fence init
    the fleet was already at HERE/.fence/fence.db: every work tree of this git repository shares it
    ");
    assert_eq!(
        std::fs::read_to_string(sealed.path().join(".fence/.gitignore")).expect("kept out of git"),
        "*\n"
    );
    assert_eq!(sealed.sh("git status --porcelain").out, "");
    std::fs::create_dir(sealed.path().join("deep")).expect("a directory");
    let said = sealed.sh("cd deep && fence add x && fence list --json | head -c 9");
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(said.out.ends_with("{\"tasks\":"), "{said:?}");
}

/// Everything the shell needs to complete a line.
#[test]
fn completions_are_printed() {
    let sealed = Sealed::sqlite();
    for shell in ["bash", "zsh", "fish"] {
        let script = sealed.ok(&["completions", shell]);
        assert!(script.contains("whoami") && script.contains("done-when"), "{shell}: {script}");
    }
    let said = sealed.sh("source <(fence completions bash) && complete -p fence");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(sealed.fence(&["completions", "tcsh"]).code, 2);
}
