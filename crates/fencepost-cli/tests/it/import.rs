//! Importing pm lists and lines of JSON, plans, and large files.

use crate::{on_both, sealed::Sealed};
use rusqlite::Connection;
use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
};

const PM: &[u8] = include_bytes!("../data/pm-tasks.db");

impl Sealed {
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), content).expect("written");
    }

    /// A pm list made by this SQL.
    fn pm(&self, name: &str, sql: &str) -> (PathBuf, Connection) {
        let path = self.path().join(name);
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch(sql).expect("a pm list");
        (path, connection)
    }

    fn beside(&self) -> BTreeSet<String> {
        let files = fs::read_dir(self.path()).expect("the directory");
        files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect()
    }
}

const TABLES: &str = "
    create table tasks(sprint text, task_num, title, description text, done_when text, status text,
      blocked_reason text, type text, owner text, skills text, priority, horizon text, completed_at, commit_hash text,
      created_at, mood);
    create table task_dependencies(sprint text, task_num, depends_on_sprint text, depends_on_task);
";

/// So many lines, with bodies of so many bytes. Each task depends on the previous one and on the one at half its number.
fn chain(count: usize, body: usize) -> String {
    let body = "x".repeat(body);
    let line = |n: usize| match n {
        1 => format!("{{\"id\":\"big-1\",\"title\":\"t1\",\"body\":\"{body}\"}}\n"),
        n => format!(
            "{{\"id\":\"big-{n}\",\"title\":\"t{n}\",\"body\":\"{body}\",\"after\":[\"big-{}\",\"big-{}\"]}}\n",
            n - 1,
            n.div_ceil(2)
        ),
    };
    // In reverse, so that the order of the file does not help.
    (1..=count).rev().map(line).collect()
}

on_both! {
    fn a_pm_list_is_imported_once(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("tasks.db", PM);
        let shown = sealed.transcript("
            import pm tasks.db --dry-run
            list
            import pm tasks.db
            import pm tasks.db
            --json import pm tasks.db --dry-run
            list --board auth
            list --board billing-sprint-2
            show auth-4
            show auth-5
            show auth-10
        ");
        insta::assert_snapshot!("pm", shown);
        assert_eq!(fs::read(sealed.path().join("tasks.db")).unwrap(), PM, "the file is only read");
        sealed.readable();
        let events = sealed.ok(&["--json", "call", "event/list", "{\"resource\": \"task/auth-4\"}"]);
        assert!(events.contains(r#""kind":"task.imported""#) && events.contains(r#""owner":"tab-1""#), "{events}");
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
    }

    fn a_dependency_across_sprints_blocks_and_unblocks(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("tasks.db", PM);
        sealed.ok(&["import", "pm", "tasks.db", "--board", "Billing Sprint 2=billing"]);
        let shown = sealed.transcript("
            claim billing-5
            why billing-5
            claim auth-3 -q
            done task/auth-3@1 --output 'the tables are there'
            claim billing-5 -q
            show billing-5
            add 'goes on after the highest number' --board billing
        ");
        insta::assert_snapshot!("across", shown);
    }

    /// Every column, and everything that can be wrong with one.
    fn omissions_are_listed(sealed: Sealed) {
        sealed.ok(&["init"]);
        let (_, odd) = sealed.pm("odd.db", TABLES);
        odd.execute_batch("
            insert into tasks(sprint, task_num, title, status) values
              ('a', 1, 'fine', null), ('a', 0, 'zero', 'pending'), ('a', 'x', 'no number', 'pending'),
              ('a', 2, '', 'pending'), ('a', 3, 'odd', 'purple'), ('a', 4, 'no reason', 'blocked'),
              ('a', 5, 'one', 'pending'), ('a', 6, 'two', 'pending'), ('a', 7, 'three', 'RED'),
              ('', 1, 'nowhere', 'pending'), ('A b', 1, 'x', 'pending'), ('a-b', 1, 'y', 'pending'),
              ('a/b', 1, 'z', 'pending'), ('\u{1F600}', 1, 'smile', 'pending');
            insert into tasks(sprint, task_num, title, status, type, skills, priority, horizon, created_at, completed_at,
              commit_hash, mood, owner) values
              ('a', 10, 'all', 'green', 'front end', '[\"rust\", \"c++\", \"rust\"]', 1.5, 'active', '2026-01-10 09:00:00',
               '2026-01-12T10:00:00+01:00', 'abc123', 'good', 'tab 1'),
              ('a', 11, 'when', 'pending', '???', null, 'high', 'later', 'yesterday', null, null, x'00', null),
              ('a', 12, 'first', 'pending', 'docs', 'a,b', -1, 'next', 1767000000, null, null, null, null);
            insert into tasks(sprint, task_num, title, description, done_when) values
              ('a', 13, replace(hex(zeroblob(300)), '0', 'x'), replace(hex(zeroblob(200000)), '0', 'y'), 'a' || char(0) || 'b');
            insert into task_dependencies values
              ('a', 1, 'a', 2), ('a', 1, 'gone', 9), ('a', 1, 'a', 0), ('a', 99, 'a', 1),
              ('a', 5, 'a', 6), ('a', 6, 'a', 7), ('a', 7, 'a', 5), ('a', 4, 'a', 4), ('a-b', 1, 'a', 10);
            create table notes(text); insert into notes values ('x'), ('y');
            create table empty(text);
        ").unwrap();
        let shown = sealed.transcript("
            import pm odd.db
            import pm odd.db
            list
            --json show a-10
            --json show a-12
            show a-3
        ");
        insta::with_settings!({ filters => vec![("[xy]{100,}", "[long]")] }, {
            insta::assert_snapshot!("odd", shown);
        });
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
    }

    fn a_file_that_is_no_pm_list_is_refused(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("text.db", "just a text, long enough to be a header of something");
        sealed.write("empty.db", "");
        sealed.pm("other.db", "create table task(id)");
        sealed.pm("half.db", "create table tasks(sprint text, task_num integer)");
        sealed.write("tasks.db", PM);
        let shown = sealed.transcript("
            import pm missing.db
            import pm .
            import pm text.db
            import pm empty.db
            import pm other.db
            --json import pm half.db
            import pm tasks.db --board auth
            import pm tasks.db --board 'auth=a b'
            import pm tasks.db --board web=x
            add mine --board billing-sprint-2
            import pm tasks.db
            list
            import pm tasks.db --board 'Billing Sprint 2=billing'
            import pm tasks.db --name other --board 'Billing Sprint 2=b2' --board auth=a2
        ");
        insta::assert_snapshot!("no_pm", shown);
    }

    fn lines_of_json_are_imported(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("tasks.jsonl", concat!(
            r#"{"id":"web-7","title":"forms","after":["web-3"],"priority":80}"#, "\n\n",
            r#"{"id":"web-3","title":"pages","status":"completed","output":"see pages/"}"#, "\n",
            r#"{"id":"ops-1","title":"deploy","parked":"no server","after":["web-7"],"owner":"kim"}"#, "\n",
        ));
        sealed.write("later.jsonl", r#"{"id":"web-7","title":"other forms"}"#);
        sealed.write("wrong.jsonl", "{\"id\":\"web-8\",\"title\":\"fine\"}\n\n{\"id\":\"web-9\",\"titel\":\"x\"}\n");
        sealed.write("long.jsonl", format!("{{\"id\":\"web-8\",\"title\":\"fine\"}}\n{{\"id\":\"web-9\",\"title\":\"{}\"}}\n", "x".repeat(501)));
        sealed.write("circle.jsonl", "{\"id\":\"c-1\",\"title\":\"a\",\"after\":[\"c-2\"]}\n{\"id\":\"c-2\",\"title\":\"b\",\"after\":[\"c-1\"]}\n");
        sealed.write("after.jsonl", "{\"id\":\"c-1\",\"title\":\"a\"}\n{\"id\":\"c-2\",\"title\":\"b\",\"after\":[\"c-9\"]}\n");
        sealed.write("twice.jsonl", "{\"id\":\"c-1\",\"title\":\"a\"}\n{\"id\":\"c-1\",\"title\":\"b\"}\n");
        sealed.write("taken.jsonl", r#"{"id":"web-8","title":"x"}"#);
        sealed.write("empty.jsonl", "\n\n");
        let shown = sealed.transcript("
            import jsonl tasks.jsonl --dry-run
            import jsonl tasks.jsonl
            import jsonl tasks.jsonl
            import jsonl later.jsonl
            list
            --json import jsonl tasks.jsonl
            import jsonl tasks.jsonl --board web=site --board ops=infra
            show site-7
            import jsonl tasks.jsonl --board nosuch=y
            import jsonl wrong.jsonl
            import jsonl long.jsonl
            --json import jsonl long.jsonl
            import jsonl circle.jsonl
            import jsonl after.jsonl
            import jsonl twice.jsonl
            add 'web eight' --board web
            import jsonl taken.jsonl
            import jsonl empty.jsonl
            import jsonl missing.jsonl
            import
        ");
        insta::assert_snapshot!("jsonl", shown);
        let piped = sealed.sh(r#"echo '{"id":"pipe-1","title":"x"}' | fence import jsonl -"#);
        assert_eq!((piped.code, piped.out.as_str()), (0, "imported 1 task: 1 to pipe"));
    }

    /// A call takes as many as have 1792 KiB together.
    fn many_bytes_take_several_calls(sealed: Sealed) {
        take_several_calls(&sealed, 40, 128 * 1024);
    }

    /// A call takes 10,000 tasks.
    #[ignore = "long: make soak"]
    fn soak_twelve_thousand_tasks_take_several_calls(sealed: Sealed) {
        take_several_calls(&sealed, 12_000, 0);
    }

    fn a_plan_is_added_from_a_file(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("plan.jsonl", concat!(
            r#"{"name":"build","title":"build it","key":"k1"}"#, "\n",
            r#"{"name":"test","title":"test it","after":["build"],"priority":80}"#, "\n\n",
            r#"{"title":"ship it","after":["build","test"],"tags":["release"]}"#, "\n",
        ));
        sealed.write("wrong.jsonl", "{\"title\":\"a\"}\n\n{\"title\":\"b\",\"priority\":101}\n");
        sealed.write("unknown.jsonl", "{\"title\":\"a\"}\n{\"title\":\"b\",\"after\":[\"nothing\"]}\n");
        sealed.write("missing.jsonl", "{\"title\":\"a\"}\n{\"title\":\"b\",\"after\":[\"auth-99\"]}\n");
        sealed.write("syntax.jsonl", "{\"title\":\"a\"}\n{\"title\":\"b\"\n");
        sealed.write("one.jsonl", "\n\n{\"title\":\"\"}\n");
        let shown = sealed.transcript("
            add -f plan.jsonl --board auth
            add -f plan.jsonl --board auth
            add -f wrong.jsonl
            add -f unknown.jsonl
            add -f missing.jsonl
            add -f syntax.jsonl
            --json add -f syntax.jsonl
            add -f one.jsonl
            add -f no-such-file
            add -f plan.jsonl 'a title'
            add -f plan.jsonl -p 50
            add
            list
        ");
        insta::assert_snapshot!("plan", shown);
        let piped = sealed.sh(r#"echo '{"title":"from a pipe"}' | fence add -f - --json | grep -o '"id":"main-1"'"#);
        assert_eq!(piped.out, r#""id":"main-1""#);
        let asked = sealed.sh("fence add -f plan.jsonl --board web --request q1; fence add -f plan.jsonl --board web --request q1");
        let (first, second) = asked.out.split_at(asked.out.len() / 2);
        assert_eq!(first.trim(), second.trim());
    }

    /// The first call is kept; the next import goes on from there.
    fn a_refusal_says_how_much_was_imported(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "in the way", "--board", "late"]);
        // More than one call takes.
        let lines = chain(20, 128 * 1024) + "{\"id\":\"late-1\",\"title\":\"x\",\"after\":[\"big-20\"]}\n";
        sealed.write("big.jsonl", &lines);
        insta::assert_snapshot!("half_way", sealed.transcript("
            import jsonl big.jsonl
        "));
        sealed.write("big.jsonl", lines.replace("late-1", "late-2"));
        assert_eq!(
            sealed.ok(&["import", "jsonl", "big.jsonl"]),
            "imported 8 tasks: 7 to big, 1 to late\n13 existed already and were not changed",
        );
    }

    without a server:

    /// A line that is drawn over itself, on a terminal only, and removed at the end.
    fn progress_is_shown_on_a_terminal(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("big.jsonl", chain(20, 128 * 1024));
        let terminal = |command: &str| sealed.sh(&format!("script -qec '{command}' /dev/null"));
        let shown = terminal("fence import jsonl big.jsonl").out;
        assert!(shown.starts_with("\r\x1b[Kimporting: 0 of 20 tasks"), "{shown:?}");
        assert!(shown.ends_with("\r\x1b[Kimported 20 tasks: 20 to big"), "{shown:?}");
        let json = terminal("fence --json import jsonl big.jsonl | head -c 20");
        assert_eq!(json.out, r#"{"dry_run":false,"im"#);
        let piped = sealed.sh("fence import jsonl big.jsonl 2>&1 >/dev/null");
        assert_eq!((piped.code, piped.out.as_str()), (0, ""));
        let pruned = terminal("fence prune").out;
        assert!(pruned.starts_with("\r\x1b[Kremoved 0 tasks, 0 messages, 0 runs"), "{pruned:?}");
    }
}

/// More than one call takes: dependencies go first.
fn take_several_calls(sealed: &Sealed, count: usize, body: usize) {
    sealed.ok(&["init"]);
    sealed.write("big.jsonl", chain(count, body));
    let all = format!("{count} tasks: {count} to big");
    let dry = sealed.fence(&["import", "jsonl", "big.jsonl", "--dry-run"]);
    assert_eq!((dry.out, dry.err.as_str()), (format!("would import {all}"), ""));
    let first = sealed.fence(&["import", "jsonl", "big.jsonl"]);
    assert_eq!((first.code, first.out, first.err.as_str()), (0, format!("imported {all}"), ""));
    let again = sealed.ok(&["import", "jsonl", "big.jsonl"]);
    assert_eq!(again, format!("nothing to import: all {count} tasks exist already"));
    let last = sealed.ok(&["--json", "show", &format!("big-{count}")]);
    assert!(last.contains(r#""waiting_on":2"#), "{last}");
    assert_eq!(sealed.ok(&["claim", "-q"]), "task/big-1@1");
    assert_eq!(sealed.fence(&["claim"]).code, 3);
    sealed.ok(&["done", "task/big-1@1"]);
    assert_eq!(sealed.ok(&["claim", "-q"]), "task/big-2@1");
    assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
}

/// Reading creates no files, in any journal mode, and sees rows that are only in the log.
#[test]
fn nothing_is_written_beside_a_pm_list() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let one = "insert into tasks(sprint, task_num, title, status) values ('a', 1, 'one', 'pending')";
    let (path, list) = sealed.pm("wal #1?.db", &format!("pragma journal_mode=wal; {TABLES} {one}"));
    let import = || sealed.fence(&["import", "pm", "wal #1?.db", "--dry-run"]);
    let log = fs::metadata(path.with_file_name("wal #1?.db-wal")).expect("its log").len();
    assert!(log > 0 && import().out.starts_with("would import 1 task"), "{:?}", import());
    assert_eq!(fs::metadata(path.with_file_name("wal #1?.db-wal")).expect("its log").len(), log);
    drop(list);
    let files = sealed.beside();
    assert!(!files.contains("wal #1?.db-wal"), "{files:?}");
    assert!(import().out.starts_with("would import 1 task"), "{:?}", import());
    assert_eq!(sealed.beside(), files);
    sealed.write("wal #1?.db-wal", "left behind");
    let said = import();
    assert_eq!(
        (said.code, said.err.as_str()),
        (
            1,
            "error: `wal #1?.db` was not closed by its last user\nhint: let SQLite recover it first: sqlite3 'wal #1?.db' .tables"
        )
    );
}

/// The log is beside the file itself, also if a link leads to the file.
#[test]
fn the_log_of_a_linked_file_is_read() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let one = "insert into tasks(sprint, task_num, title, status) values ('a', 1, 'one', 'pending')";
    let (path, list) = sealed.pm("list.db", &format!("pragma journal_mode=wal; {TABLES}"));
    list.execute_batch(&format!("pragma wal_checkpoint(truncate); {one}")).expect("only in the log");
    let link = sealed.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    assert_eq!(sealed.ok(&["import", "pm", "link.db", "--dry-run"]), "would import 1 task: 1 to a");
    drop(list);

    let odd = sealed.path().join(OsStr::from_bytes(b"l\xFFst.db"));
    fs::copy(&path, &odd).expect("a copy");
    let list = Connection::open(&odd).expect("the copy");
    list.execute_batch(&one.replace("1, 'one'", "2, 'two'")).expect("only in the log");
    let said =
        sealed.command("fence").args(["import", "pm"]).arg(&odd).arg("--dry-run").output().expect("fence");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "would import 2 tasks: 2 to a\n", "{said:?}");
}

/// A fleet has priorities from 0 to 100, and a sprint can have more ranks.
#[test]
fn an_order_that_cannot_be_kept_is_listed() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let (_, list) = sealed.pm("list.db", TABLES);
    let add = |from: i64, to: i64| {
        for n in from..=to {
            let row = (n, format!("t{n}"), 1000 - n);
            let sql = "insert into tasks(sprint, task_num, title, status, priority) values ('a', ?1, ?2, 'pending', ?3)";
            list.execute(sql, row).expect("a task");
        }
    };
    add(1, 101);
    let report = sealed.ok(&["import", "pm", "list.db", "--dry-run"]);
    assert_eq!(report, "would import 101 tasks: 101 to a", "all can be told apart");
    add(102, 103);
    let report = sealed.ok(&["import", "pm", "list.db"]);
    let listed: Vec<&str> = report.lines().skip(2).collect();
    assert_eq!(listed.len(), 3, "{report}");
    assert_eq!(
        listed[0],
        "  a-1  priority 999 is now 0, like other tasks of its sprint: there are too many to tell apart"
    );
    for first in ["task/a-103@1", "task/a-102@1", "task/a-101@1"] {
        assert_eq!(sealed.ok(&["claim", "-q"]), first);
    }
}

/// A stranger's file may be a pipe or a device, or hold far more than it seems to.
#[test]
fn only_regular_files_of_a_limited_size_are_imported() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    // Somebody writes to the pipes, so that a command that reads one ends as well.
    let refused = |kind: &str, file: &str| {
        let said = sealed.sh(&format!("fence import {kind} {file}"));
        assert_eq!(said.code, 1, "{said:?}");
        said.err
    };
    let beside = sealed.sh("mkfifo pipe; ln -s /dev/null device");
    assert_eq!(beside.code, 0, "{beside:?}");
    let pipe = OpenOptions::new().read(true).write(true).open(sealed.path().join("pipe")).expect("a pipe");
    (&pipe).write_all(b"this is no database, and has more than 20 bytes").expect("written");
    for kind in ["pm", "agent-swarm"] {
        for file in ["pipe", "device"] {
            let said = refused(kind, file);
            assert!(said.contains(&format!("`{file}` cannot be read: it is not a regular file")), "{said}");
        }
    }
    drop(pipe);
    for file in ["device", "/dev/zero", "."] {
        let said = refused("jsonl", file);
        assert!(said.contains("it is not a regular file; a pipe is read with `-`"), "{said}");
    }
    let piped = r#"(printf '{"id":"a-1","title":"x"}' > pipe) >/dev/null 2>&1 &
        fence import jsonl pipe; code=$?; kill $!; exit $code"#;
    let said = sealed.sh(piped);
    assert!(said.code == 1 && said.err.contains("a pipe is read with `-`"), "{said:?}");
    let said = sealed.sh(r#"fence import jsonl <(printf '{"id":"a-1","title":"x"}')"#);
    assert_eq!(said.out, "imported 1 task: 1 to a", "the caller's own pipe");

    // A journal that is a pipe: SQLite would wait for its writer.
    let (_, list) = sealed.pm("list.db", TABLES);
    drop(list);
    assert_eq!(sealed.sh("mkfifo list.db-journal").code, 0);
    let journal = sealed.path().join("list.db-journal");
    let held = OpenOptions::new().read(true).write(true).open(&journal).expect("a pipe");
    let said = refused("pm", "list.db");
    assert!(said.contains("`list.db-journal` is not a regular file"), "{said}");
    drop(held);

    // A column that is computed has no bytes in the file.
    for (name, bomb) in [("blob.db", "zeroblob(1000000000)"), ("text.db", "hex(zeroblob(20000000))")] {
        let sql = format!(
            "create table tasks(sprint text, task_num, title, bomb as ({bomb}));
             insert into tasks(sprint, task_num, title) values ('a', 1, 'one')"
        );
        drop(sealed.pm(name, &sql));
        let said = refused("pm", name);
        assert!(said.contains("it has a value or a row with more than 16777216 bytes"), "{said}");
    }
    // SQLite computes all columns of a row before anybody can count their bytes.
    let columns: Vec<String> = (0..30).map(|n| format!("c{n} as (hex(zeroblob(8000000)))")).collect();
    let sql = format!("create table tasks(sprint text, task_num, title, {})", columns.join(", "));
    drop(sealed.pm("columns.db", &sql));
    let said = refused("pm", "columns.db");
    assert!(said.contains("a table has more than 2 computed columns"), "{said}");
    sealed.swarm("swarm.db", "alter table agent_tasks add column bomb as (zeroblob(1000000000))");
    let said = refused("agent-swarm", "swarm.db");
    assert!(said.contains("it has a value or a row with more than 16777216 bytes"), "{said}");
    // SQLite has not the module of this table, and to ask it for a column would end the process.
    let other = "create table other(x); pragma writable_schema = on; insert into sqlite_master values
        ('table', 'tasks', 'tasks', 0, 'create virtual table tasks using missing(sprint, task_num, title)')";
    drop(sealed.pm("virtual.db", other));
    let said = refused("pm", "virtual.db");
    assert!(said.contains("its table `tasks` has no column `sprint`"), "{said}");
    let line = format!("{{\"id\":\"a-2\",\"title\":\"x\",\"body\":\"{}\"}}", "x".repeat(17 << 20));
    sealed.write("long.jsonl", &line);
    let said = refused("jsonl", "long.jsonl");
    assert!(said.contains("line 1: `long.jsonl` is too large for an import"), "{said}");
    assert_eq!(sealed.ok(&["list"]), "a-1  unassigned  50  x");
}

/// Other files that the command line names are opened in the same way.
#[test]
fn no_command_waits_for_a_pipe_or_reads_without_end() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    for command in [
        "fence add -f /dev/null",
        "fence add one --body @/dev/null",
        "fence call task/list @/dev/null",
        "fence mail push box @/dev/null",
        "fence mail push box --lines /dev/null",
        "fence loop start l --prd /dev/null",
    ] {
        let said = sealed.sh(command);
        assert!(said.code == 1 && said.err.contains("it is not a regular file"), "{command}: {said:?}");
    }
    let said = sealed.sh("fence add -f - < /dev/zero");
    assert!(said.err.contains("`-` cannot be read: it is longer than 67108864 bytes"), "{said:?}");
    let said = sealed.sh("fence mail push box --lines - < /dev/zero");
    assert!(said.err.contains("`-` cannot be read: a line is longer than 16777216 bytes"), "{said:?}");
    let said = sealed.sh("fence mail push box --lines <(printf 'one\r\ntwo')");
    assert_eq!(said.out, "pushed 2 messages");
}
