//! Loops: starting, claiming stories, recording steps, verdicts, and how a loop ends.

use fencepost::{
    Code, Fleet, Millis, Result, admin, agent, claim,
    claim::Verdict as Reason,
    loops::{self, Judgement, LoopStatus, Skip, Status, next},
    task,
};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};
use serde_json::json;
use std::collections::BTreeSet;
use tokio::task::JoinSet;

const ONE: &str = "1111111";
const TWO: &str = "2222222";

fn story(id: &str, after: &[&str]) -> loops::Story {
    let after = after.iter().map(ToString::to_string).collect();
    loops::Story { id: id.into(), title: format!("do {id}"), after, ..loops::Story::default() }
}

fn start(stories: &[(&str, &[&str])]) -> loops::Start {
    let stories = stories.iter().map(|(id, after)| story(id, after)).collect();
    loops::Start { id: "l".into(), stories, ..loops::Start::default() }
}

fn next(run: &str) -> loops::Next {
    loops::Next {
        id: "l".into(),
        run: run.into(),
        ttl_ms: Some(Millis::seconds(30)),
        ..loops::Next::default()
    }
}

/// Claims the next story, and returns its id and its token.
async fn take(fleet: &Fleet, run: &str) -> (String, String) {
    let reply = fleet.call(next(run)).await.expect("an answer");
    let (story, claim) = (reply.story.expect("a story"), reply.claim.expect("a claim"));
    (story.id, claim.token)
}

async fn nothing(fleet: &Fleet, run: &str) -> next::Reason {
    fleet.call(next(run)).await.expect("an answer").reason.expect("no story")
}

fn step(token: &str, name: &str, commit: Option<&str>) -> loops::Step {
    loops::Step {
        token: token.into(),
        name: name.into(),
        commit: commit.map(str::to_owned),
        ..loops::Step::default()
    }
}

fn verdict(token: &str, verdict: Judgement, commit: Option<&str>) -> loops::Verdict {
    let feedback = (verdict != Judgement::Pass).then(|| "the tests fail".to_owned());
    loops::Verdict { token: token.into(), verdict, commit: commit.map(str::to_owned), feedback }
}

/// Records a commit, and passes the story.
async fn pass(fleet: &Fleet, token: &str) -> Result<loops::verdict::Judged> {
    fleet.call(step(token, "implement", Some(ONE))).await?;
    fleet.call(verdict(token, Judgement::Pass, Some(ONE))).await
}

async fn fail(fleet: &Fleet, token: &str) -> Result<loops::verdict::Judged> {
    fleet.call(verdict(token, Judgement::Fail, None)).await
}

async fn shown(fleet: &Fleet) -> loops::status::Shown {
    fleet.call(loops::Show { id: Some("l".into()), story: None }).await.expect("the loop")
}

async fn statuses(fleet: &Fleet) -> Vec<(String, Status)> {
    shown(fleet).await.stories.into_iter().map(|story| (story.id, story.status)).collect()
}

fn are(expected: &[(&str, Status)]) -> Vec<(String, Status)> {
    expected.iter().map(|(id, status)| ((*id).to_owned(), *status)).collect()
}

async fn guard(fleet: &Fleet, token: &str) -> (String, Reason, Option<Status>) {
    let reply = fleet.call(loops::Guard { token: token.into() }).await.expect("an answer");
    assert_eq!(reply.ok, reply.reason == Reason::Ok);
    (reply.status, reply.reason, reply.outcome)
}

on_both! {
    async fn a_second_start_changes_nothing(world: World) {
        let fleet = &world.fleet;
        let plan = start(&[("a", &[]), ("b", &["a"])]);
        let first = fleet.call(plan.clone()).await.unwrap();
        assert!(first.started);
        assert_eq!(first.brief.status, LoopStatus::Active);
        let (_, token) = take(fleet, "r1").await;
        pass(fleet, &token).await.unwrap();
        let (_, held) = take(fleet, "r1").await;
        let second = fleet.call(plan.clone()).await.unwrap();
        assert!(!second.started);
        let told: Vec<_> = second.stories.iter().map(|s| (s.id.as_str(), s.status)).collect();
        assert_eq!(told, [("a", Status::Passed), ("b", Status::Claimed)]);
        assert!(fleet.call(claim::Guard::new(&held)).await.unwrap().ok);
        assert_eq!(world.times("loop.started").await, 1);

        let other = loops::Start { max_retries: Some(7), ..start(&[("a", &[]), ("c", &[])]) };
        let error = refused(fleet.call(other).await);
        assert_eq!(error.code(), Code::Invalid);
        assert!(error.message().contains("max_retries was 2 and is 7; story `b` is missing; story `c` is new"), "{error}");
        assert_eq!(error.field("differences").and_then(|list| list.as_array()).map(Vec::len), Some(3));

        pass(fleet, &held).await.unwrap();
        assert_eq!(code(fleet.call(plan.clone()).await), Code::AlreadyFinished);
        assert_eq!(nothing(fleet, "r1").await, next::Reason::Finished);
        // Its tasks are pruned, its id is not.
        world.pass_in_use(40 * 24 * 3600).await;
        let pruned = fleet.call(admin::Prune::default()).await.unwrap();
        assert_eq!(pruned.tasks, 2);
        assert_eq!(code(fleet.call(plan).await), Code::AlreadyFinished);
        let kept = shown(fleet).await;
        assert_eq!((kept.brief.summary.passed, kept.stories.len()), (2, 0));
    }

    async fn a_prd_is_honoured(world: World) {
        let prd = json!({"project": "shop", "stories": [
            {"id": "S-3", "title": "third", "priority": 3},
            {"id": "S-1", "title": "first", "priority": 1, "passes": true},
            {"id": "S-2", "title": "second", "priority": 2, "acceptance_criteria": ["it works"], "dependencies": ["S-1"]},
            {"id": "S-4", "title": "out", "priority": 4, "skipped": true},
            {"id": "S-5", "title": "waits for it", "priority": 5, "dependencies": ["S-4"]}]});
        let start = loops::Start { id: "l".into(), prd: Some(prd), ..loops::Start::default() };
        let started = world.fleet.call(start).await.unwrap();
        assert_eq!(started.brief.project.as_deref(), Some("shop"));
        let expected = [
            ("S-1", Status::Passed), ("S-2", Status::Open), ("S-3", Status::Open), ("S-4", Status::Skipped),
            ("S-5", Status::DependencySkipped),
        ];
        assert_eq!(statuses(&world.fleet).await, are(&expected));
        assert_eq!(take(&world.fleet, "r").await.0, "S-2");
        let task = world.show("l-1").await;
        assert_eq!((task.title.as_str(), task.done_when.as_deref()), ("second", Some("- it works")));
        assert_eq!(task.assignee.as_deref(), Some("loop/l"));
    }

    async fn a_plan_is_started_whole_or_not_at_all(world: World) {
        for (plan, says) in [
            (start(&[("a", &["b"]), ("b", &["a"])]), "cycle through a, b"),
            (start(&[("a", &["x"])]), "no story of the plan"),
            (start(&[("a", &[]), ("a", &[])]), "already"),
            (loops::Start { id: "a/b".into(), ..start(&[("a", &[])]) }, "`loop` has a '/'"),
            (loops::Start { prd: Some(json!({"stories": [{"id": "a"}]})), ..start(&[]) }, "missing field `title`"),
            (loops::Start { prd: Some(json!({"stories": []})), ..start(&[("a", &[])]) }, "cannot both be given"),
            (loops::Start { id: "auth".into(), ..start(&[("a", &[])]) }, "a board of that name"),
        ] {
            if says.contains("board") {
                world.add("first").await;
            }
            let error = refused(world.fleet.call(plan).await);
            assert!(error.code() == Code::Invalid && error.message().contains(says), "{error}");
        }
        assert!(world.fleet.call(loops::List { all: true, limit: None }).await.unwrap().loops.is_empty());
        assert_eq!(code(world.fleet.call(next("r")).await), Code::NotFound);
        assert_eq!(code(world.fleet.call(loops::Show::default()).await), Code::NotFound);
    }

    async fn only_a_loop_hands_out_its_stories(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[])])).await.unwrap();
        world.join("ann", agent::Role::Worker).await;
        let polled = fleet.call(agent::Poll { agent: "ann".into(), run: "p".into(), ..Default::default() }).await.unwrap();
        assert!(polled.trigger.is_none());
        assert_eq!(code(fleet.call(task::Claim { run: "r".into(), ..Default::default() }).await), Code::NoneReady);
        assert_eq!(code(fleet.call(task::Claim::of("l-1", "r")).await), Code::NotReady);
        let (_, token) = take(fleet, "r1").await;
        // A step's agent may have learned to complete its task.
        let told = refused(world.done(&token).await);
        assert_eq!(told.code(), Code::NotReady);
        assert!(told.message().contains("`done` is not for stories"), "{told}");
        assert_eq!(code(fleet.call(task::Fail::new(&token, "no")).await), Code::NotReady);
        let many = fleet.call(task::DoneMany { tasks: vec![task::done_many::Completion { token: token.clone(), output: None }] }).await.unwrap();
        assert_eq!(many.results[0].error.as_ref().map(|error| error["code"].clone()), Some(json!("not_ready")));
        pass(fleet, &token).await.unwrap();
        fleet.call(loops::Start { id: "m".into(), ..start(&[("a", &[])]) }).await.unwrap();
        fleet.call(loops::Cancel { id: "m".into(), reason: None }).await.unwrap();
        assert_eq!(code(fleet.call(task::Retry { task: "m-1".into(), request: None }).await), Code::NotReady);
        // A loop ends: no story waits for a task that its plan does not know. Tasks may wait for stories.
        fleet.call(loops::Start { id: "n".into(), ..start(&[("a", &[]), ("b", &["a"])]) }).await.unwrap();
        let other = world.add("another task").await;
        let depend = |task: &str, after: &str| task::Depend { task: task.into(), after: after.into(), request: None };
        assert_eq!(code(fleet.call(depend("n-1", &other)).await), Code::NotReady);
        let undepend = task::Undepend { task: "n-2".into(), after: "n-1".into(), ..task::Undepend::default() };
        assert_eq!(code(fleet.call(undepend).await), Code::NotReady);
        fleet.call(depend(&other, "n-1")).await.unwrap();
    }

    async fn one_chain_has_a_story_and_others_are_told(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &["a"])])).await.unwrap();
        let (first, token) = take(fleet, "r1").await;
        assert_eq!((first.as_str(), token.as_str()), ("a", "task/l-1@1"));
        // The answer was lost: the run asks again.
        assert_eq!(take(fleet, "r1").await, (first, token.clone()));
        let told = fleet.call(next("r2")).await.unwrap();
        assert_eq!(told.reason, Some(next::Reason::AlreadyClaimed));
        assert!(told.message.unwrap().contains("story `a` is held by run `r1` until"));
        // Nothing was opened for it.
        let runs = fleet.call(fencepost::run::List { run: Some("r2".into()), all: true, limit: None }).await.unwrap();
        assert_eq!(runs.runs.len(), 0);
        pass(fleet, &token).await.unwrap();
        assert_eq!(take(fleet, "r2").await.0, "b");
    }

    async fn a_waiting_chain_gets_the_story_that_becomes_free(world: World) {
        let fleet = world.fleet.clone();
        fleet.call(start(&[("a", &[]), ("b", &["a"])])).await.unwrap();
        let (_, token) = take(&fleet, "r1").await;
        let other = world.again().await;
        let waiting = tokio::spawn(async move {
            let wait = loops::Next { wait_ms: Some(Millis::minutes(5)), ..next("r2") };
            other.call(wait).await.unwrap().story.map(|story| story.id)
        });
        pass(&fleet, &token).await.unwrap();
        assert_eq!(waiting.await.unwrap().as_deref(), Some("b"));
    }

    async fn a_verdict_is_given_once_on_the_recorded_commit(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[])])).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        assert_eq!(code(fleet.call(verdict(&token, Judgement::Pass, Some(ONE))).await), Code::NotReady);
        fleet.call(step(&token, "implement", Some(ONE))).await.unwrap();
        assert_eq!(code(fleet.call(verdict(&token, Judgement::Pass, Some(TWO))).await), Code::NotReady);
        assert_eq!(code(fleet.call(verdict(&token, Judgement::Pass, None)).await), Code::Invalid);
        let silent = loops::Verdict { feedback: None, ..verdict(&token, Judgement::Fail, None) };
        assert_eq!(code(fleet.call(silent).await), Code::Invalid);
        let first = fleet.call(verdict(&token, Judgement::Pass, Some(ONE))).await.unwrap();
        assert_eq!((first.story.status, first.brief.status), (Status::Passed, LoopStatus::Finished));
        let again = fleet.call(verdict(&token, Judgement::Pass, Some(ONE))).await.unwrap();
        assert_eq!(again.story, first.story);
        for other in [verdict(&token, Judgement::Fail, Some(ONE)), verdict(&token, Judgement::Skip, None)] {
            assert_eq!(code(fleet.call(other).await), Code::AlreadyFinished);
        }
        assert_eq!(world.times("task.completed").await, 1);
        let passed = Some(Status::Passed);
        assert_eq!(guard(fleet, &token).await, ("already_passed".into(), Reason::AlreadyFinished, passed));
        assert_eq!(world.show("l-1").await.output.as_deref(), Some("commit 1111111"));
    }

    async fn a_late_chain_is_refused_everywhere(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[])])).await.unwrap();
        let (_, old) = take(fleet, "r1").await;
        fleet.call(step(&old, "plan", None)).await.unwrap();
        world.pass(31);
        assert_eq!(guard(fleet, &old).await, ("lease_expired".into(), Reason::LeaseExpired, None));
        let resumed = fleet.call(next("r2")).await.unwrap();
        let new = resumed.claim.unwrap().token;
        assert_eq!((old.as_str(), new.as_str()), ("task/l-1@1", "task/l-1@2"));
        // It goes on after the last recorded step.
        assert_eq!(resumed.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), ["plan"]);
        assert_eq!(guard(fleet, &old).await, ("already_claimed".into(), Reason::AlreadyClaimed, None));
        assert_eq!(code(fleet.call(step(&old, "implement", Some(ONE))).await), Code::LeaseExpired);
        assert_eq!(code(fleet.call(verdict(&old, Judgement::Fail, None)).await), Code::LeaseExpired);
        fleet.call(step(&new, "implement", Some(TWO))).await.unwrap();
        assert_eq!(code(fleet.call(verdict(&old, Judgement::Pass, Some(TWO))).await), Code::LeaseExpired);
        fleet.call(verdict(&new, Judgement::Pass, Some(TWO))).await.unwrap();
        assert_eq!(code(fleet.call(verdict(&old, Judgement::Pass, Some(TWO))).await), Code::AlreadyFinished);
        assert_eq!(guard(fleet, "task/l-1@9").await.0, "not_found");
    }

    async fn every_step_renews_the_lease(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[])])).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        for name in ["plan", "tests", "implement", "review"] {
            world.pass(20);
            fleet.call(step(&token, name, None)).await.unwrap();
        }
        assert_eq!(nothing(fleet, "r2").await, next::Reason::AlreadyClaimed);
    }

    async fn a_step_is_recorded_once(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[])])).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        let plan = loops::Step { data: Some(json!({"files": 2})), cost: Some(json!({"usd": 0.25})), ..step(&token, "plan", None) };
        fleet.call(plan.clone()).await.unwrap();
        assert_eq!(fleet.call(plan).await.unwrap().steps.len(), 1);
        assert_eq!(code(fleet.call(step(&token, "plan", None)).await), Code::AlreadyFinished);
        fleet.call(step(&token, "implement", Some(ONE))).await.unwrap();
        fleet.call(step(&token, "review", None)).await.unwrap();
        assert_eq!(world.times("task.step").await, 3);
        // The commit is in no repository any more: the step is done again, and those after it.
        let redone = loops::Step { redo: true, ..step(&token, "implement", Some(TWO)) };
        let redone = fleet.call(redone).await.unwrap();
        let told: Vec<_> = redone.steps.iter().map(|s| (s.name.as_str(), s.commit.as_deref())).collect();
        assert_eq!(told, [("plan", None), ("implement", Some(TWO))]);
        assert_eq!(redone.story.commit.as_deref(), Some(TWO));
        for (bad, says) in [
            (loops::Step { cost: Some(json!({"usd": 1e308})), ..step(&token, "x", None) }, "cost"),
            (loops::Step { cost: Some(json!({"usd": -1})), ..step(&token, "x", None) }, "cost"),
            (loops::Step { cost: Some(json!(3)), ..step(&token, "x", None) }, "cost"),
            (step(&token, "a/b", None), "name"),
            (step(&token, "x", Some("HEAD")), "not the id of a commit"),
        ] {
            let error = refused(fleet.call(bad).await);
            assert!(error.message().contains(says), "{error}");
        }
        fleet.call(verdict(&token, Judgement::Pass, Some(TWO))).await.unwrap();
        let summary = shown(fleet).await.brief.summary;
        assert_eq!(summary.cost.into_iter().collect::<Vec<_>>(), [("usd".to_owned(), 0.25)]);
        let steps = fleet.call(loops::Show { id: Some("l".into()), story: Some("a".into()) }).await.unwrap().steps;
        assert_eq!(steps.len(), 2);
    }

    async fn a_failing_verdict_starts_a_new_round_until_the_story_is_skipped(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &[])])).await.unwrap();
        for round in 0..3 {
            let reply = fleet.call(next("r1")).await.unwrap();
            let (story, token) = (reply.story.unwrap(), reply.claim.unwrap().token);
            assert_eq!((story.id.as_str(), story.retries, reply.steps.len()), ("a", round, 0));
            assert_eq!(story.round_after, round, "the fence of the verdict before");
            assert_eq!(story.feedback.is_some(), round > 0);
            fleet.call(step(&token, "plan", None)).await.unwrap();
            fail(fleet, &token).await.unwrap();
            // The first answer again, also when somebody else has the story.
            fail(fleet, &token).await.unwrap();
        }
        let expected = [
            ("a", Status::Skipped), ("b", Status::DependencySkipped), ("c", Status::DependencySkipped),
            ("d", Status::Open),
        ];
        assert_eq!(statuses(fleet).await, are(&expected));
        let (last, token) = take(fleet, "r1").await;
        assert_eq!(last, "d");
        let brief = pass(fleet, &token).await.unwrap().brief;
        let summary = brief.summary;
        assert_eq!(brief.status, LoopStatus::Finished);
        assert_eq!((summary.passed, summary.skipped, summary.dependency_skipped, summary.attempts), (1, 1, 2, 4));
        let a = shown(fleet).await.stories.remove(0);
        assert_eq!((a.feedback.as_deref(), a.skipped_by), (Some("the tests fail"), Some(Skip::Retries)));
        assert_eq!(world.show("l-1").await.failure_reason.as_deref(), Some("the tests fail"));
    }

    async fn stories_that_wait_for_a_skipped_one_may_run(world: World) {
        let fleet = &world.fleet;
        let plan = start(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])]);
        fleet.call(loops::Start { run_dependents: true, ..plan }).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        fleet.call(verdict(&token, Judgement::Skip, None)).await.unwrap();
        assert_eq!(statuses(fleet).await, are(&[("a", Status::Skipped), ("b", Status::Open), ("c", Status::Blocked)]));
        for id in ["b", "c"] {
            let (story, token) = take(fleet, "r1").await;
            assert_eq!(story, id);
            pass(fleet, &token).await.unwrap();
        }
        assert_eq!(shown(fleet).await.brief.status, LoopStatus::Finished);
    }

    /// Dependencies that were given up are there again.
    async fn a_restart_waits_for_skipped_stories_again(world: World) {
        let fleet = &world.fleet;
        let plan = start(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
        fleet.call(loops::Start { run_dependents: true, ..plan }).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        fleet.call(verdict(&token, Judgement::Skip, None)).await.unwrap();
        assert_eq!(statuses(fleet).await, are(&[("a", Status::Skipped), ("b", Status::Open), ("c", Status::Blocked)]));
        fleet.call(loops::Restart { id: "l".into(), ..loops::Restart::default() }).await.unwrap();
        assert_eq!(statuses(fleet).await, are(&[("a", Status::Open), ("b", Status::Blocked), ("c", Status::Blocked)]));
    }

    async fn a_story_that_kills_its_chains_is_skipped(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &["a"])])).await.unwrap();
        for n in 0..3 {
            assert_eq!(take(fleet, &format!("r{n}")).await.0, "a");
            world.pass(31);
        }
        // A read shows it, although nothing was written yet; the next chain writes it.
        let expected = are(&[("a", Status::Skipped), ("b", Status::DependencySkipped)]);
        assert_eq!((statuses(fleet).await, shown(fleet).await.brief.status), (expected.clone(), LoopStatus::Finished));
        assert_eq!(world.times("loop.finished").await, 0);
        assert_eq!(nothing(fleet, "r9").await, next::Reason::Finished);
        assert_eq!(world.times("loop.finished").await, 1);
        assert_eq!(statuses(fleet).await, expected);
    }

    async fn a_loop_has_a_limit_of_iterations(world: World) {
        let fleet = &world.fleet;
        let plan = start(&[("a", &[]), ("b", &[]), ("c", &["b"])]);
        fleet.call(loops::Start { max_iterations: Some(2), ..plan }).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        fail(fleet, &token).await.unwrap();
        let (story, token) = take(fleet, "r1").await;
        assert_eq!(story, "a");
        assert_eq!(nothing(fleet, "r2").await, next::Reason::AlreadyClaimed);
        let judged = fail(fleet, &token).await.unwrap();
        assert_eq!((judged.brief.status, judged.brief.summary.skipped), (LoopStatus::Finished, 2));
        let skipped: Vec<_> = shown(fleet).await.stories.into_iter().map(|story| story.skipped_by).collect();
        assert_eq!(skipped, [Some(Skip::Iterations), Some(Skip::Iterations), Some(Skip::Dependency)]);
    }

    async fn a_cancelled_loop_ends_its_claims(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &[]), ("c", &["b"])])).await.unwrap();
        let (_, done) = take(fleet, "r1").await;
        pass(fleet, &done).await.unwrap();
        let (_, held) = take(fleet, "r1").await;
        let cancel = loops::Cancel { id: "l".into(), reason: Some("wrong plan".into()) };
        let cancelled = fleet.call(cancel.clone()).await.unwrap();
        assert_eq!((cancelled.brief.status, cancelled.brief.summary.skipped), (LoopStatus::Cancelled, 2));
        let told: Vec<_> = cancelled.stories.iter().map(|story| story.skipped_by).collect();
        assert_eq!(told, [None, Some(Skip::Cancelled), Some(Skip::Cancelled)]);
        assert_eq!(fleet.call(cancel).await.unwrap().brief, cancelled.brief);
        assert_eq!(guard(fleet, &held).await, ("cancelled".into(), Reason::Cancelled, Some(Status::Skipped)));
        assert_eq!(code(pass(fleet, &held).await), Code::Cancelled);
        assert_eq!(nothing(fleet, "r1").await, next::Reason::Cancelled);
        assert_eq!(code(fleet.call(start(&[("a", &[]), ("b", &[]), ("c", &["b"])])).await), Code::Cancelled);
        assert!(fleet.call(loops::List::default()).await.unwrap().loops.is_empty());
        let all = fleet.call(loops::List { all: true, limit: None }).await.unwrap().loops;
        assert_eq!((all.len(), all[0].reason.as_deref()), (1, Some("wrong plan")));
    }

    async fn a_restart_ends_claims_and_runs_again_what_did_not_pass(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &[]), ("c", &["b"])])).await.unwrap();
        let (_, done) = take(fleet, "r1").await;
        pass(fleet, &done).await.unwrap();
        let (_, held) = take(fleet, "r1").await;
        fleet.call(step(&held, "implement", Some(ONE))).await.unwrap();
        let restart = loops::Restart { id: "l".into(), ..loops::Restart::default() };
        let once = loops::Restart { request: Some("q".into()), ..restart.clone() };
        fleet.call(once.clone()).await.unwrap();
        assert_eq!(code(fleet.call(verdict(&held, Judgement::Pass, Some(ONE))).await), Code::LeaseExpired);
        let again = fleet.call(next("r2")).await.unwrap();
        let (story, token) = (again.story.unwrap(), again.claim.unwrap().token);
        assert_eq!((story.id.as_str(), story.commit, story.round_after, again.steps.len()), ("b", None, 1, 0));
        // The same restart again does not end the new claim.
        fleet.call(once).await.unwrap();
        assert!(fleet.call(claim::Guard::new(&token)).await.unwrap().ok);
        fleet.call(verdict(&token, Judgement::Skip, None)).await.unwrap();
        assert_eq!(shown(fleet).await.brief.status, LoopStatus::Finished);
        // Also a loop that is over.
        let changed = fleet.call(restart.clone()).await.unwrap();
        assert_eq!(changed.brief.status, LoopStatus::Active);
        assert_eq!(statuses(fleet).await, are(&[("a", Status::Passed), ("b", Status::Open), ("c", Status::Blocked)]));
        for _ in 0..2 {
            let (_, token) = take(fleet, "r3").await;
            pass(fleet, &token).await.unwrap();
        }
        assert_eq!(code(fleet.call(restart).await), Code::AlreadyFinished);
    }

    async fn stories_learn_from_each_other(world: World) {
        let fleet = &world.fleet;
        fleet.call(start(&[("a", &[]), ("b", &[])])).await.unwrap();
        let (_, token) = take(fleet, "r1").await;
        let learned = loops::Step { learned: Some("the build needs jq".into()), ..step(&token, "implement", Some(ONE)) };
        fleet.call(learned).await.unwrap();
        fleet.call(verdict(&token, Judgement::Pass, Some(ONE))).await.unwrap();
        let learned = fleet.call(next("r1")).await.unwrap().learned;
        let told: Vec<_> = learned.iter().map(|one| (one.story.as_str(), one.text.as_str())).collect();
        assert_eq!(told, [("a", "the build needs jq")]);
    }

    /// Starts and chains race, on connections of their own.
    async fn chains_that_race_do_each_story_once(world: World) {
        const STORIES: usize = 24;
        let ids: Vec<String> = (0..STORIES).map(|n| format!("S-{n}")).collect();
        let stories: Vec<loops::Story> = ids
            .iter()
            .enumerate()
            .map(|(n, id)| match n % 4 {
                3 => story(id, &[&ids[n - 1], &ids[n - 3]]),
                _ => story(id, &[]),
            })
            .collect();
        let mut chains = JoinSet::new();
        for n in 0..8 {
            let (fleet, stories) = (world.again().await, stories.clone());
            chains.spawn(async move {
                let start = loops::Start { id: "l".into(), stories, ..loops::Start::default() };
                let started = fleet.call(start).await.unwrap().started;
                let (mut done, run) = (Vec::new(), format!("chain-{n}"));
                loop {
                    let wait = loops::Next { wait_ms: Some(Millis::minutes(5)), ..next(&run) };
                    let reply = fleet.call(wait).await.unwrap();
                    let Some(claim) = reply.claim else {
                        assert_eq!(reply.reason, Some(next::Reason::Finished));
                        return (started, done);
                    };
                    pass(&fleet, &claim.token).await.unwrap();
                    done.push(reply.story.unwrap().id);
                }
            });
        }
        let chains = chains.join_all().await;
        assert_eq!(chains.iter().filter(|(started, _)| *started).count(), 1);
        let done: Vec<String> = chains.into_iter().flat_map(|(_, done)| done).collect();
        assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (STORIES, STORIES));
        assert_eq!(shown(&world.fleet).await.brief.summary.passed, STORIES as i64);
        assert_eq!(world.times("loop.finished").await, 1);
    }
}
