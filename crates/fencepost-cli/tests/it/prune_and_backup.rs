//! `fence prune` and `fence backup`.

use crate::{on_both, sealed::Sealed};

on_both! {
    fn old_data_is_pruned(sealed: Sealed) {
        sealed.ok(&["init"]);
        let old = "\"status\":\"completed\",\"finished_at\":\"2020-01-01T00:00:00Z\"";
        // A chain of failed tasks: each can be pruned only after the one that depends on it.
        let failed = "\"status\":\"failed\",\"finished_at\":\"2020-01-01T00:00:00Z\"";
        let mut lines: String = (1..=1200).map(|n| format!("{{\"id\":\"old-{n}\",\"title\":\"t\",{old}}}\n")).collect();
        for n in 1..=5 {
            let after = if n == 1 { String::new() } else { format!(",\"after\":[\"bad-{}\"]", n - 1) };
            lines.push_str(&format!("{{\"id\":\"bad-{n}\",\"title\":\"t\",{failed}{after}}}\n"));
        }
        lines.push_str("{\"id\":\"new-1\",\"title\":\"t\",\"after\":[\"old-1\"]}\n");
        std::fs::write(sealed.path().join("tasks.jsonl"), lines).expect("written");
        sealed.ok(&["import", "jsonl", "tasks.jsonl"]);
        let shown = sealed.transcript("
            prune --older-than 1d
            prune --older-than soon
            prune --older-than 7d
            --json prune
            list
            import jsonl tasks.jsonl
        ");
        insta::assert_snapshot!("prune", shown);
    }
}

/// (On PostgreSQL events must stay that are newer than the oldest transaction of any test.)
#[test]
fn old_events_are_pruned_batch_by_batch() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let lines: String = (1..=2300).map(|n| format!("{{\"title\":\"t{n}\"}}\n")).collect();
    std::fs::write(sealed.path().join("plan.jsonl"), lines).expect("written");
    sealed.ok(&["add", "-f", "plan.jsonl"]);
    let fleet = rusqlite::Connection::open(sealed.url()).expect("the fleet");
    fleet.execute("update event set at = 1 where id <= 2200", []).expect("aged");
    assert_eq!(
        sealed.ok(&["prune"]),
        "removed 0 tasks, 0 messages, 0 runs, 0 locks, 0 deliveries, 0 posts, 0 keys and 2200 events older than 30d"
    );
    assert_eq!(
        sealed.ok(&["--json", "prune"]),
        r#"{"tasks":0,"messages":0,"runs":0,"locks":0,"deliveries":0,"posts":0,"keys":0,"events":0}"#
    );
}

#[test]
fn a_fleet_is_copied_to_a_new_file() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "keep me"]);
    let said = sealed.ok(&["backup", "copy.db"]);
    let size = std::fs::metadata(sealed.path().join("copy.db")).expect("the copy").len();
    assert_eq!(said, format!("the fleet was copied to copy.db ({} KiB)", size.div_ceil(1024)));
    assert_eq!(sealed.ok(&["--db", "copy.db", "list"]), "main-1  unassigned  50  keep me");
    insta::assert_snapshot!(sealed.show(&["backup", "copy.db"]), @r#"
    $ fence backup copy.db
    error: `copy.db` exists already
    hint: a backup never overwrites a file: name another
    (exit 1)
    "#);
    assert_eq!(sealed.fence(&["backup", "made/for/copy.db"]).code, 0, "directories are made");
    insta::assert_snapshot!(sealed.show(&["backup", "copy.db/no/copy.db"]), @r#"
    $ fence backup copy.db/no/copy.db
    error: cannot make the directory `copy.db/no`: Not a directory (os error 20)
    hint: fence doctor looks for the cause; if it is passing, try again (docs/errors.md#unavailable)
    (exit 1)
    "#);
    let json = sealed.ok(&["--json", "backup", "other.db"]);
    assert!(json.starts_with(r#"{"file":"other.db","bytes":"#), "{json}");
}

#[test]
fn a_fleet_on_postgres_is_not_one_file() {
    let sealed = Sealed::postgres();
    sealed.ok(&["init"]);
    insta::assert_snapshot!(sealed.show(&["backup", "copy.db"]), @r#"
    $ fence backup copy.db
    error: a PostgreSQL fleet is not one file
    hint: use pg_dump; after restoring it, run: fence call admin/restored '{}'
    (exit 1)
    "#);
    assert!(!sealed.path().join("copy.db").exists());
}
