//! The story that the guide on agents tells: a lead and two workers in three terminals, one of them killed in the middle.

use crate::{
    docs::{matches, scenario},
    on_both,
};

/// Each tab in a session of its own, as a terminal would have it; all of them are closed at the end.
const TERMINALS: &str = r#"
    tabs=()
    trap 'for tab in "${tabs[@]}"; do kill -KILL -- "-$tab" 2>/dev/null || true; done' EXIT
    ./setup >setup.log || exit
    for tab in lead ann bob; do
        setsid "./$tab" >"$tab.log" 2>&1 &
        tabs+=($!)
    done
    timeout 400 ./settled
    code=$?
    ((code == 0)) || tail -n +1 *.log
    exit $code
"#;

on_both! {
    without a server:

    fn every_trigger_is_settled_once_and_a_killed_workers_work_comes_back(sealed: Sealed) {
        let blocks = scenario("lead");
        let (says, scripts) = blocks.split_last().expect("blocks");
        for (name, script) in ["setup", "lead", "ann", "bob", "settled"].into_iter().zip(scripts) {
            sealed.script(name, script);
        }
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        std::os::unix::fs::symlink(examples, sealed.path().join("examples")).expect("the examples");
        let said = sealed.sh(TERMINALS);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(matches(says, &said.out), "the guide says\n{says}\nit said\n{}", said.out);
        let log = |name: &str| std::fs::read_to_string(sealed.path().join(name)).expect("a log");
        // What is of one kind went to whom it was for, and every kind was there.
        let (lead, ann, bob) = (log("lead.log"), log("ann.log"), log("bob.log"));
        for (log, kind) in [
            (&lead, "inbox_message"),
            (&lead, "unread_mentions"),
            (&lead, "tasks_finished"),
            (&ann, "task_offered"),
            (&ann, "task_assigned"),
            (&ann, "inbox_message"),
            (&ann, "unread_mentions"),
            (&bob, "task_offered"),
            (&bob, "task_assigned"),
        ] {
            assert!(log.contains(&format!(": {kind} ")), "{kind}: {log}");
        }
        assert!(format!("{ann}{bob}").contains(": pool_task task/") && !lead.contains("pool_task"));
        sealed.ok(&["doctor"]);
    }
}
