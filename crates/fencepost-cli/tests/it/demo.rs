//! `fence demo`, and its summary compared with the event log.

use crate::sealed::Sealed;
use fencepost::{Fleet, admin, event};
use std::collections::HashMap;

#[test]
fn the_demo_keeps_its_promises() {
    let sealed = Sealed::sqlite();
    let tmp = sealed.path().join("tmp");
    std::fs::create_dir(&tmp).expect("a directory");
    let said = sealed.sh("TMPDIR=$PWD/tmp MAX_CONCURRENT_TASKS=9 FENCE_RUN=outer fence --json demo --keep");
    assert_eq!(said.code, 0, "{said:?}");
    let summary: serde_json::Value =
        serde_json::from_str(said.out.lines().next().expect("a line")).expect("JSON");
    assert_eq!(summary["problems"], serde_json::json!([]), "{summary}");
    let stage =
        std::fs::read_dir(&tmp).expect("it").next().expect("the demo's directory").expect("an entry").path();
    let log = read(&stage.join("fence.db").display().to_string());
    // Counted again, from the events alone.
    let count = |kind: &str, prefix: &str| {
        log.iter().filter(|event| event.kind == kind && event.resource.starts_with(prefix)).count()
    };
    assert_eq!(summary["tasks"], count("task.added", "task/"));
    assert_eq!(count("task.completed", "task/"), count("task.added", "task/"));
    assert_eq!(summary["messages"], count("message.completed", "message/"));
    assert_eq!(summary["mentions"], count("mentions.read", "mentions/"));
    assert_eq!(summary["runs"], count("run.triggered", "run/"));
    assert_eq!(summary["stale_writes_refused"], count("channel.posted", "channel/refused"));
    assert!(count("task.lapsed", "task/") >= 2, "one was killed and one was frozen");
    let mut completions: HashMap<&str, usize> = HashMap::new();
    for event in log.iter().filter(|event| event.kind == "task.completed") {
        *completions.entry(&event.resource).or_default() += 1;
    }
    assert!(completions.values().all(|n| *n == 1), "{completions:?}");
    // Nothing of it runs on, and what is kept can be looked at.
    let left = sealed.sh("grep -lz \"FENCE_DEMO=$PWD\" /proc/[0-9]*/environ 2>/dev/null | wc -l");
    assert_eq!(left.out, "0");
}

fn read(db: &str) -> Vec<event::Entry> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let fleet = Fleet::open(db).await.expect("the fleet");
        assert!(fleet.call(admin::Check {}).await.expect("the check").ok);
        let list = event::List { limit: Some(1000), ..event::List::default() };
        let page = fleet.call(list).await.expect("the log");
        assert!(!page.more);
        page.events
    })
}
