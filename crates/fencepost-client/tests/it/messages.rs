//! Messages in flight: their leases, how they are lost, and their methods.

use crate::{
    consumer::{LIMIT, Setup, reach, receive, text},
    on_every_fleet,
    scripted_server::{Action, ScriptedServer},
};
use fencepost::{BoxFuture, Code, Error, Json, Result, Tx, claim, mail, mail::Status, params};
use fencepost_client::{
    Connection,
    consumer::{Activity, Options},
};
use fencepost_testing::{World, world::refused};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;

on_every_fleet! {
    /// The worker hangs past its lease: another gets the message, and the first one's completion is refused.
    async fn a_message_comes_back_when_its_lease_expires(setup: Setup) {
        setup.push(&["one", "two"]).await;
        let mut hung = setup.prefetch(2);
        let (first, second) = (receive(&mut hung).await, receive(&mut hung).await);
        let mut other = setup.prefetch(1);
        let mut progress = other.progress();
        let waiting = tokio::spawn(async move { (receive(&mut other).await, other) });
        reach(&mut progress, |now| now.activity == Activity::Idle).await;
        setup.world.pass(59);
        setup.world.pass(1);
        let (again, _other) = waiting.await.expect("a message");
        assert_eq!((text(&again), again.attempts), ("one".into(), 2));
        assert_eq!(refused(first.complete([Json::from("late")]).await).code(), Code::LeaseExpired);
        assert!(!second.is_lost(), "the consumer does not know yet");
        hung.renew().await.expect("an answer");
        timeout(LIMIT, second.lost()).await.expect("it is reported");
        again.complete([Json::from("in time")]).await.expect("completed");
        assert_eq!(setup.message(1).await.outputs, [Json::from("in time")]);
    }

    /// Renewed every third of its lease, slow work may take any time.
    async fn renewals_keep_a_slow_message_past_its_lease(setup: Setup) {
        setup.push(&["one", "two"]).await;
        let mut consumer = setup.prefetch(2);
        let (slow, slower) = (receive(&mut consumer).await, receive(&mut consumer).await);
        for _ in 0..10 {
            setup.world.pass(20);
            consumer.renew().await.expect("renewed");
        }
        setup.world.pass(59);
        assert!(!slow.is_lost() && !slower.is_lost());
        slow.complete([]).await.expect("completed");
        slower.complete([]).await.expect("completed");
    }

    /// By the consumer's own timer, in real time: renewed after 3 s and then every 4 s, a message is lost if no renewal
    /// succeeds for 6 s.
    async fn renewals_happen_by_themselves(setup: Setup) {
        let ids = setup.push(&["one"]).await;
        let mut consumer = setup.consumer(Options { ttl: Duration::from_secs(12), ..Options::default() });
        let slow = receive(&mut consumer).await;
        for _ in 0..2 {
            let before = setup.message(ids[0]).await.claim.expect("held").expires_at;
            setup.world.pass(6);
            let renewed = async {
                while setup.message(ids[0]).await.claim.expect("held").expires_at == before {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(LIMIT, renewed).await.expect("it is renewed");
        }
        slow.complete([]).await.expect("completed");
    }

    /// An operator takes one of two away.
    async fn a_loss_is_reported_and_the_completion_refused(setup: Setup) {
        let ids = setup.push(&["one", "two"]).await;
        let mut consumer = setup.prefetch(2);
        let (first, second) = (receive(&mut consumer).await, receive(&mut consumer).await);
        let unclaim = claim::Unclaim { resource: format!("message/{}", ids[1]), reason: None };
        setup.world.fleet.call(unclaim).await.expect("taken away");
        consumer.renew().await.expect("an answer");
        timeout(LIMIT, second.lost()).await.expect("it is reported");
        assert!(second.is_lost() && !first.is_lost());
        assert_eq!(refused(second.complete([]).await).code(), Code::LeaseExpired);
        first.complete([]).await.expect("completed");
        assert_eq!(setup.counts().await, (1, 0, 1));
        assert_eq!(text(&receive(&mut consumer).await), "two");
    }

    /// A refusal of the message's own call shows the loss, too.
    async fn a_refused_checkpoint_reports_the_loss(setup: Setup) {
        setup.push(&["one"]).await;
        let mut consumer = setup.prefetch(1);
        let mut first = receive(&mut consumer).await;
        first.checkpoint("read", Some(json!({ "line": 7 }))).await.expect("saved");
        first.checkpoint("asked", None).await.expect("saved");
        setup.world.pass(60);
        assert_eq!(refused(first.checkpoint("answered", None).await).code(), Code::LeaseExpired);
        assert!(first.is_lost());
        let mut again = receive(&mut setup.prefetch(1)).await;
        let checkpoint = again.checkpoint.clone().expect("kept");
        assert_eq!((checkpoint.ordinal, checkpoint.phase.as_str()), (2, "asked"));
        again.checkpoint("answered", None).await.expect("saved");
        assert_eq!(again.checkpoint.as_ref().map(|last| last.ordinal), Some(3));
        again.complete([]).await.expect("completed");
    }

    async fn failing_retrying_and_releasing(setup: Setup) {
        let ids = setup.push(&["bad", "flaky", "other"]).await;
        let mut consumer = setup.prefetch(1);
        let failed = receive(&mut consumer).await.fail("cannot be read").await.expect("failed");
        assert_eq!((failed.status, failed.failure_reason.as_deref()), (Status::Failed, Some("cannot be read")));
        let retried = receive(&mut consumer).await.retry("the net is down").await.expect("to be retried");
        assert_eq!((retried.status, retried.attempts), (Status::Pending, 1));
        let third = receive(&mut consumer).await;
        assert_eq!(text(&third), "other");
        third.release().await.expect("given back");
        let again = receive(&mut consumer).await;
        assert_eq!((text(&again), again.attempts), ("other".into(), 1));
        again.complete([]).await.expect("completed");
        setup.world.pass(10);
        let again = receive(&mut consumer).await;
        assert_eq!((again.id, again.attempts), (ids[1], 2));
    }

    /// A dropped message goes back and its attempt does not count. Dropped by a panic, the attempt counts: a poison
    /// message must not go round for ever.
    async fn a_dropped_message_goes_back_and_a_panic_counts(setup: Setup) {
        let ids = setup.push(&["one"]).await;
        let mut consumer = setup.prefetch(1);
        let mut progress = consumer.progress();
        drop(receive(&mut consumer).await);
        assert_eq!(setup.until(ids[0], Status::Pending).await.attempts, 0);
        reach(&mut progress, |now| now.in_flight == 0).await;
        let again = receive(&mut consumer).await;
        let worker = tokio::spawn(async move {
            let _message = again;
            // Not `panic!`, which would print.
            std::panic::resume_unwind(Box::new("a poison message"));
        });
        assert!(worker.await.is_err());
        let failed = setup.until(ids[0], Status::Pending).await;
        assert_eq!((failed.attempts, failed.failure_reason.as_deref()), (1, Some("its worker panicked")));
    }

    /// A run may hold more claims than one list has. A claim past the end of the list is not lost; a lost one is reported.
    async fn two_consumers_can_share_a_run_with_more_claims_than_one_list(setup: Setup) {
        for _ in 0..2 {
            let item = || mail::push_many::Item { mailbox: "s".into(), ..Default::default() };
            let messages = (0..510).map(|_| item()).collect();
            setup.fleet.call(mail::PushMany { messages, request: None }).await.expect("pushed");
        }
        let shared =
            || setup.consumer(Options { run: Some("shared".into()), prefetch: 510, ..Options::default() });
        let (mut one, mut two) = (shared(), shared());
        let _first = receive(&mut one).await;
        let mut others = Vec::new();
        for _ in 0..510 {
            others.push(receive(&mut two).await);
        }
        let taken = others.pop().expect("the last of all");
        let unclaim = claim::Unclaim { resource: format!("message/{}", taken.id), reason: None };
        setup.fleet.call(unclaim).await.expect("taken away");
        two.renew().await.expect("an answer");
        assert!(taken.is_lost());
        assert_eq!(others.iter().filter(|message| message.is_lost()).count(), 0);
    }
}

/// A completion that is refused because of its content is not retried at once: the model would be asked for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_is_too_large_counts_as_an_attempt() {
    let setup = Setup::local(&World::sqlite().await).await;
    let ids = setup.push(&["one"]).await;
    let message = receive(&mut setup.prefetch(1)).await;
    let large = Json::from("x".repeat(2 << 20).as_str());
    assert_eq!(refused(message.complete([large]).await).code(), Code::TooLarge);
    let failed = setup.until(ids[0], Status::Pending).await;
    assert!(failed.attempts == 1 && failed.delayed_until.is_some(), "{failed:?}");
}

/// The embedder's own rows and the completion commit together, on both databases.
async fn completes_with_its_own_tables(world: World) -> Result<()> {
    let fleet = world.fleet.clone();
    let table = fleet.transaction(|tx| {
        Box::pin(async move { tx.execute("create table seen(what text not null)", params![]).await })
    });
    table.await?;
    let setup = Setup::local(&world).await;
    setup.push(&["one", "two", "three", "four"]).await;
    let mut consumer = setup.prefetch(1);
    let first = receive(&mut consumer).await;
    first.complete_in(|tx| insert(tx, Some("one"))).await?;

    // An error of the embedder: nothing is stored, and the attempt counts, so that it does not go round for ever.
    let second = receive(&mut consumer).await;
    let failed = second.complete_in(|tx| insert(tx, None)).await;
    assert_eq!(refused(failed).code(), Code::Internal);
    let failed = setup.until(2, Status::Pending).await;
    assert!(failed.failure_reason.expect("a reason").starts_with("internal: "));
    world.pass(10);
    let second = receive(&mut consumer).await;
    assert_eq!((text(&second), second.attempts), ("two".into(), 2));

    // An expired lease: nothing is stored.
    world.pass(60);
    assert_eq!(refused(second.complete_in(|tx| insert(tx, Some("late"))).await).code(), Code::LeaseExpired);

    // A failed commit is retried.
    let second = receive(&mut setup.prefetch(1)).await;
    let ready = Arc::new(AtomicBool::new(true));
    second.complete_in(unsure(&ready)).await?;

    // A commit whose answer was lost had been accepted, and is not repeated.
    let third = receive(&mut consumer).await;
    ready.store(false, Ordering::SeqCst);
    let done = mail::Done::new(third.token());
    let completing = tokio::spawn(third.complete_in(unsure(&ready)));
    fleet.call(done).await?;
    ready.store(true, Ordering::SeqCst);
    completing.await.expect("no panic")?;

    // The transaction written by hand.
    let fourth = receive(&mut setup.prefetch(1)).await;
    let done = mail::Done::new(fourth.token());
    let both = fleet.transaction(move |tx| {
        let done = done.clone();
        Box::pin(async move {
            tx.execute("insert into seen(what) values ('four')", params![]).await?;
            tx.call(done).await
        })
    });
    both.await?;
    fourth.mark_finished();
    let rows = fleet.transaction(|tx| {
        Box::pin(async move {
            let rows = tx.query("select what from seen order by what", params![]).await?;
            rows.iter().map(|row| row.get::<String>("what")).collect::<Result<Vec<_>>>()
        })
    });
    assert_eq!(rows.await?, ["four", "one", "unsure"]);
    assert_eq!(setup.counts().await, (0, 0, 4));
    Ok(())
}

fn insert<'t>(tx: &'t mut Tx<'_>, what: Option<&'static str>) -> BoxFuture<'t, Result<()>> {
    Box::pin(async move { tx.execute("insert into seen(what) values (?1)", params![what]).await.map(drop) })
}

/// Fails once, and until `ready` is set, like a commit whose answer is lost.
fn unsure(
    ready: &Arc<AtomicBool>,
) -> impl for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<()>> + Send + Sync + 'static {
    let (again, ready) = (AtomicBool::new(false), ready.clone());
    move |tx| match again.swap(true, Ordering::SeqCst) && ready.load(Ordering::SeqCst) {
        true => insert(tx, Some("unsure")),
        false => Box::pin(async { Err(Error::new(Code::OutcomeUnknown, "the answer was lost")) }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completes_with_its_own_tables_on_sqlite() -> Result<()> {
    completes_with_its_own_tables(World::sqlite().await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completes_with_its_own_tables_on_postgres() -> Result<()> {
    completes_with_its_own_tables(World::postgres().await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_there_is_no_transaction() {
    let setup = Setup::served(&World::sqlite().await).await;
    let ids = setup.push(&["one"]).await;
    let message = receive(&mut setup.prefetch(1)).await;
    assert_eq!(refused(message.complete_in(|tx| insert(tx, None)).await).code(), Code::Invalid);
    setup.until(ids[0], Status::Pending).await;
}

/// A run that was named may have other users: closing a consumer does not end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_consumers_can_share_a_run() {
    let setup = Setup::local(&World::sqlite().await).await;
    setup.push(&["one", "two"]).await;
    let shared = || setup.consumer(Options { run: Some("shared".into()), ..Options::default() });
    let (mut one, mut two) = (shared(), shared());
    let (first, second) = (receive(&mut one).await, receive(&mut two).await);
    first.complete([]).await.expect("completed");
    one.close().await;
    two.renew().await.expect("an answer");
    assert!(!second.is_lost());
    second.complete([]).await.expect("completed");
}

/// The server is gone for good: the loss is reported when the lease ends, and no completion waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_does_not_answer_is_a_lost_lease() {
    let world = World::sqlite().await;
    let (url, stop) = crate::consumer::serve(&world.fleet).await;
    let setup = Setup { fleet: Connection::open(&url).await.expect("it opens"), world };
    setup.push(&["one"]).await;
    let mut consumer = setup.consumer(Options { ttl: Duration::from_secs(1), ..Options::default() });
    let message = receive(&mut consumer).await;
    stop.send(()).expect("the server is there");
    timeout(LIMIT, message.lost()).await.expect("it is reported");
}

/// The completion is accepted, and its answer is late: there is nothing to renew, so renewals must pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_pause_while_the_last_claim_is_about_to_end() {
    let world = World::sqlite().await;
    let pushed = world.fleet.call(mail::Push::new("s", "one")).await.expect("pushed").message;
    let ttl = Duration::from_secs(16);
    let claim = mail::Claim {
        mailboxes: vec!["s".into()],
        run: "r".into(),
        ttl_ms: Some(ttl.into()),
        ..mail::Claim::default()
    };
    let claimed = world.fleet.call(claim).await.expect("claimed");
    let renew = claim::Renew::new(&claimed.claims[0].claim.token);
    let renewed = json!(world.fleet.call(renew).await.expect("renewed")).to_string();
    let claimed = json!(claimed).to_string();
    let over = json!({ "error": { "code": "already_finished", "message": "it is done" } }).to_string();
    let done = AtomicBool::new(false);
    let server = ScriptedServer::by(move |_, path| match path {
        "/v1/mail/claim" => Action::Answer(200, claimed.clone()),
        "/v1/mail/done" => {
            done.store(true, Ordering::SeqCst);
            Action::Hold
        }
        // Before the completion the claim is held.
        _ if !done.load(Ordering::SeqCst) => Action::Answer(200, renewed.clone()),
        _ => Action::Answer(409, over.clone()),
    })
    .await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let options = Options { ttl, ..Options::default() };
    let mut consumer = fencepost_client::consumer::Consumer::start(&fleet, ["s"], options);
    let message = receive(&mut consumer).await;
    assert_eq!(message.id, pushed.id);
    let completing = tokio::spawn(message.complete([]));
    // Without a pause there would be hundreds. There is one a second, and one more for each that was not answered in time.
    let for_a_second = async {
        loop {
            let received = server.received();
            let since = received.iter().skip_while(|request| request.path != "/v1/mail/done");
            let renewals: Vec<_> = since.filter(|request| request.path == "/v1/claim/renew").collect();
            assert!(renewals.len() <= 5, "{} renewals", renewals.len());
            if let [first, .., last] = renewals[..]
                && last.at - first.at >= Duration::from_millis(900)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, for_a_second).await.expect("it renews again");
    completing.abort();
}
