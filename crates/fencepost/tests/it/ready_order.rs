//! The order of ready tasks, tags, and the list that shows it.

use fencepost_testing::{World, on_both};

on_both! {
    async fn mine_come_first_then_priority_then_age(world: World) {
        world.story("
            add old                     -> auth-1 unassigned
            add new                     -> auth-2 unassigned
            add urgent priority=90      -> auth-3 unassigned
            add idle priority=0         -> auth-4 unassigned
            add mine to=bob priority=1  -> auth-5 pending
            add mine2 to=bob priority=2 -> auth-6 pending
            add hers to=eve priority=99 -> auth-7 pending
            ready agent=bob             -> tasks=auth-6,auth-5,auth-3,auth-1,auth-2,auth-4
            ready                       -> tasks=auth-3,auth-1,auth-2,auth-4
            ready agent=bob limit=3     -> tasks=auth-6,auth-5,auth-3
            claim run=b agent=bob       -> task/auth-6@1
            claim run=b                 -> task/auth-5@1
            claim run=b                 -> task/auth-3@1
            claim run=b                 -> task/auth-1@1
            claim run=b                 -> task/auth-2@1
            claim run=b                 -> task/auth-4@1
            claim run=b                 -> refused none_ready blocked=1 claimed=6
        ").await;
    }

    /// Tasks of dead holders and tasks whose delay is over are listed where a claim will find them.
    async fn the_list_shows_the_order_of_claims(world: World) {
        world.story("
            add plain                                    -> auth-1 unassigned
            add dead priority=90                         -> auth-2 unassigned
            add delayed priority=70                      -> auth-3 unassigned
            add mine to=bob                              -> auth-4 pending
            add last priority=10                         -> auth-5 unassigned
            claim auth-2 run=a                           -> task/auth-2@1
            claim auth-3 run=a                           -> task/auth-3@1
            claim auth-4 run=x agent=bob                 -> task/auth-4@1
            fail task/auth-3@1 reason=x retry=true delay_ms=29000 -> unassigned
            +28s ready agent=bob                         -> tasks=auth-1,auth-5
            +2s ready agent=bob                          -> tasks=auth-4,auth-2,auth-3,auth-1,auth-5
            ready agent=bob limit=2                      -> tasks=auth-4,auth-2
            ready agent=bob limit=2 board=web            -> refused not_found
            claim run=b agent=bob                        -> task/auth-4@2
            claim run=b                                  -> task/auth-2@2
            claim run=b                                  -> task/auth-3@2
            claim run=b                                  -> task/auth-1@1
        ").await;
    }

    async fn an_offer_is_not_ready_because_its_delay_is_over(world: World) {
        world.story("
            add one                                -> auth-1 unassigned
            claim run=r                            -> task/auth-1@1
            fail task/auth-1@1 reason=x retry=true -> unassigned
            offer auth-1 to=bob                    -> offered
            +11s ready agent=bob                   -> tasks=none
            claim run=b agent=bob                  -> refused none_ready
            claim auth-1 run=b agent=bob           -> task/auth-1@2 reviewing
            ready agent=bob                        -> tasks=none
        ").await;
    }

    async fn a_claim_stays_on_its_board(world: World) {
        world.story("
            add one board=web priority=99   -> web-1 unassigned
            add mine board=web to=bob       -> web-2 pending
            add two                         -> auth-1 unassigned
            ready agent=bob                 -> tasks=auth-1
            claim run=b agent=bob           -> task/auth-1@1
            claim run=b                     -> refused none_ready claimed=1 blocked=0
            done task/auth-1@1              -> completed
            claim run=b                     -> refused board_finished
            claim run=b board=web           -> task/web-2@1
            claim run=b board=web           -> task/web-1@1
            claim run=b board=nowhere       -> refused not_found
            claim web-1 run=b board=web     -> refused invalid field=task
        ").await;
    }

    async fn a_claim_by_tag_takes_only_that_tag(world: World) {
        world.story("
            add plain priority=99             -> auth-1 unassigned
            add ui tags=ui,fast               -> auth-2 unassigned tags=ui,fast
            add ui2 tags=ui priority=80       -> auth-3 unassigned
            add web tags=ui board=web priority=90 -> web-1 unassigned
            add mine tags=ui to=bob           -> auth-4 pending
            add mine2 to=bob priority=99      -> auth-5 pending
            claim run=b agent=bob tag=ui      -> task/auth-4@1
            claim run=b tag=ui                -> task/auth-3@1
            claim run=b tag=fast              -> task/auth-2@1
            claim run=b tag=ui                -> refused none_ready
            claim run=b tag=ui board=web      -> task/web-1@1
            claim run=b tag=none              -> refused none_ready
            release task/auth-2@1             -> status=unassigned
            claim run=b tag=ui                -> task/auth-2@2
        ").await;
    }

    /// Claims by tag search a copy of the ready tasks. Every op that makes a task ready updates the copy.
    async fn every_op_that_makes_a_task_ready_updates_its_tags(world: World) {
        world.story("
            add base                          -> auth-1 unassigned
            add next tags=x after=auth-1      -> auth-2 unassigned
            claim run=r tag=x                 -> refused none_ready
            claim auth-1 run=r                -> task/auth-1@1
            done task/auth-1@1                -> completed
            claim run=r tag=x                 -> task/auth-2@1
            release task/auth-2@1             -> status=unassigned
            claim run=r tag=x                 -> task/auth-2@2
            fail task/auth-2@2 reason=x retry=true delay_ms=5000 -> unassigned
            claim run=r tag=x                 -> refused none_ready
            +5s claim run=r tag=x             -> task/auth-2@3
            +30s claim run=s tag=x            -> task/auth-2@4
            unclaim task/auth-2               -> unassigned
            park auth-2 reason=x              -> unassigned
            claim run=s tag=x                 -> refused none_ready
            unpark auth-2                     -> unassigned
            assign auth-2 to=bob              -> pending
            claim run=s tag=x                 -> refused none_ready
            claim run=b agent=bob tag=x       -> task/auth-2@5
            fail task/auth-2@5 reason=x       -> failed
            retry auth-2                      -> pending
            claim run=b tag=x                 -> task/auth-2@6
            release task/auth-2@6             -> status=pending
            add third                         -> auth-3 unassigned
            depend auth-2 after=auth-3        -> waiting_on=1
            claim run=b tag=x                 -> refused none_ready
            undepend auth-2 after=auth-3      -> waiting_on=0
            claim run=b tag=x                 -> task/auth-2@7
        ").await;
    }

    async fn offers_and_edits_update_tags(world: World) {
        world.story("
            add one tags=x offer=bob          -> auth-1 offered
            claim run=r tag=x                 -> refused none_ready
            reject auth-1 agent=bob reason=no -> unassigned
            add two tags=x                    -> auth-2 unassigned
            edit auth-2 priority=60           -> priority=60
            claim run=r tag=x                 -> task/auth-2@1
            edit auth-2 priority=10           -> in_progress
            release task/auth-2@1             -> status=unassigned
            claim run=r tag=x                 -> task/auth-1@1
            edit auth-2 tags=y priority=20    -> tags=y
            claim run=r tag=x                 -> refused none_ready
            claim run=r tag=y                 -> task/auth-2@2
            edit auth-1 tags=z                -> in_progress
            release task/auth-1@1             -> status=unassigned
            claim run=r tag=x                 -> refused none_ready
            claim run=r tag=z                 -> task/auth-1@2
        ").await;
        let none = serde_json::json!({ "task": "auth-1", "tags": [] });
        world.call("task/edit", &none).await.unwrap();
        world.story("
            release task/auth-1@2 -> status=unassigned
            show auth-1           -> tags=none
            claim run=r tag=z     -> refused none_ready
            list tag=y            -> tasks=auth-2
            list tag=z            -> tasks=none
        ").await;
    }

    /// An assigned task stays ready, but for another agent. The integrity check at the end compares the copies.
    async fn an_assignment_updates_tags(world: World) {
        world.story("
            add one tags=x                    -> auth-1 unassigned
            assign auth-1 to=bob              -> pending
            add two tags=x offer=bob          -> auth-2 offered
            accept auth-2 agent=bob           -> pending
            add three tags=x offer=bob        -> auth-3 offered
            reject auth-3 agent=bob reason=no -> unassigned
            add four tags=x to=bob            -> auth-4 pending
        ").await;
    }

    async fn batches_update_tags(world: World) {
        world.story("
            add a tags=x                -> auth-1 unassigned
            add b tags=x                -> auth-2 unassigned
            add c tags=x after=auth-1,auth-2 -> auth-3 unassigned
            add d tags=x after=auth-2   -> auth-4 unassigned
        ").await;
        let many = serde_json::json!({ "run": "r", "count": 9, "tag": "x", "ttl_ms": 30000 });
        let claims = world.call("task/claim_many", &many).await.unwrap();
        assert_eq!(claims["claims"].as_array().unwrap().len(), 2);
        world.assert_sound().await;
        let done = serde_json::json!({ "tasks": [{ "token": "task/auth-1@1" }, { "token": "task/auth-2@1" }] });
        world.call("task/done_many", &done).await.unwrap();
        world.story("
            claim run=r tag=x  -> task/auth-3@1
            claim run=r tag=x  -> task/auth-4@1
            +30s claim run=s tag=x -> task/auth-3@2
        ").await;
    }

    async fn lists_are_read_in_pages(world: World) {
        for n in 1..=5 {
            world.add(&format!("t{n}")).await;
        }
        world.story("
            add other board=web to=bob    -> web-1 pending
            list limit=2                  -> tasks=auth-1,auth-2 more=true
            list limit=2 after=auth-2     -> tasks=auth-3,auth-4 more=true
            list limit=2 after=auth-4     -> tasks=auth-5,web-1 more=false
            list after=web-1              -> tasks=none more=false
            list after=auth-9             -> refused not_found
            list board=web                -> tasks=web-1
            list status=pending           -> tasks=web-1
            list assignee=bob             -> tasks=web-1
            list assignee=eve             -> tasks=none
        ").await;
    }
}
