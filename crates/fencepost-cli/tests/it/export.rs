//! Moving a fleet with `fence export` and `fence import jsonl`.

use crate::{
    on_both,
    sealed::{Sealed, Serving},
};
use fencepost::{Fleet, op};
use fencepost_testing::sample_fleet;
use serde_json::Value;
use std::{fs, os::unix::fs::PermissionsExt};

fn fill(sealed: &Sealed) {
    sealed.ok(&["init"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fleet = runtime.block_on(Fleet::open(&sealed.url())).expect("the fleet");
    for (name, request) in sample_fleet::calls() {
        // Keys are not exported, and with a key a server would refuse calls without one.
        if name == "key/add" {
            continue;
        }
        let served = runtime.block_on(op::find(name).expect("an op").serve(&fleet, request.as_bytes()));
        served.unwrap_or_else(|e| panic!("{name} {request}: {e}")).delivery.delivered();
    }
}

/// The lines of an export, without the parts that differ: the header, which has a time, and the owners of tasks, because nobody
/// holds anything in a copy.
fn comparable(export: &str) -> Vec<Value> {
    let lines = export.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut lines: Vec<Value> = lines.collect();
    assert_eq!((&lines[0]["type"], &lines[0]["version"]), (&Value::from("fencepost"), &Value::from(1)));
    lines.remove(0);
    for line in lines.iter_mut().filter(|line| line["type"] == "task") {
        line.as_object_mut().expect("an object").remove("owner");
    }
    lines
}

fn names(sealed: &Sealed) -> Vec<String> {
    let files = fs::read_dir(sealed.path()).expect("the directory");
    let mut names: Vec<_> =
        files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

on_both! {
    /// From each world to each database, and from there to the other one.
    fn a_fleet_moves_to_the_other_database_and_back(sealed: Sealed) {
        fill(&sealed);
        let said = sealed.ok(&["export", "fleet.jsonl"]);
        assert_eq!(said, "exported to fleet.jsonl: 3 agents, 2 boards, 2 channels, 2 cursors, 6 mailboxes, 20 messages, 4 posts, 3 routes, 17 tasks");
        let file = fs::read_to_string(sealed.path().join("fleet.jsonl")).expect("the file");
        let first = comparable(&file);
        assert!(file.contains("\\u202e") && !file.contains('\u{202e}'), "nothing in it acts on a terminal");
        assert!(!file.contains(|c: char| c.is_control() && c != '\n'), "nor does a control character");
        assert_eq!(comparable(&sealed.ok(&["export"])), first, "standard output has the same");
        assert_eq!(comparable(&sealed.ok(&["export", "-"])), first);

        let mut text = file;
        for other in [Sealed::postgres(), Sealed::sqlite()] {
            other.ok(&["init"]);
            other.write("fleet.jsonl", &text);
            let shown = other.transcript("
                import jsonl fleet.jsonl --dry-run
                import jsonl fleet.jsonl
                import jsonl fleet.jsonl
                --json import jsonl fleet.jsonl
            ");
            insta::allow_duplicates! {
                insta::assert_snapshot!("moved", shown);
            }
            let copy = other.ok(&["export"]);
            assert_eq!(comparable(&copy), first);
            assert!(other.ok(&["call", "admin/check"]).contains("\"ok\": true"));
            // A payload is unchanged.
            let message = other.ok(&["mail", "claim", "box", "--count", "10"]);
            assert!(message.contains("1.0e+02") && message.contains("12345678901234567890123"), "{message}");
            text = copy;
        }
    }

    /// The fleet has all items already, and has changed since.
    fn existing_items_are_not_changed(sealed: Sealed) {
        fill(&sealed);
        sealed.ok(&["export", "fleet.jsonl"]);
        sealed.ok(&["claim", "auth-1", "-q"]);
        sealed.ok(&["agent", "join", "bob", "--role", "lead"]);
        sealed.ok(&["route", "add", "slack", "--channel", "C1", "--text", "deploy", "--to", "bob"]);
        let before = comparable(&sealed.ok(&["export"]));
        let shown = sealed.transcript("
            import jsonl fleet.jsonl
            --json import jsonl fleet.jsonl --dry-run
            import jsonl fleet.jsonl --board auth=copy --board web=copied
            show copy-3
        ");
        insta::with_settings!({ filters => vec![(r"@\d{13}", "@TIME")] }, {
            insta::assert_snapshot!("there", shown);
        });
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
        let after = comparable(&sealed.ok(&["export"]));
        let ours = after.into_iter().filter(|line| !line.to_string().contains("cop") && line["type"] != "end");
        assert_eq!(ours.collect::<Vec<_>>(), before.into_iter().filter(|line| line["type"] != "end").collect::<Vec<_>>());
        // The copies are separate tasks, also in the next export.
        sealed.ok(&["export", "both.jsonl"]);
        let other = Sealed::sqlite();
        other.ok(&["init"]);
        other.write("both.jsonl", fs::read(sealed.path().join("both.jsonl")).expect("the file"));
        other.ok(&["import", "jsonl", "both.jsonl", "--dry-run"]);
        other.ok(&["import", "jsonl", "both.jsonl"]);
        assert_eq!(other.ok(&["list", "--limit", "1000"]).lines().count(), sealed.ok(&["list", "--limit", "1000"]).lines().count());
    }

    /// Messages that do not fit into the call of their mailbox still belong to a strict one.
    fn a_dry_run_knows_the_mailboxes_of_the_file(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["mail", "configure", "strict", "--strict"]);
        sealed.write("long.txt", "x".repeat(900_000));
        for _ in 0..3 {
            sealed.ok(&["mail", "push", "strict", "@long.txt", "--lane", "a"]);
        }
        sealed.ok(&["export", "fleet.jsonl"]);
        let other = Sealed::sqlite();
        other.ok(&["init"]);
        other.write("fleet.jsonl", fs::read(sealed.path().join("fleet.jsonl")).expect("the file"));
        let [asked, done] = [&["--dry-run"][..], &[]].map(|more| {
            other.ok(&[&["--json", "import", "jsonl", "fleet.jsonl"], more].concat()).replace("true", "false")
        });
        assert_eq!(asked, done);
    }

    fn single_boards_are_exported(sealed: Sealed) {
        fill(&sealed);
        let said = sealed.ok(&["--json", "export", "web.jsonl", "--board", "web"]);
        assert!(said.contains(r#""items":{"board":1,"fleet":1,"task":2}"#), "{said}");
        let unknown = sealed.fence(&["export", "nothing.jsonl", "--board", "wbe"]);
        assert!(unknown.code == 1 && unknown.err.contains("there is no board `wbe`"), "{unknown:?}");
        assert!(!sealed.path().join("nothing.jsonl").exists());
        let other = Sealed::sqlite();
        other.ok(&["init"]);
        other.write("web.jsonl", fs::read(sealed.path().join("web.jsonl")).expect("the file"));
        insta::assert_snapshot!("boards", other.transcript("
            import jsonl web.jsonl
            import jsonl web.jsonl
            list
        "));
    }

    without a server:

    fn a_file_is_written_whole_and_never_over_another(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        sealed.write("mine.jsonl", "mine");
        fs::create_dir(sealed.path().join("folder")).expect("made");
        std::os::unix::fs::symlink("mine.jsonl", sealed.path().join("link.jsonl")).expect("linked");
        let before = names(&sealed);
        let shown = sealed.transcript("
            export mine.jsonl
            export folder
            export link.jsonl --force
            export mine.jsonl/x
            export --force
        ");
        insta::allow_duplicates! { insta::assert_snapshot!("refused", shown); }
        assert_eq!(fs::read_to_string(sealed.path().join("mine.jsonl")).expect("the file"), "mine");
        assert_eq!(names(&sealed), before, "nothing is left behind");
        sealed.ok(&["export", "mine.jsonl", "--force"]);
        sealed.ok(&["export", "a/b/new.jsonl"]);
        for file in ["mine.jsonl", "a/b/new.jsonl"] {
            let mode = fs::metadata(sealed.path().join(file)).expect("the file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert_eq!(names(&sealed).len(), before.len() + 1);
        let stopped = sealed.sh("fence export | head -c 20; echo ${PIPESTATUS[0]}; fence export > /dev/full");
        assert!(stopped.out.ends_with(",0") && stopped.code == 1, "{stopped:?}");
    }

    fn errors_name_the_line(sealed: Sealed) {
        sealed.ok(&["init"]);
        let header = r#"{"type":"fencepost","version":1}"#;
        for (name, lines) in [
            ("newer", vec![r#"{"type":"fencepost","version":2,"new":true}"#]),
            ("cut", vec![header, r#"{"type":"agent","name":"bob"}"#]),
            ("short", vec![header, r#"{"type":"end","items":3}"#]),
            ("type", vec![r#"{"id":"a-1","title":"x"}"#, "", r#"{"type":"wish"}"#]),
            ("field", vec![r#"{"type":"agent","name":"bob","rolle":"lead"}"#]),
            ("value", vec![header, r#"{"type":"agent","name":"bob"}"#, r#"{"type":"post","id":"1","channel":"general","body":""}"#, r#"{"type":"end","items":2}"#]),
            ("channel", vec![r#"{"type":"post","id":"1","channel":"nowhere","body":"x"}"#]),
            ("lane", vec![r#"{"type":"mailbox","name":"box"}"#, r#"{"type":"message","key":"k","mailbox":"box","lane":"a"}"#]),
            ("empty", vec![header, r#"{"type":"end","items":0}"#]),
            ("circle", vec![header, r#"{"type":"task","id":"c-1","title":"a","after":["c-2","d-9"]}"#, r#"{"type":"task","id":"c-2","title":"b","after":["c-1"]}"#, r#"{"type":"end","items":2}"#]),
        ] {
            sealed.write(&format!("{name}.jsonl"), lines.join("\n"));
        }
        let shown = sealed.transcript("
            import jsonl newer.jsonl
            --json import jsonl newer.jsonl
            import jsonl cut.jsonl
            import jsonl short.jsonl
            import jsonl type.jsonl
            import jsonl field.jsonl
            import jsonl value.jsonl
            import jsonl channel.jsonl
            import jsonl lane.jsonl
            import jsonl empty.jsonl
            agent list
            list
            import jsonl circle.jsonl
        ");
        insta::assert_snapshot!("lines", shown);
    }

    /// More than a page, and more than a call.
    fn many_items_take_many_pages(sealed: Sealed) {
        sealed.ok(&["init"]);
        let task = |n: usize| format!("{{\"type\":\"task\",\"id\":\"big-{n}\",\"title\":\"t{n}\",\"after\":[\"big-{}\"]}}\n", n + 1);
        let mut lines: String = (1..1200).map(task).collect();
        lines.push_str("{\"id\":\"big-1200\",\"title\":\"the last is the first\"}\n{\"type\":\"channel\",\"name\":\"general\"}\n");
        let text = "x".repeat(4000);
        for n in 1..=600 {
            let at = format!("2026-01-01T00:{:02}:{:02}Z", n / 60, n % 60);
            lines.push_str(&format!("{{\"type\":\"post\",\"id\":\"p{n}\",\"channel\":\"general\",\"body\":\"{n} {text}\",\"mentions\":[\"bob\"],\"at\":\"{at}\"}}\n"));
            lines.push_str(&format!("{{\"type\":\"message\",\"key\":\"m{n}\",\"mailbox\":\"box\",\"payload\":\"{n}\"}}\n"));
        }
        lines.push_str("{\"type\":\"cursor\",\"agent\":\"bob\",\"channel\":\"general\",\"read_until\":\"2026-01-01T00:09:50Z\",\"read_to\":\"p595\"}\n");
        sealed.write("big.jsonl", &lines);
        let said = sealed.ok(&["import", "jsonl", "big.jsonl"]);
        assert_eq!(said, "imported 1200 tasks: 1200 to big\nimported 1 channel, 600 posts, 1 cursor, 600 messages");
        let unread = sealed.ok(&["--json", "channel", "unread", "--agent", "bob"]);
        assert!(unread.contains("\"mentions\":5"), "{unread}");
        let first = comparable(&sealed.ok(&["export"]));
        assert_eq!(first.iter().filter(|line| line["type"] == "post").count(), 600);
        let other = Sealed::sqlite();
        other.ok(&["init"]);
        other.write("all.jsonl", sealed.ok(&["export"]));
        other.ok(&["import", "jsonl", "all.jsonl"]);
        let sorted = |mut lines: Vec<Value>| {
            // In several calls, a task comes after its dependencies.
            lines.sort_by_key(Value::to_string);
            lines
        };
        assert_eq!(sorted(comparable(&other.ok(&["export"]))), sorted(first));
    }

    fn an_export_needs_an_admins_key(sealed: Sealed) {
        fill(&sealed);
        let key = |name: &str, role: &str| sealed.ok(&["key", "add", name, "--role", role, "-q"]);
        let (admin, agent, reader) = (key("kim", "admin"), key("bob", "agent"), key("eye", "reader"));
        let server = Serving::start(&sealed, &[]);
        let there = sealed.over(&server.url);
        for key in [&agent, &reader] {
            let refused = there.fence(&["--key", key, "export", "fleet.jsonl"]);
            assert!(refused.code == 1 && refused.err.contains("admin"), "{refused:?}");
            let piped = there.fence(&["--key", key, "export"]);
            assert!(piped.code == 1 && piped.out.is_empty(), "{piped:?}");
        }
        assert!(!there.path().join("fleet.jsonl").exists());
        there.ok(&["--key", &admin, "export", "fleet.jsonl"]);
        let file = fs::read_to_string(there.path().join("fleet.jsonl")).expect("the file");
        assert_eq!(comparable(&file), comparable(&sealed.ok(&["export"])));
        for secret in [&admin, &agent, &reader] {
            assert!(!file.contains(secret.as_str()), "no key is in it");
        }
        assert_eq!(there.fence(&["--key", &reader, "import", "jsonl", "fleet.jsonl"]).code, 1);
        there.ok(&["--key", &admin, "import", "jsonl", "fleet.jsonl"]);
    }
}
