//! Importing tasks: they keep their state, and repeated imports add nothing.

use crate::open_transactions::{hold, meet, start};
use fencepost::{
    Code, Fleet, Millis, Time, admin, params,
    task::{
        self,
        import::{Import, Imported, Item, State},
    },
};
use fencepost_testing::{World, on_both, world::refused};
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;
use tokio::task::JoinSet;

const ROUNDS: usize = 20;

fn item(id: &str, after: &[&str]) -> Item {
    Item {
        id: id.into(),
        title: format!("the work of {id}"),
        after: after.iter().map(ToString::to_string).collect(),
        key: Some(format!("pm:{id}")),
        ..Item::default()
    }
}

fn import(tasks: Vec<Item>) -> Import {
    Import { tasks, ..Import::default() }
}

async fn import_into(world: &World, tasks: Vec<Item>) -> Imported {
    world.fleet.call(import(tasks)).await.expect("imported")
}

fn existing(reply: &Imported) -> Vec<(&str, &str)> {
    reply.existing.iter().map(|there| (there.id.as_str(), there.task.as_str())).collect()
}

on_both! {
    async fn imported_tasks_keep_their_state(world: World) {
        let request = json!({ "tasks": [
            { "id": "auth-3", "title": "log in", "body": "with a key", "done_when": "tests pass", "kind": "docs",
              "priority": 80, "tags": ["a", "b"], "after": ["auth-7"], "owner": "tab 1", "source": "pm",
              "origin": { "spec": "x.md" }, "creator": "ann", "max_attempts": 5, "notes": ["mind the gap"],
              "progress": ["half way", "nearly"], "created_at": "2025-12-01T00:00:00Z", "key": "pm:auth/3" },
            { "id": "auth-7", "title": "keys", "status": "completed", "output": "see vault",
              "created_at": "2025-12-01T00:00:00Z", "finished_at": "2025-12-02T00:00:00Z" },
            { "id": "web-1", "title": "pages", "parked": "no designer", "after": ["auth-3"] },
            { "id": "web-2", "title": "forms", "status": "failed", "failure_reason": "no time", "after": ["web-1"] },
            { "id": "web-9", "title": "old", "status": "cancelled" },
        ]});
        let reply = world.call("task/import", &request).await.unwrap();
        assert_eq!(reply, json!({ "imported": ["auth-3", "auth-7", "web-1", "web-2", "web-9"] }));
        let mut shown = Vec::new();
        for id in ["auth-3", "auth-7", "web-1"] {
            shown.push(serde_json::to_string(&world.show(id).await).unwrap());
        }
        let log = world.log().await.join("\n");
        insta::allow_duplicates! {
            insta::assert_snapshot!(shown.join("\n"), @r#"
            {"id":"auth-3","board":"auth","title":"log in","status":"unassigned","priority":80,"kind":"docs","tags":["a","b"],"source":"pm","creator":"ann","idempotency_key":"pm:auth/3","waiting_on":0,"attempts":0,"max_attempts":5,"created_at":"2025-12-01T00:00:00.000Z","updated_at":"2026-01-01T12:00:00.000Z","body":"with a key","done_when":"tests pass","origin":{"spec":"x.md"},"after":[{"id":"auth-7","title":"keys","status":"completed","output":"see vault"}],"progress":[{"at":"2026-01-01T12:00:00.000Z","run":"","fence":0,"text":"half way"},{"at":"2026-01-01T12:00:00.000Z","run":"","fence":0,"text":"nearly"}],"notes":[{"at":"2026-01-01T12:00:00.000Z","text":"mind the gap"}]}
            {"id":"auth-7","board":"auth","title":"keys","status":"completed","priority":50,"idempotency_key":"import:auth-7","waiting_on":0,"attempts":0,"max_attempts":3,"created_at":"2025-12-01T00:00:00.000Z","updated_at":"2026-01-01T12:00:00.000Z","finished_at":"2025-12-02T00:00:00.000Z","output":"see vault"}
            {"id":"web-1","board":"web","title":"pages","status":"unassigned","priority":50,"idempotency_key":"import:web-1","parked":"no designer","waiting_on":1,"attempts":0,"max_attempts":3,"created_at":"2026-01-01T12:00:00.000Z","updated_at":"2026-01-01T12:00:00.000Z","after":[{"id":"auth-3","title":"log in","status":"unassigned"}]}
            "#);
            insta::assert_snapshot!(log, @r#"
            task.imported task/auth-3 ->unassigned -/- - {"key":"pm:auth/3","owner":"tab 1"}
            task.imported task/auth-7 ->completed -/- - {"key":"import:auth-7"}
            task.imported task/web-1 ->unassigned -/- - {"key":"import:web-1","parked":"no designer"}
            task.imported task/web-2 ->failed -/- - {"key":"import:web-2"}
            task.imported task/web-9 ->cancelled -/- - {"key":"import:web-9"}
            "#);
        }
        world.story("
            show web-2 -> failed waiting_on=1 after=web-1
            show web-9 -> cancelled finished_at=2026-01-01T12:00:00.000Z
        ").await;
    }

    async fn nothing_happened_in_the_future_or_was_finished_before_it_was_created(world: World) {
        let at = |text: &str| Some(text.parse::<Time>().unwrap());
        let times = |id, created: &str, finished: &str| Item {
            status: State::Completed,
            created_at: at(created),
            finished_at: at(finished),
            ..item(id, &[])
        };
        import_into(&world, vec![
            times("auth-1", "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"),
            times("auth-2", "2025-12-05T00:00:00Z", "2025-12-02T00:00:00Z"),
            Item { created_at: at("2027-01-01T00:00:00Z"), ..item("auth-3", &[]) },
        ]).await;
        world.story("
            show auth-1 -> created_at=2026-01-01T12:00:00.000Z finished_at=2026-01-01T12:00:00.000Z
            show auth-2 -> created_at=2025-12-02T00:00:00.000Z finished_at=2025-12-02T00:00:00.000Z
            show auth-3 -> created_at=2026-01-01T12:00:00.000Z finished_at=none
        ").await;
    }

    async fn importing_again_changes_nothing(world: World) {
        let tasks = vec![item("auth-1", &[]), item("auth-2", &["auth-1"]), Item { status: State::Completed, ..item("auth-3", &[]) }];
        assert_eq!(import_into(&world, tasks.clone()).await.imported, ["auth-1", "auth-2", "auth-3"]);
        world.story("
            claim run=r        -> task/auth-1@1
            done task/auth-1@1 -> completed
            claim run=r        -> task/auth-2@1
        ").await;
        let before = world.log().await;
        let again = import_into(&world, tasks).await;
        assert_eq!(again.imported, [""; 0]);
        assert_eq!(existing(&again), [("auth-1", "auth-1"), ("auth-2", "auth-2"), ("auth-3", "auth-3")]);
        assert_eq!(world.log().await, before);
        world.story("
            guard task/auth-2@1 -> ok=true
            show auth-1         -> completed
        ").await;
        // A task without a key gets its id as the key.
        let plain = || Item { key: None, ..item("auth-4", &["auth-1"]) };
        assert_eq!(import_into(&world, vec![plain()]).await.imported, ["auth-4"]);
        assert_eq!(existing(&import_into(&world, vec![plain()]).await), [("auth-4", "auth-4")]);
    }

    async fn a_number_of_another_task_is_refused(world: World) {
        world.add("mine").await;
        let before = world.log().await;
        for (tasks, field) in [
            (vec![item("auth-1", &[])], "id"),
            (vec![item("new-1", &[]), item("auth-2", &[]), item("auth-1", &[])], "tasks[2].id"),
        ] {
            let error = refused(world.fleet.call(import(tasks)).await);
            assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::Invalid, Some(field)));
            assert_eq!(error.field("task").unwrap(), "auth-1");
            assert_eq!(error.hint_text().unwrap(), "put this board's tasks on another: --board auth=auth-imported");
        }
        assert_eq!(world.log().await, before);
        world.story("list -> tasks=auth-1").await;
        assert_eq!(world.add("the counter did not move").await, "auth-2");
    }

    async fn an_invalid_import_writes_nothing(world: World) {
        let fails = |change: fn(&mut Item)| {
            let mut wrong = item("auth-2", &[]);
            change(&mut wrong);
            import(vec![item("auth-1", &[]), wrong])
        };
        let mut said = Vec::new();
        for request in [
            fails(|item| item.id = "auth".into()),
            fails(|item| item.id = "auth-0".into()),
            fails(|item| item.id = "auth-1000000001".into()),
            fails(|item| item.id = "auth-1".into()),
            fails(|item| item.key = Some("pm:auth-1".into())),
            fails(|item| item.title = " ".into()),
            fails(|item| item.priority = Some(101)),
            fails(|item| item.tags = vec!["a b".into()]),
            fails(|item| item.kind = Some("a b".into())),
            fails(|item| item.after = vec!["auth-99".into()]),
            fails(|item| item.after = vec!["nobody".into()]),
            fails(|item| item.after = vec!["auth-2".into()]),
            fails(|item| item.parked = Some(" ".into())),
            fails(|item| item.notes = vec!["x".repeat(16 * 1024 + 1).into()]),
            fails(|item| item.notes = vec!["x".into(); 201]),
            fails(|item| item.progress = vec!["\0".into()]),
            fails(|item| item.owner = Some("\0".into())),
            fails(|item| (item.status, item.parked) = (State::Completed, Some("later".into()))),
            fails(|item| item.output = Some("x".into())),
            fails(|item| (item.status, item.failure_reason) = (State::Completed, Some("x".into()))),
            fails(|item| item.attempts = 4),
            fails(|item| (item.status, item.delayed_until) = (State::Failed, Some(Time(0)))),
            fails(|item| item.finished_at = Some(Time(0))),
            import(vec![]),
            import(vec![item("auth-1", &["auth-3"]), item("auth-2", &["auth-1"]), item("auth-3", &["auth-2"])]),
        ] {
            let error = refused(world.fleet.call(request).await);
            said.push(format!("{}: {error}", error.field("field").and_then(|field| field.as_str()).unwrap_or("-")));
        }
        insta::allow_duplicates! {
            insta::assert_snapshot!(said.join("\n"), @r#"
            tasks[1].id: invalid: `auth` is not a task id such as `auth-3`
            tasks[1].id: invalid: `auth-0` is not a task id such as `auth-3`
            tasks[1].id: invalid: `tasks[1].id` is 1000000001; it must be between 1 and 1000000000
            tasks[1].id: invalid: `tasks[1].id` `auth-1` is given twice
            tasks[1].key: invalid: `tasks[1].key` `pm:auth-1` is given twice
            tasks[1].title: invalid: `tasks[1].title` is empty
            tasks[1].priority: invalid: `tasks[1].priority` is 101; it must be between 0 and 100
            tasks[1].tags: invalid: `tasks[1].tags` has a ' ': letters, digits and any of `._-` are allowed
            tasks[1].kind: invalid: `tasks[1].kind` has a ' ': letters, digits and any of `._-` are allowed
            tasks[1].after: not_found: `tasks[1].after` names `auth-99`, which is not a task
            tasks[1].after: invalid: `nobody` is not a task id such as `auth-3`
            after: invalid: `after` goes round in a circle through auth-2
            tasks[1].parked: invalid: `tasks[1].parked` is empty
            tasks[1].notes: too_large: `tasks[1].notes` has 16385 bytes; at most 16384 are allowed
            tasks[1].notes: invalid: `tasks[1].notes` is 201; it must be between 0 and 200
            tasks[1].progress: invalid: `tasks[1].progress` contains a NUL character
            tasks[1].owner: invalid: `tasks[1].owner` contains a NUL character
            tasks[1].parked: invalid: `tasks[1].parked` is only for a task that is not finished
            tasks[1].output: invalid: `tasks[1].output` is only for a task that is completed
            tasks[1].failure_reason: invalid: `tasks[1].failure_reason` is only for a task that is not completed
            tasks[1].attempts: invalid: `tasks[1].attempts` is 4; it must be between 0 and 3
            tasks[1].delayed_until: invalid: `tasks[1].delayed_until` is only for a task that is not finished
            tasks[1].finished_at: invalid: `tasks[1].finished_at` is only for a task that is finished
            tasks: invalid: `tasks` is 0; it must be between 1 and 10000
            after: invalid: `after` goes round in a circle through auth-1, auth-2, auth-3
            "#);
        }
        let said = refused(world.call("task/import", &json!({ "tasks": [{ "id": "a-1", "title": "x", "status": "offered" }] })).await);
        assert_eq!(said.field("field").unwrap(), "tasks[0].status");
        assert_eq!(world.log().await, [""; 0]);
        world.story("list -> tasks=none").await;
    }

    async fn a_dependency_on_another_board_blocks_until_it_is_completed(world: World) {
        world.story("add base -> auth-1").await;
        let done = Item { status: State::Completed, ..item("web-4", &["web-5"]) };
        import_into(&world, vec![
            item("web-5", &["auth-3", "auth-1", "web-4", "auth-3"]), item("auth-3", &[]),
            Item { after: vec![], ..done },
        ]).await;
        world.story("
            show web-5                   -> waiting_on=2 after=auth-1,auth-3,web-4
            claim web-5 run=r            -> refused not_ready
            claim auth-3 run=r           -> task/auth-3@1
            done task/auth-3@1           -> completed
            show web-5                   -> waiting_on=1
            claim auth-1 run=r           -> task/auth-1@1
            done task/auth-1@1           -> completed
            claim board=web run=r        -> task/web-5@1
        ").await;
    }

    async fn the_board_continues_after_the_highest_number(world: World) {
        import_into(&world, vec![item("auth-7", &[]), item("auth-3", &[]), item("web-2", &[])]).await;
        assert_eq!(world.add("next").await, "auth-8");
        // A gap may be filled; the counter does not go back.
        assert_eq!(import_into(&world, vec![item("auth-1", &[])]).await.imported, ["auth-1"]);
        assert_eq!(world.add("next").await, "auth-9");
        world.story("add x board=web -> web-3").await;
    }

    async fn tags_and_parking_are_known_to_claims(world: World) {
        let tagged = |id: &str, after: &[&str]| Item { tags: vec!["rust".into()], ..item(id, after) };
        import_into(&world, vec![
            Item { parked: Some("later".into()), ..tagged("auth-1", &[]) },
            tagged("auth-2", &["auth-3"]),
            tagged("auth-3", &[]),
        ]).await;
        world.story("
            claim tag=rust run=r -> task/auth-3@1
            claim tag=rust run=r -> refused none_ready
            done task/auth-3@1    -> completed
            claim tag=rust run=r -> task/auth-2@1
            why auth-1            -> reasons=parked
            unpark auth-1         -> parked=none
            claim tag=rust run=r -> task/auth-1@1
        ").await;
    }

    async fn a_dry_run_says_what_would_happen(world: World) {
        import_into(&world, vec![item("auth-1", &[])]).await;
        world.add("another").await;
        let before = world.log().await;
        let dry = |tasks| Import { dry_run: true, ..import(tasks) };
        let reply = world.fleet.call(dry(vec![item("auth-1", &[]), item("auth-3", &["auth-1"])])).await.unwrap();
        assert_eq!((reply.imported.as_slice(), existing(&reply)), (&["auth-3".to_owned()][..], vec![("auth-1", "auth-1")]));
        assert_eq!(refused(world.fleet.call(dry(vec![item("auth-2", &[])])).await).field("task").unwrap(), "auth-2");
        assert_eq!(world.log().await, before);
        world.story("list -> tasks=auth-1,auth-2").await;
    }

    async fn a_repeated_import_request_returns_the_first_reply(world: World) {
        import_into(&world, vec![item("auth-1", &[])]).await;
        let request = Import { request: Some("q1".into()), ..import(vec![item("auth-1", &[]), item("auth-2", &["auth-1"])]) };
        let first = world.fleet.call(request.clone()).await.unwrap();
        assert_eq!((first.imported.as_slice(), existing(&first)), (&["auth-2".to_owned()][..], vec![("auth-1", "auth-1")]));
        assert_eq!(world.fleet.call(request).await.unwrap(), first);
        assert_eq!(world.times("task.imported").await, 2);
        world.story("add x request=q1 -> refused invalid field=request").await;
    }

    /// The same task, now mapped to another board: it is found by its key, also as a dependency.
    async fn a_dependency_is_found_by_its_key_on_any_board(world: World) {
        import_into(&world, vec![item("auth-1", &[])]).await;
        let moved = Item { id: "web-1".into(), ..item("auth-1", &[]) };
        let reply = import_into(&world, vec![moved, item("web-2", &["web-1"])]).await;
        assert_eq!((reply.imported.as_slice(), existing(&reply)), (&["web-2".to_owned()][..], vec![("web-1", "auth-1")]));
        world.story("show web-2 -> waiting_on=1 after=auth-1").await;
    }

    /// A number stands for one task for ever, and a fence for one claim.
    async fn pruned_tasks_are_not_imported_again(world: World) {
        let old = |id: &str, status| Item { status, ..item(id, &[]) };
        let tasks = vec![item("auth-1", &[]), old("auth-2", State::Completed), old("auth-3", State::Failed)];
        import_into(&world, tasks.clone()).await;
        world.story("
            claim run=r        -> task/auth-1@1
            done task/auth-1@1 -> completed
            add own            -> auth-4
            cancel auth-4      -> cancelled
        ").await;
        world.pass_in_use(8 * 24 * 3600).await;
        let prune = admin::Prune { older_than_ms: Some(Millis::days(7)) };
        assert_eq!(world.fleet.call(prune.clone()).await.unwrap().tasks, 4);
        let again = import_into(&world, tasks.clone()).await;
        assert_eq!((again.imported.len(), again.gone), (0, vec!["auth-1".into(), "auth-2".into(), "auth-3".into()]));
        let later = |after| vec![tasks[0].clone(), tasks[2].clone(), item("auth-9", after)];
        let error = refused(world.fleet.call(import(later(&["auth-1", "auth-3"]))).await);
        assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::NotFound, Some("tasks[2].after")));
        assert_eq!(import_into(&world, later(&["auth-1"])).await.imported, ["auth-9"]);
        world.story("show auth-9 -> waiting_on=0 after=none").await;
        let error = refused(world.fleet.call(import(vec![item("auth-4", &[])])).await);
        assert_eq!(error.field("task").unwrap(), "auth-4");

        // When the log is pruned too, nothing identifies the task. It is added again, but its fences go on.
        world.pass_in_use(8 * 24 * 3600).await;
        // As `event/prune` does when everything is old. On PostgreSQL that keeps events newer than any test's transaction.
        world.sql("delete from event").await;
        assert_eq!(import_into(&world, tasks).await.imported, ["auth-1", "auth-2", "auth-3"]);
        let stored = world.fleet.transaction(|tx| {
            Box::pin(async { tx.query("select min(fence) as fence from task", params![]).await?[0].get::<i64>("fence") })
        });
        assert_eq!(stored.await.unwrap(), 1, "also for who claims and read the floor before it was raised");
        world.story("claim auth-1 run=r -> task/auth-1@2").await;
    }

    async fn two_imports_of_the_same_tasks_at_once(world: World) {
        let fleets = [world.again().await, world.again().await, world.again().await];
        for round in 0..ROUNDS {
            let id = |board: &str, n: usize| format!("{board}-{}", round * 20 + n);
            let mut tasks: Vec<Item> = (1..=20)
                .flat_map(|n| [item(&id("auth", n), &[]), item(&id("web", n), &[&id("auth", n)])])
                .collect();
            let mut imports = JoinSet::new();
            for fleet in &fleets {
                // Each has another order, so that they would deadlock.
                tasks.reverse();
                imports.spawn(call(fleet.clone(), import(tasks.clone())));
            }
            let replies = imports.join_all().await;
            let new: usize = replies.iter().map(|reply| reply.imported.len()).sum();
            let known: usize = replies.iter().map(|reply| reply.existing.len()).sum();
            assert_eq!((new, known), (40, 80), "round {round}");
        }
        assert_eq!(world.times("task.imported").await, ROUNDS * 40);
    }

    async fn an_import_racing_adds(world: World) {
        let [one, other] = [world.again().await, world.again().await];
        for round in 0..ROUNDS {
            let board = format!("b{round}");
            let ids: Vec<String> = (1..=3).map(|n| format!("{board}-{n}")).collect();
            let tasks = ids.iter().map(|id| item(id, &[])).collect();
            let add = task::Add::new(&board, "added");
            let (imported, added) = tokio::join!(one.call(import(tasks)), other.call(add));
            let added = added.expect("there is always a number").task.id;
            match imported {
                Ok(reply) => assert_eq!((reply.imported, added), (ids, format!("{board}-4")), "round {round}"),
                Err(error) => {
                    assert_eq!((error.field("task").unwrap(), added.as_str()), (&json!(ids[0]), ids[0].as_str()));
                }
            }
        }
    }

    /// Adds in one process reserve their numbers outside their transactions: some hold a number that the import writes.
    async fn an_import_racing_many_adds(world: World) {
        let [one, other] = [world.again().await, world.again().await];
        for round in 0..ROUNDS {
            let board = format!("b{round}");
            one.call(task::Add::new(&board, "makes the board")).await.unwrap();
            let adds: Vec<_> = (0..6).map(|_| one.call(task::Add::new(&board, "added"))).collect();
            let ids: Vec<String> = (2..=4).map(|n| format!("{board}-{n}")).collect();
            let tasks = ids.iter().map(|id| item(id, &[])).collect();
            let (imported, added) = tokio::join!(other.call(import(tasks)), join_all(adds));
            let mut numbers: BTreeSet<String> =
                added.into_iter().map(|added| added.expect("there is always a number").task.id).collect();
            assert_eq!(numbers.len(), 6, "round {round}");
            match imported {
                Ok(reply) => {
                    assert_eq!(reply.imported, ids, "round {round}");
                    numbers.extend(reply.imported);
                    assert_eq!(numbers.len(), 9, "round {round}");
                }
                Err(error) => assert!(error.field("task").is_some(), "round {round}: {error}"),
            }
        }
        world.assert_sound().await;
    }

    /// The imported task's count of open dependencies is right in either order.
    async fn an_import_racing_the_completion_of_its_dependency(world: World) {
        let [one, other] = [world.again().await, world.again().await];
        for round in 0..ROUNDS {
            let first = world.add("first").await;
            let token = world.claim(&first, "r").await.unwrap();
            let next = format!("next-{}", round + 1);
            let tasks = vec![item(&next, &[&first])];
            let (imported, done) = tokio::join!(one.call(import(tasks)), other.call(task::Done::new(&token)));
            imported.unwrap();
            done.unwrap();
            assert_eq!(world.show(&next).await.waiting_on, 0, "round {round}");
        }
    }

    async fn ten_thousand_at_once_and_no_more(world: World) {
        let tasks = (1..=10_001).map(|n| match n {
            1 => item("auth-1", &[]),
            n => Item { tags: vec!["big".into()], ..item(&format!("auth-{n}"), &[&format!("auth-{}", n - 1)]) },
        });
        let mut tasks: Vec<Item> = tasks.collect();
        assert_eq!(refused(world.fleet.call(import(tasks.clone())).await).field("field").unwrap(), "tasks");
        tasks.truncate(10_000);
        assert_eq!(import_into(&world, tasks).await.imported.len(), 10_000);
        world.story("
            claim run=r        -> task/auth-1@1
            claim run=r        -> refused none_ready blocked=1000
            done task/auth-1@1 -> completed
            claim run=r        -> task/auth-2@1
        ").await;
    }
}

async fn call(fleet: Fleet, op: Import) -> Imported {
    fleet.call(op).await.expect("imported")
}

/// Each has looked for existing tasks before the other committed; the second finds them all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_meets_the_same_import_finds_its_tasks() {
    let world = World::postgres().await;
    let tasks = vec![item("auth-1", &[]), item("auth-2", &["auth-1"])];
    let (first, second) = meet(&world, import(tasks.clone()), import(tasks)).await;
    assert_eq!(first.unwrap().imported, ["auth-1", "auth-2"]);
    assert_eq!(existing(&second.unwrap()), [("auth-1", "auth-1"), ("auth-2", "auth-2")]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_added_during_an_import_is_found() {
    let world = World::postgres().await;
    world.add("base").await;
    let base = hold(&world, "select 1 from task where board = 'auth' and n = 1 for update", "select 1").await;
    // It has looked up the keys, and waits for the row of its dependency.
    let waiting = start(&world.fleet, import(vec![item("auth-9", &["auth-1"])]));
    base.holds_up(&world, &waiting).await;
    let quick = world.again().await.call(import(vec![item("auth-9", &[])])).await.unwrap();
    assert_eq!(quick.imported, ["auth-9"]);
    base.commit().await.unwrap();
    assert_eq!(existing(&waiting.await.unwrap().unwrap()), [("auth-9", "auth-9")]);
    assert_eq!(world.times("task.imported").await, 1);
    world.assert_sound().await;
}
