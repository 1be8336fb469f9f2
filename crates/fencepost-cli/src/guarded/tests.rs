use proptest::prelude::*;

use super::{DEFAULT, MAX_LINE, Rules, find};

mod tables;

fn found(line: &str) -> Option<String> {
    find(line, &Rules::default()).map(|found| found.rule)
}

fn parse(texts: &[&str]) -> Result<Rules, String> {
    Rules::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
}

#[test]
fn the_default_list_parses_and_matches_itself() {
    parse(DEFAULT).unwrap();
    for text in DEFAULT {
        let first = |word: &str| word.split('|').next().unwrap().to_owned();
        let line = text.split_whitespace().map(first).collect::<Vec<_>>().join(" ");
        assert!(found(&line).is_some(), "{line}");
    }
}

#[test]
fn a_bad_rule_says_why() {
    for (text, why) in [
        ("", "is empty"),
        ("kubectl apply|", "an alternative of `apply|` is empty"),
        ("--force", "must start with a program"),
        ("git push; ls", "`;` is not allowed"),
        ("./deploy", "`/` is not allowed"),
    ] {
        let error = parse(&[text]).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_list_of_ones_own() {
    let rules = parse(&["deploy-prod", "git commit --amend", "kubectl  apply|delete"]).unwrap();
    let rule = |line: &str| find(line, &rules).map(|found| found.rule);
    assert_eq!(rule("cd x; ./deploy-prod now").as_deref(), Some("deploy-prod"));
    assert_eq!(rule("git commit -m x --amend").as_deref(), Some("git commit --amend"));
    assert_eq!(rule("git commit -m x"), None);
    assert_eq!(rule("kubectl delete pod x").as_deref(), Some("kubectl apply|delete"));
    assert_eq!(rule("git push"), None);
    assert_eq!(rules.words(), ["apply", "commit", "delete", "deploy-prod"]);
}

#[test]
fn no_rules_guard_nothing() {
    assert_eq!(find("git push '", &parse(&[]).unwrap()), None);
}

#[test]
fn the_message_shows_the_command_as_it_would_run() {
    let command = |line: &str| find(line, &Rules::default()).unwrap().command;
    assert_eq!(
        command("cd x && sudo -u me g'i't -C \"a b\" push origin HEAD | cat"),
        "git -C a b push origin HEAD"
    );
    assert_eq!(command("v=push; git $v $remote"), "git push …");
    assert_eq!(command(&format!("git push {}", "é".repeat(500))).chars().count(), 201);
}

#[test]
fn text_that_cannot_be_parsed_is_searched_for_the_last_words() {
    for line in
        ["git push '", "echo \"git pu\\sh", "git push )", "git push\0", "for (git push", "case x in git push"]
    {
        assert!(found(line).is_some(), "{line:?}");
    }
    assert_eq!(found("echo 'it"), None);
    let long = format!("echo {}", "x".repeat(MAX_LINE));
    assert_eq!(found(&long), None);
    assert_eq!(found(&format!("{long}; git push")).as_deref(), Some("git push|send-pack"));
    let deep = format!("{}git push{}", "$(".repeat(500), ")".repeat(500));
    assert!(found(&deep).is_some());
}

/// Lines made to be slow. Each of them took quadratic or exponential time in a parser without a limit.
#[test]
fn hostile_lines_end_soon() {
    for unit in [
        "(",
        "((",
        "$((",
        "$(",
        "`",
        "{",
        "{a,b}",
        "${x:-",
        "\"$(",
        "<(",
        "sudo -z ",
        "xargs -z ",
        "env -S ",
        "eval eval ",
        "a=$a$a;",
        "x=a;",
        "parallel ",
        "[[ ",
        "case a in ",
        "tmux -x ",
        "git -z ",
        "$x ",
        "echo x | sh |",
        "<<a\n",
        "bash -c ",
        "'",
        "\\",
        "[",
        "for x in ",
        "{a,",
        "$x -a ",
    ] {
        for tail in ["", " push)'"] {
            let line = format!("{}{tail}", unit.repeat(20_000 / unit.len()));
            find(&line, &Rules::default());
        }
    }
    let doubling = "a=xxxxxxxx;".to_owned() + &"a=$a$a;".repeat(60) + "git $a; $a push";
    find(&doubling, &Rules::default());
    let mut nested = "git push".to_owned();
    for _ in 0..8 {
        nested = format!("bash -c '{}'", nested.replace('\'', "'\\''"));
    }
    assert!(found(&nested).is_some());
}

/// Puts a command line inside something that runs it.
fn wrap(layer: usize, line: &str) -> String {
    let quoted = format!("'{}'", line.replace('\'', "'\\''"));
    match layer {
        0 => format!("cd x && {line}"),
        1 => format!("( {line} )"),
        2 => format!("{{ {line}; }}"),
        3 => format!("if true; then {line}; fi"),
        4 => format!("for i in 1 2; do {line}; done"),
        5 => format!("case $x in a) ls;; *) {line};; esac"),
        6 => format!("bash -lc {quoted}"),
        7 => format!("sh -eo pipefail -c {quoted}"),
        8 => format!("eval {quoted}"),
        9 => format!("sudo -u me env -i A=b sh -c {quoted}"),
        10 => format!("timeout -k 5 10 nice -n 5 bash -c {quoted}"),
        11 => format!("echo $( {line} )"),
        12 => format!("echo \"x $( {line} ) y\""),
        13 => format!("cat <( {line} )"),
        14 => format!("bash <<'E{0}'\n{line}\nE{0}\n", line.len()),
        15 => format!("printf '%s' {quoted} | sh"),
        16 => format!("find . -exec sh -c {quoted} \\;"),
        17 => format!("ls | xargs -n1 sh -c {quoted}"),
        18 => format!("ssh -p 22 host {quoted}"),
        19 => format!("fence guard task/a@1 -- bash -c {quoted}"),
        20 => format!("f() {{ {line}; }}; f"),
        21 => format!("! time -p {line}"),
        22 => format!("x{0}={quoted}; eval \"$x{0}\"", line.len()),
        23 => format!("while read -r l\ndo\n  {line}\ndone < file # it's\n"),
        24 => format!("script -qc {quoted} /dev/null"),
        _ => format!("A=1 B=$(date) nohup sh -c {quoted} >log 2>&1 &"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_ends_without_a_panic(line in "\\PC*") {
        find(&line, &Rules::default());
    }

    #[test]
    fn any_shell_ends_without_a_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "git", "push", " ", "\n", ";", "&&", "|", "(", ")", "((", "))", "{", "}", "'", "\"", "\\", "$", "$(", "${", "`",
                "<<EOF", "EOF", "<<<", "<(", ">", "&", "#", "bash -c ", "eval ", "xargs ", "-I", "for x in ", "do ", "done", "case ",
                "esac", " in ", "[[ ", " ]]", "x=", "$x", ",", "*", "$'\\x", "sudo -u ", "find -exec ", "é", "\u{f8ff}", "-", "--",
            ]),
            0..60,
        ),
    ) {
        find(&parts.concat(), &Rules::default());
    }

    #[test]
    fn a_guarded_command_in_any_layers_is_found(
        command in prop::sample::select(vec!["git push", "git -C a push", "kubectl -n x delete pod y", "g\"i\"t pu\\sh", "npm publish"]),
        layers in prop::collection::vec(0usize..26, 0..5),
    ) {
        let line = layers.iter().fold(command.to_owned(), |line, layer| wrap(*layer, &line));
        prop_assert!(found(&line).is_some(), "{}", line);
    }

    #[test]
    fn a_harmless_command_in_layers_is_not_found(
        command in prop::sample::select(vec!["git status", "git stash push", "kubectl -n push get pod", "ls a/push", "npm run x"]),
        layers in prop::collection::vec(prop::sample::select((0usize..26).filter(|layer| *layer != 15).collect::<Vec<_>>()), 0..4),
    ) {
        let line = layers.iter().fold(command.to_owned(), |line, layer| wrap(*layer, &line));
        prop_assert_eq!(found(&line), None, "{}", line);
    }
}
