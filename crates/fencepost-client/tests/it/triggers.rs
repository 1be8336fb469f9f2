//! The life of triggers, as stories, on every kind of fleet.

use crate::on_every_fleet;

on_every_fleet! {
    /// The first read; two mentions in one post; a mention during another; another run of the same agent.
    async fn mentions(setup: Setup) {
        setup.story("
            agent/join bob                                    -> agent.name=bob
            agent/join eve                                    -> agent.name=eve
            channel/create c                                  -> existing=false
            channel/post c body=hello author=x                -> post.n=1 post.mentions=none
            agent/poll bob run=b0                             -> trigger=none
            channel/post c body=@bob,@eve,@bob author=x       -> post.n=2 post.mentions=bob,eve
            agent/poll bob run=b1                             -> channels=c:1-2 claims=mentions/bob/c@1 count=1
            agent/poll eve run=e1                             -> channels=c:1-2 claims=mentions/eve/c@1
            agent/poll bob run=b2                             -> trigger=none
            channel/post c body=@bob author=x                 -> post.n=3
            agent/poll bob run=b2                             -> trigger=none
            run/settle b1                                     -> settled=mentions/bob/c@1 left=none
            agent/poll bob run=b3                             -> channels=c:3-3 claims=mentions/bob/c@2 count=1
            channel/read c agent=bob                          -> posts=3 cursor=2 held_by=b3
            guard mentions/bob/c@2                            -> ok=true
            agent/poll bob run=b3                             -> channels=c:3-3
            run/settle b3                                     -> settled=mentions/bob/c@2
            agent/poll bob run=b4                             -> trigger=none
            channel/unread bob                                -> channels=none
            channel/post c body=@eve author=x                 -> post.n=4
            channel/post c body=@eve author=x                 -> post.n=5
            agent/poll eve run=e2                             -> trigger=none
            channel/read c agent=eve token=mentions/eve/c@1 limit=3 -> posts=1,2,3 cursor=0 more=true held_by=e1
            channel/read c agent=eve token=mentions/eve/c@1 limit=3 -> posts=1,2,3 cursor=0 more=true held_by=e1
            run/settle e1                                     -> settled=mentions/eve/c@1 left=none
            channel/read c agent=eve token=mentions/eve/c@9   -> refused not_found
            channel/read c agent=eve token=mentions/bob/c@2   -> refused invalid field=token
            agent/poll eve run=e3                             -> channels=c:3-5 count=2
            end e3                                            -> run.alive=false
            channel/read c agent=eve token=mentions/eve/c@2   -> refused lease_expired
            agent/poll eve run=e4                             -> channels=c:3-5 claims=mentions/eve/c@3
        ").await;
    }

    /// A repeated read, after a lost answer, returns the same page and does not move the cursor twice.
    async fn a_repeated_read_returns_the_same_page(setup: Setup) {
        setup.story("
            channel/create c                                  -> existing=false
            channel/post c body=a                             -> post.n=1
            channel/post c body=b                             -> post.n=2
            channel/post c body=c                             -> post.n=3
            channel/read c agent=bob limit=1 request=q1       -> posts=1 cursor=1 more=true
            channel/read c agent=bob limit=1 request=q1       -> posts=1 cursor=1 more=true
            channel/read c agent=bob limit=1 request=q2       -> posts=2 cursor=2
            channel/read c agent=bob limit=1 request=q1       -> posts=1 cursor=2
            channel/read c agent=bob limit=9 request=q3       -> posts=3 cursor=3 more=false
            channel/read c agent=bob request=q4               -> posts=none cursor=3
            channel/post c body=d                             -> post.n=4
            channel/read c agent=bob request=q4               -> posts=4 cursor=4
        ").await;
    }

    /// One lead gets the notice, or another if that one dies: for every task that finishes, once.
    async fn finished_notices(setup: Setup) {
        setup.story("
            add done to=bob                         -> auth-1
            add lost max_attempts=1                 -> auth-2
            add failed                              -> auth-3
            add cancelled                           -> auth-4
            add own                                 -> auth-5
            add own-then-others                     -> auth-6
            claim auth-1 run=w agent=bob            -> task/auth-1@1
            done task/auth-1@1                      -> completed
            claim auth-3 run=v                      -> task/auth-3@1
            fail task/auth-3@1 reason=x             -> failed
            cancel auth-4                           -> cancelled
            agent/join bob                          -> agent.name=bob
            agent/poll bob run=b accept=tasks_finished -> trigger=none
            agent/join one role=lead                -> agent.role=lead
            agent/join two role=lead                -> agent.role=lead
            claim auth-5 run=l agent=one            -> task/auth-5@1
            done task/auth-5@1                      -> completed
            claim auth-6 run=l                      -> task/auth-6@1
            fail task/auth-6@1 reason=x             -> failed
            agent/poll one run=o1                   -> type=tasks_finished tasks=auth-1,auth-3 count=2
            agent/poll two run=t1                   -> trigger=none
            end o1                                  -> run.alive=false
            agent/poll two run=t2                   -> tasks=auth-1,auth-3
            agent/poll one run=o2                   -> trigger=none
            mail/done message/1@2                   -> processed
            claim auth-2 run=x                      -> task/auth-2@1
            +1s retry auth-6                        -> unassigned
            claim auth-6 run=w                      -> task/auth-6@2
            done task/auth-6@2                      -> completed
            agent/poll two run=t3                   -> tasks=auth-6
            +60s agent/poll two run=t4              -> tasks=auth-3
            run/settle t2                           -> refused lease_expired
            run/settle t4                           -> settled=message/2@3
            agent/poll one run=o3                   -> tasks=auth-6
            agent/poll two run=t5                   -> tasks=auth-2
            show auth-2                             -> failed
            run/settle o3                           -> run.alive=false
            run/settle t5                           -> run.alive=false
            +60s agent/poll one run=o4              -> trigger=none
        ").await;
    }

    /// `pool: notify` notifies every agent, whatever its limit of triggers, and claims nothing.
    async fn the_pool_notifies(setup: Setup) {
        setup.story("
            agent/join one max_concurrent=1           -> agent.name=one
            agent/join three max_concurrent=3         -> agent.name=three
            agent/poll one run=o0 pool=notify         -> trigger=none
            add a                                     -> auth-1
            add b                                     -> auth-2
            agent/poll one run=o1 pool=notify         -> type=pool_tasks_available count=2 claims=none
            agent/poll one run=o2 pool=notify         -> type=pool_tasks_available count=2
            agent/poll three run=t1 pool=notify       -> type=pool_tasks_available count=2
            agent/poll three run=t2 pool=notify       -> type=pool_tasks_available
            agent/poll three run=t3 pool=notify       -> type=pool_tasks_available
            agent/poll three run=t4 pool=off          -> trigger=none
            add mine to=three                         -> auth-3
            agent/poll three run=t5 pool=notify       -> type=task_assigned
            agent/poll one run=o3                     -> type=pool_task claims=task/auth-1@1
            agent/poll one run=o4 pool=notify         -> trigger=none
            agent/poll three run=t6 pool=notify       -> type=pool_tasks_available count=1
        ").await;
        assert_eq!(setup.world.times("run.triggered").await, 2);
    }

    /// For each kind: done, failed and released; with items finished before; repeated; and with another outcome later.
    async fn settling(setup: Setup) {
        setup.story("
            agent/join bob                              -> agent.name=bob
            agent/join lead role=lead                   -> agent.name=lead
            add a to=bob                                -> auth-1
            agent/poll bob run=a1                       -> type=task_assigned
            run/settle a1 outcome=released              -> settled=none back=task/auth-1@1
            run/settle a1 outcome=released              -> settled=none back=task/auth-1@1 left=none
            run/settle a1                               -> refused already_finished
            show auth-1                                 -> pending attempts=0
            agent/poll bob run=a2                       -> claims=task/auth-1@2
            run/settle a2 outcome=failed reason=net     -> settled=task/auth-1@2
            show auth-1                                 -> pending attempts=1 failure_reason=net
            +300s agent/poll bob run=a3                 -> claims=task/auth-1@3
            run/settle a3 output=yes exit=ok            -> settled=task/auth-1@3
            run/settle a3 output=yes exit=ok            -> settled=task/auth-1@3
            run/settle a3 output=no                     -> refused already_finished
            show auth-1                                 -> completed output=yes
            agent/poll bob run=a3                       -> refused lease_expired
            add pool                                    -> auth-2
            agent/poll bob run=p1                       -> type=pool_task
            done task/auth-2@1 output=mine              -> completed
            agent/poll bob run=p1                       -> refused lease_expired
            run/settle p1 output=other                  -> settled=none left=task/auth-2@1
            show auth-2                                 -> completed output=mine
            add maybe offer=bob                         -> auth-3
            agent/poll bob run=o1                       -> type=task_offered
            run/settle o1                               -> settled=none back=task/auth-3@1
            agent/poll bob run=o2                       -> claims=task/auth-3@2
            run/settle o2 outcome=failed                -> settled=none back=task/auth-3@2
            agent/poll bob run=o3                       -> claims=task/auth-3@3
            run/settle o3 outcome=released              -> settled=none back=task/auth-3@3
            show auth-3                                 -> offered
            agent/poll bob run=o4                       -> claims=task/auth-3@4
            run/settle o4                               -> settled=none back=task/auth-3@4
            show auth-3                                 -> unassigned
            offer auth-3 to=bob                         -> offered
            agent/poll bob run=o6                       -> claims=task/auth-3@5
            reject auth-3 agent=bob reason=no token=task/auth-3@5 -> unassigned
            run/settle o6 outcome=failed                -> settled=none left=task/auth-3@5
            offer auth-3 to=bob                         -> offered
            accept auth-3 agent=bob                     -> pending
            agent/poll bob run=o7                       -> claims=task/auth-3@6
            unclaim task/auth-3                         -> resource=task/auth-3
            run/settle o7 output=late                   -> settled=none left=none lost=task/auth-3@6
            run/settle o7 output=late                   -> settled=none left=none lost=task/auth-3@6
            show auth-3                                 -> pending
            cancel auth-3                               -> cancelled
            inbox/send bob text=1                       -> item.id=1
            inbox/send bob text=2                       -> item.id=2
            inbox/send bob text=3                       -> item.id=3
            agent/poll bob run=i1                       -> claims=message/1@1,message/2@1,message/3@1
            inbox/respond message/2@1 text=sure         -> responded
            run/settle i1 outcome=released              -> back=message/1@1,message/3@1 left=message/2@1
            agent/poll bob run=i2                       -> claims=message/1@2,message/3@2
            inbox/read message/1@2                      -> read
            run/settle i2 outcome=failed reason=net     -> settled=message/3@2 left=message/1@2
            +300s agent/poll bob run=i3                 -> claims=message/3@3
            run/settle i3                               -> settled=message/3@3
            inbox/list bob                              -> items=none
            channel/create c                            -> existing=false
            channel/create d                            -> existing=false
            channel/post c body=@bob author=x           -> post.n=1
            +1s channel/post d body=@bob author=x       -> post.n=1
            agent/poll bob run=m1                       -> claims=mentions/bob/c@1,mentions/bob/d@1
            release mentions/bob/d@1                    -> unread
            run/settle m1 outcome=failed                -> settled=mentions/bob/c@1 left=mentions/bob/d@1
            agent/poll bob run=m2                       -> claims=mentions/bob/c@2,mentions/bob/d@2
            run/settle m2 outcome=released              -> back=mentions/bob/c@2,mentions/bob/d@2
            agent/poll bob run=m3                       -> claims=mentions/bob/c@3,mentions/bob/d@3
            run/settle m3                               -> settled=mentions/bob/c@3,mentions/bob/d@3
            agent/poll bob run=m4                       -> trigger=none
            agent/poll lead run=l1                      -> type=tasks_finished tasks=auth-1,auth-2
            run/settle l1 outcome=failed reason=x       -> left=none
            +300s agent/poll lead run=l2                -> tasks=auth-1,auth-2
            run/settle l2 outcome=released              -> left=none
            agent/poll lead run=l3                      -> tasks=auth-1,auth-2
            end l3                                      -> run.alive=false
            agent/poll lead run=l4                      -> tasks=auth-1,auth-2
            run/settle l4                               -> left=none
            run/settle nobody                           -> refused not_found
            claim auth-9 run=shell                      -> refused not_found
            add other                                   -> auth-4
            claim auth-4 run=shell                      -> task/auth-4@1
            run/settle shell                            -> refused not_ready
            guard task/auth-4@1                         -> ok=true
        ").await;
    }

    /// The rules of offers: who may decide, and what becomes of those that nobody decides on.
    async fn offers(setup: Setup) {
        setup.story("
            agent/join bob                              -> agent.name=bob
            agent/join eve                              -> agent.name=eve
            add maybe offer=bob                         -> auth-1
            agent/poll eve run=e1                       -> trigger=none
            accept auth-1 agent=eve                     -> refused not_ready
            agent/poll bob run=b1                       -> type=task_offered claims=task/auth-1@1
            accept auth-1 agent=bob                     -> refused already_claimed
            accept auth-1 agent=eve token=task/auth-1@1 -> refused not_ready
            accept auth-1 agent=bob token=task/auth-1@1 -> pending assignee=bob
            run/settle b1                               -> settled=none
            agent/poll bob run=b2                       -> type=task_assigned
            add again offer=bob                         -> auth-2
            agent/poll bob run=b3                       -> type=task_offered
            +60s agent/poll eve run=e2                  -> trigger=none
            agent/poll bob run=b4 accept=task_offered   -> claims=task/auth-2@2
            +60s agent/poll bob run=b5 accept=task_offered -> claims=task/auth-2@3
            +60s agent/poll bob run=b6 accept=task_offered -> trigger=none
            agent/poll eve run=e3                       -> type=pool_task claims=task/auth-2@4
        ").await;
    }

    /// From unread and from processing; the answer is stored and the task is made in the same transaction.
    async fn inboxes(setup: Setup) {
        setup.story("
            agent/join bob                                     -> agent.name=bob
            inbox/send bob text=one source=slack key=d1 thread=T17 -> item.id=1 existing=false
            inbox/send bob text=one source=slack key=d1        -> item.id=1 existing=true
            inbox/respond 1 text=sure                          -> responded item.response=sure
            inbox/respond 1 text=sure                          -> responded
            inbox/respond 1 text=other                         -> refused already_finished
            inbox/read 1                                       -> refused already_finished
            inbox/delegate 1                                   -> refused already_finished
            inbox/send bob text=two source=github sender=U1    -> item.id=3
            inbox/delegate 3 title=fix task=main-1             -> refused invalid field=task
            inbox/delegate 3 task=main-1                       -> refused not_found
            inbox/delegate 3 title=fix offer=bob               -> item.status=delegated task.id=main-1 task.source=github
            inbox/delegate 3 title=fix offer=bob               -> task.id=main-1
            inbox/delegate 3 task=main-7                       -> refused already_finished
            show main-1                                        -> offered origin.sender=U1 origin.message=3
            inbox/send bob text=three                          -> item.id=4
            inbox/send bob text=four                           -> item.id=5
            inbox/send bob text=five                           -> item.id=6
            agent/poll bob run=b1 accept=inbox_message         -> claims=message/4@1,message/5@1,message/6@1
            inbox/respond 4 text=x                             -> refused already_claimed
            inbox/delegate 4                                   -> refused already_claimed
            inbox/respond message/4@1 text=x                   -> responded
            inbox/respond message/4@1 text=x                   -> responded
            inbox/respond message/4@1 text=y                   -> refused already_finished
            inbox/delegate message/5@1 to=bob                  -> item.status=delegated task.id=main-2
            inbox/delegate message/5@1 to=bob                  -> task.id=main-2
            run/settle b1                                      -> settled=message/6@1 left=message/4@1,message/5@1
            inbox/delegate message/6@1                         -> refused already_finished
            list board=main                                    -> tasks=main-1,main-2
            mail/pause inbox/bob reason=x                      -> mailbox.name=inbox/bob
            inbox/send bob text=six                            -> item.id=7
            agent/poll bob run=b2 accept=inbox_message         -> trigger=none
            mail/resume inbox/bob                              -> mailbox.name=inbox/bob
            agent/poll bob run=b2 accept=inbox_message         -> claims=message/7@1
        ").await;
    }

    /// An agent that is not renewed is offline: its items are listed, come back by themselves, and at once on a recall.
    async fn agents_that_are_offline(setup: Setup) {
        setup.story("
            agent/join bob strand_ms=600000             -> agent.online=true agent.strand_ms=600000
            agent/join eve                              -> agent.name=eve
            add mine to=bob                             -> auth-1
            add maybe offer=bob                         -> auth-2
            add held to=bob                             -> auth-3
            claim auth-3 run=shell agent=bob ttl_ms=1000000 -> task/auth-3@1
            agent/recall bob                            -> refused not_ready
            +301s agent/poll eve run=e1                 -> trigger=none
            agent/recall bob                            -> refused not_ready
            agent/join eve                              -> agent.online=true
            +599s agent/poll eve run=e2                 -> trigger=none
            +100s agent/poll eve run=e2                 -> trigger=none
            agent/recall nobody                         -> refused not_found
        ").await;
        let agents = setup.fleet.call(fencepost::agent::List::default()).await.unwrap().agents;
        assert!(!agents[0].online, "its run has lapsed");
        assert_eq!(agents[0].stranded, ["auth-1", "auth-2", "auth-3"]);
        // Its run lived for 1000 s, and for 600 s after that the agent may come back.
        setup.story("
            +599s agent/poll eve run=e3                 -> trigger=none
            +1s agent/poll eve run=e4                   -> claims=task/auth-1@1
            agent/poll eve run=e5                       -> claims=task/auth-2@1
            agent/poll eve run=e6                       -> claims=task/auth-3@2
            run/settle e4                               -> settled=task/auth-1@1
            run/settle e5                               -> settled=task/auth-2@1
            run/settle e6                               -> settled=task/auth-3@2
            add later to=bob                            -> auth-4
            agent/poll eve run=e7                       -> trigger=none
            agent/recall bob                            -> tasks=auth-4
            agent/recall bob                            -> tasks=none
            agent/poll eve run=e7                       -> claims=task/auth-4@1
            run/settle e7                               -> settled=task/auth-4@1
            add later-still to=bob                      -> auth-5
            +599s agent/poll eve run=e8 accept=pool_task  -> trigger=none
            +1s agent/poll eve run=e8 accept=pool_task    -> claims=task/auth-5@1
            agent/poll bob run=b1                       -> trigger=none
            add held-back to=bob                        -> auth-6
            add begun to=bob                            -> auth-7
            agent/poll bob run=b2                       -> claims=task/auth-6@1
            agent/leave bob                             -> agent.online=false
            agent/leave bob                             -> agent.name=bob
            show auth-7                                 -> unassigned
            guard task/auth-6@1                         -> ok=true
            agent/poll bob run=b3                       -> refused not_found
            done task/auth-6@1                          -> completed
            run/settle b2                               -> settled=none left=task/auth-6@1
            agent/join bob                              -> agent.left_at=none
            agent/poll bob run=b4                       -> type=pool_task
        ").await;
    }

    /// A trigger has a new run of its own.
    async fn the_run_of_a_trigger(setup: Setup) {
        setup.story("
            agent/join bob                              -> agent.name=bob
            agent/join eve                              -> agent.name=eve
            add one                                     -> auth-1
            add two                                     -> auth-2
            lock/claim name=deploy run=shell            -> claim.token=lock/deploy@1
            agent/poll bob run=shell                    -> refused invalid field=run
            guard lock/deploy@1                         -> ok=true
            agent/poll bob run=b1                       -> claims=task/auth-1@1
            agent/poll eve run=b1                       -> refused invalid field=run
            lock/claim name=build run=b1                -> claim.token=lock/build@1
            run/settle b1                               -> settled=task/auth-1@1
            guard lock/build@1                          -> ok=false
            guard lock/deploy@1                         -> ok=true
            agent/poll bob run=b1                       -> refused lease_expired
            end shell                                   -> run.alive=false
            agent/poll bob run=shell                    -> claims=task/auth-2@1
        ").await;
    }
}
