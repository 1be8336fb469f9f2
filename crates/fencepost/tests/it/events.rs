//! The log: every change appends one event, a refused op appends none, and a follower misses nothing.

use crate::open_transactions::open;
use fencepost::{
    Code, Fleet, Millis, Op, Time, agent, claim, event, key, lock, mail, params, route, run, task,
};
use fencepost_testing::{
    World, eventually, on_both,
    world::{code, refused},
};
use futures_util::future::join_all;
use std::time::Duration;

/// Runs a story and returns the events that it appended.
async fn appended(world: &World, story: &str) -> String {
    let before = world.log().await.len();
    world.story(story).await;
    world.log().await.split_off(before).join("\n")
}

fn resources(events: &[event::Entry]) -> Vec<String> {
    events.iter().map(|event| format!("{} {}", event.kind, event.resource)).collect()
}

/// Calls an op that takes something away, and returns those of its events that have no reason.
async fn without_reason<O: Op>(world: &World, op: O) -> Vec<String> {
    let before = world.log().await.len();
    world.fleet.call(op).await.unwrap();
    let appended = world.log().await.split_off(before);
    assert!(!appended.is_empty(), "{} took nothing", O::NAME);
    appended.into_iter().filter(|line| !line.contains("\"reason\":\"it hangs\"")).collect()
}

on_both! {
    /// When a person takes something away, the log keeps the reason.
    async fn taking_something_away_logs_the_reason(world: World) {
        let reason = Some("it hangs".to_owned());
        let (bob, task) = (|| "bob".to_owned(), |n: i64| format!("auth-{n}"));
        world.story("
            add one to=bob -> auth-1
            add two to=bob -> auth-2
            add three -> auth-3
            add four -> auth-4
            add five -> auth-5
            depend auth-4 after=auth-3 -> unassigned
            claim auth-5 run=x -> in_progress
        ").await;
        world.fleet.call(mail::Push { mailbox: "box".into(), payload: Some("x".into()), ..Default::default() }).await.unwrap();
        world.fleet.call(mail::Push { mailbox: "box".into(), payload: Some("y".into()), ..Default::default() }).await.unwrap();
        let take = mail::Claim { mailboxes: vec!["box".into()], run: "x".into(), ..Default::default() };
        world.fleet.call(take).await.unwrap();
        world.fleet.call(agent::Join { agent: bob(), ..Default::default() }).await.unwrap();
        world.fleet.call(key::Add { name: "ci".into(), role: fencepost::Access::Reader, agent: None }).await.unwrap();
        let add = route::Add { source: "slack".into(), agent: bob(), ..Default::default() };
        let route = world.fleet.call(add).await.unwrap().route.id;
        let mut silent = Vec::new();
        macro_rules! take_away {
            ($($op:expr),* $(,)?) => { $(silent.extend(without_reason(&world, $op).await);)* };
        }
        take_away![
            mail::Reset { mailbox: Some("box".into()), reason: reason.clone(), ..Default::default() },
            mail::Discard { messages: vec![2], reason: reason.clone() },
            mail::Pause { mailbox: "box".into(), reason: reason.clone() },
            agent::Recall { agent: bob(), force: true, reason: reason.clone() },
            agent::Leave { agent: bob(), reason: reason.clone() },
            key::Revoke { reason: reason.clone(), ..key::Revoke::new("ci") },
            route::Remove { route, reason: reason.clone(), ..Default::default() },
            task::Undepend { task: task(4), after: task(3), reason: reason.clone(), ..Default::default() },
            task::Cancel { task: task(3), reason: reason.clone(), ..Default::default() },
            claim::Unclaim { resource: "task/auth-5".into(), reason: reason.clone() },
            run::End { run: "x".into(), reason: reason.clone(), ..Default::default() },
        ];
        assert!(silent.is_empty(), "{silent:#?}");
    }

    async fn every_verb_appends_its_line(world: World) {
        let mut told = String::new();
        for story in [
            "add one                          -> auth-1",
            "add two to=bob creator=ann       -> auth-2",
            "add three offer=bob              -> auth-3",
            "offer auth-1 to=bob              -> offered",
            "claim auth-1 run=b agent=bob     -> reviewing",
            "accept auth-1 agent=bob token=task/auth-1@1 -> pending",
            "reject auth-3 agent=bob reason=busy -> unassigned",
            "assign auth-3 to=bob             -> pending",
            "claim auth-1 run=b               -> in_progress",
            "progress task/auth-1@2 text=half -> in_progress",
            "checkpoint task/auth-1@2 ordinal=1 phase=built -> checkpoint.ordinal=1",
            "renew task/auth-1@2              -> claim.run=b",
            "note auth-1 text=hello           -> in_progress",
            "edit auth-1 title=new priority=9 -> in_progress",
            "release task/auth-1@2            -> pending",
            "claim auth-1 run=b               -> in_progress",
            "fail task/auth-1@3 reason=flaky retry=true delay_ms=0 -> pending",
            "claim auth-1 run=b               -> in_progress",
            "fail task/auth-1@4 reason=broken -> failed",
            "retry auth-1                     -> pending",
            "claim auth-1 run=b               -> in_progress",
            "unclaim task/auth-1 reason=stuck -> pending",
            "park auth-1 reason=later         -> pending",
            "unpark auth-1                    -> pending",
            "depend auth-1 after=auth-2       -> pending",
            "undepend auth-1 after=auth-2     -> pending",
            "claim auth-1 run=b               -> in_progress",
            "cancel auth-1 reason=moot        -> cancelled",
            "claim auth-2 run=b               -> in_progress",
            "done task/auth-2@1 output=secret -> completed",
            "claim auth-3 run=b               -> in_progress",
            "end b                            -> run.alive=false",
        ] {
            let verb = story.split_whitespace().next().unwrap();
            let appended = appended(&world, story).await;
            told += &format!("{verb}: {}\n", if appended.is_empty() { "nothing" } else { &appended });
        }
        insta::allow_duplicates! {
            insta::assert_snapshot!(told, @r#"
            add: task.added task/auth-1 ->unassigned -/- - -
            add: task.added task/auth-2 ->pending -/ann - -
            add: task.added task/auth-3 ->offered -/- - -
            offer: task.offered task/auth-1 unassigned>offered -/- - {"to":"bob"}
            claim: task.claimed task/auth-1 offered>reviewing b/bob @1 -
            accept: task.accepted task/auth-1 reviewing>pending b/- @1 {"by":"bob"}
            reject: task.rejected task/auth-3 offered>unassigned -/- - {"reason":"busy","by":"bob"}
            assign: task.assigned task/auth-3 unassigned>pending -/- - {"to":"bob"}
            claim: task.claimed task/auth-1 pending>in_progress b/bob @2 -
            progress: task.progress task/auth-1 in_progress>in_progress b/bob @2 {"text":"half"}
            checkpoint: task.checkpoint task/auth-1 in_progress>in_progress b/bob @2 {"ordinal":1,"phase":"built"}
            renew: nothing
            note: task.noted task/auth-1 in_progress>in_progress b/- @2 {"text":"hello"}
            edit: task.edited task/auth-1 in_progress>in_progress b/- @2 {"fields":["title","priority"]}
            release: task.released task/auth-1 in_progress>pending b/bob @2 -
            claim: task.claimed task/auth-1 pending>in_progress b/bob @3 -
            fail: task.retrying task/auth-1 in_progress>pending b/bob @3 {"reason":"flaky","attempt":1}
            claim: task.claimed task/auth-1 pending>in_progress b/bob @4 -
            fail: task.failed task/auth-1 in_progress>failed b/bob @4 {"reason":"broken","attempt":2}
            retry: task.retried task/auth-1 failed>pending -/- - -
            claim: task.claimed task/auth-1 pending>in_progress b/bob @5 -
            unclaim: task.unclaimed task/auth-1 in_progress>pending b/- @5 {"reason":"stuck"}
            park: task.parked task/auth-1 pending>pending -/- - {"reason":"later"}
            unpark: task.unparked task/auth-1 pending>pending -/- - -
            depend: task.depends task/auth-1 pending>pending -/- - {"after":"auth-2"}
            undepend: task.freed task/auth-1 pending>pending -/- - {"after":"auth-2"}
            claim: task.claimed task/auth-1 pending>in_progress b/bob @6 -
            cancel: task.cancelled task/auth-1 in_progress>cancelled b/- @6 {"reason":"moot"}
            claim: task.claimed task/auth-2 pending>in_progress b/bob @1 -
            done: task.completed task/auth-2 in_progress>completed b/bob @1 -
            claim: task.claimed task/auth-3 pending>in_progress b/bob @1 -
            end: run.ended run/b alive>ended b/bob - {"reason":"ended"}
            task.lapsed task/auth-3 in_progress>pending b/bob @1 {"reason":"its run ended"}
            "#);
        }
    }

    async fn lapses_are_logged(world: World) {
        world.story("
            add one max_attempts=1       -> auth-1
            add two offer=bob            -> auth-2
            add three                    -> auth-3
            claim auth-1 run=a agent=eve -> in_progress
            claim auth-2 run=b agent=bob -> reviewing
            claim auth-3 run=c max_ms=20000 -> in_progress
        ").await;
        world.fleet.call(lock::Claim { ttl_ms: Some(Millis::seconds(30)), ..lock::Claim::new("deploy", "a") }).await.unwrap();
        let told = appended(&world, "+30s claim run=d board=web -> refused not_found").await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(told, @r#"
            run.ended run/a alive>ended a/eve - {"reason":"lapsed"}
            run.ended run/b alive>ended b/bob - {"reason":"lapsed"}
            run.ended run/c alive>ended c/- - {"reason":"lapsed"}
            task.failed task/auth-1 in_progress>failed a/eve @1 {"reason":"its lease was over","lapsed":true}
            task.lapsed task/auth-2 reviewing>offered b/bob @1 {"reason":"its lease was over"}
            task.lapsed task/auth-3 in_progress>unassigned c/- @1 {"reason":"its time was up"}
            lock.lapsed lock/deploy held>free a/eve @1 -
            "#);
        }
    }

    async fn locks_and_restores_are_logged(world: World) {
        let agent = world.fleet.as_agent("ann");
        let claim = || lock::Claim { agent: Some("bob".into()), ..lock::Claim::new("deploy", "r") };
        agent.call(claim()).await.unwrap();
        agent.call(claim::Release::new("lock/deploy@1")).await.unwrap();
        agent.call(claim()).await.unwrap();
        agent.call(claim::Unclaim { resource: "lock/deploy".into(), reason: Some("stuck".into()) }).await.unwrap();
        agent.call(fencepost::admin::Restored {}).await.unwrap();
        let told = world.log().await.join("\n");
        insta::allow_duplicates! {
            insta::assert_snapshot!(told, @r#"
            lock.claimed lock/deploy free>held r/bob @1 -
            lock.released lock/deploy held>free r/bob @1 -
            lock.claimed lock/deploy free>held r/bob @2 -
            lock.unclaimed lock/deploy held>free r/ann @2 {"reason":"stuck"}
            fleet.restored fleet ->- -/ann - -
            "#);
        }
    }

    /// The event of a write on a held task names the caller, not the holder.
    async fn the_line_names_who_did_it(world: World) {
        world.story("
            add one                      -> auth-1
            claim auth-1 run=b agent=bob -> in_progress
        ").await;
        let ann = world.fleet.as_agent("ann");
        let note = task::Note { task: "auth-1".into(), text: "hello".into(), request: None };
        ann.call(note).await.unwrap();
        ann.call(task::Cancel { task: "auth-1".into(), ..task::Cancel::default() }).await.unwrap();
        let log = world.log().await.split_off(2);
        assert_eq!(log, [
            r#"task.noted task/auth-1 in_progress>in_progress b/ann @1 {"text":"hello"}"#,
            "task.cancelled task/auth-1 in_progress>cancelled b/ann @1 -",
        ]);
        assert_eq!(world.show("auth-1").await.notes[0].agent.as_deref(), Some("ann"));
    }

    async fn a_refused_op_appends_nothing(world: World) {
        world.story("
            add one            -> auth-1
            add two offer=bob  -> auth-2
            add three          -> auth-3
            claim auth-3 run=r -> in_progress
            done task/auth-3@1 -> completed
            claim auth-1 run=r -> in_progress
        ").await;
        let told = appended(&world, "
            add bad priority=101             -> refused invalid
            add bad after=auth-99            -> refused not_found
            claim run=s                      -> refused none_ready
            claim auth-1 run=s               -> refused already_claimed
            claim auth-2 run=s agent=eve     -> refused not_ready
            claim auth-3 run=s               -> refused already_finished
            done task/auth-1@9               -> refused not_found
            done task/auth-3@1 output=other  -> refused already_finished
            fail task/auth-3@1 reason=no     -> refused already_finished
            progress task/auth-3@1 text=no   -> refused already_finished
            checkpoint task/auth-3@1 ordinal=1 phase=no -> refused already_finished
            release task/auth-3@1            -> refused already_finished
            renew task/auth-3@1              -> refused already_finished
            offer auth-1 to=bob              -> refused already_claimed
            assign auth-1 to=bob             -> refused already_claimed
            accept auth-1 agent=bob          -> refused not_ready
            reject auth-2 agent=eve reason=x -> refused not_ready
            park auth-1 reason=x             -> refused already_claimed
            unpark auth-1                    -> refused not_ready
            cancel auth-3                    -> refused already_finished
            retry auth-1                     -> refused not_ready
            edit auth-1                      -> refused invalid
            depend auth-1 after=auth-1       -> refused already_claimed
            undepend auth-1 after=auth-2     -> refused not_found
            end nobody                       -> refused not_found
            unclaim lock/nothing             -> refused not_found
            guard task/auth-9@1              -> reason=not_found
        ").await;
        assert_eq!(told, "");
        let runs = world.fleet.call(run::List { run: None, all: true, limit: None }).await.unwrap().runs;
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["r"]);
    }

    async fn the_log_is_read_from_a_position_in_pages_and_by_kind(world: World) {
        for n in 1..=3 {
            world.add(&format!("t{n}")).await;
        }
        world.claim("auth-2", "r").await.unwrap();
        world.done("task/auth-2@1").await.unwrap();
        world.fleet.call(lock::Claim::new("deploy", "r")).await.unwrap();
        let all = world.follow(event::List::default()).await;
        assert_eq!(resources(&all), [
            "task.added task/auth-1", "task.added task/auth-2", "task.added task/auth-3",
            "task.claimed task/auth-2", "task.completed task/auth-2", "lock.claimed lock/deploy",
        ]);
        let mut read = Vec::new();
        let mut since = None;
        loop {
            let page = event::List { since, limit: Some(2), ..event::List::default() };
            let page = world.fleet.call(page).await.unwrap();
            assert!(page.events.len() <= 2);
            read.extend(page.events);
            since = Some(page.position);
            if !page.more {
                break;
            }
        }
        assert_eq!(read, all);
        let end = world.fleet.call(event::List { since: since.clone(), ..event::List::default() }).await.unwrap();
        assert_eq!((end.events.len(), end.more, Some(end.position)), (0, false, since));

        let of = |kind: Option<&str>, resource: Option<&str>| event::List {
            kind: kind.map(str::to_owned), resource: resource.map(str::to_owned), ..event::List::default()
        };
        assert_eq!(world.follow(of(Some("task.added"), None)).await, all[..3]);
        assert_eq!(world.follow(of(Some("task"), None)).await, all[..5]);
        assert_eq!(world.follow(of(Some("lock"), None)).await, all[5..]);
        assert_eq!(world.follow(of(None, Some("task/auth-2"))).await, [&all[1..2], &all[3..5]].concat());
        assert_eq!(world.follow(of(Some("task.claimed"), Some("task/auth-2"))).await, all[3..4]);
        assert_eq!(world.follow(of(Some("tas"), None)).await, []);
        let from = event::List { since: Some(all[2].position.clone()), ..of(Some("task"), None) };
        assert_eq!(world.follow(from).await, all[3..5]);
    }

    async fn the_last_events_are_read_oldest_first(world: World) {
        world.story("
            add one     -> auth-1
            add two     -> auth-2
            claim auth-1 run=r -> task/auth-1@1
            add three   -> auth-3
        ").await;
        let last = |n, kind: Option<&str>| event::List {
            last: Some(n),
            kind: kind.map(Into::into),
            ..event::List::default()
        };
        assert_eq!(resources(&world.follow(last(2, None)).await), ["task.claimed task/auth-1", "task.added task/auth-3"]);
        assert_eq!(
            resources(&world.follow(last(2, Some("task.added"))).await),
            ["task.added task/auth-2", "task.added task/auth-3"]
        );
        let page = world.fleet.call(last(2, None)).await.unwrap();
        let rest = event::List { since: Some(page.position), ..event::List::default() };
        assert_eq!(world.fleet.call(rest).await.unwrap().events, []);
        for wrong in [
            event::List { since: Some("0".into()), ..last(1, None) },
            event::List { limit: Some(1), ..last(1, None) },
            last(0, None),
            last(1001, None),
        ] {
            assert_eq!(code(world.fleet.call(wrong).await), Code::Invalid);
        }
    }

    /// The position is found by bisection: tried for times between, at, before and after events.
    async fn the_log_is_read_from_a_time_on(world: World) {
        let none = world.fleet.call(event::List { within_ms: Some(Millis(0)), ..event::List::default() }).await.unwrap();
        assert_eq!(none.events, [], "there is nothing to search yet");
        for n in 1..=13 {
            world.add(&format!("t{n}")).await;
            world.add(&format!("t{n}, in the same moment")).await;
            world.pass(10);
        }
        let all = world.follow(event::List::default()).await;
        let end = world.fleet.call(event::List::default()).await.unwrap().position;
        let times = all.iter().flat_map(|event| [-1, 0, 1].map(|by| event.at.plus(Millis(by))));
        for time in times.chain([Time(0), Time(i64::MAX)]) {
            let page = world.fleet.call(event::List { from: Some(time), ..event::List::default() }).await.unwrap();
            let expected: Vec<_> = all.iter().filter(|event| event.at >= time).cloned().collect();
            assert_eq!(page.events, expected, "{time}");
            let rest = event::List { since: Some(page.position), ..event::List::default() };
            assert_eq!(world.fleet.call(rest).await.unwrap().events, [], "{time}");
        }
        let within = |seconds| event::List { within_ms: Some(Millis::seconds(seconds)), ..event::List::default() };
        assert_eq!(world.follow(within(20)).await, all[22..]);
        assert_eq!(world.follow(event::List { resource: Some(all[23].resource.clone()), ..within(20) }).await, all[23..24]);
        assert_eq!(world.follow(event::List { limit: Some(1), ..within(30) }).await, all[20..21]);
        let late = world.fleet.call(within(1)).await.unwrap();
        assert_eq!(late.events, []);
        world.add("new").await;
        let new = world.follow(event::List { since: Some(late.position), ..event::List::default() }).await;
        assert_eq!(resources(&new), ["task.added task/auth-27"], "whoever follows from a time misses nothing");

        world.pass_in_use(31 * 86_400).await;
        world.add("newer").await;
        world.follow(event::List::default()).await;
        assert_eq!(world.fleet.call(event::Prune::default()).await.unwrap().removed, 27);
        let old = event::List { from: Some(all[0].at), ..event::List::default() };
        assert_eq!(resources(&world.follow(old).await), ["task.added task/auth-28"], "what was pruned is not asked for");

        for wrong in [
            event::List { since: Some(end), ..within(1) },
            event::List { last: Some(1), ..within(1) },
            event::List { from: Some(Time(0)), ..within(1) },
            within(-1),
        ] {
            assert_eq!(code(world.fleet.call(wrong).await), Code::Invalid);
        }
    }

    /// One statement reads them for the whole page, and only on request.
    async fn events_have_the_titles_of_their_tasks(world: World) {
        world.story("
            add one            -> auth-1
            claim auth-1 run=r -> task/auth-1@1
            add two            -> auth-2
        ").await;
        world.fleet.call(lock::Claim::new("deploy", "r")).await.unwrap();
        world.fleet.call(task::Edit { task: "auth-2".into(), title: Some("too".into()), ..Default::default() }).await.unwrap();
        let titles = |events: Vec<event::Entry>| events.into_iter().map(|event| event.title).collect::<Vec<_>>();
        assert_eq!(titles(world.follow(event::List::default()).await), [None, None, None, None, None]);
        let with = event::List { titles: true, ..event::List::default() };
        let told = [Some("one"), Some("one"), Some("too"), None, Some("too")].map(|title| title.map(str::to_owned));
        assert_eq!(titles(world.follow(with).await), told);
    }

    /// The position moves past events that the filter skips: they are not read again, and may be pruned.
    async fn a_filtered_read_moves_the_position_to_the_end(world: World) {
        world.story("
            add one            -> auth-1
            claim auth-1 run=r -> task/auth-1@1
            add two            -> auth-2
        ").await;
        let all = world.follow(event::List::default()).await;
        let of = |kind: &str| event::List { kind: Some(kind.into()), ..event::List::default() };
        let end = &all[2].position;
        for list in [
            of("nothing"),
            of("task.claimed"),
            event::List { last: Some(1), ..of("task.claimed") },
            event::List { last: Some(5), ..of("nothing") },
            event::List { limit: Some(1), ..of("task.claimed") },
            event::List { since: Some(all[1].position.clone()), ..of("nothing") },
            event::List { resource: Some("task/auth-1".into()), ..event::List::default() },
        ] {
            let page = world.fleet.call(list.clone()).await.unwrap();
            assert_eq!((&page.position, page.more), (end, false), "{list:?}");
        }
        let filled = world.fleet.call(event::List { limit: Some(1), ..of("task.added") }).await.unwrap();
        assert_eq!((filled.position, filled.more), (all[0].position.clone(), true), "the rest was not looked at");

        world.pass_in_use(31 * 86_400).await;
        world.add("new").await;
        world.follow(event::List::default()).await;
        assert_eq!(world.fleet.call(event::Prune::default()).await.unwrap().removed, 3);
        let on = event::List { since: Some(end.clone()), ..of("nothing") };
        assert_eq!(world.fleet.call(on).await.unwrap().events, [], "it missed nothing");
    }

    async fn an_invented_position_is_refused(world: World) {
        for since in ["", "x", "1", "-1.2", "1.x", "0.1.2", "1.2.3.4", "99999999999999999999.1"] {
            let list = event::List { since: Some(since.into()), ..event::List::default() };
            let error = refused(world.fleet.call(list).await);
            assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::Invalid, Some("since")), "{since}");
        }
    }

    async fn old_events_are_pruned_and_a_follower_is_told(world: World) {
        world.add("old").await;
        world.add("old too").await;
        let old = world.follow(event::List::default()).await;
        world.pass_in_use(31 * 86_400).await;
        world.add("new").await;
        world.follow(event::List::default()).await;
        let pruned = world.fleet.call(event::Prune::default()).await.unwrap();
        assert_eq!((pruned.removed, pruned.more), (2, false));
        assert_eq!(world.fleet.call(event::Prune::default()).await.unwrap().removed, 0);
        assert_eq!(resources(&world.follow(event::List::default()).await), ["task.added task/auth-3"]);

        let since = |position: &str| event::List { since: Some(position.into()), ..event::List::default() };
        let error = refused(world.fleet.call(since(&old[0].position)).await);
        assert_eq!(error.code(), Code::NotFound);
        let oldest = error.field("oldest").unwrap().as_str().unwrap();
        assert_eq!(oldest, old[1].position);
        assert_eq!(resources(&world.follow(since(oldest)).await), ["task.added task/auth-3"]);
    }

    async fn pruning_keeps_what_a_request_id_needs_for_seven_days(world: World) {
        let now = event::Prune { older_than_ms: Some(Millis(0)) };
        world.story("
            add plain           -> auth-1
            add one request=q1  -> auth-2
            add other           -> auth-3
        ").await;
        world.pass_in_use(7 * 86_400).await;
        world.follow(event::List::default()).await;
        assert_eq!(world.fleet.call(now.clone()).await.unwrap().removed, 1);
        world.story("add one request=q1 -> auth-2").await;
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(world.fleet.call(now).await.unwrap().removed, 2);
        world.story("add one request=q1 -> auth-4").await;
    }

    async fn pruning_is_bounded(world: World) {
        let tasks = (0..1500).map(|n| task::plan::Item { title: format!("t{n}"), ..Default::default() }).collect();
        world.fleet.call(task::Plan { tasks, ..task::Plan::default() }).await.unwrap();
        world.pass_in_use(31 * 86_400).await;
        settled(&world).await;
        let first = world.fleet.call(event::Prune::default()).await.unwrap();
        assert_eq!((first.removed, first.more), (1000, true));
        let second = world.fleet.call(event::Prune::default()).await.unwrap();
        assert_eq!((second.removed, second.more), (500, false));
    }
}

/// Waits until no older transaction runs, on PostgreSQL.
async fn settled(world: &World) {
    let last = event::List { since: None, limit: Some(1), ..event::List::default() };
    eventually("the log is readable", async || {
        !world.fleet.call(last.clone()).await.unwrap().events.is_empty()
    })
    .await;
}

mod on_postgres {
    use super::*;

    /// One transaction takes its number first and commits last: a follower that read past it would never see it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_follower_does_not_miss_a_late_commit() {
        let world = World::postgres().await;
        let (began, has_begun) = tokio::sync::watch::channel(false);
        let (go, may_go) = tokio::sync::watch::channel(false);
        let fleet = world.again().await;
        let slow = tokio::spawn(async move {
            fleet
                .transaction(move |tx| {
                    let (began, mut may_go) = (began.clone(), may_go.clone());
                    Box::pin(async move {
                        tx.call(task::Add::new("slow", "began first")).await?;
                        began.send_replace(true);
                        may_go.wait_for(|go| *go).await.expect("the test goes on");
                        Ok(())
                    })
                })
                .await
        });
        has_begun.clone().wait_for(|begun| *begun).await.unwrap();
        world.add("began second").await;

        let early = world.fleet.call(event::List::default()).await.unwrap();
        let filtered = event::List { kind: Some("nothing".into()), ..event::List::default() };
        let passed = world.fleet.call(filtered.clone()).await.unwrap().position;
        let last = world.fleet.call(event::List { last: Some(3), ..filtered }).await.unwrap().position;
        assert_eq!(
            resources(&early.events),
            [""; 0],
            "what is newer than a running transaction waits for it"
        );
        let pruned = world.fleet.call(event::Prune { older_than_ms: Some(Millis(0)) }).await.unwrap();
        world.pass(1);
        let again = world.fleet.call(event::Prune { older_than_ms: Some(Millis(0)) }).await.unwrap();
        assert_eq!((pruned.removed, again.removed), (0, 0), "what nobody could read yet is not pruned");

        go.send_replace(true);
        slow.await.unwrap().unwrap();
        for position in [early.position, passed, last] {
            let rest = event::List { since: Some(position), ..event::List::default() };
            assert_eq!(
                resources(&world.follow(rest).await),
                ["task.added task/slow-1", "task.added task/auth-1"]
            );
        }
        world.assert_sound().await;
    }

    /// A transaction takes its number, as a poll does that renews its run. The task that it then claims is added meanwhile.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_resource_is_logged_as_added_before_it_is_claimed() {
        let world = World::postgres().await;
        let mut follower = Follower::of(&world);
        let number = "select cast(pg_current_xact_id() as text) as xact";
        let poll = open(
            &world,
            move |tx| Box::pin(async move { tx.query(number, params![]).await.map(drop) }),
            |tx| {
                Box::pin(async move {
                    let token = tx.call(task::Claim::of("auth-1", "a")).await?.claim.token;
                    tx.call(task::Done::new(token)).await.map(drop)
                })
            },
        )
        .await;
        world.add("while it runs").await;
        follower.read().await;
        poll.commit().await.unwrap();
        follower.read().await;
        world
            .fleet
            .call(task::Note { task: "auth-1".into(), text: "after".into(), ..Default::default() })
            .await
            .unwrap();
        let of_the_task = ["task.added", "task.claimed", "task.completed", "task.noted"];
        let of_the_task = of_the_task.map(|kind| format!("{kind} task/auth-1"));
        eventually("the follower comes to the end", async || {
            follower.read().await;
            follower.seen.iter().any(|event| event.kind == "task.noted")
        })
        .await;
        follower.seen.retain(|event| event.resource == "task/auth-1");
        assert_eq!(resources(&follower.seen), of_the_task);
        world.assert_sound().await;
    }

    /// Many callers take the same few locks and wait for each other, in transactions that took their numbers before. A
    /// follower that pages sees each event once, and the events of each lock in order.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_follower_that_pages_sees_every_resource_in_order_and_nothing_twice() {
        let world = World::postgres().await;
        let mut follower = Follower::of(&world);
        const WORKERS: usize = 6;
        const ROUNDS: usize = 15;
        let workers = (0..WORKERS).map(|n| {
            let fleet = world.fleet.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let run = format!("w{n}");
                    let work = fleet.transaction(move |tx| {
                        let run = run.clone();
                        Box::pin(async move {
                            tx.query("select cast(pg_current_xact_id() as text) as xact", params![]).await?;
                            let lock = format!("l{}", fastrand::u8(0..3));
                            let held = tx.call(lock::Claim::new(lock, run)).await;
                            let Ok(held) = held else { return Ok(()) };
                            tx.call(claim::Release::new(held.claim.token)).await.map(drop)
                        })
                    });
                    work.await.unwrap();
                }
            })
        });
        let workers = join_all(workers.collect::<Vec<_>>());
        let mut workers = std::pin::pin!(workers);
        loop {
            tokio::select! {
                done = &mut workers => { done.into_iter().for_each(|done| done.unwrap()); break }
                () = follower.read() => {}
            }
        }
        let mut stored = world.kinds().await;
        eventually("the follower comes to the end", async || {
            follower.read().await;
            follower.seen.len() >= stored.len()
        })
        .await;
        let mut kinds: Vec<_> = follower.seen.iter().map(|event| event.kind.clone()).collect();
        kinds.sort();
        stored.sort();
        assert_eq!(kinds, stored, "nothing is missed, and nothing is there twice");
        for lock in ["lock/l0", "lock/l1", "lock/l2"] {
            let its = follower.seen.iter().filter(|event| event.resource == lock);
            let its: Vec<_> = its.map(|event| (event.fence.unwrap(), event.kind.as_str())).collect();
            assert!(its.is_sorted(), "{its:#?}");
        }
    }

    /// Reads on from the last position, in pages of two.
    struct Follower {
        fleet: Fleet,
        position: Option<String>,
        seen: Vec<event::Entry>,
    }

    impl Follower {
        fn of(world: &World) -> Self {
            Self { fleet: world.fleet.clone(), position: None, seen: Vec::new() }
        }

        async fn read(&mut self) {
            loop {
                let since = self.position.clone();
                let page = event::List { since, limit: Some(2), ..event::List::default() };
                let page = self.fleet.call(page).await.unwrap();
                self.seen.extend(page.events);
                self.position = Some(page.position);
                if !page.more {
                    return;
                }
            }
        }
    }

    /// An event gets its number when it is written; the log's order is that of the transactions.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_rolled_back_event_leaves_no_gap_to_wait_for() {
        let world = World::postgres().await;
        let failed = world.fleet.transaction(|tx| {
            Box::pin(async move {
                tx.call(task::Add::new("auth", "never")).await?;
                tx.execute("select 1 / cast(?1 as bigint)", params![0]).await
            })
        });
        assert_eq!(code(failed.await), Code::Internal);
        world.add("after").await;
        assert_eq!(resources(&world.follow(event::List::default()).await), ["task.added task/auth-1"]);
    }
}
