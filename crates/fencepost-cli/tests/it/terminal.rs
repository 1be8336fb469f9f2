//! What a person sees on a terminal, and only there; and the help that every command has.

use crate::{on_both, sealed::Sealed};

/// The command on a pseudo terminal of this width, with its escapes spelled out.
fn on_a_terminal(sealed: &Sealed, columns: usize, command: &str) -> String {
    let said = sealed.sh(&format!("script -qec 'stty cols {columns}; {command}' /dev/null < /dev/null"));
    said.out.replace('\r', "").replace('\x1b', "^")
}

on_both! {
    fn tables_fit_times_are_relative_and_states_have_colours(sealed: Sealed) {
        sealed.ok(&["init"]);
        let story = "
            add 'design the whole schema, with every table, index and view that there will ever be' --board auth
            add 'write the parser' --board auth --after auth-1
            add 'given up' --board auth
            claim auth-1
            cancel auth-3
        ";
        sealed.story(story);
        let told = [60, 100].map(|columns| on_a_terminal(&sealed, columns, "fence list; fence board show auth"));
        // Whoever measures the half hour later sees 29 minutes.
        let told = told.join("\n\n").replace("30m", "29m");
        insta::assert_snapshot!("terminal", told);
        let claims = on_a_terminal(&sealed, 80, "fence claims");
        assert!(claims.contains("s ago  in ") && !claims.contains("Z"), "{claims}");
        for line in on_a_terminal(&sealed, 60, "fence list; fence board show auth").lines().filter(|line| line.contains("auth-")) {
            let plain = line.split('^').map(|part| part.split_once('m').map_or(part, |(_, text)| text));
            assert!(plain.map(|part| part.chars().count()).sum::<usize>() <= 60, "{line}");
        }
        assert!(!on_a_terminal(&sealed, 80, "NO_COLOR=1 fence list").contains('^'), "no colour was asked for");
        let shown = on_a_terminal(&sealed, 80, "fence wait auth-1 --timeout 2s");
        assert!(shown.contains("^[Kwaiting: 0 completed, 0 failed, 0 cancelled, 1 open"), "{shown}");
    }
}

/// Help is part of what a person sees: a change of it is meant.
#[test]
fn every_command_has_help() {
    let sealed = Sealed::sqlite();
    let help = sealed.ok(&["--help"]);
    let names: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once("  "))
        .map(|(name, _)| name.trim())
        .collect();
    let names: Vec<&str> = names
        .into_iter()
        .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let mut told = help.clone();
    for name in &names {
        let help = sealed.ok(&[name, "--help"]);
        let (own, global) = help.split_once("Everywhere:").expect("what holds everywhere");
        assert!(global.contains("--json"), "{name}");
        // What can be given is explained, in the same line or in the next.
        let lines: Vec<&str> = own.lines().collect();
        for pair in lines
            .windows(2)
            .filter(|pair| ["<", "[", "-"].iter().any(|mark| pair[0].trim_start().starts_with(mark)))
        {
            let explained = pair[0].trim().contains("  ") || !pair[1].trim().is_empty();
            assert!(
                explained
                    || ["default: ", "possible values: ", "env: "].iter().any(|word| pair[0].contains(word)),
                "fence {name} has something without a word on it: {}",
                pair[0]
            );
        }
        told.push_str(&format!("\n\n=== fence {name}\n{}", own.trim_end()));
    }
    insta::assert_snapshot!("help", told);
}
