//! Many processes at once.

use crate::{on_both, sealed::Sealed};
use std::{collections::HashSet, process::Stdio};

on_both! {
    fn eight_processes_claim_from_one_board_of_80(sealed: Sealed) {
        eight_processes_claim(&sealed, 80);
    }

    #[ignore = "long: make soak"]
    fn soak_eight_processes_claim_from_one_board_of_400(sealed: Sealed) {
        eight_processes_claim(&sealed, 400);
    }

    fn two_terminals_race_for_one_task(sealed: Sealed) {
        two_terminals_race(&sealed, 3);
    }

    #[ignore = "long: make soak"]
    fn soak_two_terminals_race_for_one_task(sealed: Sealed) {
        two_terminals_race(&sealed, 10);
    }
}

/// Two terminals race for a task: one wins, and the other learns who has it.
fn two_terminals_race(sealed: &Sealed, races: usize) {
    sealed.ok(&["init"]);
    for n in 1..=races {
        sealed.ok(&["add", "a task", "--board", "auth"]);
        let raced = sealed.sh(&format!(
            "FENCE_RUN=one fence claim auth-{n} -q & FENCE_RUN=two fence claim auth-{n} -q; echo \"two: $?\"; wait $!; echo \"one: $?\""
        ));
        let (winner, loser) = if raced.out.contains("one: 0") { ("one", "two") } else { ("two", "one") };
        assert!(raced.out.contains(&format!("{loser}: 4")), "{raced:?}");
        assert!(raced.out.contains(&format!("task/auth-{n}@1")), "{raced:?}");
        assert!(raced.err.contains(&format!("is held by run `{winner}` until")), "{raced:?}");
    }
}

/// Eight shells, each a loop of `fence` processes, empty one board.
fn eight_processes_claim(sealed: &Sealed, count: usize) {
    sealed.ok(&["init"]);
    let tasks: Vec<_> = (1..=count).map(|n| serde_json::json!({ "title": format!("task {n}") })).collect();
    let plan = serde_json::json!({ "board": "auth", "tasks": tasks }).to_string();
    std::fs::write(sealed.path().join("plan.json"), plan).expect("written");
    sealed.ok(&["call", "task/plan", "@plan.json"]);
    let work = "while token=$(fence claim -q --board auth 2>>errors); do
        fence done $token >/dev/null 2>>errors && echo $token
    done";
    let shells: Vec<_> = (0..8)
        .map(|shell| {
            let mut command = sealed.command("bash");
            command.args(["-c", work]).env("FENCE_RUN", format!("shell-{shell}"));
            command.stdout(Stdio::piped()).spawn().expect("a shell")
        })
        .collect();
    let mut tokens = Vec::new();
    for shell in shells {
        let output = shell.wait_with_output().expect("its output");
        tokens.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    let errors = std::fs::read_to_string(sealed.path().join("errors")).unwrap_or_default();
    let distinct: HashSet<_> = tokens.iter().collect();
    assert_eq!((tokens.len(), distinct.len()), (count, count), "{errors}");
    assert!(tokens.iter().all(|token| token.ends_with("@1")), "a task was handed out twice");
    let report = sealed.ok(&["call", "admin/check"]);
    assert!(report.contains("\"ok\": true"), "{report}");
}
