//! Importing agent-swarm: every row is imported or listed, and open work is claimed once.

use crate::{on_both, sealed::Sealed};
use fencepost::{Fleet, agent, run, task};
use rusqlite::Connection;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

/// A database of agent-swarm 1.135 (its indexes dropped).
const SWARM: &[u8] = include_bytes!("../data/agent-swarm.sqlite");

impl Sealed {
    /// The sample, changed by this SQL.
    pub fn swarm(&self, name: &str, sql: &str) -> PathBuf {
        self.write(name, SWARM);
        let path = self.path().join(name);
        // Its rows refer to users that are not in the sample.
        let sql = format!("pragma foreign_keys = off; {sql}");
        Connection::open(&path).expect("a database").execute_batch(&sql).expect("changed");
        path
    }
}

/// How many rows the file's tables have. One of them cannot be read without a module that we do not have.
fn rows(path: &std::path::Path) -> BTreeMap<String, i64> {
    let file = Connection::open(path).expect("a database");
    let names = "select name from sqlite_master where type = 'table'";
    let names: Vec<String> =
        file.prepare(names).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let count = |name: &String| {
        file.query_row(&format!("select count(*) from \"{name}\""), [], |row| row.get(0)).unwrap_or(-1)
    };
    names.iter().map(|name| (name.clone(), count(name))).collect()
}

/// Every row of every table is imported, existed already, or is listed.
fn account(report: &Value, path: &std::path::Path) {
    let mut left = rows(path);
    for table in report["tables"].as_array().expect("tables") {
        let name = table["table"].as_str().expect("a name");
        let sum: i64 = ["imported", "existing", "left_out"]
            .iter()
            .map(|part| table[part].as_i64().expect("a count"))
            .sum();
        assert_eq!(left.remove(name).unwrap_or(0), sum, "{table}");
        let listed = |line: &&Value| {
            line["row"].as_str().is_some_and(|row| row.starts_with(&format!("{name}/")))
                && line["what"].as_str().is_some_and(|what| what.contains("is left out: "))
        };
        let listed = report["left"].as_array().into_iter().flatten().filter(listed).count() as i64;
        assert_eq!(table["left_out"], listed, "{report:#}");
    }
    for other in report["other_tables"].as_array().into_iter().flatten() {
        let count = left.remove(other["table"].as_str().expect("a name")).expect("a table of the file");
        assert_eq!(other["rows"].as_i64().unwrap_or(-1), count, "{other}");
    }
    left.retain(|_, count| *count != 0);
    assert!(left.is_empty(), "not told of: {left:?}");
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The results of polls, by trigger.
#[derive(Debug, Default)]
struct Given {
    tokens: Vec<String>,
    tasks: BTreeSet<String>,
    reviews: usize,
    messages: BTreeSet<i64>,
    notices: Vec<String>,
    mentions: BTreeSet<String>,
}

/// An agent that polls until there is nothing, three times over: others may free something.
async fn work(fleet: Fleet, name: &'static str, n: usize) -> Given {
    let (mut given, mut empty) = (Given::default(), 0);
    for turn in 0.. {
        let run = format!("{name}-{n}-{turn}");
        let poll = agent::Poll { agent: name.into(), run: run.clone(), ..Default::default() };
        let Some(trigger) = fleet.call(poll).await.expect("polled").trigger else {
            empty += 1;
            if empty == 3 {
                break;
            }
            continue;
        };
        empty = 0;
        given.tokens.extend(trigger.claims.iter().map(|claim| claim.token.clone()));
        given.messages.extend(trigger.messages.iter().map(|message| message.id));
        given.notices.extend(trigger.tasks.iter().map(|task| task.id.clone()));
        for channel in &trigger.channels {
            given.mentions.insert(format!("{name} {}:{:?}", channel.channel, channel.mentions));
        }
        match trigger.kind {
            agent::Type::TaskOffered => {
                given.reviews += 1;
                let token = Some(trigger.claims[0].token.clone());
                let task = trigger.task.expect("a task").id;
                let accept = task::Accept { task, agent: name.into(), token, request: None };
                fleet.call(accept).await.expect("accepted");
            }
            _ => given.tasks.extend(trigger.task.map(|task| task.id)),
        }
        fleet.call(run::Settle { run, ..Default::default() }).await.expect("settled");
    }
    given
}

async fn work_off(url: &str) -> Given {
    let fleet = Fleet::open(url).await.expect("the fleet");
    let mut sum = Given::default();
    // Reviews and completions free tasks that the first polls did not find.
    for round in 0..3 {
        let mut at_work = tokio::task::JoinSet::new();
        for name in ["lead", "builder", "tester", "docs"] {
            (0..2).for_each(|n| drop(at_work.spawn(work(fleet.clone(), name, round * 2 + n))));
        }
        while let Some(given) = at_work.join_next().await {
            let given = given.expect("no panic");
            sum.tokens.extend(given.tokens);
            sum.tasks.extend(given.tasks);
            sum.reviews += given.reviews;
            sum.messages.extend(given.messages);
            sum.notices.extend(given.notices);
            sum.mentions.extend(given.mentions);
        }
    }
    sum
}

on_both! {
    fn a_swarm_is_imported_once_and_its_work_is_claimed_once(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("swarm.sqlite", SWARM);
        let path = sealed.path().join("swarm.sqlite");
        let dry = json(&sealed.ok(&["--json", "import", "agent-swarm", "swarm.sqlite", "--dry-run"]));
        account(&dry, &path);
        let shown = sealed.transcript("
            list
            import agent-swarm swarm.sqlite
            import agent-swarm swarm.sqlite
            list
            show swarm-6
            --json call inbox/list '{\"agent\":\"lead\",\"all\":true,\"limit\":5}'
            call channel/unread '{\"agent\":\"lead\"}'
        ");
        insta::assert_snapshot!("swarm", shown);
        account(&json(&sealed.ok(&["--json", "import", "agent-swarm", "swarm.sqlite"])), &path);
        assert_eq!(fs::read(&path).unwrap(), SWARM, "the file is only read");
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));

        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let given = runtime.block_on(work_off(&sealed.url()));
        let tokens: BTreeSet<&String> = given.tokens.iter().collect();
        assert_eq!(tokens.len(), given.tokens.len(), "something was given twice: {given:?}");
        // All open tasks, except those that depend on failed, cancelled or parked ones.
        let ids: BTreeSet<String> = [2, 4, 5, 6, 15, 17, 26, 27, 28, 37, 38].map(|n| format!("swarm-{n}")).into();
        assert_eq!(given.tasks, ids);
        assert_eq!((given.reviews, given.messages.len()), (8, 6));
        let mentions = ["builder builds:[2, 5, 9, 11]", "docs builds:[10]", "docs general:[5]", "lead builds:[12]", "lead general:[9, 11]"];
        assert_eq!(given.mentions, mentions.map(str::to_owned).into());
        // Leads are notified once of tasks that agent-swarm finished without notifying them, and of those finished here.
        let notices: BTreeSet<&String> = given.notices.iter().collect();
        assert_eq!((notices.len(), given.notices.len()), (6 + ids.len(), 6 + ids.len()), "{:?}", given.notices);
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
        let after = json(&sealed.ok(&["--json", "import", "agent-swarm", "swarm.sqlite"]));
        account(&after, &path);
        assert!(after["differs"].to_string().contains("is completed here, pending there"), "{after:#}");
        assert_eq!(after["tables"][1]["imported"], 0);
    }

    without a server:

    /// agent-swarm ran on after the first import.
    fn a_second_import_adds_new_rows_and_lists_differences(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("swarm.sqlite", SWARM);
        sealed.ok(&["import", "agent-swarm", "swarm.sqlite"]);
        sealed.ok(&["add", "ours", "--board", "swarm"]);
        let path = sealed.swarm("later.sqlite", "
            delete from agent_tasks where status = 'superseded' and priority = 0;
            insert into agent_tasks(id, agentId, task, status, dependsOn, createdAt, lastUpdatedAt)
              select 'new', id, 'a new one', 'pending', '[\"025b413f-8a9a-421e-a648-a7dd06839eb9\"]',
                '2026-01-11T00:00:00.000Z', '2026-01-11T00:00:00.000Z' from agents where name = 'docs';
            update agent_tasks set status = 'completed', finishedAt = '2026-01-11T00:00:00.000Z'
              where id = '587fd280-3bab-4c39-8d88-348a7eed8d14';
            update inbox_messages set status = 'responded', responseText = 'yes' where content = 'message 0';
            insert into channel_messages(id, channelId, content, mentions, replyToId, createdAt)
              select 'p', id, 'one more', '[]', '7bcec85d-2c1f-4acc-a653-c3b78fa09fa2', '2026-01-11T00:00:00.000Z'
              from channels where name = 'general';
            update channel_read_state set lastReadAt = '2026-01-11T00:00:00.000Z', processing_since = null;
            update agents set maxTasks = 5 where name = 'docs';
        ");
        let shown = sealed.transcript("
            import agent-swarm later.sqlite
            import agent-swarm later.sqlite
            call channel/unread '{\"agent\":\"lead\"}'
        ");
        insta::assert_snapshot!("swarm_later", shown);
        account(&json(&sealed.ok(&["--json", "import", "agent-swarm", "later.sqlite"])), &path);
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
    }

    /// Everything that can be wrong with a row, and unknown columns.
    fn omissions_of_a_swarm_are_listed(sealed: Sealed) {
        sealed.ok(&["init"]);
        let path = sealed.swarm("odd.sqlite", "
            delete from agent_tasks where priority <> 100; delete from inbox_messages where content <> 'message 0';
            delete from channel_messages; delete from channel_read_state; delete from channels where name = 'builds';
            alter table agent_tasks add column mood text; alter table agents add column colour text;
            create table users(id, name); insert into users values ('u', 'kim'), ('v', 'ann');
            create table scripts(id); insert into scripts values (1);
            create table empty(id);
            insert into agents(id, name, isLead, status, claudeMd, capabilities, maxTasks, createdAt, lastUpdatedAt, colour) values
              ('a1', 'Front End', 0, 'busy', 'be nice', '[\"c++\", \"rust\"]', 0, '2026-01-10', 'x', 'red'),
              ('a2', 'front-end', 0, 'busy', null, 'none', 1, 'yesterday', 'x', null), ('a3', 'docs', 0, 'busy', null, '[]', 1, '2026-01-01', 'x', null);
            update agent_tasks set mood = 'good', title = 'a title';
            insert into agent_tasks(id, agentId, offeredTo, task, status, taskType, tags, priority, dependsOn, creatorAgentId, progress, createdAt, lastUpdatedAt) values
              ('t1', 'nobody', null, 'x', 'in_progress', 'front end', '[\"a b\", \"\"]', 900, '[\"t2\", \"gone\"]', 'ghost', 'half', '2026-01-10T00:00:01Z', 'x'),
              ('t2', 'a1', null, replace(hex(zeroblob(200000)), '0', 'y'), 'dreaming', '?', '{}', 7, '[\"t3\"]', null, null, '2026-01-10T00:00:02Z', 'x'),
              ('t3', 'a1', null, '', 'unassigned', null, null, 50, '[\"t1\", \"t3\"]', null, null, '2026-01-10T00:00:03Z', 'x'),
              ('', 'a1', null, 'no id', 'unassigned', null, null, 50, '[]', null, null, '2026-01-10T00:00:04Z', 'x'),
              ('t5', null, 'gone', 'y', 'reviewing', null, null, 50, null, null, x'00', '2026-01-10T00:00:05Z', 'x');
            insert into channels(id, name, type, participants, created_by, createdAt) values
              ('c1', 'Team Talk', 'dm', '[\"a1\", \"zz\"]', 'u', '2026-01-10');
            insert into channel_messages(id, channelId, agentId, content, replyToId, mentions, createdAt) values
              ('p1', 'c1', 'a1', '', 'p2', '[\"a2\", \"zz\"]', '2026-01-10T00:00:01Z'),
              ('p2', 'c1', 'zz', 'hi', 'p1', '[]', '2026-01-10T00:00:02Z'),
              ('p3', 'nowhere', 'a1', 'lost', null, '[]', '2026-01-10T00:00:03Z');
            insert into channel_read_state(agentId, channelId, lastReadAt) values
              ('a1', 'c1', '2026-01-10T00:00:01Z'), ('a1', 'nowhere', '2026-01-10'), ('a2', 'c1', 'never');
            pragma ignore_check_constraints = 1;
            insert into inbox_messages(id, agentId, content, source, status, responseText, delegatedToTaskId, created_by, createdAt, lastUpdatedAt) values
              ('m1', 'a1', '', 'Big Mail', 'read', 'why', null, 'u', '2026-01-10', '2026-01-10'),
              ('m2', 'zz', 'for whom', 'slack', 'unread', null, null, null, '2026-01-10', '2026-01-10'),
              ('m3', 'a1', 'do', 'slack', 'delegated', null, 'gone', null, '2026-01-10', '2026-01-10'),
              ('m4', 'a1', 'what', 'slack', 'pondering', null, null, null, '2026-01-10', '2026-01-10');
        ");
        let shown = sealed.transcript("
            import agent-swarm odd.sqlite
            import agent-swarm odd.sqlite
            list
            call inbox/list '{\"agent\":\"front-end-2\",\"all\":true}'
            call channel/read '{\"agent\":\"lead\",\"channel\":\"team-talk\",\"peek\":true}'
        ");
        insta::with_settings!({ filters => vec![("y{100,}", "[long]")] }, {
            insta::assert_snapshot!("swarm_odd", shown);
        });
        let report = json(&sealed.ok(&["--json", "import", "agent-swarm", "odd.sqlite", "--dry-run"]));
        account(&report, &path);
        assert_eq!(report["tables"][1]["left_out"], 1, "{report:#}");
        assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
    }

    fn a_file_that_is_no_swarm_is_refused(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("text.db", "just a text, long enough to be a header of something");
        sealed.swarm("half.db", "drop table agent_tasks");
        sealed.swarm("old.db", "alter table agent_tasks rename column task to description");
        sealed.swarm("left.db", "");
        sealed.write("left.db-wal", "left behind");
        sealed.swarm("taken.db", "");
        let shown = sealed.transcript("
            import agent-swarm missing.db
            import agent-swarm text.db
            import agent-swarm half.db
            --json import agent-swarm old.db
            import agent-swarm left.db
            import agent-swarm taken.db --board 'a b'
            list
        ");
        insta::assert_snapshot!("no_swarm", shown);
    }
}

/// A stranger's column has the name by which SQLite calls the place of a row. Sorting by it would have no limit.
#[test]
fn a_column_named_rowid_does_not_sort_a_swarm() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let tasks = "drop table agent_tasks;
        create table agent_tasks(id, agentId, task, status, priority, createdAt, lastUpdatedAt, rowid text);
        insert into agent_tasks(id, task, status, priority, createdAt, lastUpdatedAt, rowid) values
          ('t1', 'first', 'unassigned', 50, '2026-01-10T00:00:01Z', 'x', 'b'),
          ('t2', 'second', 'unassigned', 50, '2026-01-10T00:00:01Z', 'x', 'a')";
    sealed.swarm("rowid.db", tasks);
    sealed.ok(&["import", "agent-swarm", "rowid.db"]);
    let listed = sealed.ok(&["list"]);
    let places = ["first", "second"].map(|title| listed.find(title).expect(title));
    assert!(places.is_sorted(), "{listed}");
}

/// More than one call takes: posts keep their order, read posts stay read, and a dry run leaves no trace.
#[test]
fn a_large_swarm_takes_several_calls() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let path = sealed.swarm(
        "large.sqlite",
        "with recursive n(n) as (select 1 union all select n + 1 from n where n < 12000)
         insert into channel_messages(id, channelId, agentId, content, replyToId, mentions, createdAt)
         select 'p' || n, (select id from channels where name = 'builds'), (select id from agents where name = 'docs'),
           'post ' || n, case when n > 1 then 'p' || (n - 1) end,
           json_array((select id from agents where name = 'tester')),
           strftime('%Y-%m-%dT%H:%M:%fZ', '2026-02-01', '+' || n || ' seconds') from n;
         insert into channel_read_state(agentId, channelId, lastReadAt)
         select (select id from agents where name = 'tester'), (select id from channels where name = 'builds'),
           strftime('%Y-%m-%dT%H:%M:%fZ', '2026-02-01', '+11990 seconds');",
    );
    let dry = json(&sealed.ok(&["--json", "import", "agent-swarm", "large.sqlite", "--dry-run"]));
    account(&dry, &path);
    account(&json(&sealed.ok(&["--json", "import", "agent-swarm", "large.sqlite"])), &path);
    let unread = json(&sealed.ok(&["--json", "call", "channel/unread", "{\"agent\":\"tester\"}"]));
    assert_eq!(unread["channels"][0]["channel"], "builds", "{unread}");
    assert_eq!(
        (&unread["channels"][0]["cursor"], &unread["channels"][0]["mentions"]),
        (&12002.into(), &10.into())
    );
    assert!(sealed.ok(&["call", "admin/check"]).contains("\"ok\": true"));
    let again = json(&sealed.ok(&["--json", "import", "agent-swarm", "large.sqlite"]));
    assert!(again["tables"].as_array().unwrap().iter().all(|table| table["imported"] == 0), "{again:#}");
}
