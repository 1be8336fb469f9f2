//! The example of the guide on loops: one loop is started twice at once, one of the chains is killed, and each story is done once.

use crate::on_both;

on_both! {
    without a server:

    fn one_loop_is_started_twice_and_does_each_story_once(sealed: Sealed) {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/loop/run");
        let said = sealed.sh(&format!("timeout 400 '{run}' . 2>&1"));
        if said.code != 0 {
            let state = sealed.sh(
                "cd notes && fence loop status notes; fence runs --all; fence claims; fence events --limit 50; fence doctor; \
                 git log --graph --oneline --all",
            );
            panic!("exit {}: {}\n{}\n{}", said.code, said.out, state.out, state.err);
        }
        let lines: Vec<&str> = said.out.lines().collect();
        let [.., told, one, two, three] = lines.as_slice() else { panic!("{}", said.out) };
        assert!(told.starts_with("6 stories, each passed once"), "{}", said.out);
        // The chain that was killed passed none; the two others, between them, all.
        assert_eq!(one.trim_end(), "chain one:", "{}", said.out);
        let mut passed: Vec<&str> =
            [two, three].iter().flat_map(|line| line.split(' ').skip(2)).collect();
        passed.sort_unstable();
        assert_eq!(passed, ["export", "help", "list", "release", "search", "store"], "{}", said.out);
    }
}
