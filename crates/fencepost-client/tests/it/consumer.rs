//! Consumers: what they claim, when they stop, and what becomes of the messages in flight.

use crate::scripted_server::{Action, ScriptedServer};
use fencepost::{Code, Fleet, Json, Result, mail, mail::Status};
use fencepost_client::{
    Connection,
    consumer::{Activity, Consumer, Message, Options, Progress, Stop},
};
use fencepost_server::{App, Server, Settings};
use fencepost_testing::{World, story::Target, world::refused};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// Defines each test once and runs it on both databases, opened in this process and behind a server.
#[macro_export]
macro_rules! on_every_fleet {
    ($($(#[$doc:meta])* async fn $name:ident($setup:ident: Setup) $body:block)*) => {
        $($(#[$doc])* async fn $name($setup: $crate::consumer::Setup) $body)*
        $crate::on_every_fleet!(@in sqlite, sqlite, local, $($name)*);
        $crate::on_every_fleet!(@in postgres, postgres, local, $($name)*);
        $crate::on_every_fleet!(@in sqlite_over_http, sqlite, served, $($name)*);
        $crate::on_every_fleet!(@in postgres_over_http, postgres, served, $($name)*);
    };
    (@in $module:ident, $database:ident, $way:ident, $($name:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = fencepost_testing::World::$database().await.with_fallback().await;
                super::$name($crate::consumer::Setup::$way(&world).await).await;
                world.assert_sound().await;
            })*
        }
    };
}

/// A fleet, and a connection to it.
#[derive(Clone)]
pub struct Setup {
    pub world: World,
    pub fleet: Connection,
}

/// Nothing takes this long, on any machine, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(300);

impl Setup {
    pub async fn local(world: &World) -> Self {
        Self { world: world.clone(), fleet: world.fleet.clone().into() }
    }

    pub async fn served(world: &World) -> Self {
        let (url, _) = serve(&world.fleet).await;
        Self { world: world.clone(), fleet: Connection::open(&url).await.expect("it opens") }
    }

    /// Another connection to the same fleet: of another process, or through another server.
    pub async fn other(&self) -> Connection {
        let fleet = self.world.again().await;
        match self.fleet.fleet() {
            Some(_) => fleet.into(),
            None => Connection::open(&serve(&fleet).await.0).await.expect("it opens"),
        }
    }

    pub async fn story(&self, text: &str) {
        self.world.story_through(&Through(&self.fleet), text).await;
    }

    /// Pushes messages with these payloads and returns their ids.
    pub async fn push(&self, payloads: &[&str]) -> Vec<i64> {
        let mut ids = Vec::new();
        for payload in payloads {
            ids.push(self.world.fleet.call(mail::Push::new("s", *payload)).await.expect("pushed").message.id);
        }
        ids
    }

    pub fn consumer(&self, options: Options) -> Consumer {
        Consumer::start(&self.fleet, ["s"], options)
    }

    /// A consumer with at most this many messages in flight.
    pub fn prefetch(&self, prefetch: usize) -> Consumer {
        self.consumer(Options { prefetch, ..Options::default() })
    }

    pub async fn message(&self, id: i64) -> mail::Message {
        self.world.fleet.call(mail::Show { message: id }).await.expect("the message").message
    }

    /// Waits until the message has this status.
    pub async fn until(&self, id: i64, status: Status) -> mail::Message {
        let reached = async {
            loop {
                let message = self.message(id).await;
                if message.status == status {
                    return message;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, reached).await.unwrap_or_else(|_| panic!("message {id} is never {status:?}"))
    }

    /// The numbers of pending, processing and processed messages.
    pub async fn counts(&self) -> (i64, i64, i64) {
        let stats = mail::Stats { mailbox: Some("s".into()), ..mail::Stats::default() };
        let mailbox = self.world.fleet.call(stats).await.expect("stats").mailboxes.remove(0);
        (mailbox.ready + mailbox.waiting, mailbox.processing, mailbox.processed)
    }
}

/// A connection as the target of a story.
struct Through<'a>(&'a Connection);

impl Target for Through<'_> {
    async fn ask(&self, name: &str, request: &serde_json::Value) -> Result<serde_json::Value> {
        self.0.call_by_name(name, &request.to_string()).await
    }
}

/// A server of this fleet. Sending on the channel stops it.
pub async fn serve(fleet: &Fleet) -> (String, tokio::sync::oneshot::Sender<()>) {
    let settings = Settings::new("127.0.0.1:0".parse().expect("an address"));
    let server = Server::bind(App::new(fleet.clone(), settings)).await.expect("a port");
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let url = server.url();
    tokio::spawn(server.run(async move {
        // A dropped sender stops nothing.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    }));
    (url, stop)
}

pub async fn next(consumer: &mut Consumer) -> Option<Message> {
    let next = timeout(LIMIT, consumer.next()).await.expect("a message, or the end, in time");
    next.map(|message| message.expect("no error"))
}

pub async fn receive(consumer: &mut Consumer) -> Message {
    next(consumer).await.expect("a message")
}

pub async fn reach(progress: &mut watch::Receiver<Progress>, what: impl Fn(&Progress) -> bool) -> Progress {
    let reached = timeout(LIMIT, progress.wait_for(what)).await.expect("in time");
    reached.expect("the consumer is there").clone()
}

pub fn text(message: &Message) -> String {
    message.payload().expect("text")
}

pub fn flag() -> (Arc<AtomicBool>, Stop) {
    let flag = Arc::new(AtomicBool::new(false));
    let condition = flag.clone();
    (flag, Stop::when(move || condition.load(Ordering::SeqCst)))
}

on_every_fleet! {
    /// The outputs are stored with the completion, and a second completion is refused.
    async fn processing_is_atomic(setup: Setup) {
        let ids = setup.push(&["one", "two"]).await;
        let mut consumer = setup.consumer(Options { agent: Some("kim".into()), ..Options::default() });
        let first = receive(&mut consumer).await;
        assert_eq!((text(&first), first.attempts), ("one".into(), 1));
        assert_eq!(setup.message(ids[0]).await.claim.expect("held").agent.as_deref(), Some("kim"));
        let token = first.token().to_owned();
        let done = first.complete([Json::from("a"), Json::from("b")]).await.expect("completed");
        assert_eq!((done.status, done.outcome.as_deref()), (Status::Processed, Some("done")));
        let stored = setup.message(ids[0]).await;
        assert_eq!((stored.payload, stored.outputs), (None, vec![Json::from("a"), Json::from("b")]));
        let other = mail::Done { outputs: vec![Json::from("c")], ..mail::Done::new(token) };
        assert_eq!(refused(setup.fleet.call(other).await).code(), Code::AlreadyFinished);

        // A completion needs no outputs.
        let second = receive(&mut consumer).await;
        let done = second.complete_as("skipped", []).await.expect("completed");
        assert_eq!((done.status, done.outcome.as_deref()), (Status::Processed, Some("skipped")));
        consumer.close().await;
        assert_eq!(setup.counts().await, (0, 0, 2));
    }

    /// The context is full while a message is worked on: the next is not claimed, and a restart continues there.
    async fn a_rollover_stops_before_claiming_and_keeps_the_rest_pending(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let (full, stop) = flag();
        let mut consumer = setup.consumer(Options { stop, ..Options::default() });
        let mut progress = consumer.progress();
        let first = receive(&mut consumer).await;
        full.store(true, Ordering::SeqCst);
        assert!(!consumer.safe_to_restart());
        first.complete([]).await.expect("completed");
        assert!(next(&mut consumer).await.is_none());
        assert!(consumer.safe_to_restart() && progress.borrow_and_update().activity == Activity::Idle);
        assert_eq!(setup.counts().await, (2, 0, 1), "the rest is pending");
        assert_eq!(setup.message(ids[1]).await.attempts, 0);
        assert_eq!(setup.world.times("message.claimed").await, 1, "the condition is checked before the claim");

        let mut restarted = setup.prefetch(1);
        for expected in ["two", "three"] {
            let message = receive(&mut restarted).await;
            assert_eq!((text(&message), message.attempts), (expected.into(), 1));
            message.complete([]).await.expect("completed");
        }
    }

    /// Messages claimed ahead are pending again before the stream ends, at their old position.
    async fn a_stop_gives_back_messages_claimed_ahead(setup: Setup) {
        setup.push(&["one", "two", "three"]).await;
        let (switch, stop) = flag();
        let mut consumer = setup.consumer(Options { prefetch: 3, stop, ..Options::default() });
        let first = receive(&mut consumer).await;
        assert_eq!(setup.counts().await, (0, 3, 0));
        switch.store(true, Ordering::SeqCst);
        assert!(next(&mut consumer).await.is_none());
        assert_eq!(setup.counts().await, (2, 1, 0));
        assert!(!consumer.safe_to_restart(), "one is in flight");
        first.complete([]).await.expect("what was started is finished");
        assert!(consumer.safe_to_restart(), "the queue need not be empty");
    }

    /// Another consumer takes over in the middle: each message is processed by one of them, in order.
    async fn one_consumer_can_take_over_from_another(setup: Setup) {
        setup.push(&["one", "two", "three", "four", "five"]).await;
        let (switch, stop) = flag();
        let mut old = setup.consumer(Options { prefetch: 2, stop, ..Options::default() });
        let (first, second) = (receive(&mut old).await, receive(&mut old).await);
        let mut progress = old.progress();
        let stopping = tokio::spawn(async move {
            let end = next(&mut old).await.is_none();
            old.close().await;
            end
        });
        switch.store(true, Ordering::SeqCst);
        assert!(stopping.await.expect("no panic"), "it stops although it has no free slot");
        let run = second.token().to_owned();
        let mut new = setup.prefetch(2);
        let third = receive(&mut new).await;
        assert_eq!(text(&third), "three");
        first.complete([Json::from("old")]).await.expect("completed");
        second.complete([Json::from("old")]).await.expect("messages outlive their closed consumer");
        reach(&mut progress, Progress::safe_to_restart).await;
        third.complete([Json::from("new")]).await.expect("completed");
        for expected in ["four", "five"] {
            let message = receive(&mut new).await;
            assert_eq!(text(&message), expected);
            message.complete([Json::from("new")]).await.expect("completed");
        }
        assert_eq!(setup.counts().await, (0, 0, 5), "{run}");
        assert_eq!(setup.world.times("message.completed").await, 5);
    }

    /// A cancelled `next` loses no message, however far its claim is.
    async fn next_can_be_cancelled_at_any_moment(setup: Setup) {
        let names: Vec<String> = (0..20).map(|n| format!("m{n}")).collect();
        setup.push(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let (mut consumer, mut cancelled) = (setup.prefetch(1), 0);
        for name in names {
            let message = loop {
                // No claim is answered before it is polled, so the first is certainly cancelled.
                let patience = Duration::from_micros(if cancelled == 0 { 0 } else { fastrand::u64(0..1500) });
                match timeout(patience, consumer.next()).await {
                    Ok(message) => break message.expect("a message").expect("no error"),
                    Err(_) => cancelled += 1,
                }
            };
            assert_eq!((text(&message), message.attempts), (name, 1));
            message.complete([]).await.expect("completed");
        }
        assert!(cancelled > 0);
        assert_eq!(setup.world.times("message.claimed").await, 20);
    }

    /// A consumer that is dropped during a claim keeps nothing.
    async fn a_consumer_can_be_dropped_at_any_moment(setup: Setup) {
        let ids = setup.push(&["one"]).await;
        for _ in 0..20 {
            let mut consumer = setup.prefetch(1);
            let patience = Duration::from_micros(fastrand::u64(0..3000));
            drop(timeout(patience, consumer.next()).await);
            drop(consumer);
        }
        let mut last = setup.prefetch(1);
        let message = receive(&mut last).await;
        assert_eq!((message.id, message.attempts), (ids[0], 1));
    }

    /// A consumer that stops during a claim keeps nothing.
    async fn a_consumer_can_be_stopped_at_any_moment(setup: Setup) {
        let ids = setup.push(&["one"]).await;
        for _ in 0..10 {
            let (switch, stop) = flag();
            let mut consumer = setup.consumer(Options { stop, ..Options::default() });
            let patience = Duration::from_micros(fastrand::u64(0..3000));
            let stopping = tokio::spawn(async move {
                tokio::time::sleep(patience).await;
                switch.store(true, Ordering::SeqCst);
            });
            let got = next(&mut consumer).await;
            stopping.await.expect("no panic");
            if let Some(message) = got {
                message.release().await.expect("given back");
                assert!(next(&mut consumer).await.is_none());
            }
            drop(consumer);
            setup.until(ids[0], Status::Pending).await;
        }
        assert_eq!(setup.message(ids[0]).await.attempts, 0);
    }

    async fn progress_shows_idle_and_busy(setup: Setup) {
        let mut consumer = setup.prefetch(2);
        let mut progress = consumer.progress();
        assert!(!consumer.safe_to_restart(), "it has not tried to claim yet");
        let waiting = tokio::spawn(async move { (receive(&mut consumer).await, consumer) });
        reach(&mut progress, |now| now.safe_to_restart()).await;
        setup.push(&["one"]).await;
        let (message, mut consumer) = waiting.await.expect("a message");
        assert_eq!(*progress.borrow(), Progress { activity: Activity::Busy, in_flight: 1 });
        message.complete([]).await.expect("completed");
        assert_eq!(*progress.borrow(), Progress { activity: Activity::Busy, in_flight: 0 });
        let waiting = tokio::spawn(async move { next(&mut consumer).await.is_some() });
        reach(&mut progress, |now| now.safe_to_restart()).await;
        waiting.abort();
    }

    /// Never more than `prefetch` messages are in flight.
    async fn no_more_than_prefetch_is_in_flight(setup: Setup) {
        setup.push(&["one", "two", "three", "four"]).await;
        let mut consumer = setup.prefetch(2);
        let (first, second) = (receive(&mut consumer).await, receive(&mut consumer).await);
        assert!(timeout(Duration::from_millis(50), consumer.next()).await.is_err(), "it has no free slot");
        assert_eq!(setup.counts().await, (2, 2, 0));
        second.complete([]).await.expect("completed");
        assert_eq!(text(&receive(&mut consumer).await), "three");
        first.complete([]).await.expect("completed");
    }

    /// Closing gives back claimed messages that were not returned, and ends the run; returned messages live on.
    async fn closing_and_dropping_release_messages_that_were_not_started(setup: Setup) {
        let ids = setup.push(&["one", "two", "three"]).await;
        let mut consumer = setup.prefetch(3);
        let (run, first) = (consumer.run().to_owned(), receive(&mut consumer).await);
        consumer.close().await;
        assert_eq!(setup.counts().await, (2, 1, 0));
        assert_eq!(setup.message(ids[1]).await.attempts, 0);
        first.complete([]).await.expect("completed");
        let over = async {
            let all = fencepost::run::List { run: Some(run.clone()), all: true, limit: None };
            while setup.world.fleet.call(all.clone()).await.expect("runs").runs[0].ended_at.is_none() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, over).await.expect("the run ends with its last message");

        let mut dropped = setup.prefetch(3);
        let second = receive(&mut dropped).await;
        drop(dropped);
        assert_eq!(setup.until(ids[2], Status::Pending).await.attempts, 0);
        assert_eq!(text(&second), "two");
        second.complete([]).await.expect("completed");
        assert_eq!(setup.counts().await, (1, 0, 2));
    }

    async fn a_waiting_consumer_that_is_dropped_claims_nothing(setup: Setup) {
        let mut consumer = setup.prefetch(1);
        let mut progress = consumer.progress();
        let waiting = tokio::spawn(async move { consumer.next().await.is_some() });
        reach(&mut progress, |now| now.activity == Activity::Idle).await;
        waiting.abort();
        assert!(waiting.await.is_err());
        let ids = setup.push(&["one"]).await;
        let mut other = setup.prefetch(1);
        let message = receive(&mut other).await;
        assert_eq!((message.id, message.attempts), (ids[0], 1));
    }

    /// A table is gone for a while: `next` returns no error, and returns the message when the table is back.
    async fn a_failing_database_is_survived(setup: Setup) {
        let ids = setup.push(&["one", "two"]).await;
        let mut consumer = setup.prefetch(1);
        let mut progress = consumer.progress();
        sql(&setup.world.fleet, "alter table mailbox rename to away").await;
        let waiting = tokio::spawn(async move { (receive(&mut consumer).await, consumer) });
        let now = reach(&mut progress, |now| matches!(now.activity, Activity::Retrying(_))).await;
        assert!(!now.safe_to_restart());
        sql(&setup.world.fleet, "alter table away rename to mailbox").await;
        let (first, mut consumer) = waiting.await.expect("it retries");
        assert_eq!((first.id, first.attempts), (ids[0], 1));
        first.complete([]).await.expect("completed");
        assert_eq!(receive(&mut consumer).await.id, ids[1]);
    }

    /// A consumer waits while its mailbox is paused.
    async fn a_pause_is_waited_for(setup: Setup) {
        setup.push(&["one"]).await;
        let pause = mail::Pause { mailbox: "s".into(), reason: Some("migrating".into()) };
        setup.world.fleet.call(pause).await.expect("paused");
        let mut consumer = setup.prefetch(1);
        let mut progress = consumer.progress();
        let waiting = tokio::spawn(async move { text(&receive(&mut consumer).await) });
        reach(&mut progress, |now| now.activity == Activity::Idle).await;
        setup.world.fleet.call(mail::Resume { mailbox: "s".into() }).await.expect("resumed");
        assert_eq!(waiting.await.expect("a message"), "one");
    }

    /// An error that no retry can change is the last item of the stream.
    async fn a_wrong_name_is_an_error_and_ends_the_stream(setup: Setup) {
        let mut consumer = Consumer::start(&setup.fleet, ["not a name"], Options::default());
        let item = timeout(LIMIT, consumer.next()).await.expect("in time").expect("an item");
        assert_eq!(refused(item).code(), Code::Invalid);
        assert!(next(&mut consumer).await.is_none());
    }

    async fn several_mailboxes_are_one_stream(setup: Setup) {
        setup.push(&["one"]).await;
        setup.world.fleet.call(mail::Push::new("t", "two")).await.expect("pushed");
        let mut consumer = Consumer::start(&setup.fleet, ["s", "t"], Options::default());
        for expected in ["one", "two"] {
            let message = receive(&mut consumer).await;
            assert_eq!(text(&message), expected);
            message.complete([]).await.expect("completed");
        }
    }
}

/// Runs a statement on either database.
async fn sql(fleet: &Fleet, sql: &'static str) {
    let done = fleet.transaction(move |tx| Box::pin(tx.execute(sql, fencepost::params![])));
    done.await.expect("done");
}

/// A server stops while a claim waits: the wait continues at another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_is_survived() -> Result<()> {
    let world = World::sqlite().await;
    let ((first, stop), (second, _keep)) = (serve(&world.fleet).await, serve(&world.fleet).await);
    let fleet = Connection::open(&format!("{first},{second}")).await?;
    let mut consumer = Consumer::start(&fleet, ["s"], Options::default());
    let mut progress = consumer.progress();
    let waiting = tokio::spawn(async move { receive(&mut consumer).await });
    reach(&mut progress, |now| now.activity == Activity::Idle).await;
    stop.send(()).expect("the server is there");
    world.fleet.call(mail::Push::new("s", "one")).await?;
    let message = waiting.await.expect("a message");
    assert_eq!(message.attempts, 1);
    message.complete([]).await.map(drop)
}

/// Every answer is lost. A claim under a new id would leave the messages of the first answer claimed for as long as the
/// consumer lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_was_lost_is_repeated_under_its_id() {
    let server = ScriptedServer::of([Action::HangUp]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let mut consumer = Consumer::start(&fleet, ["s"], Options::default());
    let mut progress = consumer.progress();
    let waiting = tokio::spawn(async move { consumer.next().await.is_some() });
    reach(&mut progress, |now| matches!(now.activity, Activity::Retrying(_))).await;
    let before = server.received().len();
    let again = async {
        while server.received().len() == before {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, again).await.expect("it retries after the connection gave up");
    let received = server.received();
    let same = received.iter().all(|request| request.body["request"] == received[0].body["request"]);
    assert!(same, "{received:?}");
    waiting.abort();
}

/// The claim may commit after the stop. Under an ended run its attempt would count, or its message be discarded. Under a
/// live run the server that carries out the claim gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_not_ended_while_one_of_its_claims_may_still_commit() {
    let unknown = r#"{"error":{"code":"outcome_unknown","message":"the answer was lost"}}"#;
    for answer in [Action::Hold, Action::Answer(503, unknown.into())] {
        let lost = matches!(answer, Action::Answer(..));
        let server = ScriptedServer::by(move |_, path| match path {
            "/v1/mail/claim" => answer.clone(),
            "/v1/mail/reset" => Action::Answer(200, r#"{"reset":0,"more":false}"#.into()),
            _ => Action::Answer(200, r#"{"claims":[]}"#.into()),
        })
        .await;
        let fleet = Connection::open(&server.url).await.expect("it opens");
        let (switch, stop) = flag();
        let mut consumer = Consumer::start(&fleet, ["s"], Options { stop, ..Options::default() });
        let mut progress = consumer.progress();
        let waiting = tokio::spawn(async move { (next(&mut consumer).await.is_none(), consumer) });
        let sent = async {
            while server.received().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, sent).await.expect("it sends the claim");
        // The connection itself retries for a while.
        if lost {
            reach(&mut progress, |now| matches!(now.activity, Activity::Retrying(_))).await;
        }
        switch.store(true, Ordering::SeqCst);
        let (end, consumer) = waiting.await.expect("no panic");
        assert!(end);
        timeout(LIMIT, consumer.close()).await.expect("closed in time");
        let paths: Vec<String> = server.received().into_iter().map(|request| request.path).collect();
        assert!(
            paths.contains(&"/v1/mail/reset".into()) && !paths.contains(&"/v1/run/end".into()),
            "{paths:?}"
        );
    }
}
