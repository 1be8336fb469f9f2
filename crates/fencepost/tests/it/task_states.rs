//! The states of a task: every verb from every state, and its refusals.

use fencepost::{Millis, Time, claim::Verdict, task};
use fencepost_testing::{World, on_both, world::START};

on_both! {
    async fn a_task_begins_unassigned_pending_or_offered(world: World) {
        world.story("
            add one                   -> auth-1 unassigned assignee=none offered_to=none priority=50 max_attempts=3
            add two to=bob            -> auth-2 pending assignee=bob
            add three offer=bob       -> auth-3 offered offered_to=bob assignee=none
            add four to=bob offer=eve -> refused invalid field=offer
            list                      -> tasks=auth-1,auth-2,auth-3
        ").await;
    }

    async fn only_unassigned_tasks_are_offered_or_assigned(world: World) {
        world.story("
            add one                  -> auth-1 unassigned
            offer auth-1 to=bob      -> offered offered_to=bob
            offer auth-1 to=eve      -> refused not_ready agent=bob
            assign auth-1 to=eve     -> refused not_ready agent=bob
            add two                  -> auth-2 unassigned
            assign auth-2 to=bob     -> pending assignee=bob
            assign auth-2 to=eve     -> refused not_ready agent=bob
            offer auth-2 to=eve      -> refused not_ready agent=bob
            add three                -> auth-3 unassigned
            claim auth-3 run=r1      -> task/auth-3@1 in_progress
            offer auth-3 to=bob      -> refused already_claimed holder=r1
            assign auth-3 to=bob     -> refused already_claimed holder=r1
            done task/auth-3@1       -> completed
            offer auth-3 to=bob      -> refused already_finished
            assign auth-3 to=bob     -> refused already_finished
            offer auth-9 to=bob      -> refused not_found
        ").await;
    }

    async fn an_offer_is_reviewed_only_by_its_agent(world: World) {
        world.story("
            add one offer=bob            -> auth-1 offered
            claim auth-1 run=e agent=eve -> refused not_ready
            claim auth-1 run=n           -> refused not_ready
            claim run=b agent=bob        -> refused none_ready blocked=1
            claim auth-1 run=b agent=bob -> task/auth-1@1 reviewing attempts=0
            claim auth-1 run=c agent=bob -> refused already_claimed holder=b own=false
            done task/auth-1@1           -> refused not_ready
            fail task/auth-1@1 reason=no -> refused not_ready
            progress task/auth-1@1 text=x -> refused not_ready
            checkpoint task/auth-1@1 ordinal=1 phase=x -> refused not_ready
            guard task/auth-1@1          -> reason=ok
            show auth-1                  -> reviewing claim.run=b claim.agent=bob
        ").await;
    }

    async fn an_offer_is_accepted_or_rejected_by_its_agent(world: World) {
        world.story("
            add one offer=bob                  -> auth-1 offered
            accept auth-1 agent=eve            -> refused not_ready agent=bob
            accept auth-1 agent=bob            -> pending assignee=bob claim=none
            accept auth-1 agent=bob            -> refused not_ready
            add two offer=bob                  -> auth-2 offered
            reject auth-2 agent=eve reason=no  -> refused not_ready agent=bob
            reject auth-2 agent=bob reason=no  -> unassigned rejection_reason=no offered_to=none
            reject auth-2 agent=bob reason=no  -> refused not_ready
            offer auth-2 to=eve                -> offered rejection_reason=none
            add three                          -> auth-3 unassigned
            accept auth-3 agent=bob            -> refused not_ready
            claim auth-3 run=r                 -> task/auth-3@1 in_progress
            accept auth-3 agent=bob            -> refused not_ready
        ").await;
    }

    async fn under_review_only_the_holding_run_decides(world: World) {
        world.story("
            add one offer=bob                                  -> auth-1 offered
            claim auth-1 run=b agent=bob                       -> task/auth-1@1 reviewing
            accept auth-1 agent=bob                            -> refused already_claimed holder=b
            reject auth-1 agent=bob reason=no                  -> refused already_claimed holder=b
            accept auth-1 agent=bob token=task/auth-1@2        -> refused not_found
            accept auth-1 agent=bob token=task/auth-1@1        -> pending assignee=bob claim=none attempts=0
            guard task/auth-1@1                                -> reason=lease_expired
            claim auth-1 run=b agent=bob                       -> task/auth-1@2 in_progress attempts=1
            add two offer=bob                                  -> auth-2 offered
            claim auth-2 run=b agent=bob                       -> task/auth-2@1 reviewing
            reject auth-2 agent=bob reason=no token=task/auth-2@1 -> unassigned claim=none
            guard task/auth-2@1                                -> reason=lease_expired
            add three offer=bob                                -> auth-3 offered
            claim auth-3 run=b agent=bob                       -> task/auth-3@1 reviewing
            +31s accept auth-3 agent=bob token=task/auth-3@1   -> refused lease_expired
            accept auth-3 agent=bob                            -> pending assignee=bob
        ").await;
    }

    /// Another task's token is refused, even if its fence matches.
    async fn a_review_is_decided_with_its_own_token(world: World) {
        world.story("
            add one offer=bob                           -> auth-1 offered
            add two offer=bob                           -> auth-2 offered
            claim auth-1 run=b agent=bob                -> task/auth-1@1 reviewing
            claim auth-2 run=c agent=bob                -> task/auth-2@1 reviewing
            accept auth-1 agent=bob token=task/auth-2@1 -> refused invalid field=token
            reject auth-1 agent=bob reason=no token=lock/auth-1@1 -> refused invalid field=token
            show auth-1                                 -> reviewing claim.run=b
        ").await;
    }

    async fn deciding_with_a_token_keeps_the_run_alive(world: World) {
        world.story("
            add one offer=bob                                -> auth-1 offered
            add two offer=bob                                -> auth-2 offered
            add three                                        -> auth-3 unassigned
            claim auth-1 run=b agent=bob                     -> task/auth-1@1 reviewing
            claim auth-2 run=b                               -> task/auth-2@1 reviewing
            claim auth-3 run=b                               -> task/auth-3@1 in_progress
            +20s accept auth-1 agent=bob token=task/auth-1@1 -> pending
            +20s guard task/auth-3@1                         -> reason=ok
            reject auth-2 agent=bob reason=no token=task/auth-2@1 -> unassigned
            +20s guard task/auth-3@1                         -> reason=ok
        ").await;
    }

    async fn a_lapsed_review_is_offered_again_and_unassigned_after_three(world: World) {
        world.story("
            add one offer=bob            -> auth-1 offered
            claim auth-1 run=a agent=bob -> task/auth-1@1 reviewing
            +30s claim auth-1 run=e agent=eve -> refused not_ready
            show auth-1                  -> offered offered_to=bob attempts=0
            claim auth-1 run=b agent=bob -> task/auth-1@2 reviewing
            +30s why auth-1              -> reasons=offered ready=false
            claim auth-1 run=c agent=bob -> task/auth-1@3 reviewing
            +29s guard task/auth-1@3     -> reason=ok
            +1s claim run=e agent=eve    -> task/auth-1@4 in_progress attempts=1 offered_to=none
        ").await;
    }

    async fn a_released_review_is_offered_again_and_does_not_count(world: World) {
        world.story("add one offer=bob -> auth-1 offered").await;
        for fence in 1..=4 {
            world.story(&format!("
                claim auth-1 run=b agent=bob -> task/auth-1@{fence} reviewing
                release task/auth-1@{fence}  -> status=offered
                show auth-1                  -> offered offered_to=bob attempts=0 claim=none
            ")).await;
        }
    }

    async fn only_the_assignee_claims_an_assigned_task(world: World) {
        world.story("
            add one to=bob               -> auth-1 pending
            claim auth-1 run=e agent=eve -> refused not_ready
            claim auth-1 run=n           -> refused not_ready
            claim run=e agent=eve        -> refused none_ready
            claim run=b agent=bob        -> task/auth-1@1 in_progress attempts=1 claim.agent=bob
            release task/auth-1@1        -> status=pending
            show auth-1                  -> pending assignee=bob attempts=0
        ").await;
    }

    /// A run belongs to one agent: it cannot be bob's in one call and eve's in the next.
    async fn a_run_belongs_to_the_first_agent_it_names(world: World) {
        world.story("
            add one                      -> auth-1 unassigned
            add two to=bob               -> auth-2 pending
            add three to=eve             -> auth-3 pending
            add four to=bob              -> auth-4 pending
            claim auth-1 run=r           -> task/auth-1@1 in_progress claim.agent=none
            claim auth-2 run=r agent=bob -> task/auth-2@1 in_progress claim.agent=bob
            show auth-2                  -> claim.agent=bob
            claim auth-3 run=r agent=eve -> refused invalid field=agent
            claim auth-4 run=r           -> task/auth-4@1 in_progress claim.agent=bob
        ").await;
    }

    async fn a_task_is_held_by_one_run(world: World) {
        world.story("
            add one                          -> auth-1 unassigned
            claim auth-1 run=r1              -> task/auth-1@1 in_progress attempts=1
            claim auth-1 run=r2              -> refused already_claimed holder=r1 own=false fence=1
            claim auth-1 run=r1              -> refused already_claimed holder=r1 own=true
            claim auth-1 run=r1 resume=true  -> task/auth-1@1 in_progress attempts=1
            claim auth-1 run=r2 resume=true  -> refused already_claimed
            claim run=r2                     -> refused none_ready claimed=1 blocked=0
            done task/auth-1@1               -> completed claim=none failure_reason=none
            claim auth-1 run=r2              -> refused already_finished
            claim run=r2                     -> refused board_finished claimed=0 blocked=0 failed=0
        ").await;
    }

    async fn done_and_fail_are_final_and_the_first_answer_stands(world: World) {
        world.story("
            add one                            -> auth-1 unassigned
            claim auth-1 run=r                 -> task/auth-1@1 in_progress
            done task/auth-1@1 output=x        -> completed
            done task/auth-1@1 output=x        -> completed
            done task/auth-1@1 output=y        -> refused already_finished fence=1
            fail task/auth-1@1 reason=no       -> refused already_finished
            release task/auth-1@1              -> refused already_finished
            show auth-1                        -> completed output=x attempts=1
            add two                            -> auth-2 unassigned
            claim auth-2 run=r                 -> task/auth-2@1 in_progress
            fail task/auth-2@1 reason=no       -> failed failure_reason=no
            fail task/auth-2@1 reason=no       -> failed
            fail task/auth-2@1 reason=yes      -> refused already_finished
            done task/auth-2@1                 -> refused already_finished
            claim auth-2 run=r                 -> refused already_finished
            claim run=r                        -> refused board_finished failed=1
        ").await;
        let shown = world.show("auth-1").await;
        assert_eq!(shown.finished_at, Some(START.parse().unwrap()));
    }

    async fn a_retried_failure_waits_exactly_its_delay(world: World) {
        world.story("
            add one                                               -> auth-1 unassigned
            claim auth-1 run=r ttl_ms=600000                      -> task/auth-1@1 in_progress
            fail task/auth-1@1 reason=flaky retry=true delay_ms=7000 -> unassigned attempts=1 failure_reason=flaky
            +6s claim run=r                                       -> refused none_ready blocked=1
            claim auth-1 run=r                                    -> refused not_ready
            why auth-1                                            -> reasons=delayed ready=false
            ready                                                 -> tasks=none
        ").await;
        let until = START.parse::<Time>().unwrap().plus(Millis::seconds(7));
        assert_eq!(world.show("auth-1").await.delayed_until, Some(until));
        world.clock.advance(std::time::Duration::from_millis(999));
        world.story("claim run=r -> refused none_ready").await;
        world.clock.advance(std::time::Duration::from_millis(1));
        world.story("
            why auth-1   -> reasons=none ready=true
            ready        -> tasks=auth-1
            claim run=r  -> task/auth-1@2 in_progress attempts=2 delayed_until=none failure_reason=flaky
        ").await;
    }

    async fn backoff_doubles_and_the_last_attempt_fails_for_good(world: World) {
        world.story("
            add one max_attempts=4                      -> auth-1 unassigned
            claim auth-1 run=r ttl_ms=600000            -> task/auth-1@1 in_progress
            fail task/auth-1@1 reason=a retry=true      -> unassigned
            +9s claim run=r                             -> refused none_ready
            +1s claim run=r                             -> task/auth-1@2 in_progress
            fail task/auth-1@2 reason=b retry=true      -> unassigned
            +19s claim run=r                            -> refused none_ready
            +1s claim run=r                             -> task/auth-1@3 in_progress
            fail task/auth-1@3 reason=c retry=true delay_ms=0 -> unassigned delayed_until=none
            claim run=r                                 -> task/auth-1@4 in_progress attempts=4
            fail task/auth-1@4 reason=d retry=true      -> failed failure_reason=d attempts=4 delayed_until=none
            claim run=r                                 -> refused board_finished failed=1
        ").await;
    }

    async fn release_gives_the_attempt_back(world: World) {
        world.story("
            add one max_attempts=1                    -> auth-1 unassigned
            claim run=r                               -> task/auth-1@1 in_progress attempts=1
            release task/auth-1@1 note=later          -> status=unassigned
            release task/auth-1@1 note=later          -> status=unassigned
            release task/auth-1@1 note=never          -> refused already_finished
            done task/auth-1@1                        -> refused already_finished
            show auth-1                               -> unassigned attempts=0 claim=none
            claim run=s                               -> task/auth-1@2 in_progress attempts=1
            release task/auth-1@1                     -> refused already_finished
            unclaim task/auth-1                       -> unassigned held_by=s
            unclaim task/auth-1                       -> unassigned held_by=none
            done task/auth-1@2                        -> refused lease_expired
            claim run=r                               -> task/auth-1@3 in_progress attempts=1
            done task/auth-1@3                        -> completed
        ").await;
        assert_eq!(world.show("auth-1").await.notes[0].text, "later");
    }

    async fn a_lapse_counts_and_the_last_one_fails(world: World) {
        world.story("
            add one max_attempts=2            -> auth-1 unassigned
            claim run=a                       -> task/auth-1@1 in_progress
            +30s why auth-1                   -> reasons=none ready=true
            ready                             -> tasks=auth-1
            claim run=b                       -> task/auth-1@2 in_progress attempts=2
            +30s why auth-1                   -> reasons=finished ready=false
            ready                             -> tasks=none
            claim run=c                       -> refused board_finished failed=1
            show auth-1                       -> failed attempts=2
            done task/auth-1@2                -> refused already_finished
        ").await;
        let reason = world.show("auth-1").await.failure_reason.unwrap();
        assert_eq!(reason, "2 attempts were made and lost; the last by run `b`: its lease was over");
    }

    async fn the_next_holder_sees_how_the_last_attempt_ended(world: World) {
        world.story("
            add one                 -> auth-1 unassigned
            claim run=a             -> task/auth-1@1 in_progress
            end a                   -> run.alive=false
            show auth-1             -> unassigned attempts=1
            claim run=b max_ms=5000 -> task/auth-1@2 in_progress
            +5s show auth-1         -> unassigned claim=none lapsed=true
            note auth-1 text=hello  -> unassigned
        ").await;
        let task = world.show("auth-1").await;
        assert_eq!(task.failure_reason.unwrap(), "run `b` went silent: its time was up");
    }

    async fn a_parked_task_keeps_its_state_and_is_not_claimed(world: World) {
        world.story("
            add one                           -> auth-1 unassigned
            add two to=bob                    -> auth-2 pending
            add three offer=bob               -> auth-3 offered
            park auth-1 reason=later          -> unassigned parked=later
            park auth-2 reason=later          -> pending parked=later
            park auth-3 reason=later          -> offered parked=later
            claim auth-1 run=b agent=bob      -> refused not_ready
            claim auth-2 run=b agent=bob      -> refused not_ready
            claim auth-3 run=b agent=bob      -> refused not_ready
            claim run=b agent=bob             -> refused none_ready blocked=3
            ready agent=bob                   -> tasks=none
            why auth-1                        -> reasons=parked
            unpark auth-1                     -> unassigned parked=none
            unpark auth-1                     -> refused not_ready
            unpark auth-2                     -> pending
            unpark auth-3                     -> offered
            claim run=b agent=bob             -> task/auth-2@1 in_progress
            claim run=b                       -> task/auth-1@1 in_progress
            claim auth-3 run=b                -> task/auth-3@1 reviewing
            park auth-1 reason=no             -> refused already_claimed holder=b
            park auth-3 reason=no             -> refused already_claimed holder=b
            done task/auth-1@1                -> completed
            park auth-1 reason=no             -> refused already_finished
            unpark auth-1                     -> refused already_finished
            +30s park auth-2 reason=late      -> pending parked=late attempts=1
        ").await;
    }

    async fn cancelling_ends_the_holders_claim(world: World) {
        world.story("
            add one                           -> auth-1 unassigned
            claim run=r                       -> task/auth-1@1 in_progress
            cancel auth-1 reason=changed      -> cancelled claim=none
            guard task/auth-1@1               -> reason=cancelled ok=false
            done task/auth-1@1                -> refused cancelled
            fail task/auth-1@1 reason=no      -> refused cancelled
            release task/auth-1@1             -> refused cancelled
            renew task/auth-1@1               -> refused cancelled
            progress task/auth-1@1 text=x     -> refused cancelled
            claim auth-1 run=r                -> refused cancelled
            cancel auth-1                     -> refused cancelled
            park auth-1 reason=no             -> refused cancelled
            add two offer=bob                 -> auth-2 offered
            claim auth-2 run=b agent=bob      -> task/auth-2@1 reviewing
            cancel auth-2                     -> cancelled
            guard task/auth-2@1               -> reason=cancelled
            add three                         -> auth-3 unassigned
            claim run=r                       -> task/auth-3@1 in_progress
            done task/auth-3@1                -> completed
            cancel auth-3                     -> refused already_finished
        ").await;
        assert_eq!(world.guard("task/auth-1@1").await, Verdict::Cancelled);
    }

    async fn retry_restores_all_attempts(world: World) {
        world.story("
            add one max_attempts=1            -> auth-1 unassigned
            retry auth-1                      -> refused not_ready
            claim run=r                       -> task/auth-1@1 in_progress
            retry auth-1                      -> refused not_ready
            fail task/auth-1@1 reason=broken  -> failed attempts=1
            retry auth-1                      -> unassigned attempts=0 failure_reason=broken finished_at=none
            guard task/auth-1@1               -> reason=lease_expired
            claim run=r                       -> task/auth-1@2 in_progress attempts=1
            done task/auth-1@2                -> completed
            retry auth-1                      -> refused already_finished
            add two to=bob                    -> auth-2 pending
            cancel auth-2                     -> cancelled
            retry auth-2                      -> pending assignee=bob
            add three offer=bob               -> auth-3 offered
            cancel auth-3                     -> cancelled
            retry auth-3                      -> unassigned offered_to=none
            add four                          -> auth-4 unassigned
            claim auth-4 run=r                -> task/auth-4@1 in_progress
            fail task/auth-4@1 reason=x retry=true -> unassigned
            cancel auth-4                     -> cancelled
            retry auth-4                      -> unassigned delayed_until=none
            claim auth-4 run=r                -> task/auth-4@2 in_progress
        ").await;
    }

    async fn reopen_adds_a_new_task(world: World) {
        world.story("
            add parse priority=80 tags=rust,sql kind=code body=all done_when=green max_attempts=7 creator=ann -> auth-1
            reopen auth-1                     -> refused not_ready
            claim auth-1 run=r                -> task/auth-1@1
            reopen auth-1                     -> refused not_ready
            done task/auth-1@1 output=see     -> completed
            show auth-1                       -> completed reopens=none reopened_as=none
            reopen auth-1 reason=breaks to=bob request=q -> auth-2 pending title=parse priority=80 tags=rust,sql kind=code body=all done_when=green max_attempts=7 attempts=0 waiting_on=0 assignee=bob reopens=auth-1 output=none existing=none
            reopen auth-1 reason=breaks to=bob request=q -> auth-2 pending reopens=auth-1 existing=none
            reopen auth-1                     -> auth-2 pending existing=true
            show auth-1                       -> completed output=see reopened_as=auth-2 reopens=none
            show auth-2                       -> pending reopens=auth-1 reopened_as=none after=auth-1
            claim auth-2 run=r agent=bob      -> task/auth-2@1
            done task/auth-2@1 output=fixed   -> completed
            reopen auth-1                     -> refused already_finished
            reopen auth-2                     -> auth-3 unassigned reopens=auth-2
            cancel auth-3                     -> cancelled
            reopen auth-3                     -> refused already_finished
            reopen auth-9                     -> refused not_found
        ").await;
        let again = world.show("auth-2").await;
        assert_eq!(again.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), ["breaks"]);
        assert_eq!(again.after[0].output.as_deref(), Some("see"), "what came of it the first time");
        let log = world.log().await;
        let told: Vec<_> = log.iter().filter(|line| line.starts_with("task.reopened")).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("task/auth-1") && told[0].contains("\"reason\":\"breaks\""), "{told:?}");
    }

    async fn edit_and_note_work_in_every_state(world: World) {
        world.story("
            add unassigned            -> auth-1 unassigned
            add offered offer=bob     -> auth-2 offered
            add reviewing offer=bob   -> auth-3 offered
            claim auth-3 run=b agent=bob -> task/auth-3@1 reviewing
            add pending to=bob        -> auth-4 pending
            add working               -> auth-5 unassigned
            claim auth-5 run=b        -> task/auth-5@1 in_progress
            add completed             -> auth-6 unassigned
            claim auth-6 run=b        -> task/auth-6@1 in_progress
            done task/auth-6@1        -> completed
            add failed                -> auth-7 unassigned
            claim auth-7 run=b        -> task/auth-7@1 in_progress
            fail task/auth-7@1 reason=no -> failed
            add cancelled             -> auth-8 unassigned
            cancel auth-8             -> cancelled
        ").await;
        for (n, status) in (1..).zip(task::Status::ALL.map(task::Status::as_str)) {
            let n = match status { "reviewing" => 3, "pending" => 4, _ => n };
            world.story(&format!("
                edit auth-{n} title=new body=long done_when=green kind=bug priority=7 tags=x,y max_attempts=9 -> {status} title=new
                note auth-{n} text=hello -> {status}
                show auth-{n} -> {status} title=new body=long done_when=green kind=bug priority=7 tags=x,y max_attempts=9
            ")).await;
            assert_eq!(world.show(&format!("auth-{n}")).await.notes[0].text, "hello");
        }
        world.story("
            edit auth-1        -> refused invalid field=task
            edit auth-1 body=short -> title=new
            show auth-1        -> body=short done_when=green tags=x,y
            guard task/auth-5@1 -> reason=ok
            guard task/auth-3@1 -> reason=ok
        ").await;
    }

    /// `max_attempts` cannot go below the attempts that were made.
    async fn max_attempts_stays_above_the_attempts_made(world: World) {
        world.story("
            add one                                -> auth-1 unassigned
            claim run=r ttl_ms=600000              -> task/auth-1@1 in_progress
            fail task/auth-1@1 reason=x retry=true delay_ms=0 -> unassigned attempts=1
            edit auth-1 max_attempts=1             -> refused invalid field=max_attempts
            claim run=r                            -> task/auth-1@2 in_progress attempts=2
            edit auth-1 max_attempts=1             -> refused invalid field=max_attempts
            edit auth-1 max_attempts=2             -> in_progress max_attempts=2
            fail task/auth-1@2 reason=x retry=true -> failed attempts=2
            edit auth-1 max_attempts=1             -> refused invalid field=max_attempts
            retry auth-1                           -> unassigned attempts=0
            edit auth-1 max_attempts=1             -> unassigned max_attempts=1
            claim run=r                            -> task/auth-1@3 in_progress attempts=1
        ").await;
    }

    async fn why_names_every_obstacle(world: World) {
        world.story("
            add one                      -> auth-1 unassigned
            add two to=bob after=auth-1  -> auth-2 pending
            park auth-2 reason=later     -> pending
            why auth-2                   -> reasons=assigned,blocked,parked ready=false
            why auth-1                   -> reasons=none ready=true
            claim auth-1 run=r           -> task/auth-1@1 in_progress
            why auth-1                   -> reasons=held ready=false
            fail task/auth-1@1 reason=x retry=true -> unassigned
            why auth-1                   -> reasons=delayed
            cancel auth-1                -> cancelled
            why auth-1                   -> reasons=finished
            why auth-9                   -> refused not_found
        ").await;
        let because = world.fleet.call(task::Why { task: "auth-2".into() }).await.unwrap();
        insta::allow_duplicates! {
            let said: Vec<_> = because.reasons.iter().map(|reason| reason.message.as_str()).collect();
            insta::assert_snapshot!(said.join("\n"), @r"
            only for agent `bob`
            waits for `auth-1`, which is cancelled: fence retry or fence dep rm frees it
            set aside: later
            ");
        }
    }

    async fn boards_count_their_tasks(world: World) {
        world.story("
            add one            -> auth-1 unassigned
            add two after=auth-1 -> auth-2 unassigned
            add other board=web -> web-1 unassigned
            claim run=r        -> task/auth-1@1 in_progress
        ").await;
        let boards = world.fleet.call(fencepost::board::List {}).await.unwrap().boards;
        let counted = boards.iter().map(|board| format!("{} {:?} ready {}", board.name, board.tasks, board.ready));
        assert_eq!(counted.collect::<Vec<_>>(), [
            r#"auth {"blocked": 1, "in_progress": 1} ready 0"#,
            r#"web {"unassigned": 1} ready 1"#,
        ]);
    }

    async fn a_board_shows_dependencies(world: World) {
        world.story("
            add one              -> auth-1 unassigned
            add two after=auth-1 -> auth-2 unassigned
            add other board=web after=auth-2 -> web-1 unassigned
            claim run=r          -> task/auth-1@1 in_progress
        ").await;
        let show = |board: &str, limit| fencepost::board::Show { board: board.into(), limit };
        let shown = world.fleet.call(show("auth", None)).await.unwrap();
        let ids: Vec<_> = shown.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!((ids, shown.more, shown.board.ready), (vec!["auth-1", "auth-2"], false, 0));
        assert_eq!(shown.tasks[0].claim.as_ref().unwrap().run, "r");
        let edges = |shown: &fencepost::board::show::Shown| {
            shown.edges.iter().map(|edge| format!("{} after {}", edge.task, edge.after)).collect::<Vec<_>>()
        };
        assert_eq!(edges(&shown), ["auth-2 after auth-1"]);
        assert_eq!(edges(&world.fleet.call(show("web", None)).await.unwrap()), ["web-1 after auth-2"]);
        let first = world.fleet.call(show("auth", Some(1))).await.unwrap();
        assert_eq!((first.tasks.len(), first.more), (1, true));
        let refused = world.fleet.call(show("nothing", None)).await.unwrap_err();
        assert_eq!(refused.code(), fencepost::Code::NotFound);
    }
}
