//! Strict mailboxes, and the retention of finished messages.

use fencepost::{Code, Millis, admin, event, mail};
use fencepost_testing::{World, on_both, world::code};

on_both! {
    async fn strict_is_one_at_a_time_of_each_lane(world: World) {
        world.story("
            mail/configure s strict=true           -> settings.strict=true
            mail/push s payload=1 lane=x           -> id=1
            mail/push s payload=2 lane=x           -> id=2
            mail/push s payload=3 lane=y           -> id=3
            mail/push s payload=4                  -> id=4
            mail/push s payload=5 priority=60      -> refused invalid field=priority
            mail/claim s run=a count=9             -> claims=message/1@1,message/3@1,message/4@1
            mail/claim s run=b count=9             -> refused none_ready blocked=1
            mail/release message/1@1               -> messages=1
            mail/claim s run=b count=9             -> claims=message/1@2
            mail/done message/1@2                  -> processed
            mail/claim s run=b count=9             -> claims=message/2@1
            mail/done message/2@1                  -> processed
            mail/push s payload=6 lane=x           -> id=5
            mail/claim s run=b                     -> claims=message/5@1
            mail/configure s strict=false          -> refused not_ready
        ").await;
    }

    /// The head blocks its lane during backoff and hold. Once it has failed for good, the next message can be claimed.
    async fn the_head_blocks_its_lane_until_it_is_finished(world: World) {
        world.story("
            mail/configure s strict=true replay=hold max_attempts=2 backoff_ms=5000 -> settings.strict=true
            mail/push s payload=1                         -> id=1
            mail/push s payload=2                         -> id=2
            mail/push s payload=3                         -> id=3
            mail/claim s run=a ttl_ms=1000                -> claims=message/1@1
            mail/fail message/1@1 reason=x retry=true     -> pending
            +4s mail/claim s run=b                        -> refused none_ready
            +1s mail/claim s run=b ttl_ms=1000            -> claims=message/1@2
            +1s mail/claim s run=c                        -> refused none_ready blocked=3
            mail/show message=1                           -> held
            mail/discard 1                                -> messages=1
            mail/claim s run=d                            -> claims=message/2@1
            mail/redrive 1                                -> messages=1
            mail/claim s run=e                            -> refused none_ready
            mail/fail message/2@1 reason=bad              -> failed
            mail/claim s run=d                            -> claims=message/1@3
            mail/done message/1@3                         -> processed
            mail/claim s run=d                            -> claims=message/3@1
            mail/done message/3@1                         -> processed
            mail/redrive 2                                -> messages=2
            mail/claim s run=d                            -> claims=message/2@2
        ").await;
    }

    async fn a_batch_takes_its_places_in_a_lane(world: World) {
        let item = |lane: &str| mail::push_many::Item { mailbox: "s".into(), lane: Some(lane.into()), ..Default::default() };
        world.fleet.call(mail::Configure { mailbox: "s".into(), strict: Some(true), ..Default::default() }).await.unwrap();
        let messages = vec![item("x"), item("y"), item("x")];
        world.fleet.call(mail::PushMany { messages: messages.clone(), request: None }).await.unwrap();
        world.fleet.call(mail::PushMany { messages, request: None }).await.unwrap();
        world.story("
            mail/claim s run=a count=9 -> claims=message/1@1,message/2@1
            mail/done message/1@1      -> processed
            mail/claim s run=a count=9 -> claims=message/3@1
            mail/take s                -> refused none_ready
            mail/done message/2@1      -> processed
            mail/take s                -> messages=5
            mail/take s                -> refused none_ready
            mail/done message/3@1      -> processed
            mail/take s count=9        -> messages=4
            mail/take s count=9        -> messages=6
        ").await;
    }

    async fn finished_messages_are_kept_by_age_and_number(world: World) {
        world.fleet.call(mail::Configure { mailbox: "n".into(), retain_count: Some(2), ..Default::default() }).await.unwrap();
        world.fleet.call(mail::Configure { mailbox: "short".into(), retain_ms: Some(Millis::seconds(60)), ..Default::default() }).await.unwrap();
        for mailbox in ["n", "n", "n", "n", "short", "long"] {
            world.push(mailbox, "x").await;
        }
        world.fleet.call(mail::Push { key: Some("k".into()), ..mail::Push::new("short", "keyed") }).await.unwrap();
        for mailbox in ["n", "n", "n", "short", "short", "long"] {
            world.story(&format!("+1s mail/take {mailbox} -> messages.0.outcome=taken")).await;
        }
        let left = async || {
            while world.fleet.call(admin::Prune::default()).await.unwrap().more {}
            let all = world.fleet.call(mail::List::default()).await.unwrap().messages;
            all.iter().map(|message| message.id).collect::<Vec<_>>()
        };
        assert_eq!(left().await, [2, 3, 4, 5, 6, 7], "two of `n` stay, and what is pending");
        // All were finished at the same moment, and failed messages are not counted.
        world.story("
            mail/push tied payload=1 -> id=8
            mail/push tied payload=2 -> id=9
            mail/push tied payload=3 -> id=10
            mail/configure tied retain_count=1 -> settings.retain_count=1
            mail/discard 8 -> messages=8
            mail/take tied count=2 -> messages=9,10
        ").await;
        assert_eq!(left().await, [2, 3, 4, 5, 6, 7, 8, 10]);
        world.story("
            mail/redrive 8 -> messages=8
            mail/configure tied retain_ms=0 -> settings.retain_ms=0
            mail/take tied -> messages=8
        ").await;
        world.pass(60);
        assert_eq!(left().await, [2, 3, 4, 6, 7, 10], "a key may be used again for a week");
        world.pass_in_use(7 * 86_400).await;
        assert_eq!(left().await, [2, 3, 4, 6, 10]);
        world.pass_in_use(24 * 86_400).await;
        assert_eq!(left().await, [4]);
        world.fleet.call(event::Prune::default()).await.unwrap();
        assert_eq!(code(world.fleet.call(mail::Show { message: 2 }).await), Code::NotFound);
    }
}
