//! Spend limits from the command line.

use crate::{on_both, sealed::without_times};

on_both! {
    fn limits_are_set_shown_and_raised(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.transcript("
            spend
            agent join bob
            add 'write the parser' --board auth
            add 'test the parser' --board auth
            spend set
            spend set --usd five
            spend set --usd 0.0000001
            spend set --agent bbo --usd 5
            spend set --agent bob --usd 0.5 --runs 3 --per 12h
            spend set --board auth --tokens 2000 --off
            spend set --board auth --tokens 2000
            --json spend set --usd 0
            poll --agent bob
            spend
            spend set --off
            poll --agent bob --run b1
            settle b1 --cost '{\"usd\": \"much\"}'
            settle b1 --cost '{\"usd\": 0.125, \"tokens_in\": 1990, \"tokens_out\": 10, \"model\": \"x\"}'
            spend show --per 1h
            poll --agent bob
            claim auth-2
            claim
            spend set --board auth --tokens 2001
            --run me claim auth-2
            --json spend show
        ");
        insta::assert_snapshot!("spend", without_times(&told));
    }
}
