//! Reads show what expiry would write now, and write nothing.

use fencepost::{Millis, agent, board, mail, once, op, params, task};
use fencepost_testing::{World, on_both};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn call(world: &World, name: &str, request: Value) -> Value {
    let entry = op::find(name).expect("an op");
    entry.call(&world.fleet, &request.to_string()).await.unwrap_or_else(|e| panic!("{name} {request}: {e:?}"))
}

/// Creates everything that a deadline can change, and next to each something that it cannot.
async fn grow_old(world: &World) {
    let day = 86_400_000;
    for (name, request) in [
        ("agent/join", json!({ "agent": "bob", "strand_ms": 60_000 })),
        ("agent/join", json!({ "agent": "eve", "strand_ms": 60_000 })),
        ("mail/configure", json!({ "mailbox": "hold", "replay": "hold" })),
        ("mail/configure", json!({ "mailbox": "discard", "replay": "discard" })),
        ("mail/configure", json!({ "mailbox": "strict", "strict": true })),
        ("channel/create", json!({ "channel": "general" })),
        ("channel/join", json!({ "channel": "general", "agent": "eve" })),
        ("channel/post", json!({ "channel": "general", "body": "@eve look", "author": "bob" })),
    ] {
        call(world, name, request).await;
    }
    let tasks = json!([
        { "title": "lost", "name": "lost", "tags": ["rust"] },
        { "title": "lost at the last attempt", "name": "failed", "max_attempts": 1 },
        { "title": "lost, for who is there", "to": "eve" },
        { "title": "lost, for who is silent", "to": "bob" },
        { "title": "capped", "priority": 70 },
        { "title": "of a run that was ended" },
        { "title": "held", "tags": ["rust"] },
        { "title": "delayed" },
        { "title": "delayed, for who is there", "to": "eve" },
        { "title": "delayed, for who is silent", "to": "bob" },
        { "title": "delayed for long" },
        { "title": "review lost", "offer": "eve" },
        { "title": "for who is silent", "to": "bob" },
        { "title": "offered to who is silent", "offer": "bob" },
        { "title": "for who is there", "to": "eve" },
        { "title": "blocked", "after": ["lost", "failed"] },
        { "title": "for who is unknown", "to": "eva" },
        { "title": "parked", "to": "bob" },
        { "title": "free", "done_when": "it is free" },
    ]);
    call(world, "task/plan", json!({ "board": "auth", "tasks": tasks })).await;
    call(world, "task/park", json!({ "task": "auth-18", "reason": "later" })).await;
    for (n, run, agent, ttl, max) in [
        (1, "dead", None, 30_000, None),
        (2, "dead", None, 30_000, None),
        (3, "eve-1", Some("eve"), 30_000, None),
        (4, "bob-1", Some("bob"), 30_000, None),
        (5, "lives", None, day, Some(10_000)),
        (6, "ended", None, day, None),
        (7, "lives", None, day, None),
        (8, "lives", None, day, None),
        (9, "eve-2", Some("eve"), day, None),
        (10, "bob-1", Some("bob"), 30_000, None),
        (11, "lives", None, day, None),
        (12, "eve-1", Some("eve"), 30_000, None),
    ] {
        let claim =
            json!({ "task": format!("auth-{n}"), "run": run, "agent": agent, "ttl_ms": ttl, "max_ms": max });
        call(world, "task/claim", claim).await;
    }
    for (n, delay) in [(8, 40_000), (9, 40_000), (10, 40_000), (11, day)] {
        let token = format!("task/auth-{n}@1");
        call(world, "task/fail", json!({ "token": token, "reason": "x", "retry": true, "delay_ms": delay }))
            .await;
    }
    for (mailbox, extra) in [
        ("plain", json!({})),
        ("plain", json!({ "max_attempts": 1 })),
        ("hold", json!({})),
        ("discard", json!({})),
        ("strict", json!({ "lane": "a", "max_attempts": 1 })),
        ("strict", json!({ "lane": "b" })),
        ("strict", json!({ "lane": "a" })),
        ("strict", json!({ "lane": "b" })),
        ("hooks-unmatched", json!({})),
        ("hooks-unmatched", json!({ "max_attempts": 1 })),
        ("plain", json!({ "priority": 60, "delay_ms": 40_000 })),
        ("plain", json!({ "delay_ms": day })),
        ("strict", json!({ "lane": "c", "delay_ms": 40_000 })),
        ("strict", json!({ "lane": "c", "delay_ms": 40_000 })),
        ("inbox-eve", json!({})),
        ("inbox-eve", json!({ "max_attempts": 1 })),
    ] {
        let mut push = json!({ "mailbox": mailbox, "payload": "x" });
        push.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        call(world, "mail/push", push).await;
    }
    // Set directly: nobody may push there by name, and the inbox ops always allow several attempts.
    for rename in [
        "update message set mailbox = 'hooks/unmatched' where mailbox = 'hooks-unmatched'",
        "update mailbox set name = 'hooks/unmatched' where name = 'hooks-unmatched'",
        "update message set mailbox = 'inbox/eve' where mailbox = 'inbox-eve'",
        "update mailbox set name = 'inbox/eve' where name = 'inbox-eve'",
    ] {
        world.fleet.transaction(move |tx| Box::pin(tx.execute(rename, params![]))).await.unwrap();
    }
    for mailbox in ["plain", "hold", "discard", "strict", "hooks/unmatched"] {
        let dead = json!({ "mailboxes": [mailbox], "run": "dead", "count": 2 });
        call(world, "mail/claim", dead).await;
    }
    call(world, "mail/push", json!({ "mailbox": "plain", "payload": "capped" })).await;
    call(world, "mail/claim", json!({ "mailboxes": ["plain"], "run": "lives", "max_ms": 10_000 })).await;
    call(world, "mail/push", json!({ "mailbox": "plain", "payload": "held" })).await;
    call(world, "mail/claim", json!({ "mailboxes": ["plain"], "run": "lives" })).await;
    for (run, accept) in [("eve-3", "inbox_message"), ("eve-4", "unread_mentions")] {
        let poll = json!({ "agent": "eve", "run": run, "accept": [accept], "ttl_ms": 30_000 });
        assert!(call(world, "agent/poll", poll).await["trigger"].is_object(), "{accept}");
    }
    for (name, run, max) in
        [("lost", "dead", None), ("capped", "lives", Some(10_000)), ("held", "lives", None)]
    {
        call(world, "lock/claim", json!({ "name": name, "run": run, "max_ms": max })).await;
    }
    for (key, run, max) in [
        ("lost", "dead", None),
        ("capped", "lives", Some(10_000)),
        ("held", "lives", None),
        ("ended", "ended", None),
    ] {
        call(world, "once/begin", json!({ "key": key, "command": "x", "run": run, "max_ms": max })).await;
    }
    // An ended run that held more than one batch gives back.
    let end = "update run set ended_at = opened_at, reason = 'told to' where name = 'ended'";
    world.fleet.transaction(move |tx| Box::pin(tx.execute(end, params![]))).await.unwrap();
    world.pass(3600);
}

/// Loops whose chains are dead.
async fn start_loops(world: &World) {
    for id in ["lost", "again", "over"] {
        let stories = json!([
            { "id": "a", "title": "a" }, { "id": "b", "title": "b", "after": ["a"] }, { "id": "c", "title": "c" },
        ]);
        let stories = if id == "over" { json!([stories[0], stories[1]]) } else { stories };
        call(world, "loop/start", json!({ "loop": id, "stories": stories })).await;
        let next = json!({ "loop": id, "run": format!("dead-{id}"), "ttl_ms": 30_000 });
        call(world, "loop/next", next).await;
    }
    // Two of the stories were lost for the last time.
    let last = "update task set attempts = 3 where board in ('lost', 'over') and n = 1";
    world.fleet.transaction(move |tx| Box::pin(tx.execute(last, params![]))).await.unwrap();
}

/// The requests. Each op that reads is here or in [`AS_WRITTEN`].
fn requests() -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for status in task::State::ALL {
        all.push(("task/list", json!({ "status": status })));
        all.push(("task/list", json!({ "status": status, "limit": 2, "after": "auth-2" })));
    }
    for request in [
        json!({}),
        json!({ "board": "auth", "limit": 3 }),
        json!({ "assignee": "bob" }),
        json!({ "assignee": "eve" }),
        json!({ "tag": "rust", "status": "unassigned" }),
        json!({ "ready": true }),
        json!({ "ready": true, "assignee": "eve" }),
        json!({ "open": true }),
        json!({ "open": true, "limit": 4 }),
    ] {
        all.push(("task/list", request));
    }
    for n in 1..=19 {
        all.push(("task/show", json!({ "task": format!("auth-{n}") })));
        all.push(("task/why", json!({ "task": format!("auth-{n}") })));
        all.push(("task/wait", json!({ "tasks": [format!("auth-{n}")] })));
        all.push(("claim/guard", json!({ "token": format!("task/auth-{n}@1") })));
        all.push(("mail/show", json!({ "message": n.min(18) })));
        all.push(("claim/guard", json!({ "token": format!("message/{}@1", n.min(18)) })));
    }
    for request in [
        json!({}),
        json!({ "board": "auth" }),
        json!({ "agent": "eve" }),
        json!({ "agent": "eve", "board": "auth" }),
        json!({ "agent": "bob" }),
        json!({ "limit": 2 }),
        json!({ "agent": "eve", "limit": 2 }),
    ] {
        all.push(("task/ready", request));
    }
    all.push(("task/wait", json!({ "board": "auth" })));
    for key in ["lost", "capped", "held", "ended"] {
        all.push(("once/show", json!({ "key": key })));
        all.push(("claim/guard", json!({ "token": format!("once/{key}@1") })));
    }
    for status in once::Status::ALL {
        all.push(("once/list", json!({ "status": status })));
        all.push(("once/list", json!({ "status": status, "limit": 1 })));
    }
    all.push(("once/list", json!({})));
    all.push(("board/list", json!({})));
    all.push(("board/show", json!({ "board": "auth" })));
    for mailbox in ["plain", "hold", "discard", "strict", "hooks/unmatched", "inbox/eve"] {
        all.push(("mail/list", json!({ "mailbox": mailbox })));
        all.push(("mail/list", json!({ "mailbox": mailbox, "status": "pending", "limit": 1 })));
        all.push(("mail/peek", json!({ "mailbox": mailbox })));
        all.push(("mail/peek", json!({ "mailbox": mailbox, "count": 10 })));
        all.push(("mail/stats", json!({ "mailbox": mailbox })));
    }
    for status in mail::State::ALL {
        all.push(("mail/list", json!({ "status": status })));
        all.push(("mail/list", json!({ "status": status, "mailbox": "plain" })));
    }
    for request in [
        json!({ "agent": "eve" }),
        json!({ "agent": "eve", "all": true }),
        json!({ "agent": "eve", "status": "unread" }),
        json!({ "agent": "eve", "status": "processing" }),
        json!({ "agent": "eve", "status": "failed" }),
    ] {
        all.push(("inbox/list", request));
    }
    all.extend([
        ("mail/stats", json!({})),
        ("agent/list", json!({})),
        ("channel/list", json!({})),
        ("channel/unread", json!({ "agent": "eve" })),
        ("claim/list", json!({})),
        ("claim/list", json!({ "limit": 1 })),
        ("claim/list", json!({ "run": "lives" })),
        ("run/list", json!({})),
        ("run/list", json!({ "all": true })),
        ("route/list", json!({})),
        ("route/unmatched", json!({})),
        ("key/list", json!({})),
        ("admin/export", json!({ "boards": ["auth"], "after": "tasks" })),
        ("admin/export", json!({ "after": "tasks:3", "limit": 5 })),
        ("admin/export", json!({ "after": "cursors" })),
        ("admin/export", json!({ "after": "mail" })),
        ("loop/list", json!({})),
        ("loop/list", json!({ "all": true })),
    ]);
    for id in ["lost", "again", "over"] {
        all.push(("loop/status", json!({ "loop": id })));
        all.push(("loop/guard", json!({ "token": format!("task/{id}-1@1") })));
    }
    all
}

/// These ops show the stored state.
const AS_WRITTEN: [&str; 9] = [
    "event/list",
    "admin/about",
    "admin/due",
    "admin/check",
    "storm/due",
    "storm/show",
    "storm/why",
    "storm/cause",
    "spend/show",
];

/// All replies without the mark for a state that is not written yet, and the number of marks.
async fn answers(world: &World) -> (Vec<(String, Value)>, usize) {
    fn strip(value: &mut Value) -> usize {
        match value {
            Value::Object(of) => {
                usize::from(of.remove("lapsed").is_some()) + of.values_mut().map(strip).sum::<usize>()
            }
            Value::Array(list) => list.iter_mut().map(strip).sum(),
            _ => 0,
        }
    }
    let (mut all, mut lapsed) = (Vec::new(), 0);
    for (name, request) in requests() {
        let mut answer = call(world, name, request.clone()).await;
        lapsed += strip(&mut answer);
        all.push((format!("{name} {request}"), answer));
    }
    (all, lapsed)
}

async fn settle(world: &World) {
    while call(world, "admin/expire", json!({})).await["due"] == json!(true) {}
}

on_both! {
    async fn reads_show_what_expiry_would_write(world: World) {
        let asked: BTreeSet<&str> = requests().into_iter().map(|(name, _)| name).chain(AS_WRITTEN).collect();
        let reads: BTreeSet<&str> = op::registry().iter().filter(|op| op.reads).map(|op| op.name).collect();
        assert_eq!(asked, reads, "every op that reads is asked, or is said to show what is written");

        start_loops(&world).await;
        grow_old(&world).await;
        let log = world.log().await;
        let (before, lapsed) = answers(&world).await;
        assert_eq!(world.log().await, log, "reading writes nothing");
        assert!(lapsed > 20, "{lapsed}");
        // In an embedder's transaction, too.
        let held = world.fleet.transaction(|tx| {
            let held = task::List { status: Some(task::State::InProgress), ..task::List::default() };
            Box::pin(async move { Ok(tx.call(held).await?.tasks.into_iter().map(|task| task.id).collect::<Vec<_>>()) })
        });
        assert_eq!(held.await.unwrap(), ["auth-7"]);

        settle(&world).await;
        let (after, lapsed) = answers(&world).await;
        assert_eq!(lapsed, 0);
        let other = before.iter().zip(&after).filter(|(before, after)| before != after);
        let other: Vec<String> = other.map(|((of, was), (_, is))| format!("{of}\n{was}\n{is}")).collect();
        assert!(other.is_empty(), "shown otherwise once it is written:\n{}", other.join("\n\n"));
    }

    /// Each task is listed and counted under the state that it is shown in.
    async fn lists_filter_by_the_shown_state(world: World) {
        grow_old(&world).await;
        for written in [false, true] {
            let list = async |list: task::List| world.fleet.call(list).await.unwrap().tasks;
            let all = list(task::List::default()).await;
            let mut counted = serde_json::Map::new();
            for state in task::State::ALL {
                let found = list(task::List { status: Some(state), ..task::List::default() }).await;
                let shown: Vec<_> = all.iter().filter(|task| task.state() == state).cloned().collect();
                assert_eq!(found, shown, "{state:?} {written}");
                if !found.is_empty() {
                    counted.insert(state.as_str().into(), found.len().into());
                }
            }
            for state in ["unassigned", "pending", "offered", "blocked", "parked", "delayed", "in_progress", "failed"] {
                assert!(counted.contains_key(state), "{state}: {counted:?}");
            }
            let shown = world.fleet.call(board::Show { board: "auth".into(), limit: None }).await.unwrap().board;
            assert_eq!(json!(shown.tasks), json!(counted), "{written}");
            let open = list(task::List { open: true, ..task::List::default() }).await;
            let unfinished: Vec<_> = all.iter().filter(|task| !task.status.is_finished()).cloned().collect();
            assert_eq!(open, unfinished);
            let ready = list(task::List { ready: true, ..task::List::default() }).await;
            assert_eq!(ready.len() as i64, shown.ready);
            assert!(ready.iter().all(|task| ["unassigned", "pending"].contains(&task.state().as_str())), "{ready:?}");

            let list = async |list: mail::List| world.fleet.call(list).await.unwrap().messages;
            let all = list(mail::List::default()).await;
            for mailbox in [None, Some("plain")] {
                for state in mail::State::ALL {
                    let mailbox = mailbox.map(str::to_owned);
                    let is_of = |of: &str| mailbox.as_deref().is_none_or(|mailbox| mailbox == of);
                    let shown = all.iter().filter(|message| message.state() == state && is_of(&message.mailbox));
                    let shown: Vec<_> = shown.cloned().collect();
                    let found = list(mail::List { mailbox, status: Some(state), ..mail::List::default() }).await;
                    assert_eq!(found, shown, "{state:?} {written}");
                }
            }
            assert!(all.iter().any(|message| message.state() == mail::State::Delayed));
            settle(&world).await;
        }
    }

    async fn ready_shows_done_when(world: World) {
        world.story("
            add one                                     -> auth-1
            add two done_when=tests-pass                -> auth-2
            add three done_when=docs-are-there          -> auth-3
        ").await;
        let ready = world.fleet.call(task::Ready::default()).await.unwrap().tasks;
        let done_when: Vec<_> = ready.iter().map(|task| task.done_when.as_deref()).collect();
        assert_eq!(done_when, [None, Some("tests-pass"), Some("docs-are-there")]);
        let one = world.fleet.call(task::Ready { limit: Some(1), ..task::Ready::default() }).await.unwrap().tasks;
        assert_eq!((one.len(), one[0].id.as_str(), one[0].done_when.as_deref()), (1, "auth-1", None));
    }

    /// There are more overdue items than a batch of expiry or a page has.
    async fn pages_and_counts_are_right_with_many_overdue_items(world: World) {
        let item = task::plan::Item { title: "one of many".into(), ..task::plan::Item::default() };
        let plan = task::Plan { board: Some("auth".into()), tasks: vec![item; 600], request: None };
        world.fleet.call(plan).await.unwrap();
        let many = task::ClaimMany {
            count: 500, run: "dead".into(), ttl_ms: Some(Millis::seconds(30)), ..task::ClaimMany::default()
        };
        assert_eq!(world.fleet.call(many).await.unwrap().claims.len(), 500);
        world.pass(30);
        let list = |after: Option<String>| task::List {
            status: Some(task::State::Unassigned), after, limit: Some(150), ..task::List::default()
        };
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let page = world.fleet.call(list(after)).await.unwrap();
            ids.extend(page.tasks.iter().map(|task| task.id.clone()));
            after = page.tasks.last().map(|task| task.id.clone());
            if !page.more {
                break;
            }
        }
        assert_eq!(ids, (1..=600).map(|n| format!("auth-{n}")).collect::<Vec<_>>());
        let shown = world.fleet.call(board::Show { board: "auth".into(), limit: None }).await.unwrap();
        assert_eq!(json!(shown.board.tasks), json!({ "unassigned": 600 }));
        assert_eq!(shown.board.ready, 600);
        assert_eq!(shown.tasks.iter().filter(|task| task.lapsed).count(), 200);
        let ready = world.fleet.call(task::Ready { limit: Some(1000), ..task::Ready::default() }).await.unwrap();
        assert_eq!(ready.tasks.len(), 600);
        let agents = world.fleet.call(agent::List::default()).await.unwrap();
        assert!(agents.agents.is_empty() && agents.unknown.is_empty(), "{agents:?}");
    }
}
