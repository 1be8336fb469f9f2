//! The README's commands, run as written: a reader who copies them sees what it shows.

use crate::on_both;

const README: &str = include_str!("../../../../README.md");

on_both! {
    fn the_readme_tells_the_truth(sealed: Sealed) {
        let steps = steps(README);
        assert!(steps.len() > 15, "only {} commands were found in the README", steps.len());
        for (command, expected) in steps {
            let run = || sealed.sh(&format!("{{ {command}\n}} 2>&1"));
            let mut said = run();
            // On PostgreSQL the log is shown up to the oldest transaction of anyone, and other tests have theirs.
            for _ in 0..100 {
                if !command.starts_with("fence events") || matches(&expected, &said.out) {
                    break;
                }
                said = run();
            }
            assert!(
                matches(&expected, &said.out),
                "$ {command}\n--- the README says\n{expected}\n--- it said (exit {})\n{}",
                said.code,
                said.out
            );
        }
    }
}

/// `$ command` lines of console blocks, `> ` for their continuation, each with the output below it.
fn steps(readme: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            steps.push((command.into(), String::new()));
        } else if let (true, Some((command, output))) = (inside, steps.last_mut()) {
            match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) if output.is_empty() => command.extend(["\n", more]),
                _ => output.extend([line, "\n"]),
            }
        }
    }
    steps
}

/// `…` stands for anything on its line; a line that is only `…` for any lines.
fn matches(expected: &str, said: &str) -> bool {
    let expected: Vec<&str> = expected.trim_end().lines().map(str::trim_end).collect();
    let said: Vec<&str> = said.trim_end().lines().map(str::trim_end).collect();
    lines_match(&expected, &said)
}

fn lines_match(expected: &[&str], said: &[&str]) -> bool {
    match (expected, said) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=said.len()).any(|skip| lines_match(rest, &said[skip..])),
        ([first, rest @ ..], [line, more @ ..]) => line_matches(first, line) && lines_match(rest, more),
        _ => false,
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = "";
    let mut open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        (last, open) = (part, true);
    }
    rest.is_empty() || (open && last.is_empty())
}

#[test]
fn a_wrong_readme_would_be_noticed() {
    assert!(matches("held by run a until …\nb", "held by run a until 12:00\nb"));
    assert!(!matches("held by run a until …\nb", "held by run b until 12:00\nb"));
    assert!(!matches("a", "a\nb"));
    assert!(matches("a\n…", "a\nb\nc"));
    assert!(!matches("", "something"));
    assert_eq!(
        steps("```console\n$ a\nb\n$ c <<X\n> d\n> X\n```\n```sh\n$ no\n```"),
        [("a".into(), "b\n".into()), ("c <<X\nd\nX".into(), String::new())]
    );
}
