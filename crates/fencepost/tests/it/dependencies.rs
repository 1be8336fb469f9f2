//! Dependencies between tasks.

use fencepost_testing::{World, on_both};

on_both! {
    async fn a_task_waits_for_its_dependencies(world: World) {
        world.story("
            add base                   -> auth-1 unassigned
            add next after=auth-1      -> auth-2 unassigned waiting_on=1 after=auth-1
            claim auth-2 run=r         -> refused not_ready
            claim run=r                -> task/auth-1@1
            claim run=r                -> refused none_ready blocked=1 claimed=1
            done task/auth-1@1 output=built -> completed
            show auth-2                -> waiting_on=0 after.0.output=built
            claim run=r                -> task/auth-2@1
            add late after=auth-1      -> auth-3 unassigned waiting_on=0
            claim run=r                -> task/auth-3@1
        ").await;
    }

    async fn failed_and_cancelled_tasks_keep_their_dependents_waiting(world: World) {
        world.story("
            add fails max_attempts=1          -> auth-1 unassigned
            add cancelled                     -> auth-2 unassigned
            add next after=auth-1,auth-2      -> auth-3 unassigned waiting_on=2
            add later after=auth-3            -> auth-4 unassigned waiting_on=1
            claim auth-1 run=r                -> task/auth-1@1
            fail task/auth-1@1 reason=broken  -> failed
            cancel auth-2                     -> cancelled
            show auth-3                       -> unassigned waiting_on=2
            claim run=r                       -> refused none_ready blocked=2 failed=1
            retry auth-1                      -> unassigned
            claim auth-1 run=r                -> task/auth-1@2
            done task/auth-1@2                -> completed
            show auth-3                       -> waiting_on=1
            why auth-3                        -> reasons=blocked
            undepend auth-3 after=auth-2      -> waiting_on=0
            claim run=r                       -> task/auth-3@1
            done task/auth-3@1                -> completed
            claim run=r                       -> task/auth-4@1
        ").await;
    }

    async fn edges_are_added_and_removed(world: World) {
        world.story("
            add a                          -> auth-1 unassigned
            add b                          -> auth-2 unassigned
            depend auth-2 after=auth-1     -> waiting_on=1
            depend auth-2 after=auth-1     -> waiting_on=1
            claim auth-2 run=r             -> refused not_ready
            undepend auth-2 after=auth-1   -> waiting_on=0
            undepend auth-2 after=auth-1   -> refused not_found
            depend auth-2 after=auth-9     -> refused not_found
            depend auth-9 after=auth-1     -> refused not_found
            claim auth-1 run=r             -> task/auth-1@1
            done task/auth-1@1             -> completed
            depend auth-2 after=auth-1     -> waiting_on=0
            undepend auth-2 after=auth-1   -> waiting_on=0
            claim auth-2 run=r             -> task/auth-2@1
            add c                          -> auth-3 unassigned
            depend auth-2 after=auth-3     -> refused already_claimed holder=r
            done task/auth-2@1             -> completed
            depend auth-2 after=auth-3     -> refused already_finished
            depend auth-1 after=auth-2     -> refused already_finished
        ").await;
    }

    /// A dead holder's claim causes no refusal.
    async fn a_dead_holder_does_not_keep_an_edge_away(world: World) {
        world.story("
            add a                           -> auth-1 unassigned
            add b                           -> auth-2 unassigned
            claim auth-2 run=r              -> task/auth-2@1
            +29s depend auth-2 after=auth-1 -> refused already_claimed holder=r
            +1s depend auth-2 after=auth-1  -> unassigned waiting_on=1 attempts=1
            claim auth-2 run=s              -> refused not_ready
            done task/auth-2@1              -> refused lease_expired
            claim run=s                     -> task/auth-1@1
            done task/auth-1@1              -> completed
            claim run=s                     -> task/auth-2@2 attempts=2
        ").await;
    }

    async fn circles_are_refused_however_long(world: World) {
        world.story("
            add a                       -> auth-1 unassigned
            add b after=auth-1          -> auth-2 unassigned
            add c after=auth-2          -> auth-3 unassigned
            add other board=web after=auth-3 -> web-1 unassigned
            depend auth-1 after=auth-1  -> refused invalid field=after
            depend auth-1 after=auth-2  -> refused invalid field=after
            depend auth-1 after=auth-3  -> refused invalid field=after
            depend auth-1 after=web-1   -> refused invalid field=after
            depend auth-3 after=auth-1  -> waiting_on=2
            undepend auth-2 after=auth-1 -> waiting_on=0
            depend auth-1 after=auth-2  -> waiting_on=1
            add bad after=auth-9        -> refused not_found field=after
            add bad after=nonsense      -> refused invalid field=after
            list                        -> tasks=auth-1,auth-2,auth-3,web-1
        ").await;
    }

    async fn a_diamond_opens_when_both_sides_are_done(world: World) {
        world.story("
            add top                        -> auth-1 unassigned
            add left after=auth-1          -> auth-2 unassigned
            add right after=auth-1         -> auth-3 unassigned
            add bottom after=auth-2,auth-3 -> auth-4 unassigned waiting_on=2
            claim run=r                    -> task/auth-1@1
            done task/auth-1@1             -> completed
            claim run=r                    -> task/auth-2@1
            claim run=s                    -> task/auth-3@1
            done task/auth-3@1             -> completed
            claim run=s                    -> refused none_ready blocked=1 claimed=1
            done task/auth-2@1             -> completed
            claim run=s                    -> task/auth-4@1
        ").await;
    }

    async fn a_batch_of_completions_is_decided_one_by_one(world: World) {
        world.story("
            add a                                 -> auth-1 unassigned
            add b                                 -> auth-2 unassigned
            add c                                 -> auth-3 unassigned
            add d                                 -> auth-4 unassigned
            add both after=auth-1,auth-2          -> auth-5 unassigned waiting_on=2
            add all after=auth-1,auth-2,auth-3,auth-4 -> auth-6 unassigned waiting_on=4
            claim auth-1 run=r                    -> task/auth-1@1
            claim auth-2 run=r                    -> task/auth-2@1
            claim auth-3 run=r                    -> task/auth-3@1
            claim auth-4 run=dies ttl_ms=1000     -> task/auth-4@1
        ").await;
        world.pass(1);
        let done = serde_json::json!({ "tasks": [
            { "token": "task/auth-1@1", "output": "one" },
            { "token": "task/auth-2@1" },
            { "token": "task/auth-3@7" },
            { "token": "task/auth-4@1" },
            { "token": "task/auth-9@1" },
        ] });
        for _ in 0..2 {
            let reply = world.call("task/done_many", &done).await.unwrap();
            let said = reply["results"].as_array().unwrap().iter().map(|result| {
                result.pointer("/task/status").or(result.pointer("/error/code")).unwrap().as_str().unwrap()
            });
            assert_eq!(said.collect::<Vec<_>>(), ["completed", "completed", "not_found", "lease_expired", "not_found"]);
        }
        world.story("
            show auth-5         -> waiting_on=0 after.0.output=one after.1.output=none
            show auth-6         -> waiting_on=2
            guard task/auth-3@1 -> reason=ok
        ").await;
        let twice = serde_json::json!({ "tasks": [{ "token": "task/auth-3@1" }, { "token": "task/auth-3@1" }] });
        assert_eq!(world.call("task/done_many", &twice).await.unwrap_err().field("field").unwrap(), "tasks");
    }

    /// Old tasks are pruned, but not while a blocked task counts them.
    async fn pruning_keeps_the_dependencies_of_blocked_tasks(world: World) {
        world.story("
            add fails                    -> auth-1 unassigned
            add next after=auth-1        -> auth-2 unassigned
            add base                     -> auth-3 unassigned
            add after after=auth-3       -> auth-4 unassigned
            claim auth-1 run=r           -> task/auth-1@1
            fail task/auth-1@1 reason=no -> failed
            claim auth-3 run=r           -> task/auth-3@1
            done task/auth-3@1           -> completed
        ").await;
        world.pass_in_use(20 * 86_400).await;
        world.story("
            cancel auth-2 -> cancelled
            cancel auth-4 -> cancelled
        ").await;
        world.pass_in_use(15 * 86_400).await;
        let pruned = world.call("admin/prune", &serde_json::json!({})).await.unwrap();
        assert_eq!(pruned["tasks"], 1);
        world.story("
            list                         -> tasks=auth-1,auth-2,auth-4
            retry auth-2                 -> unassigned waiting_on=1
            undepend auth-2 after=auth-1 -> waiting_on=0
            claim auth-2 run=s           -> task/auth-2@2
            retry auth-4                 -> unassigned waiting_on=0
            claim auth-4 run=s           -> task/auth-4@2
        ").await;
    }
}
