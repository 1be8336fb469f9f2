//! Routes: a delivery is dropped as a repeat, put in one agent's inbox, or kept as unrouted; exactly one of these.

use fencepost::{
    Code, Fleet, admin, inbox, params,
    route::{self, Outcome},
};
use fencepost_testing::{World, on_both, world::code};
use std::collections::HashMap;

fn said(delivery: &str, text: &str) -> route::Deliver {
    route::Deliver {
        source: "slack".into(),
        delivery: delivery.into(),
        text: text.into(),
        channel: Some("C1".into()),
        ..Default::default()
    }
}

fn to(agent: &str, text: Option<&str>) -> route::Add {
    route::Add {
        source: "slack".into(),
        agent: agent.into(),
        text: text.map(Into::into),
        ..Default::default()
    }
}

async fn inbox(fleet: &Fleet, agent: &str) -> Vec<inbox::Item> {
    fleet
        .call(inbox::List { agent: agent.into(), all: true, ..Default::default() })
        .await
        .expect("a list")
        .items
}

async fn unmatched(fleet: &Fleet) -> Vec<i64> {
    let kept = fleet.call(route::Unmatched::default()).await.expect("a list");
    kept.messages.iter().map(|stray| stray.id).collect()
}

/// Makes all calls at the same moment, half of them through other connections.
async fn at_once<O: fencepost::Op>(world: &World, ops: impl IntoIterator<Item = O>) -> Vec<O::Reply> {
    let (one, other) = (world.fleet.clone(), world.again().await);
    let calls = ops.into_iter().enumerate().map(|(n, op)| {
        let fleet = if n % 2 == 0 { one.clone() } else { other.clone() };
        tokio::spawn(async move { fleet.call(op).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut replies = Vec::new();
    for call in calls {
        replies.push(call.await.expect("no panic").expect("an answer"));
    }
    replies
}

fn count(replies: &[route::Delivered]) -> HashMap<&'static str, usize> {
    let mut counts = HashMap::new();
    for reply in replies {
        *counts.entry(reply.outcome.as_str()).or_default() += 1;
    }
    counts
}

on_both! {
    async fn a_delivery_is_routed_kept_or_a_repeat(world: World) {
        world.story("
            route/deliver lost source=slack delivery=e1                       -> outcome=unmatched message=1
            route/add bob source=slack text=deploy                            -> route.id=1 existing=false
            route/add eve source=slack channel=C1                             -> route.id=2
            route/add lead source=github repository=acme/api event=issues     -> route.id=3
            route/deliver Deploy! source=slack delivery=e2 channel=C1 sender=U1 -> outcome=routed agent=bob route=1 message=2
            route/deliver redeploy source=slack delivery=e3 channel=C1        -> outcome=routed agent=eve route=2
            route/deliver redeploy source=slack delivery=e4 channel=C2        -> outcome=unmatched
            route/deliver x source=github delivery=e2 repository=Acme/API event=issues.opened -> outcome=routed agent=lead
            route/deliver x source=github delivery=g2 repository=acme/web event=issues.opened -> outcome=unmatched
            route/deliver deploy source=slack delivery=g3 bot=true            -> outcome=unmatched
            route/deliver Deploy! source=slack delivery=e2 channel=C1         -> outcome=repeated message=2 repeats=1
            route/deliver other source=slack delivery=e2                      -> outcome=repeated message=2 repeats=2
            route/deliver lost source=slack delivery=e1                       -> outcome=repeated message=1 repeats=1
            route/deliver x source=slack                                      -> refused invalid
            route/deliver x source=slack delivery=                            -> refused invalid
            agent/join bob                                                    -> agent.name=bob
            agent/poll bob run=b1                                             -> type=inbox_message claims=message/2@1
        ").await;
        let bob = inbox(&world.fleet, "bob").await;
        let content = bob[0].content.clone().expect("its content");
        assert_eq!((content.source.as_str(), content.text.as_str()), ("slack", "Deploy!"));
        assert_eq!((content.channel.as_deref(), content.sender.as_deref()), (Some("C1"), Some("U1")));
        assert_eq!(content.matched.as_deref(), Some("source slack, text deploy"));
        assert_eq!(unmatched(&world.fleet).await.len(), 4);
    }

    /// A provider's retries at the same moment on two nodes, then many of them, and one after a restart.
    async fn the_same_delivery_is_one_message(world: World) {
        world.fleet.call(to("bob", None)).await.expect("a route");
        let replies = at_once(&world, (0..16).map(|_| said("Ev1", "hello"))).await;
        assert_eq!(count(&replies), HashMap::from([("routed", 1), ("repeated", 15)]));
        assert!(replies.iter().all(|reply| reply.message == replies[0].message), "{replies:?}");
        let strays = at_once(&world, (0..16).map(|_| route::Deliver { bot: true, ..said("Ev2", "beep") })).await;
        assert_eq!(count(&strays), HashMap::from([("unmatched", 1), ("repeated", 15)]));
        let restarted = world.reopened().await;
        let late = restarted.fleet.call(said("Ev1", "hello")).await.expect("an answer");
        assert_eq!((late.outcome, late.repeats), (Outcome::Repeated, Some(16)));
        assert_eq!(inbox(&world.fleet, "bob").await.len(), 1);
        assert_eq!(unmatched(&world.fleet).await.len(), 1);
        assert_eq!(world.times("message.pushed").await, 2);
    }

    /// No signature covers the delivery id, so a replay can change it. The signed body cannot be changed.
    async fn a_signed_body_is_recognized_under_another_id(world: World) {
        world.fleet.call(to("bob", None)).await.expect("a route");
        let signed = |delivery: &str, digest: &str| route::Deliver { digest: Some(digest.into()), ..said(delivery, "x") };
        let first = world.fleet.call(signed("d1", "aa")).await.expect("an answer");
        let replayed = world.fleet.call(signed("d2", "aa")).await.expect("an answer");
        assert_eq!((replayed.outcome, replayed.message), (Outcome::Repeated, first.message));
        // The new id is remembered, too.
        let again = world.fleet.call(signed("d2", "bb")).await.expect("an answer");
        assert_eq!((again.outcome, again.message), (Outcome::Repeated, first.message));
        // A digest is not accepted as an id.
        assert_eq!(world.fleet.call(said("aa", "x")).await.expect("an answer").outcome, Outcome::Routed);
        let replies = at_once(&world, (0..16).map(|n| signed(&format!("r{n}"), "cc"))).await;
        assert_eq!(count(&replies), HashMap::from([("routed", 1), ("repeated", 15)]));
        assert_eq!(inbox(&world.fleet, "bob").await.len(), 3);
    }

    /// Slack sends two events for a post that mentions an app: a message and a mention.
    async fn two_events_for_one_post_reach_an_agent_once(world: World) {
        let told = |delivery: &str, event: &str, ts: &str| route::Deliver {
            event: Some(event.into()),
            item: Some(format!("T1/C1/{ts}")),
            ..said(delivery, "hello")
        };
        for (delivery, event) in [("e1", "message"), ("e2", "app_mention")] {
            let kept = world.fleet.call(told(delivery, event, "1.0")).await.expect("an answer");
            assert_eq!(kept.outcome, Outcome::Unmatched, "told in another way it may fit a rule");
        }
        world.fleet.call(route::Add { event: Some("app_mention".into()), ..to("bob", None) }).await.expect("a route");
        for message in unmatched(&world.fleet).await {
            world.fleet.call(route::Again { message, ..Default::default() }).await.expect("an answer");
        }
        assert_eq!((unmatched(&world.fleet).await.len(), inbox(&world.fleet, "bob").await.len()), (1, 1));
        world.fleet.call(to("bob", None)).await.expect("a route");
        for message in unmatched(&world.fleet).await {
            let again = world.fleet.call(route::Again { message, ..Default::default() }).await.expect("an answer");
            assert_eq!(again.outcome, Outcome::Repeated);
        }
        assert_eq!((unmatched(&world.fleet).await.len(), inbox(&world.fleet, "bob").await.len()), (0, 1));
        let ways = [told("e3", "message", "2.0"), told("e4", "app_mention", "2.0")];
        assert_eq!(count(&at_once(&world, ways).await), HashMap::from([("routed", 1), ("repeated", 1)]));
        assert_eq!(inbox(&world.fleet, "bob").await.len(), 2);
    }

    async fn an_unrouted_delivery_is_routed_later_once(world: World) {
        for n in 0..3 {
            world.fleet.call(said(&format!("e{n}"), if n == 2 { "rollback" } else { "deploy" })).await.expect("kept");
        }
        let again = |message| route::Again { message, ..Default::default() };
        let first = unmatched(&world.fleet).await[0];
        let kept = world.fleet.call(again(first)).await.expect("an answer");
        assert_eq!((kept.outcome, kept.message), (Outcome::Unmatched, first));
        world.fleet.call(to("bob", Some("deploy"))).await.expect("a route");
        for id in unmatched(&world.fleet).await {
            let replies = at_once(&world, (0..8).map(|_| again(id))).await;
            assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:?}");
        }
        let bob = inbox(&world.fleet, "bob").await;
        assert_eq!(bob.len(), 2);
        assert_eq!(bob[0].content.as_ref().and_then(|content| content.matched.as_deref()), Some("source slack, text deploy"));
        assert_eq!(unmatched(&world.fleet).await, [3]);
        // A later delivery is still a repeat.
        assert_eq!(world.fleet.call(said("e0", "deploy")).await.expect("an answer").outcome, Outcome::Repeated);
        world.story("
            mail/claim hooks/unmatched run=r                -> claims=message/3@1
            route/add eve source=slack                      -> route.id=2
            route/again 3                                   -> refused already_claimed
            mail/release message/3@1                        -> messages=3
            mail/discard 3                                  -> messages=3
            route/again 3                                   -> refused already_finished
            mail/redrive 3                                  -> messages=3
            route/again 3                                   -> outcome=routed agent=eve
            route/again 1                                   -> outcome=routed agent=bob
            route/again 99                                  -> refused not_found
            mail/push hooks/unmatched payload=junk          -> refused forbidden
            route/deliver junk source=other delivery=e9     -> outcome=unmatched
        ").await;
        // An earlier version let anybody push this.
        let spoiled = world.fleet.transaction(|tx| Box::pin(async move {
            let junk = "update message_doc set payload = '\"junk\"' where payload like '%junk%'";
            tx.execute(junk, params![]).await
        }));
        assert_eq!(spoiled.await.expect("one row"), 1);
        let junk = world.fleet.call(again(unmatched(&world.fleet).await[0])).await;
        assert_eq!(code(junk), Code::Invalid);
        assert_eq!(code(world.fleet.call(again(bob[0].id)).await), Code::NotFound, "it is in an inbox");
        let kept = world.fleet.call(route::Unmatched::default()).await.expect("a list");
        assert!(kept.messages[0].content.is_none() && kept.messages.len() == 1, "{kept:?}");
    }

    async fn rules_are_tried_in_their_order(world: World) {
        world.story("
            route/add a source=s                 -> route.id=1 existing=false
            route/add b source=s text=x          -> route.id=2
            route/deliver x source=s delivery=e1 -> agent=a route=1
            route/add b source=s text=x before=1 -> route.id=2 existing=true
            route/deliver x source=s delivery=e2 -> agent=b route=2
            route/add c source=s text=y before=1 -> route.id=3 existing=false
            route/add d source=s text=x          -> route.id=2 existing=true route.agent=d
            route/list                           -> routes=2,3,1
            route/deliver x source=s delivery=e3 -> agent=d route=2
            route/remove 2                       -> route.id=2
            route/remove 2                       -> route.id=2
            route/remove 9                       -> refused not_found
            route/list                           -> routes=3,1
            route/deliver x source=s delivery=e4 -> agent=a route=1
            route/add e source=s text=x before=2 -> refused not_found
            route/add e source=s text=x          -> route.id=4 existing=false
            route/list                           -> routes=3,1,4
            route/add e source=s before=4        -> route.id=1 route.agent=e
            route/list                           -> routes=3,1,4
            route/add e source=s before=3        -> route.id=1
            route/list                           -> routes=1,3,4
            route/add e source=                  -> refused invalid
            route/add e source=s text=           -> refused invalid
        ").await;
        let same = at_once(&world, (0..8).map(|n| to(&format!("a{}", n % 2), Some("same")))).await;
        assert_eq!(same.iter().filter(|added| !added.existing).count(), 1, "{same:?}");
        at_once(&world, (0..8).map(|n| to("z", Some(&format!("t{n}"))))).await;
        let places = world.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx.query("select place from route where removed_at is null", params![]).await?;
                rows.iter().map(|row| row.get("place")).collect::<fencepost::Result<Vec<i64>>>()
            })
        });
        let mut places = places.await.expect("places");
        places.sort_unstable();
        let all = places.len();
        places.dedup();
        assert_eq!((places.len(), all), (12, 12));
    }

    async fn repeated_route_requests_return_the_first_reply(world: World) {
        let add = route::Add { request: Some("q1".into()), ..to("bob", None) };
        let first = world.fleet.call(add.clone()).await.expect("a route");
        assert_eq!(world.fleet.call(add.clone()).await.expect("the same"), first);
        let delivery = route::Deliver { request: Some("q2".into()), ..said("e1", "x") };
        let routed = world.fleet.call(delivery.clone()).await.expect("routed");
        assert_eq!(world.fleet.call(delivery).await.expect("an answer").message, routed.message);
        let remove = route::Remove { route: first.route.id, request: Some("q3".into()), ..Default::default() };
        let removed = world.fleet.call(remove.clone()).await.expect("removed");
        assert_eq!(world.fleet.call(remove).await.expect("the same"), removed);
        // A late repeat brings nothing back.
        assert!(world.fleet.call(add).await.expect("an answer").route.removed_at.is_some());
        assert!(world.fleet.call(route::List {}).await.expect("a list").routes.is_empty());
        let other = route::Remove { route: first.route.id, request: Some("q1".into()), ..Default::default() };
        assert_eq!(code(world.fleet.call(other).await), Code::Invalid);
        assert_eq!(world.times("message.pushed").await, 1);
    }

    /// Deliveries are remembered as long as request ids, and then pruned.
    async fn deliveries_are_pruned_after_their_time(world: World) {
        let day = 24 * 60 * 60;
        world.fleet.call(said("e1", "x")).await.expect("kept");
        let week = admin::Prune { older_than_ms: Some(fencepost::Millis::days(7)) };
        world.pass_in_use(7 * day).await;
        assert_eq!(world.fleet.call(week.clone()).await.expect("pruned").deliveries, 0);
        assert_eq!(world.fleet.call(said("e1", "x")).await.expect("an answer").outcome, Outcome::Repeated);
        world.pass(1);
        assert_eq!(world.fleet.call(week).await.expect("pruned").deliveries, 1);
        assert_eq!(world.fleet.call(said("e1", "x")).await.expect("an answer").outcome, Outcome::Unmatched);
        assert_eq!(unmatched(&world.fleet).await.len(), 2, "what is unmatched is kept");
    }
}

#[tokio::test]
async fn there_is_a_limit_on_rules() {
    let world = World::sqlite().await;
    let many = world.fleet.transaction(|tx| {
        Box::pin(async move {
            for n in 0..1000 {
                let rule = format!(r#"{{"source":"slack","text":"t{n}"}}"#);
                let sql = "insert into route(place, rule, agent, created_at) values (?1, ?2, 'bob', 0)";
                tx.execute(sql, params![n, rule]).await?;
            }
            Ok(())
        })
    });
    many.await.expect("a thousand routes");
    assert_eq!(code(world.fleet.call(to("bob", Some("one more"))).await), Code::TooLarge);
    assert!(world.fleet.call(to("eve", Some("t5"))).await.expect("a change").existing);
}
