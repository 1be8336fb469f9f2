//! What a person sees: every command, its refusals, and its exit codes.

use crate::{on_both, sealed::Sealed};

on_both! {
    fn a_task_through_its_life(sealed: Sealed) {
        sealed.ok(&["init"]);
        let story: Vec<String> = [
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
        .map(|words| sealed.tell(words))
        .collect();
        let told = story.join("\n");
        insta::assert_snapshot!("life", told);
    }

    fn what_is_wrong_is_said(sealed: Sealed) {
        sealed.ok(&["init"]);
        let long = "x".repeat(501);
        let story: Vec<String> = [
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
        .map(|words| sealed.tell(words))
        .collect();
        let told = story.join("\n");
        insta::assert_snapshot!("wrong", told);
        let said = sealed.fence(&["add", &long]);
        let refused = "error: `title` has 501 bytes; at most 500 are allowed\n\
            hint: make it smaller, or split it (docs/errors.md#too_large)";
        assert_eq!((said.code, said.err.as_str()), (1, refused));
        // That hint is for people: the error itself has none.
        let json = sealed.fence(&["--json", "add", &long]);
        let refused = r#"{"error":{"code":"too_large","message":"`title` has 501 bytes; at most 500 are allowed","field":"title","max":500}}"#;
        assert_eq!((json.code, json.err.as_str()), (1, refused));
    }
}

#[test]
fn there_is_no_fleet_until_init() {
    let sealed = Sealed::sqlite();
    let here = std::fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    let tell = |words: &[&str]| sealed.tell(words).replace(&here, "HERE");
    insta::assert_snapshot!(tell(&["list"]), @r"
    $ fence list
    error: there is no fleet at HERE/.fence/fence.db
    hint: fence init makes it; --db or FENCE_DB names another
    (exit 1)
    ");
    insta::assert_snapshot!(tell(&["init"]), @r"
    $ fence init
    the fleet is at HERE/.fence/fence.db: every work tree of this git repository shares it
    ");
    insta::assert_snapshot!(tell(&["init"]), @r"
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
