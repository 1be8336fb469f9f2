//! Effects that must happen once: one caller runs the command, the others get its result, and nobody runs it again
//! while it is in doubt.

use crate::keys::as_agent_key;
use crate::waiting::{answer, parked, waits};
use fencepost::{
    Code, Error, Millis, admin, agent, claim,
    claim::Verdict,
    once::{self, Effect, Output, Source, Status},
    run, task,
};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};

const KEY: &str = "slack-812";

fn begin(run: &str) -> once::Begin {
    once::Begin { ttl_ms: Some(Millis::seconds(30)), ..once::Begin::new(KEY, "./send hello", run) }
}

fn output(text: &str) -> Option<Output> {
    Some(Output { text: text.into(), ..Output::default() })
}

fn finish(token: &str, exit_code: i64) -> once::Finish {
    once::Finish {
        exit_code,
        stdout: output("sent\n"),
        stderr: output("warning: slow\n"),
        ..once::Finish::new(token)
    }
}

fn resolve(token: &str, happened: bool) -> once::Resolve {
    once::Resolve { token: token.into(), happened, ..once::Resolve::default() }
}

/// Begins the effect and returns the token.
async fn take(world: &World, begin: once::Begin) -> String {
    let begun = world.fleet.call(begin).await.expect("begun");
    assert_eq!(begun.effect.status, Status::Running);
    begun.claim.expect("a claim").token
}

async fn show(world: &World) -> Effect {
    world.fleet.call(once::Show { key: KEY.into() }).await.expect("the effect").effect
}

/// The effect is in doubt: its holder died.
async fn doubted(world: &World) -> String {
    let token = take(world, begin("a")).await;
    world.pass(30);
    token
}

/// The events of the effect: verb, states, who, fence.
async fn story_is(world: &World, expected: &[&str]) {
    let lines = world.log().await.into_iter().filter_map(|line| {
        let line = line.strip_prefix("once.")?.replace(&format!("once/{KEY} "), "");
        Some(line.split(" {").next()?.trim_end_matches(" -").to_owned())
    });
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

fn is_in_doubt(error: &Error) {
    assert_eq!(error.code(), Code::NotReady, "{error}");
    assert_eq!(error.field("status"), Some(&"in_doubt".into()));
    let hint = error.hint_text().expect("a hint");
    for way in ["--happened or --not-happened", "--check CMD", "--retry-in-doubt"] {
        assert!(hint.contains(way), "{way}: {hint}");
    }
}

on_both! {
    async fn the_first_caller_runs_it_and_later_callers_get_its_result(world: World) {
        let token = take(&world, begin("a")).await;
        assert_eq!(token, "once/slack-812@1");
        let held = refused(world.fleet.call(begin("b")).await);
        assert_eq!((held.code(), held.field("holder")), (Code::AlreadyClaimed, Some(&"a".into())));
        let own = refused(world.fleet.call(begin("a")).await);
        assert_eq!((own.code(), own.field("own")), (Code::AlreadyClaimed, Some(&true.into())));

        let done = world.fleet.call(finish(&token, 0)).await.unwrap().effect;
        assert_eq!((done.status, done.exit_code, done.source), (Status::Succeeded, Some(0), Some(Source::Command)));
        assert_eq!((done.stdout.clone(), done.stderr.clone()), (output("sent\n"), output("warning: slow\n")));
        assert_eq!(world.guard(&token).await, Verdict::AlreadyFinished);
        for run in ["a", "b"] {
            let begun = world.fleet.call(begin(run)).await.unwrap();
            assert_eq!((begun.claim, begun.was, &begun.effect), (None, None, &done));
        }
        assert_eq!(show(&world).await, done);
        let runs = world.fleet.call(run::List { all: true, ..run::List::default() }).await.unwrap().runs;
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["a"], "no run for nothing");
        story_is(&world, &[
            "claimed unused>running a/- @1",
            "finished running>succeeded a/- @1",
        ])
        .await;
    }

    async fn the_same_result_again_is_the_first_reply_and_another_is_refused(world: World) {
        let token = take(&world, begin("a")).await;
        let first = world.fleet.call(finish(&token, 0)).await.unwrap();
        assert_eq!(world.fleet.call(finish(&token, 0)).await.unwrap(), first);
        for other in [finish(&token, 1), once::Finish { stdout: None, ..finish(&token, 0) }] {
            let error = refused(world.fleet.call(other).await);
            assert_eq!((error.code(), error.field("ended_by")), (Code::AlreadyFinished, Some(&"done".into())));
        }
        assert_eq!(world.times("once.finished").await, 1);
        assert_eq!(code(world.fleet.call(resolve(&token, false)).await), Code::AlreadyFinished);
        assert_eq!(code(world.fleet.call(claim::Release::new(&token)).await), Code::AlreadyFinished);
    }

    async fn a_failure_is_kept_until_a_caller_wants_to_retry_it(world: World) {
        let token = take(&world, begin("a")).await;
        let failed = world.fleet.call(finish(&token, 3)).await.unwrap().effect;
        assert_eq!((failed.status, failed.exit_code), (Status::Failed, Some(3)));
        let stored = world.fleet.call(once::Begin { retry_in_doubt: true, ..begin("b") }).await.unwrap();
        assert_eq!((stored.claim, stored.effect), (None, failed.clone()));

        let retry = once::Begin { retry_failed: true, ..begin("b") };
        let begun = world.fleet.call(retry.clone()).await.unwrap();
        assert_eq!((begun.was, begun.effect.exit_code), (Some(Status::Failed), None));
        // It could not be started: the earlier failure is still the result.
        let second = begun.claim.unwrap().token;
        assert_eq!(world.fleet.call(claim::Release::new(&second)).await.unwrap().status, "failed");
        let back = show(&world).await;
        assert_eq!((back.exit_code, &back.stdout, &back.begun_by), (Some(3), &failed.stdout, &failed.begun_by));

        let third = take(&world, retry.clone()).await;
        assert_eq!(third, "once/slack-812@3");
        world.fleet.call(finish(&third, 0)).await.unwrap();
        let stored = world.fleet.call(retry).await.unwrap();
        assert_eq!((stored.claim, stored.effect.status, stored.effect.begun_by.as_str()), (None, Status::Succeeded, "b"));
    }

    async fn another_command_under_the_same_key_is_invalid(world: World) {
        let other = || once::Begin { command: "./send bye".into(), ..begin("b") };
        let token = take(&world, begin("a")).await;
        assert_eq!(code(world.fleet.call(other()).await), Code::Invalid, "while it runs");
        world.fleet.call(finish(&token, 1)).await.unwrap();
        for other in [other(), once::Begin { retry_failed: true, retry_in_doubt: true, ..other() }] {
            let error = refused(world.fleet.call(other).await);
            assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&"command".into())));
            assert!(error.message().contains("./send hello"), "{error}");
        }
        // The digest decides, not the words.
        let same = once::Begin { digest: Some("1".into()), ..once::Begin::new("k", "./a", "a") };
        let token = world.fleet.call(same.clone()).await.unwrap().claim.unwrap().token;
        world.fleet.call(finish(&token, 0)).await.unwrap();
        assert!(world.fleet.call(once::Begin { command: "./b".into(), ..same.clone() }).await.unwrap().claim.is_none());
        assert_eq!(code(world.fleet.call(once::Begin { digest: Some("2".into()), ..same }).await), Code::Invalid);
    }

    async fn a_command_that_never_started_leaves_the_key_unused(world: World) {
        let token = take(&world, begin("a")).await;
        let released = world.fleet.call(claim::Release::new(&token)).await.unwrap();
        assert_eq!(released.status, "unused");
        assert_eq!(world.fleet.call(claim::Release::new(&token)).await.unwrap(), released);
        assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::AlreadyFinished, "it was given back");
        // Nothing ran under this key, so it may be used for another command.
        let other = once::Begin { command: "./other".into(), ..begin("b") };
        let (lost, delivery) = world.fleet.deliver(other.clone()).await.unwrap();
        assert_eq!(delivery.undelivered().await.unwrap(), 1);
        assert_eq!(show(&world).await.status, Status::Unused);
        let token = take(&world, other).await;
        assert_ne!(Some(&token), lost.claim.map(|claim| claim.token).as_ref());
        world.fleet.call(finish(&token, 0)).await.unwrap();
        story_is(&world, &[
            "claimed unused>running a/- @1",
            "released running>unused a/- @1",
            "claimed unused>running b/- @2",
            "undelivered running>unused b/- @2",
            "claimed unused>running b/- @3",
            "finished running>succeeded b/- @3",
        ])
        .await;
    }

    async fn a_lost_claim_leaves_it_in_doubt_and_nobody_runs_it_again(world: World) {
        for (n, lose) in ["lapse", "end", "unclaim", "settle", "limit"].into_iter().enumerate() {
            let key = format!("k{n}");
            let begin = |run: &str| once::Begin { key: key.clone(), ..begin(run) };
            let capped = once::Begin { max_ms: (lose == "limit").then_some(Millis::seconds(10)), ..begin("a") };
            let token = take(&world, capped).await;
            match lose {
                "lapse" => world.pass(30),
                "limit" => world.pass(10),
                "end" => world.end("a").await,
                "settle" => world.sql("update run set trigger_type = 'x', given = '{\"claims\":[\"once/k3@1\"]}', agent = 'ann' where ended_at is null").await,
                _ => {
                    let unclaim = claim::Unclaim { resource: format!("once/{key}"), reason: Some("stuck".into()) };
                    let unclaimed = world.fleet.call(unclaim).await.unwrap();
                    assert_eq!((unclaimed.held_by.as_deref(), unclaimed.status.as_str()), (Some("a"), "in_doubt"));
                }
            }
            if lose == "settle" {
                let settled = world.fleet.call(run::Settle { run: "a".into(), ..run::Settle::default() }).await;
                assert_eq!(settled.unwrap().back, ["once/k3@1"]);
            }
            // A read shows it before expiry writes it.
            let shown = world.fleet.call(once::Show { key: key.clone() }).await.unwrap().effect;
            assert_eq!(shown.status, Status::InDoubt, "{lose}");
            let listed = world.fleet.call(once::List { status: Some(Status::InDoubt), ..once::List::default() }).await;
            assert!(listed.unwrap().effects.contains(&shown), "{lose}");
            for run in ["a", "b"] {
                is_in_doubt(&refused(world.fleet.call(begin(run)).await));
            }
            is_in_doubt(&refused(world.fleet.call(once::Begin { retry_failed: true, ..begin("b") }).await));
            assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::LeaseExpired, "{lose}");
            assert_eq!(code(world.fleet.call(claim::Release::new(&token)).await), Code::LeaseExpired, "{lose}");
            let shown = world.fleet.call(once::Show { key: key.clone() }).await.unwrap().effect;
            assert_eq!((shown.status, shown.begun_by.as_str(), shown.exit_code), (Status::InDoubt, "a", None), "{lose}");
        }
        let listed = world.fleet.call(once::List::default()).await.unwrap().effects;
        let reasons: Vec<_> = listed.iter().map(|effect| effect.reason.as_deref().unwrap_or_default()).collect();
        assert_eq!(reasons, [
            "its lease was over", "its run ended", "an operator took the claim away: stuck", "its run was settled",
            "its time was up",
        ]);
    }

    async fn a_command_that_a_signal_ended_is_in_doubt(world: World) {
        let token = take(&world, begin("a")).await;
        let effect = world.fleet.call(finish(&token, 137)).await.unwrap().effect;
        assert_eq!((effect.status, effect.exit_code), (Status::InDoubt, Some(137)));
        assert_eq!(effect.stdout, output("sent\n"), "it helps to find out");
        assert_eq!(world.fleet.call(finish(&token, 137)).await.unwrap().effect, effect);
        let error = refused(world.fleet.call(once::Begin { retry_failed: true, ..begin("b") }).await);
        is_in_doubt(&error);
        assert!(error.message().ends_with("signal 9 ended its command"), "{error}");
        assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::AlreadyFinished);
    }

    async fn somebody_says_that_it_happened(world: World) {
        let token = doubted(&world).await;
        let happened = once::Resolve { note: Some("it is in #ops".into()), stdout: output("ts 7\n"), ..resolve(&token, true) };
        let resolved = world.fleet.as_agent("ann").call(happened.clone()).await.unwrap();
        let effect = &resolved.effect;
        assert_eq!((effect.status, effect.source, effect.exit_code), (Status::Succeeded, Some(Source::Person), Some(0)));
        assert_eq!((effect.note.as_deref(), &effect.stdout), (Some("it is in #ops"), &output("ts 7\n")));
        assert_eq!(world.fleet.call(happened).await.unwrap(), resolved, "a repeat");
        assert_eq!(code(world.fleet.call(resolve(&token, false)).await), Code::AlreadyFinished);
        let stored = world.fleet.call(begin("b")).await.unwrap();
        assert_eq!((stored.claim, &stored.effect), (None, effect));
        assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::AlreadyFinished);
        story_is(&world, &[
            "claimed unused>running a/- @1",
            "lapsed running>in_doubt a/- @1",
            "resolved in_doubt>succeeded -/ann @1",
        ])
        .await;
    }

    async fn somebody_says_that_it_did_not_happen(world: World) {
        let token = doubted(&world).await;
        let resolved = world.fleet.call(resolve(&token, false)).await.unwrap();
        assert_eq!((resolved.effect.status, resolved.effect.exit_code), (Status::Unused, None));
        assert_eq!(world.fleet.call(resolve(&token, false)).await.unwrap(), resolved, "a repeat");
        assert_eq!(code(world.fleet.call(resolve(&token, true)).await), Code::NotReady, "the first word counts");
        assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::LeaseExpired);
        let next = take(&world, begin("b")).await;
        assert_eq!(code(world.fleet.call(resolve(&token, false)).await), Code::AlreadyClaimed, "of another claim");
        world.pass(30);
        // A repeat that arrives late does not resolve the new doubt.
        assert_eq!(code(world.fleet.call(resolve(&token, false)).await), Code::LeaseExpired);
        is_in_doubt(&refused(world.fleet.call(begin("c")).await));
        world.fleet.call(resolve(&next, true)).await.unwrap();
        assert_eq!(show(&world).await.status, Status::Succeeded);
        assert_eq!(code(world.fleet.call(resolve("once/slack-812@9", true)).await), Code::NotFound);
        assert_eq!(code(world.fleet.call(resolve("once/nothing@1", true)).await), Code::NotFound);
        assert_eq!(code(world.fleet.call(resolve("lock/x@1", true)).await), Code::Invalid);
    }

    async fn a_caller_may_run_it_again_in_doubt(world: World) {
        doubted(&world).await;
        let retry = |run: &str| once::Begin { retry_in_doubt: true, ..begin(run) };
        let begun = world.fleet.call(retry("b")).await.unwrap();
        assert_eq!(begun.was, Some(Status::InDoubt));
        assert_eq!(code(world.fleet.call(retry("c")).await), Code::AlreadyClaimed, "one at a time");
        // It was not started after all: the doubt is as old as before.
        world.fleet.call(claim::Release::new(begun.claim.unwrap().token)).await.unwrap();
        let shown = show(&world).await;
        assert_eq!((shown.status, shown.begun_by.as_str(), shown.reason.as_deref()),
            (Status::InDoubt, "a", Some("its lease was over")));
        let second = take(&world, retry("b")).await;
        world.fleet.call(finish(&second, 0)).await.unwrap();
        let shown = show(&world).await;
        assert_eq!((shown.status, shown.begun_by.as_str(), shown.reason), (Status::Succeeded, "b", None));
    }

    async fn a_check_finds_out_under_a_claim(world: World) {
        doubted(&world).await;
        let retry = |run: &str| once::Begin { retry_in_doubt: true, ..begin(run) };
        // It did not happen: the holder goes on, and what it does not start is unused.
        let token = take(&world, retry("b")).await;
        let going_on = world.fleet.call(resolve(&token, false)).await.unwrap();
        assert_eq!((going_on.effect.status, going_on.effect.claim.is_some()), (Status::Running, true));
        assert_eq!(world.fleet.call(resolve(&token, false)).await.unwrap(), going_on, "a repeat");
        assert_eq!(world.guard(&token).await, Verdict::Ok);
        assert_eq!(world.fleet.call(claim::Release::new(&token)).await.unwrap().status, "unused");

        // It happened.
        let token = take(&world, begin("c")).await;
        world.end("c").await;
        let again = take(&world, retry("d")).await;
        let happened = once::Resolve { stdout: output("found\n"), ..resolve(&again, true) };
        let effect = world.fleet.call(happened.clone()).await.unwrap().effect;
        assert_eq!((effect.status, effect.source, effect.stdout.clone()),
            (Status::Succeeded, Some(Source::Check), output("found\n")));
        assert_eq!(world.fleet.call(happened).await.unwrap().effect, effect, "a repeat");
        assert_eq!(code(world.fleet.call(resolve(&token, false)).await), Code::LeaseExpired);
        assert_eq!(world.fleet.call(claim::List::default()).await.unwrap().claims, []);
        story_is(&world, &[
            "claimed unused>running a/- @1",
            "lapsed running>in_doubt a/- @1",
            "claimed in_doubt>running b/- @2",
            "resolved running>running b/- @2",
            "released running>unused b/- @2",
            "claimed unused>running c/- @3",
            "lapsed running>in_doubt c/- @3",
            "claimed in_doubt>running d/- @4",
            "resolved running>succeeded d/- @4",
        ])
        .await;
    }

    async fn those_who_wait_get_the_result_or_hear_of_the_doubt(world: World) {
        let wait = |run: &str| once::Begin { wait_ms: Some(Millis::minutes(5)), ..begin(run) };
        let token = take(&world, begin("a")).await;
        let waiters = ["b", "c", "d"].map(|run| waits(&world.fleet, wait(run)));
        parked(&world.fleet, 3).await;
        world.fleet.call(finish(&token, 4)).await.unwrap();
        for waiter in waiters {
            let begun = answer(waiter).await.unwrap();
            assert_eq!((begun.claim, begun.effect.exit_code), (None, Some(4)));
        }
        let again = take(&world, once::Begin { retry_failed: true, ..begin("a") }).await;
        let waiter = waits(&world.fleet, wait("b"));
        parked(&world.fleet, 1).await;
        world.end("a").await;
        is_in_doubt(&refused(answer(waiter).await));
        is_in_doubt(&refused(answer(waits(&world.fleet, wait("b"))).await));
        // A caller that would run it again in doubt gets it when the holder dies.
        let holder = take(&world, once::Begin { retry_in_doubt: true, ..begin("c") }).await;
        assert_ne!(holder, again);
        let waiter = waits(&world.fleet, once::Begin { retry_in_doubt: true, ..wait("d") });
        parked(&world.fleet, 1).await;
        world.fleet.call(claim::Release::new(&holder)).await.unwrap();
        assert_eq!(answer(waiter).await.unwrap().was, Some(Status::InDoubt));
    }

    async fn a_repeated_request_gets_its_claim_and_then_its_result(world: World) {
        let asked = once::Begin { request: Some("q".into()), ..begin("a") };
        let first = world.fleet.call(asked.clone()).await.unwrap();
        assert_eq!(world.fleet.call(asked.clone()).await.unwrap(), first);
        let token = first.claim.unwrap().token;
        world.fleet.call(finish(&token, 0)).await.unwrap();
        let after = world.fleet.call(asked).await.unwrap();
        assert_eq!((after.claim, after.effect.status), (None, Status::Succeeded));

        let lost = once::Begin { key: "other".into(), request: Some("r".into()), ..begin("a") };
        world.fleet.call(lost.clone()).await.unwrap();
        world.pass(30);
        assert_eq!(code(world.fleet.call(once::Begin { retry_in_doubt: true, ..lost.clone() }).await), Code::Invalid);
        assert_eq!(code(world.fleet.call(lost).await), Code::LeaseExpired);
    }

    async fn a_caller_that_lost_its_own_claim_begins_nothing(world: World) {
        let task = world.add("tell them").await;
        let under = |token: &str| once::Begin { under: Some(token.into()), ..begin("effect") };
        let token = world.claim(&task, "a").await.unwrap();
        let effect = take(&world, under(&token)).await;
        world.fleet.call(finish(&effect, 0)).await.unwrap();
        assert!(world.fleet.call(under(&token)).await.unwrap().claim.is_none());
        world.pass(30);
        assert_eq!(code(world.fleet.call(under(&token)).await), Code::LeaseExpired);
        let next = world.claim(&task, "b").await.unwrap();
        assert_eq!(code(world.fleet.call(under(&token)).await), Code::LeaseExpired);
        // A holder that finished its work itself lost nothing.
        world.done(&next).await.unwrap();
        assert!(world.fleet.call(under(&next)).await.is_ok());
        assert_eq!(code(world.fleet.call(under(&token)).await), Code::AlreadyFinished);
        assert_eq!(code(world.fleet.call(under("task/auth-9@1")).await), Code::LeaseExpired, "of another fleet");
        assert_eq!(code(world.fleet.call(under("x")).await), Code::Invalid);
        let cancelled = world.add("or not").await;
        let token = world.claim(&cancelled, "c").await.unwrap();
        world.fleet.call(task::Cancel { task: cancelled, reason: Some("no".into()), request: None }).await.unwrap();
        assert_eq!(code(world.fleet.call(under(&token)).await), Code::Cancelled);
    }

    async fn an_effect_is_kept_until_it_is_removed_and_its_fences_go_on(world: World) {
        let token = take(&world, begin("a")).await;
        let remove = once::Remove { key: KEY.into() };
        assert_eq!(code(world.fleet.call(remove.clone()).await), Code::AlreadyClaimed);
        world.fleet.call(finish(&token, 0)).await.unwrap();
        world.pass_in_use(400 * 86_400).await;
        world.fleet.call(admin::Prune::default()).await.unwrap();
        assert!(world.fleet.call(begin("b")).await.unwrap().claim.is_none(), "prune keeps it");

        let removed = world.fleet.as_agent("ann").call(remove.clone()).await.unwrap().effect;
        assert_eq!((removed.status, removed.stdout), (Status::Succeeded, output("sent\n")));
        assert_eq!(code(world.fleet.call(remove).await), Code::NotFound);
        assert_eq!(code(world.fleet.call(once::Show { key: KEY.into() }).await), Code::NotFound);
        assert_eq!(world.guard(&token).await, Verdict::NotFound);
        let again = take(&world, begin("b")).await;
        assert_eq!(again, "once/slack-812@2");
        assert_eq!(world.guard(&token).await, Verdict::AlreadyClaimed);
        assert_eq!(code(world.fleet.call(finish(&token, 0)).await), Code::LeaseExpired);
        story_is(&world, &[
            "claimed unused>running a/- @1",
            "finished running>succeeded a/- @1",
            "removed succeeded>unused -/ann @1",
            "claimed unused>running b/- @2",
        ])
        .await;
    }

    async fn after_a_restore_what_was_running_is_in_doubt(world: World) {
        take(&world, begin("a")).await;
        world.fleet.call(admin::Restored {}).await.unwrap();
        world.pass(30);
        is_in_doubt(&refused(world.fleet.call(begin("b")).await));
    }

    async fn what_was_given_is_checked(world: World) {
        for (key, command) in [("", "x"), ("a b", "x"), ("-a", "x"), ("k@1", "x"), ("k", " ")] {
            assert_eq!(code(world.fleet.call(once::Begin::new(key, command, "r")).await), Code::Invalid, "{key:?} {command:?}");
        }
        assert_eq!(code(world.fleet.call(once::Begin::new("k".repeat(129), "x", "r")).await), Code::Invalid);
        let token = take(&world, begin("a")).await;
        for exit_code in [-1, 256] {
            assert_eq!(code(world.fleet.call(finish(&token, exit_code)).await), Code::Invalid);
        }
        let long = |length: usize, base64| once::Finish {
            stdout: Some(Output { text: "x".repeat(length), base64, cut: true }),
            ..finish(&token, 0)
        };
        assert_eq!(code(world.fleet.call(long(64 * 1024 + 1, false)).await), Code::TooLarge);
        assert_eq!(code(world.fleet.call(long(87_385, true)).await), Code::TooLarge);
        let nul = once::Finish { stdout: output("\0"), ..finish(&token, 0) };
        assert_eq!(code(world.fleet.call(nul).await), Code::Invalid);
        let kept = world.fleet.call(long(64 * 1024, false)).await.unwrap().effect.stdout.unwrap();
        assert_eq!((kept.text.len(), kept.cut), (64 * 1024, true));
    }

    async fn effects_are_listed_by_key_and_status(world: World) {
        for n in 0..5 {
            let begin = once::Begin { key: format!("k{n}"), ..begin("a") };
            let token = take(&world, begin).await;
            if n % 2 == 0 {
                world.fleet.call(finish(&token, n)).await.unwrap();
            }
        }
        let list = |status, after: Option<&str>, limit| once::List { status, after: after.map(str::to_owned), limit };
        let keys = async |list: once::List| {
            let page = world.fleet.call(list).await.unwrap();
            (page.effects.into_iter().map(|effect| effect.key).collect::<Vec<_>>().join(" "), page.more)
        };
        assert_eq!(keys(list(None, None, Some(2))).await, ("k0 k1".into(), true));
        assert_eq!(keys(list(None, Some("k1"), Some(3))).await, ("k2 k3 k4".into(), false));
        assert_eq!(keys(list(Some(Status::Running), None, None)).await, ("k1 k3".into(), false));
        assert_eq!(keys(list(Some(Status::Succeeded), None, None)).await, ("k0".into(), false));
        world.pass(30);
        assert_eq!(keys(list(Some(Status::Running), None, None)).await, (String::new(), false));
        assert_eq!(keys(list(Some(Status::InDoubt), None, None)).await, ("k1 k3".into(), false));
    }

    async fn many_callers_at_once_run_it_once(world: World) {
        let callers = (0..16).map(|n| {
            let fleet = world.fleet.clone();
            tokio::spawn(async move {
                let wait = once::Begin { wait_ms: Some(Millis::minutes(5)), ..begin(&format!("r{n}")) };
                let begun = fleet.call(wait).await?;
                let Some(claim) = begun.claim else { return Ok((false, begun.effect)) };
                Ok::<_, Error>((true, fleet.call(finish(&claim.token, 7)).await?.effect))
            })
        });
        let mut ran = 0;
        for caller in callers.collect::<Vec<_>>() {
            let (by_itself, effect) = caller.await.unwrap().unwrap();
            ran += u32::from(by_itself);
            assert_eq!((effect.exit_code, effect.stdout), (Some(7), output("sent\n")));
        }
        assert_eq!((ran, world.times("once.claimed").await, world.times("once.finished").await), (1, 1, 1));
    }

    async fn an_agents_key_acts_on_its_own_claims_only(world: World) {
        world.join("ann", agent::Role::Worker).await;
        let ann = as_agent_key(&world.fleet, "ann").await;
        let token = take(&world, once::Begin { agent: Some("bob".into()), ..begin("a") }).await;
        assert_eq!(code(ann.call(finish(&token, 0)).await), Code::Forbidden);
        assert_eq!(code(ann.call(resolve(&token, true)).await), Code::Forbidden);
        assert_eq!(code(ann.call(once::Begin { key: "fence/x".into(), ..begin("ann-1") }).await), Code::Forbidden);
        assert_eq!(code(ann.call(once::Remove { key: KEY.into() }).await), Code::Forbidden);
        let own = ann.call(once::Begin { key: "own".into(), ..begin("ann-1") }).await.unwrap();
        assert_eq!(own.effect.agent.as_deref(), Some("ann"));
    }
}
