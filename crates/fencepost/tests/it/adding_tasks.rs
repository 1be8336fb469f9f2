//! Adding tasks: plans, keys, requests; and the contents of a claim's reply.

use fencepost::{Code, task};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};
use serde_json::json;

fn item(name: &str, after: &[&str]) -> task::plan::Item {
    task::plan::Item {
        name: Some(name.into()),
        title: name.into(),
        after: after.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn plan(tasks: Vec<task::plan::Item>) -> task::Plan {
    task::Plan { board: Some("auth".into()), tasks, request: None }
}

fn ids(planned: &task::plan::Planned) -> Vec<&str> {
    planned.tasks.iter().map(|task| task.id.as_str()).collect()
}

on_both! {
    async fn a_plan_names_its_own_tasks(world: World) {
        let base = world.add("base").await;
        let tasks = vec![
            item("deploy", &["test", "build"]),
            item("build", &[&base]),
            item("test", &["build"]),
        ];
        let planned = world.fleet.call(plan(tasks)).await.unwrap();
        assert_eq!(ids(&planned), ["auth-2", "auth-3", "auth-4"]);
        world.story("
            show auth-2 -> title=deploy waiting_on=2 after=auth-3,auth-4
            show auth-3 -> title=build waiting_on=1 after=auth-1
            show auth-4 -> title=test waiting_on=1 after=auth-3
            claim run=r -> task/auth-1@1
            claim run=r -> refused none_ready blocked=3
        ").await;
        let after = world.add("after").await;
        assert_eq!(after, "auth-5");
    }

    async fn a_plan_is_added_whole_or_not_at_all(world: World) {
        world.add("base").await;
        let before = world.log().await;
        let long = "x".repeat(501);
        for (tasks, expected, field) in [
            (vec![item("a", &["b"]), item("b", &["a"])], Code::Invalid, "after"),
            (vec![item("a", &[]), item("b", &["auth-99"])], Code::NotFound, "tasks[1].after"),
            (vec![item("a", &[]), item("a", &[])], Code::Invalid, "tasks[1].name"),
            (vec![item("a", &[]), item(&long, &[])], Code::TooLarge, "tasks[1].title"),
            (vec![], Code::Invalid, "tasks"),
        ] {
            let error = refused(world.fleet.call(plan(tasks)).await);
            assert_eq!((error.code(), error.field("field").unwrap().as_str()), (expected, Some(field)), "{error}");
        }
        world.story("list -> tasks=auth-1").await;
        assert_eq!(world.log().await, before);
        assert_eq!(world.add("the number was not used up").await, "auth-2");
    }

    async fn a_thousand_tasks_at_once(world: World) {
        let chained = (1..999).map(|n| item(&format!("t{n}"), &[&format!("t{}", n - 1)]));
        let mut tasks: Vec<_> = [item("t0", &[])].into_iter().chain(chained).collect();
        let all: Vec<_> = (0..999).map(|n| format!("t{n}")).collect();
        tasks.push(task::plan::Item { after: all, ..item("last", &[]) });
        let planned = world.fleet.call(plan(tasks)).await.unwrap();
        assert_eq!(planned.tasks.len(), 1000);
        assert_eq!(planned.tasks[999].waiting_on, 999);
        world.story("
            show auth-1000 -> title=last waiting_on=999
            claim run=r    -> task/auth-1@1
            claim run=r    -> refused none_ready blocked=999
            done task/auth-1@1 -> completed
            claim run=r    -> task/auth-2@1
        ").await;
        assert_eq!(world.log().await.iter().filter(|event| event.starts_with("task.added")).count(), 1000);
    }

    async fn a_key_adds_its_task_once(world: World) {
        world.story("
            add one key=k1           -> auth-1 unassigned existing=none
            add two key=k1           -> auth-1 title=one existing=true
            add two key=k1 board=web -> auth-1 title=one existing=true
            add three key=k2         -> auth-2 existing=none
            claim auth-1 run=r       -> task/auth-1@1
            done task/auth-1@1       -> completed
            add again key=k1         -> auth-1 completed existing=true
            list                     -> tasks=auth-1,auth-2
        ").await;
        let boards = world.fleet.call(fencepost::board::List {}).await.unwrap().boards;
        assert_eq!(boards.len(), 1, "a board is made by its first task: {boards:?}");
    }

    async fn a_plan_uses_what_its_keys_find(world: World) {
        world.story("add one key=k1 -> auth-1").await;
        let mut known = item("known", &[]);
        known.key = Some("k1".into());
        // The same task by its name in the plan and by its id is one dependency.
        let tasks = vec![item("first", &["known", "auth-1"]), known, item("second", &["first"])];
        let planned = world.fleet.call(plan(tasks)).await.unwrap();
        assert_eq!(ids(&planned), ["auth-2", "auth-1", "auth-3"]);
        assert_eq!(planned.existing, ["auth-1"]);
        world.story("
            show auth-2        -> waiting_on=1 after=auth-1
            claim run=r        -> task/auth-1@1
            done task/auth-1@1 -> completed
            claim run=r        -> task/auth-2@1
        ").await;
    }

    async fn a_repeated_add_returns_the_first_reply(world: World) {
        world.story("
            add one request=q1 -> auth-1 existing=none
            add one request=q1 -> auth-1 existing=none
            add two request=q2 -> auth-2
        ").await;
        world.story("add keyed key=k1 -> auth-3").await;
        let mut known = item("known", &[]);
        known.key = Some("k1".into());
        let tasks = vec![item("a", &[]), known, item("b", &["a"])];
        let request = task::Plan { request: Some("q3".into()), ..plan(tasks) };
        let first = world.fleet.call(request.clone()).await.unwrap();
        assert_eq!(ids(&first), ["auth-4", "auth-3", "auth-5"]);
        assert_eq!(world.fleet.call(request).await.unwrap(), first);
        world.story("list -> tasks=auth-1,auth-2,auth-3,auth-4,auth-5").await;
    }

    /// A request id used for one op must not return its reply to another op.
    async fn a_request_id_means_one_thing(world: World) {
        world.story("
            add one                              -> auth-1
            park auth-1 reason=later request=q1  -> parked=later
            add two request=q1                   -> refused invalid field=request
            list                                 -> tasks=auth-1
        ").await;
    }

    async fn a_verb_with_a_request_id_happens_once(world: World) {
        world.story("
            add one                              -> auth-1
            note auth-1 text=hello request=q1    -> unassigned
            note auth-1 text=hello request=q1    -> unassigned
            edit auth-1 title=new request=q2     -> title=new
            edit auth-1 title=newer              -> title=newer
            edit auth-1 title=new request=q2     -> title=newer
            park auth-1 reason=x request=q3      -> parked=x
            unpark auth-1                        -> parked=none
            park auth-1 reason=x request=q3      -> parked=none
            claim run=r request=q4               -> task/auth-1@1
            claim run=r request=q4               -> task/auth-1@1
            progress task/auth-1@1 text=half request=q5 -> in_progress
            progress task/auth-1@1 text=half request=q5 -> in_progress
        ").await;
        let task = world.show("auth-1").await;
        assert_eq!((task.notes.len(), task.progress.len()), (1, 1));
    }

    /// Expiry that a request caused is not part of the request's own effect.
    async fn a_request_that_finds_a_dead_run_is_new(world: World) {
        world.story("
            add one max_attempts=9         -> auth-1
            claim run=a                    -> task/auth-1@1
            +30s claim run=b request=q1    -> task/auth-1@2
            claim run=b request=q1         -> task/auth-1@2
            +30s claim auth-1 run=c request=q2 -> task/auth-1@3
            release task/auth-1@3          -> unassigned
            claim run=d                    -> task/auth-1@4
            +30s claim run=e request=q3 board=web -> refused not_found
            claim run=e request=q3 board=web -> refused not_found
            claim run=e                    -> task/auth-1@5
        ").await;
        world.pass(30);
        let tx = world.fleet.transaction(|tx| Box::pin(async move {
            let claim = task::Claim { request: Some("q4".into()), ..task::Claim::next("auth", "f") };
            Ok(tx.call(claim).await?.claim.token)
        }));
        assert_eq!(tx.await.unwrap(), "task/auth-1@6");
    }

    async fn a_claims_reply_has_all_that_a_worker_needs(world: World) {
        let add = json!({
            "board": "auth", "title": "ship it", "body": "all of it", "done_when": "it runs", "kind": "chore",
            "priority": 60, "tags": ["ops"], "source": "mail", "origin": { "from": ["ann", 1, null] },
            "creator": "ann", "after": ["auth-1", "auth-2"], "max_attempts": 5,
        });
        world.story("
            add one            -> auth-1
            add two            -> auth-2
        ").await;
        world.call("task/add", &add).await.unwrap();
        world.story("
            claim run=r        -> task/auth-1@1
            done task/auth-1@1 output=built -> completed
            claim run=r        -> task/auth-2@1
            done task/auth-2@1 -> completed
            note auth-3 text=careful -> unassigned
            claim run=a        -> task/auth-3@1
            progress task/auth-3@1 text=half -> in_progress
            checkpoint task/auth-3@1 ordinal=1 phase=pushed data=abc -> checkpoint.phase=pushed
            fail task/auth-3@1 reason=broken retry=true delay_ms=0 -> unassigned
        ").await;
        let claim = task::Claim { agent: Some("bob".into()), ..task::Claim::next("auth", "b") };
        let claimed = world.fleet.as_agent("bob").call(claim).await.unwrap();
        assert_eq!(claimed.task, world.show("auth-3").await);
        let claimed = serde_json::to_string_pretty(&claimed).unwrap();
        insta::allow_duplicates! {
            insta::assert_snapshot!(claimed, @r#"
            {
              "claim": {
                "token": "task/auth-3@2",
                "resource": "task/auth-3",
                "fence": 2,
                "run": "b",
                "agent": "bob",
                "claimed_at": "2026-01-01T12:00:00.000Z",
                "expires_at": "2026-01-01T12:30:00.000Z"
              },
              "task": {
                "id": "auth-3",
                "board": "auth",
                "title": "ship it",
                "status": "in_progress",
                "priority": 60,
                "kind": "chore",
                "tags": [
                  "ops"
                ],
                "source": "mail",
                "creator": "ann",
                "waiting_on": 0,
                "attempts": 2,
                "max_attempts": 5,
                "failure_reason": "broken",
                "claim": {
                  "token": "task/auth-3@2",
                  "resource": "task/auth-3",
                  "fence": 2,
                  "run": "b",
                  "agent": "bob",
                  "claimed_at": "2026-01-01T12:00:00.000Z",
                  "expires_at": "2026-01-01T12:30:00.000Z"
                },
                "created_at": "2026-01-01T12:00:00.000Z",
                "updated_at": "2026-01-01T12:00:00.000Z",
                "body": "all of it",
                "done_when": "it runs",
                "origin": {
                  "from": [
                    "ann",
                    1,
                    null
                  ]
                },
                "after": [
                  {
                    "id": "auth-1",
                    "title": "one",
                    "status": "completed",
                    "output": "built"
                  },
                  {
                    "id": "auth-2",
                    "title": "two",
                    "status": "completed"
                  }
                ],
                "checkpoint": {
                  "ordinal": 1,
                  "phase": "pushed",
                  "data": "abc"
                },
                "progress": [
                  {
                    "at": "2026-01-01T12:00:00.000Z",
                    "run": "a",
                    "fence": 1,
                    "text": "half"
                  }
                ],
                "notes": [
                  {
                    "at": "2026-01-01T12:00:00.000Z",
                    "text": "careful"
                  }
                ]
              }
            }
            "#);
        }
    }

    async fn checkpoints_never_go_back_and_outlast_the_attempt(world: World) {
        world.story("
            add one                                        -> auth-1
            claim run=r                                    -> task/auth-1@1 checkpoint=none
            checkpoint task/auth-1@1 ordinal=2 phase=built -> checkpoint.phase=built
            checkpoint task/auth-1@1 ordinal=2 phase=built -> checkpoint.phase=built
            checkpoint task/auth-1@1 ordinal=1 phase=begun -> checkpoint.phase=built checkpoint.ordinal=2
            checkpoint task/auth-1@1 ordinal=2 phase=other -> refused invalid field=ordinal
            checkpoint task/auth-1@1 ordinal=0 phase=other -> refused invalid field=ordinal
            checkpoint task/auth-1@1 ordinal=3 phase=tested -> checkpoint.phase=tested
            +30s claim run=s                               -> task/auth-1@2 checkpoint.phase=tested
            checkpoint task/auth-1@1 ordinal=4 phase=late  -> refused lease_expired
            show auth-1                                    -> checkpoint.ordinal=3
            checkpoint task/auth-1@2 ordinal=4 phase=sent  -> checkpoint.phase=sent
            fail task/auth-1@2 reason=x                    -> failed
            checkpoint task/auth-1@2 ordinal=5 phase=late  -> refused already_finished
            retry auth-1                                   -> unassigned
            claim run=s                                    -> task/auth-1@3 checkpoint.phase=sent
        ").await;
    }

    async fn lapsed_tasks_are_claimed_alone(world: World) {
        for n in 1..=5 {
            world.add(&format!("t{n}")).await;
        }
        let many = |run: &str, count| task::ClaimMany {
            run: run.into(), count, board: Some("auth".into()), ttl_ms: Some(fencepost::Millis::seconds(30)),
            ..Default::default()
        };
        let tokens = |claimed: task::claim_many::ClaimedMany| {
            claimed.claims.into_iter().map(|claimed| claimed.claim.token).collect::<Vec<_>>()
        };
        let first = tokens(world.fleet.call(many("a", 2)).await.unwrap());
        assert_eq!(first, ["task/auth-1@1", "task/auth-2@1"]);
        world.pass(30);
        for expected in [vec!["task/auth-1@2"], vec!["task/auth-2@2"], vec!["task/auth-3@1", "task/auth-4@1", "task/auth-5@1"]] {
            assert_eq!(tokens(world.fleet.call(many("b", 9)).await.unwrap()), expected);
        }
        assert_eq!(code(world.fleet.call(many("b", 9)).await), Code::NoneReady);
        for count in [0, -1, 1001] {
            assert_eq!(refused(world.fleet.call(many("b", count)).await).field("field").unwrap(), "count");
        }
    }
}
