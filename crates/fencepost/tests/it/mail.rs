//! Mailboxes: claim, process, complete; nothing lost and nothing done twice.

use fencepost::{Code, Json, Millis, claim::Verdict, mail, run};
use fencepost_testing::{
    World, on_both,
    world::{claim_mail, code, refused},
};
use serde_json::json;

on_both! {
    /// Reads show a message as failed or held as soon as its last holder is dead, before expiry writes it. Then it can be
    /// redriven.
    async fn a_message_shown_as_failed_can_be_redriven(world: World) {
        world.story("
            mail/configure hold replay=hold          -> name=hold
            mail/push s payload=x max_attempts=1     -> id=1
            mail/push hold payload=x                 -> id=2
            mail/push s payload=x                    -> id=3
            mail/claim s run=a ttl_ms=30000          -> claims=message/1@1
            mail/claim hold run=a                    -> claims=message/2@1
            mail/claim s run=a                       -> claims=message/3@1
            +31s mail/show message=1                 -> failed lapsed=true
            mail/show message=2                      -> held lapsed=true
            mail/redrive 1,2                         -> messages=1,2
            mail/show message=1                      -> pending attempts=0
            mail/show message=2                      -> pending attempts=0
            mail/show message=3                      -> pending attempts=1
            mail/claim s run=b ttl_ms=30000          -> claims=message/1@2
            +31s mail/redrive mailbox=s              -> messages=1
            mail/done message/1@2                    -> refused lease_expired
        ").await;
    }

    /// Also if there are more than one batch of expiry writes.
    async fn all_messages_shown_as_failed_are_redriven(world: World) {
        let push = |_| mail::push_many::Item { mailbox: "s".into(), max_attempts: Some(1), ..Default::default() };
        world.fleet.call(mail::PushMany { messages: (0..700).map(push).collect(), request: None }).await.unwrap();
        assert_eq!(world.claim_mail("s", "a", 700).await.unwrap().len(), 700);
        world.pass(31);
        let mut back = Vec::new();
        loop {
            let redrive = mail::Redrive { mailbox: Some("s".into()), ..mail::Redrive::default() };
            let reply = world.fleet.call(redrive).await.unwrap();
            back.extend(reply.messages);
            if !reply.more {
                break;
            }
        }
        assert_eq!(back, (1..=700).collect::<Vec<i64>>());
    }

    /// The life of a message, and its refusals.
    async fn a_message_is_claimed_processed_and_completed(world: World) {
        world.story("
            mail/push s payload=one type=obs         -> id=1 pending type=obs
            mail/push s payload=two                  -> id=2
            mail/peek mailbox=s                      -> messages=1
            mail/claim s run=a                       -> claims=message/1@1
            mail/show message=1                      -> processing payload=one attempts=1
            mail/claim s run=b                       -> claims=message/2@1
            mail/claim s run=b                       -> refused none_ready claimed=2 failed=0
            mail/done message/1@1 outputs=x,y        -> processed outcome=done
            mail/done message/1@1 outputs=x,y        -> processed
            mail/done message/1@1 outputs=x          -> refused already_finished
            mail/fail message/1@1 reason=no          -> refused already_finished
            mail/show message=1                      -> processed payload=none outputs=x,y type=obs
            guard message/1@1                        -> ok=false reason=already_finished
            guard message/2@1                        -> ok=true
            mail/release message/2@1                 -> messages=2
            mail/release message/2@1                 -> messages=2
            mail/done message/2@1                    -> refused already_finished
            mail/show message=2                      -> pending attempts=0 payload=two
            mail/claim s run=b                       -> claims=message/2@2
            mail/done message/2@2 outcome=responded  -> processed outcome=responded
            mail/claim s run=b                       -> refused none_ready
        ").await;
    }

    async fn a_dead_holders_messages_come_back_in_their_places_and_a_late_answer_is_refused(world: World) {
        world.story("
            mail/push s payload=one                     -> id=1
            mail/push s payload=two                     -> id=2
            mail/claim s run=a ttl_ms=5000              -> claims=message/1@1
            +4s mail/checkpoint message/1@1 ordinal=1 phase=read -> checkpoint.phase=read
            +4s guard message/1@1                       -> ok=true
            +1s guard message/1@1                       -> ok=false reason=lease_expired
            mail/claim s run=b count=10                 -> claims=message/1@2
            mail/show message=1                         -> checkpoint.phase=read attempts=2
            mail/done message/1@1                       -> refused lease_expired
            mail/checkpoint message/1@1 ordinal=2 phase=x -> refused lease_expired
            mail/release message/1@1                    -> refused lease_expired
            mail/done message/1@2 outputs=x             -> processed
            mail/claim s run=b count=10                 -> claims=message/2@1
        ").await;
        assert_eq!(world.times("message.lapsed").await, 1);
    }

    /// The default is five minutes, as in the system that mailboxes were taken from.
    async fn an_unrenewed_message_comes_back_after_five_minutes(world: World) {
        world.story("
            mail/push s payload=one    -> id=1
            mail/claim s run=a         -> claims=message/1@1
            +299s mail/claim s run=b   -> refused none_ready
            +1s mail/claim s run=b     -> claims=message/1@2
            mail/configure s ttl_ms=2000 -> settings.ttl_ms=2000
            mail/release message/1@2   -> messages=1
            mail/claim s run=c         -> claims=message/1@3
            +2s mail/claim s run=d     -> claims=message/1@4
        ").await;
    }

    async fn a_poison_message_fails_after_its_last_attempt_and_blocks_nobody(world: World) {
        world.story("
            mail/push s payload=poison     -> id=1 max_attempts=3
            mail/push s payload=good       -> id=2
            mail/claim s run=a ttl_ms=1000 count=2  -> claims=message/1@1,message/2@1
            +1s mail/claim s run=b ttl_ms=1000 count=2 -> claims=message/1@2
            mail/claim s run=c ttl_ms=60000 count=2 -> claims=message/2@2
            mail/done message/2@2          -> processed
            +1s mail/claim s run=d ttl_ms=1000 count=2 -> claims=message/1@3
            +1s mail/claim s run=e count=2 -> refused none_ready failed=1
            mail/show message=1            -> failed attempts=3 payload=poison
            mail/list mailbox=s status=failed -> messages=1
            mail/redrive mailbox=s         -> messages=1 more=false
            mail/redrive 1                 -> messages=none
            mail/show message=1            -> pending attempts=0
            mail/claim s run=f             -> claims=message/1@4
            mail/done message/1@4          -> processed
            mail/redrive 1                 -> refused not_ready
        ").await;
        let reason = world.message(1).await.failure_reason;
        assert_eq!(reason, None, "it was completed in the end");
    }

    async fn failing_waits_longer_each_time_and_keeps_its_place_after(world: World) {
        world.story("
            mail/configure s max_attempts=4 backoff_ms=2000 -> settings.max_attempts=4
            mail/push s payload=one                   -> id=1
            mail/push s payload=two                   -> id=2
            mail/claim s run=a                        -> claims=message/1@1
            mail/fail message/1@1 reason=net retry=true -> pending failure_reason=net
            mail/fail message/1@1 reason=net retry=true -> pending
            mail/fail message/1@1 reason=other retry=true -> refused already_finished
            +1s mail/claim s run=a                    -> claims=message/2@1
            mail/release message/2@1                  -> messages=2
            +1s mail/claim s run=a                    -> claims=message/1@2
            mail/fail message/1@2 reason=net retry=true -> pending
            +3s mail/claim s run=a                    -> claims=message/2@2
            +1s mail/claim s run=a                    -> claims=message/1@3
            mail/fail message/1@3 reason=net retry=true delay_ms=0 -> pending
            mail/claim s run=a                        -> claims=message/1@4
            mail/fail message/1@4 reason=net retry=true -> failed failure_reason=net
            mail/fail message/2@2 reason=bad          -> failed
        ").await;
    }

    async fn a_delay_holds_a_message_back_and_priority_goes_first(world: World) {
        world.story("
            mail/push s payload=later delay_ms=5000  -> id=1
            mail/push s payload=plain                -> id=2
            mail/push s payload=urgent priority=90   -> id=3
            mail/claim s run=a                       -> claims=message/3@1
            mail/claim s run=a count=5               -> claims=message/2@1
            mail/claim s run=a count=5               -> refused none_ready blocked=1
            +5s mail/claim s run=a count=5           -> claims=message/1@1
        ").await;
    }

    async fn of_several_mailboxes_the_one_with_the_oldest_message_is_served_first(world: World) {
        world.story("
            mail/push x payload=1    -> id=1
            mail/push y payload=2    -> id=2
            mail/push x payload=3    -> id=3
            mail/push z payload=4 priority=60 -> id=4
            mail/claim y,x,z,none run=a            -> claims=message/4@1
            mail/claim y,x,z,none run=a            -> claims=message/1@1
            mail/claim y,x,z,none run=a            -> claims=message/2@1
            mail/claim y,x,z,none run=a            -> claims=message/3@1
            mail/claim y,x,z,none run=a            -> refused none_ready
            mail/reset run=a                       -> reset=4
            mail/pause z reason=look               -> paused=look
            mail/claim y,x,z run=a count=3         -> claims=message/1@2,message/3@2,message/2@2
            mail/claim z run=a                     -> refused paused
            mail/resume z                          -> paused=none
            mail/claim z run=a                     -> claims=message/4@2
        ").await;
    }

    async fn a_key_makes_one_message_and_belongs_to_its_mailbox(world: World) {
        world.story("
            mail/push s key=k payload=one -> id=1 existing=false
            mail/push s key=k payload=two -> id=1 existing=true
            mail/push t key=k payload=two -> existing=false
        ").await;
        let item = |mailbox: &str, key: Option<&str>| mail::push_many::Item {
            mailbox: mailbox.into(), key: key.map(Into::into), ..Default::default()
        };
        let many = mail::PushMany {
            messages: vec![item("s", None), item("s", Some("k")), item("u", Some("new"))],
            request: Some("r1".into()),
        };
        let first = world.fleet.call(many.clone()).await.unwrap();
        assert_eq!(first.existing, [1]);
        assert_eq!(first.messages.iter().map(|m| m.mailbox.as_str()).collect::<Vec<_>>(), ["s", "s", "u"]);
        let again = world.fleet.call(many).await.unwrap();
        assert_eq!(again.messages.iter().map(|m| m.id).collect::<Vec<_>>(), first.messages.iter().map(|m| m.id).collect::<Vec<_>>());
        assert_eq!(again.existing, [1]);
        let twice = mail::PushMany { messages: vec![item("s", Some("q")), item("s", Some("q"))], request: None };
        assert_eq!(refused(world.fleet.call(twice).await).field("field").unwrap(), "messages[1].key");
        assert_eq!(world.message(1).await.payload, Some("one".into()));
    }

    async fn a_repeated_mail_request_returns_the_first_reply(world: World) {
        world.push("s", "one").await;
        world.push("s", "two").await;
        let claim = mail::Claim { request: Some("r1".into()), ..mail::Claim::next("s", "a") };
        let first = world.fleet.call(claim.clone()).await.unwrap();
        assert_eq!(world.fleet.call(claim.clone()).await.unwrap(), first);
        let other = mail::Claim { run: "b".into(), ..claim.clone() };
        assert_eq!(code(world.fleet.call(other).await), Code::Invalid);
        world.fleet.call(mail::Done::new(&first.claims[0].claim.token)).await.unwrap();
        assert_eq!(code(world.fleet.call(claim).await), Code::LeaseExpired);

        let take = mail::Take { mailboxes: vec!["s".into()], request: Some("r2".into()), ..Default::default() };
        let taken = world.fleet.call(take.clone()).await.unwrap();
        assert_eq!(taken.messages[0].payload, Some("two".into()));
        assert_eq!(world.fleet.call(take).await.unwrap(), taken, "a lost answer is not a lost message");
    }

    /// For batch consumers: at most once.
    async fn taking_completes_on_delivery(world: World) {
        world.story("
            mail/push s payload=one -> id=1
            mail/push s payload=two -> id=2
            mail/push s payload=three -> id=3
            mail/claim s run=a      -> claims=message/1@1
            mail/take s count=2     -> messages=2,3
            mail/show message=2     -> processed outcome=taken payload=two
            mail/take s             -> refused none_ready
            +1000s mail/take s      -> messages=1
        ").await;
        assert_eq!(world.times("message.taken").await, 3);
    }

    async fn undelivered_messages_go_back(world: World) {
        world.push("s", "one").await;
        world.push("s", "two").await;
        let claim = mail::Claim { count: Some(5), request: Some("r".into()), ..mail::Claim::next("s", "a") };
        let (lost, delivery) = world.fleet.deliver(claim.clone()).await.unwrap();
        let (again, second) = world.fleet.deliver(claim.clone()).await.unwrap();
        assert_eq!(lost, again);
        assert_eq!(delivery.undelivered().await.unwrap(), 0, "they were handed over since");
        assert_eq!(second.undelivered().await.unwrap(), 2);
        assert_eq!(world.guard(&lost.claims[0].claim.token).await, Verdict::LeaseExpired);
        assert_eq!(world.message(1).await.attempts, 0);
        let (third, kept) = world.fleet.deliver(claim).await.unwrap();
        kept.delivered();
        assert_eq!(third.claims[1].claim.token, "message/2@2");
    }

    /// For a planned restart: at once, and no attempt is counted.
    async fn reset_returns_the_messages_of_a_run_or_a_mailbox(world: World) {
        world.story("
            mail/push s payload=one   -> id=1
            mail/push s payload=two   -> id=2
            mail/push t payload=three -> id=3
            mail/claim s,t run=a count=2 -> claims=message/1@1,message/2@1
            mail/claim t run=a        -> claims=message/3@1
            mail/reset run=a mailbox=t -> reset=1 more=false
            mail/reset mailbox=s      -> reset=2
            mail/reset mailbox=s      -> reset=0
            mail/show message=1       -> pending attempts=0
            mail/done message/1@1     -> refused lease_expired
            mail/claim s run=a count=2 -> claims=message/1@2,message/2@2
            mail/reset run=a          -> reset=2
            mail/reset run=nobody     -> reset=0
        ").await;
        assert_eq!(code(world.fleet.call(mail::Reset::default()).await), Code::Invalid);
    }

    async fn hold_waits_for_a_person_and_discard_gives_up(world: World) {
        world.story("
            mail/configure h replay=hold     -> settings.replay=hold
            mail/configure d replay=discard  -> settings.replay=discard
            mail/push h payload=one          -> id=1
            mail/push h payload=two          -> id=2
            mail/push d payload=three        -> id=3
            mail/claim h,d run=a ttl_ms=1000 count=2 -> claims=message/1@1,message/2@1
            mail/claim d run=a               -> claims=message/3@1
            +1s mail/claim h,d run=b         -> refused none_ready blocked=2 failed=1
            mail/show message=3              -> failed outcome=discarded
            mail/list status=held            -> messages=1,2
            mail/redrive 1                   -> messages=1
            mail/discard 2 reason=stale      -> messages=2
            mail/discard 2                   -> messages=none
            mail/show message=2              -> failed outcome=discarded failure_reason=stale
            mail/claim h run=b               -> claims=message/1@2
            mail/discard 1                   -> refused already_claimed
            mail/done message/1@2            -> processed
            mail/discard 1                   -> refused already_finished
            mail/discard 99                  -> refused not_found
        ").await;
    }

    async fn ending_a_run_or_reaching_a_cap_returns_the_message(world: World) {
        world.story("
            mail/push s payload=one            -> id=1
            mail/push s payload=two            -> id=2
            mail/claim s run=a ttl_ms=60000 max_ms=2000 -> claims=message/1@1
            mail/claim s run=b                 -> claims=message/2@1
            end b                              -> run.alive=false
            mail/claim s run=c                 -> claims=message/2@2
            +2s mail/done message/1@1          -> refused lease_expired
            mail/claim s run=c                 -> claims=message/1@2
            unclaim message/1                  -> held_by=c pending
            mail/done message/1@2              -> refused lease_expired
        ").await;
    }

    async fn two_consumers_of_one_run_share_its_lease_and_nothing_else(world: World) {
        for payload in ["one", "two", "three"] {
            world.push("s", payload).await;
        }
        let other = world.again().await;
        let first = world.claim_mail("s", "a", 1).await.unwrap();
        let second = claim_mail(&other, "s", "a", 2).await.unwrap();
        assert_eq!((first.as_slice(), second.as_slice()), (&["message/1@1".to_owned()][..], &["message/2@1".into(), "message/3@1".into()][..]));
        // A call of one consumer renews the lease of both.
        for _ in 0..3 {
            world.pass(20);
            world.fleet.call(fencepost::claim::Renew::new(&first[0])).await.unwrap();
        }
        other.call(mail::Done::new(&second[1])).await.unwrap();
        assert_eq!(code(world.fleet.call(mail::Done { outcome: Some("x".into()), ..mail::Done::new(&second[1]) }).await), Code::AlreadyFinished);
        world.pass(31);
        assert_eq!(world.guard(&first[0]).await, Verdict::LeaseExpired);
        assert_eq!(world.guard(&second[0]).await, Verdict::LeaseExpired);
    }

    async fn a_batch_of_messages_is_completed_one_by_one(world: World) {
        for payload in ["one", "two", "three"] {
            world.push("s", payload).await;
        }
        let tokens = world.claim_mail("s", "a", 3).await.unwrap();
        world.fleet.call(mail::Done::new(&tokens[0])).await.unwrap();
        let done = |token: &str, output: i64| mail::Done { outputs: vec![json!({ "n": output }).into()], ..mail::Done::new(token) };
        let many = mail::DoneMany {
            messages: vec![done(&tokens[0], 0), done(&tokens[1], 1), done("message/3@9", 2), done("message/77@1", 3)],
        };
        let results = world.fleet.call(many.clone()).await.unwrap().results;
        let codes: Vec<_> = results.iter().map(|result| result.error.as_ref().map(fencepost::Error::code)).collect();
        assert_eq!(codes, [Some(Code::AlreadyFinished), None, Some(Code::NotFound), Some(Code::NotFound)]);
        assert_eq!(world.message(2).await.outputs, [Json::from(json!({ "n": 1 }))]);
        let again = world.fleet.call(many).await.unwrap().results;
        assert!(again[1].error.is_none(), "the same completion again is the first answer");
        assert_eq!(world.times("message.completed").await, 2);
        let twice = mail::DoneMany { messages: vec![done(&tokens[2], 1), done(&tokens[2], 1)] };
        assert_eq!(code(world.fleet.call(twice).await), Code::Invalid);
    }

    async fn invalid_messages_are_refused_by_field(world: World) {
        let big = "x".repeat(10 * 1024 * 1024);
        let error = refused(world.fleet.call(mail::Push::new("s", big.as_str())).await);
        assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::TooLarge, Some("payload")));
        assert!(error.message().contains("10485762 bytes; at most 1048576"), "{error}");
        assert!(world.fleet.call(mail::Stats::default()).await.unwrap().mailboxes.is_empty());
        world.story("
            mail/push a@b                        -> refused invalid field=mailbox
            mail/push s priority=101             -> refused invalid field=priority
            mail/push s lane=x                   -> refused invalid field=lane
            mail/push s delay_ms=-1              -> refused invalid field=delay_ms
            mail/claim s run=a count=0           -> refused invalid field=count
            mail/done task/a-1@1                 -> refused invalid field=token
            mail/show message=1                  -> refused not_found
        ").await;
        world.push("s", "one").await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let outputs = vec![Json::from("x".repeat(1024 * 1024).as_str())];
        let error = refused(world.fleet.call(mail::Done { outputs, ..mail::Done::new(&token) }).await);
        assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::TooLarge, Some("outputs")));
    }

    async fn checkpoints_never_go_back(world: World) {
        world.story("
            mail/push s payload=one                           -> id=1
            mail/claim s run=a                                -> claims=message/1@1
            mail/checkpoint message/1@1 ordinal=2 phase=sent  -> checkpoint.ordinal=2
            mail/checkpoint message/1@1 ordinal=1 phase=read  -> checkpoint.phase=sent
            mail/checkpoint message/1@1 ordinal=2 phase=sent  -> checkpoint.phase=sent
            mail/checkpoint message/1@1 ordinal=2 phase=other -> refused invalid
            mail/release message/1@1                          -> messages=1
            mail/claim s run=b                                -> claims=message/1@2
            mail/show message=1                               -> checkpoint.phase=sent
        ").await;
    }

    async fn stats_count_a_mailbox(world: World) {
        world.story("
            mail/push s payload=1              -> id=1
            mail/push s payload=2 delay_ms=9000 -> id=2
            mail/push s payload=3              -> id=3
            mail/push s payload=4              -> id=4
            mail/push s payload=5              -> id=5
            mail/claim s run=a count=3         -> claims=message/1@1,message/3@1,message/4@1
            mail/done message/1@1              -> processed
            mail/fail message/3@1 reason=x     -> failed
        ").await;
        let stats = world.fleet.call(mail::Stats::default()).await.unwrap();
        let s = &stats.mailboxes[0];
        assert_eq!(
            (s.ready, s.waiting, s.processing, s.held, s.failed, s.processed),
            (1, 1, 1, 0, 1, 1)
        );
        assert_eq!(s.settings, mail::Settings::default());
        assert_eq!(world.fleet.call(run::List::default()).await.unwrap().runs[0].holds, 1);
        assert_eq!(world.fleet.call(fencepost::claim::List::default()).await.unwrap().claims[0].token, "message/4@1");
    }

    /// Messages of dead holders count as lost: they are not reset, and do not block those of live holders.
    async fn reset_and_discard_skip_dead_holders(world: World) {
        world.story("
            mail/push s payload=one                  -> id=1
            mail/push s payload=two                  -> id=2
            mail/claim s run=dead ttl_ms=1000        -> claims=message/1@1
            mail/claim s run=alive ttl_ms=60000      -> claims=message/2@1
            +1s mail/reset mailbox=s                 -> reset=1 more=false
            mail/reset run=dead                      -> reset=0 more=false
            mail/discard 1                           -> messages=1
            mail/show message=1                      -> failed outcome=discarded attempts=1
        ").await;
    }

    async fn failed_messages_are_redriven_in_batches(world: World) {
        let item = mail::push_many::Item { mailbox: "s".into(), ..Default::default() };
        world.fleet.call(mail::PushMany { messages: vec![item; 501], request: None }).await.unwrap();
        let ids: Vec<i64> = (1..=501).collect();
        world.fleet.call(mail::Discard { messages: ids, reason: None }).await.unwrap();
        let all = mail::Redrive { mailbox: Some("s".into()), ..Default::default() };
        let first = world.fleet.call(all.clone()).await.unwrap();
        assert_eq!((first.messages.len(), first.more), (500, true));
        let rest = world.fleet.call(all).await.unwrap();
        assert_eq!((rest.messages.len(), rest.more), (1, false));
    }

    /// A claim returns as many messages as the size of a reply allows, and at least one.
    async fn a_reply_has_a_size_limit(world: World) {
        let large = "x".repeat(1000 * 1024);
        for _ in 0..10 {
            world.push("s", &large).await;
        }
        assert_eq!(world.claim_mail("s", "a", 1000).await.unwrap().len(), 8);
        let peek = mail::Peek { mailbox: "s".into(), count: Some(100) };
        assert_eq!(world.fleet.call(peek).await.unwrap().messages.len(), 2);
        let take = mail::Take { mailboxes: vec!["s".into()], count: Some(1000), ..Default::default() };
        assert_eq!(world.fleet.call(take).await.unwrap().messages.len(), 2);
    }

    /// A repeated push does not push again, even if its message was finished and removed.
    async fn a_request_outlives_its_message(world: World) {
        world.fleet.call(mail::Configure { mailbox: "s".into(), retain_ms: Some(Millis(0)), ..Default::default() }).await.unwrap();
        let push = mail::Push { request: Some("r1".into()), ..mail::Push::new("s", "x") };
        world.fleet.call(push.clone()).await.unwrap();
        world.story("mail/take s -> messages=1").await;
        world.fleet.call(fencepost::admin::Prune::default()).await.unwrap();
        assert_eq!(code(world.fleet.call(push).await), Code::AlreadyFinished);
    }

    /// A batch cannot avoid it.
    async fn a_repeat_in_an_embedders_transaction_is_an_error_of_the_batch(world: World) {
        world.push("s", "one").await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let complete = || {
            let done = mail::DoneMany { messages: vec![mail::Done::new(&token)] };
            world.fleet.transaction(move |tx| {
                let done = done.clone();
                Box::pin(async move { tx.call(done).await })
            })
        };
        complete().await.unwrap();
        assert_eq!(refused(complete().await).field("repeat"), Some(&true.into()));
    }

    /// An embedder completes a message and writes its own table in one transaction: both, or neither.
    async fn an_embedder_completes_with_its_own_rows(world: World) {
        world.push("s", "one").await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let make = world.fleet.transaction(|tx| Box::pin(async move {
            tx.execute("create table observation (text text)", vec![]).await
        }));
        make.await.unwrap();
        let complete = |refuse: bool| {
            let done = mail::Done::new(&token);
            world.fleet.transaction(move |tx| {
                let done = done.clone();
                Box::pin(async move {
                    tx.execute("insert into observation(text) values ('seen')", vec![]).await?;
                    tx.call(done).await?;
                    if refuse { Err(fencepost::Error::new(Code::Invalid, "a crash")) } else { Ok(()) }
                })
            })
        };
        assert_eq!(code(complete(true).await), Code::Invalid);
        assert_eq!(world.message(1).await.status, mail::Status::Processing);
        complete(false).await.unwrap();
        let repeat = refused(complete(false).await);
        assert_eq!(repeat.field("repeat"), Some(&true.into()), "so that its rows roll back too");
        let count = world.fleet.transaction(|tx| Box::pin(async move {
            tx.query("select count(*) as n from observation", vec![]).await?[0].get::<i64>("n")
        }));
        assert_eq!(count.await.unwrap(), 1);
    }
}
