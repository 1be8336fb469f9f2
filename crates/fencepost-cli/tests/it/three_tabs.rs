//! The example that the README shows: three agents in three tabs, twenty dependent tasks, one agent killed.

use crate::on_both;

on_both! {
    fn three_agents_finish_a_plan_and_one_is_killed(sealed: Sealed) {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/three-tabs/run");
        let said = sealed.sh(&format!("timeout 400 '{run}' . 2>&1"));
        if said.code != 0 {
            let state = sealed.sh("tail -n 5 one.log two.log three.log; fence runs; fence claims; fence events --limit 30; fence doctor");
            panic!("exit {}: {}\n{}\n{}", said.code, said.out, state.out, state.err);
        }
        let last: Vec<&str> = said.out.lines().rev().take(4).collect();
        assert!(last[3].starts_with("20 tasks, each done once"), "{}", said.out);
        // The one that was killed did one task; the two others, between them, the rest.
        assert_eq!(last[1], "agent two: 1 tasks", "{}", said.out);
        let count = |line: &str| line.split(' ').nth(2).and_then(|n| n.parse::<usize>().ok()).expect("a count");
        assert_eq!(count(last[0]) + count(last[2]), 19, "{}", said.out);
    }
}
