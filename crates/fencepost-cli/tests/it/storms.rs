//! Wake-ups, their limits and their causes from the command line.

use crate::on_both;

on_both! {
    /// The run in the environment is the cause of posts, tasks and messages; a chain of mentions is shown with its cycle.
    fn causes_are_recorded(sealed: Sealed) {
        sealed.ok(&["init"]);
        // A server would schedule wake-ups meanwhile.
        sealed.ok(&["storm", "set", "enabled=off"]);
        for agent in ["ann", "bob"] {
            sealed.ok(&["agent", "join", agent]);
        }
        sealed.ok(&["channel", "create", "general"]);
        insta::assert_snapshot!("causes", sealed.transcript("
            channel post general '@ann start'
            poll --agent ann --run a1 --ttl 1h
            --run a1 channel post general '@bob your turn' --agent ann
            --run a1 add 'a task' --board auth
            --run a1 inbox send bob hello --agent ann
            poll --agent bob --run b1 --ttl 1h --accept unread_mentions
            settle a1
            --run b1 channel post general '@ann and yours' --agent bob
            --run b1 channel post general '@ann not mine' --agent ann
            poll --agent ann --run a2
            storm cause post/general/3
            storm cause post/general/4
            storm cause task/auth-1
            --json storm cause run/b1
            storm cause post/general/99
            storm cause nonsense
        "));
    }

    without a server:

    /// The commands of a person who looks after wake-ups.
    fn the_scheduler_is_shown_and_steered(sealed: Sealed) {
        sealed.ok(&["init"]);
        for agent in ["ann", "bob", "kim"] {
            sealed.ok(&["agent", "join", agent]);
        }
        sealed.ok(&["channel", "create", "general"]);
        for agent in ["ann", "bob"] {
            sealed.ok(&["channel", "join", "general", "--agent", agent]);
        }
        // Far longer than the test takes.
        sealed.ok(&["storm", "set", "min_interval=1h", "window=2h"]);
        insta::assert_snapshot!("storm", sealed.transcript("
            storm
            storm tick
            channel post general 'nobody is named' --agent ann
            why general bob
            storm tick
            storm tick
            why general bob
            storm
            poll --agent bob --run b0
            poll --agent bob --run b1 --ttl 1h --accept unread_wakeup
            why general bob
            storm show
            settle b1
            channel post general 'one more' --agent ann
            channel post general 'a quiet one for @bob' --agent ann --quiet
            storm tick
            storm set min_interval=default max_triggers_per_window=1
            storm tick
            --json storm set window=3h --channel general
            storm set window=3h --channel general
            why general kim
            why general nobody
            why nowhere bob
            storm set enabled=off --channel general
            storm tick
            why general bob
            storm set enabled=default window=default --channel general
            storm set max_depth=5 --channel general
            storm set nonsense=5
            storm set window=5
            storm set window=0s
            storm set enabled=perhaps
            storm breaker open --reason 'too much noise'
            storm breaker close
            storm breaker close --for 5m
            storm breaker ajar
        "));
        assert!(sealed.ok(&["storm", "breaker", "open", "--for", "1h"]).starts_with("the breaker is open until"));
    }
}
