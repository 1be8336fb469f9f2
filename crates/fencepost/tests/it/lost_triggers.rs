//! A trigger whose run is lost comes back whole. Lost again, it is split in halves, until the poison item is alone.

use fencepost::{agent, mail, task};
use fencepost_testing::{World, on_both};

/// A worker finishes this many tasks.
async fn finish(world: &World, board: &str, count: usize) {
    let item = |n| task::plan::Item { title: format!("task {n}"), ..Default::default() };
    let plan =
        task::Plan { board: Some(board.into()), tasks: (0..count).map(item).collect(), ..Default::default() };
    world.fleet.call(plan).await.expect("planned");
    let many = task::ClaimMany {
        count: count as i64,
        board: Some(board.into()),
        run: format!("{board}-worker"),
        ..Default::default()
    };
    let claimed = world.fleet.call(many).await.expect("claimed").claims;
    let done = |claimed: task::claim::Claimed| task::done_many::Completion {
        token: claimed.claim.token,
        output: None,
    };
    let done = task::DoneMany { tasks: claimed.into_iter().map(done).collect() };
    world.fleet.call(done).await.expect("completed");
}

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

on_both! {
    /// The first message kills every run that has it. Only that message fails; later ones are unaffected.
    async fn a_poison_message_is_found_by_halves(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            inbox/send bob text=poison         -> item.id=1
            inbox/send bob text=x              -> item.id=2
            inbox/send bob text=x              -> item.id=3
            inbox/send bob text=x              -> item.id=4
            inbox/send bob text=x              -> item.id=5
            agent/poll bob run=r1              -> claims=message/1@1,message/2@1,message/3@1,message/4@1,message/5@1
            inbox/send bob text=later          -> item.id=6
            +61s agent/poll bob run=r2         -> claims=message/1@2,message/2@2,message/3@2,message/4@2,message/5@2
            agent/poll bob run=later           -> claims=message/6@1
            run/settle later                   -> settled=message/6@1
            +61s agent/poll bob run=r3         -> claims=message/1@3,message/2@3,message/3@3
            agent/poll bob run=r4              -> claims=message/4@3,message/5@3
            run/settle r4                      -> settled=message/4@3,message/5@3
            +61s agent/poll bob run=r5         -> claims=message/1@4,message/2@4
            agent/poll bob run=r6              -> claims=message/3@4
            run/settle r6                      -> settled=message/3@4
            +61s agent/poll bob run=r7         -> claims=message/1@5
            agent/poll bob run=r8              -> claims=message/2@5
            run/settle r8                      -> settled=message/2@5
            +61s agent/poll bob run=r9         -> trigger=none
        ").await;
        let poison = world.message(1).await;
        assert_eq!((poison.status, poison.attempts), (mail::Status::Failed, 3));
        for id in 2..=6 {
            assert_eq!(world.message(id).await.status, mail::Status::Processed, "message {id}");
        }
    }

    /// A lead that crashes once over its notices starts one more process, however many notices there were.
    async fn one_crash_starts_at_most_two_processes(world: World) {
        world.story("agent/join lead role=lead -> agent.role=lead").await;
        for count in [12, 50] {
            finish(&world, &format!("b{count}"), count).await;
            let run = |n| format!("lead-{count}-{n}");
            let first = world.fleet.call(poll("lead", &run(1))).await.unwrap().trigger.expect("notices");
            assert_eq!((first.claims.len(), first.tasks.len()), (count, count));
            // Notices that came meanwhile are a separate trigger.
            finish(&world, &format!("more{count}"), 3).await;
            world.pass(61);
            let second = world.fleet.call(poll("lead", &run(2))).await.unwrap().trigger.expect("notices");
            let ids = |trigger: &agent::Trigger| {
                trigger.claims.iter().map(|claim| claim.resource.clone()).collect::<Vec<_>>()
            };
            assert_eq!(ids(&second), ids(&first));
            world.story(&format!("
                run/settle {}                  -> lost=none left=none
                agent/poll lead run={}         -> count=3
                run/settle {}                  -> lost=none
                agent/poll lead run={}         -> trigger=none
            ", run(2), run(3), run(3), run(4))).await;
        }
    }

    /// Items that were settled before the crash do not come back, and a lost reply splits nothing.
    async fn unsettled_items_come_back_as_one_trigger(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            inbox/send bob text=x              -> item.id=1
            inbox/send bob text=x              -> item.id=2
            inbox/send bob text=x              -> item.id=3
            inbox/send bob text=x              -> item.id=4
            agent/poll bob run=r1              -> claims=message/1@1,message/2@1,message/3@1,message/4@1
            inbox/respond message/2@1 text=ok  -> responded
            end r1                             -> run.alive=false
        ").await;
        let (_, delivery) = world.fleet.deliver(poll("bob", "r2")).await.unwrap();
        assert_eq!(delivery.undelivered().await.unwrap(), 3);
        world.story("
            agent/poll bob run=r3              -> claims=message/1@3,message/3@3,message/4@3
            run/settle r3 outcome=released     -> back=message/1@3,message/3@3,message/4@3
            inbox/send bob text=x              -> item.id=5
            agent/poll bob run=r4              -> claims=message/1@4,message/3@4,message/4@4,message/5@1
            run/settle r4                      -> lost=none
        ").await;
    }

    /// A message with one attempt is tried once.
    async fn a_message_with_one_attempt_is_tried_once(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            mail/configure inbox/bob max_attempts=1 -> settings.max_attempts=1
            inbox/send bob text=x              -> item.id=1
            inbox/send bob text=x              -> item.id=2
            agent/poll bob run=r1              -> claims=message/1@1,message/2@1
            +61s agent/poll bob run=r2         -> trigger=none
            inbox/list bob status=failed       -> items=1,2
        ").await;
    }

    /// Mentions in several channels are one trigger; the last attempt is made channel by channel.
    async fn a_poison_mention_is_found(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            channel/create c                   -> existing=false
            channel/create d                   -> existing=false
            channel/create e                   -> existing=false
            channel/post c body=@bob           -> post.n=1
            +1s channel/post d body=@bob       -> post.n=1
            +1s channel/post e body=@bob       -> post.n=1
            agent/poll bob run=r1              -> claims=mentions/bob/c@1,mentions/bob/d@1,mentions/bob/e@1
            +61s agent/poll bob run=r2         -> claims=mentions/bob/c@2,mentions/bob/d@2,mentions/bob/e@2
            +61s agent/poll bob run=r3         -> claims=mentions/bob/c@3
            agent/poll bob run=r4              -> claims=mentions/bob/d@3
            agent/poll bob run=r5              -> claims=mentions/bob/e@3
            run/settle r4                      -> settled=mentions/bob/d@3
            run/settle r5                      -> settled=mentions/bob/e@3
            +61s agent/poll bob run=r6         -> trigger=none
        ").await;
        assert_eq!(world.times("mentions.failed").await, 1);
    }
}
