//! A fleet behind a server: lost replies, killed servers and killed clients double nothing and lose nothing.

use crate::{
    proxy::Proxy,
    sealed::{Sealed, Serving, eventually, finished, lasting_address},
    serve::waiting as waiting_at,
};
use fencepost::{Code, Fleet, admin, event, task};
use fencepost_client::Connection;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The events of a fleet by kind, after the integrity check.
async fn account(url: &str) -> HashMap<String, Vec<String>> {
    let fleet = Fleet::open(url).await.expect("it opens");
    let report = fleet.call(admin::Check {}).await.expect("the check runs");
    assert!(report.ok, "{:#?}", report.violations);
    let (mut kinds, mut list) =
        (HashMap::<_, Vec<_>>::new(), event::List { limit: Some(1000), ..Default::default() });
    loop {
        let page = fleet.call(list.clone()).await.expect("a page");
        list.since = Some(page.position);
        for event in page.events {
            kinds.entry(event.kind).or_default().push(event.resource);
        }
        if !page.more {
            return kinds;
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

/// Every verb that changes something, each with its first reply lost.
fn lost_replies(world: Sealed) {
    world.ok(&["init"]);
    let server = Serving::start(&world, &[]);
    let proxy = Proxy::before(&server.url);
    let there = world.over(&proxy.url);
    let commands = [
        "add one --board a",
        "add two --board a --after a-1",
        "edit a-1 --priority 70",
        "note a-1 look",
        "claim a-1",
        "renew task/a-1@1",
        "progress half task/a-1@1",
        "checkpoint 1 half task/a-1@1",
        "release task/a-1@1",
        "claim a-1",
        "done task/a-1@2 --output fine",
        "claim --board a",
        "fail task/a-2@1 --reason no --retry --delay 0s",
        "claim a-2 --wait 10s",
        "done task/a-2@2",
        "add three --board a",
        "park a-3 --reason later",
        "unpark a-3",
        "cancel a-3",
        "retry a-3",
        "lock deploy -- true",
    ];
    for (n, line) in commands.iter().enumerate() {
        proxy.lose(1);
        let words: Vec<_> = line.split(' ').collect();
        there.ok(&words);
        assert_eq!(proxy.lost(), n + 1, "{line}");
    }
    let kinds = {
        world.readable();
        runtime().block_on(account(&world.url()))
    };
    let mut counts: Vec<_> = kinds.iter().map(|(kind, all)| format!("{kind} {}", all.len())).collect();
    counts.sort();
    insta::assert_snapshot!("lost_replies", counts.join("\n"));

    // A verb that could happen twice is not retried, and the error says so.
    proxy.lose(1);
    let ended = there.fence(&["end", "me"]);
    assert_eq!((ended.code, proxy.lost()), (1, commands.len() + 1), "{ended:?}");
    assert!(ended.err.contains("it may have been done: check before you retry"), "{ended:?}");
    assert!(!ended.err.contains("--request"), "it takes none: {ended:?}");
}

#[test]
fn lost_replies_double_nothing_on_sqlite() {
    lost_replies(Sealed::sqlite());
}

#[test]
fn lost_replies_double_nothing_on_postgres() {
    lost_replies(Sealed::postgres());
}

/// 16 clients with two servers. The server that half of them use first is killed.
#[test]
fn a_server_is_killed_and_every_task_is_done_once() {
    const TASKS: usize = 500;
    let world = Sealed::postgres();
    world.ok(&["init"]);
    let (one, two) = (Serving::start(&world, &[]), Serving::start(&world, &[]));
    // Some replies of the killed server are lost before, so that work without a reply does not depend on chance.
    let proxy = Arc::new(Proxy::before(&one.url));
    let orders = [format!("{},{}", proxy.url, two.url), format!("{},{}", two.url, proxy.url)];
    let victim = Arc::new(Mutex::new(Some(one)));
    runtime().block_on(async {
        let fleet = Fleet::open(&world.url()).await.expect("it opens");
        let item = |n| task::plan::Item { title: format!("task {n}"), ..Default::default() };
        let plan =
            task::Plan { board: Some("a".into()), tasks: (0..TASKS).map(item).collect(), request: None };
        fleet.call(plan).await.expect("planned");
        let done = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..16)
            .map(|n| {
                let (url, done, victim) = (orders[n % 2].clone(), done.clone(), victim.clone());
                let proxy = proxy.clone();
                tokio::spawn(async move {
                    let fleet = Connection::open(&url).await.expect("it opens");
                    loop {
                        let claimed = match fleet.call(task::Claim::next("a", format!("r{n}"))).await {
                            Ok(claimed) => claimed,
                            Err(e) if matches!(e.code(), Code::BoardFinished | Code::NoneReady) => return,
                            Err(e) => panic!("client {n}: {e:?}"),
                        };
                        fleet.call(task::Done::new(&claimed.claim.token)).await.expect("accepted");
                        let so_far = done.fetch_add(1, Ordering::SeqCst);
                        if so_far == 100 {
                            proxy.lose(4);
                        }
                        // Clients of the other server would finish without the one that is to be killed.
                        for _ in 0..60_000 {
                            if so_far < 200 || n % 2 == 0 || proxy.lost() == 4 {
                                break;
                            }
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        if so_far >= 200 && proxy.lost() == 4 {
                            drop(victim.lock().expect("not poisoned").take());
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.expect("a client");
        }
        assert_eq!((done.load(Ordering::SeqCst), proxy.lost()), (TASKS, 4));
        assert!(victim.lock().expect("not poisoned").is_none(), "it was killed");
    });
    let kinds = {
        world.readable();
        runtime().block_on(account(&world.url()))
    };
    let mut completed = kinds["task.completed"].clone();
    completed.sort();
    completed.dedup();
    assert_eq!((completed.len(), kinds["task.completed"].len()), (TASKS, TASKS));
    // A retry returned the same claim, except if the server had noticed the lost reply and released it.
    let taken_back = kinds.get("task.undelivered").map_or(0, Vec::len);
    assert_eq!(kinds["task.claimed"].len() - taken_back, TASKS);
}

/// A client that is killed while it waits has claimed nothing. A client whose reply was lost gets it from the other server.
#[test]
fn clients_are_killed_and_retry_at_the_other_server() {
    let world = Sealed::postgres();
    world.ok(&["init"]);
    // Somebody is at work on the board, so there is something to wait for.
    world.ok(&["add", "held", "--board", "a"]);
    world.ok(&["--run", "other", "claim", "a-1"]);
    let (one, two) = (Serving::start(&world, &[]), Serving::start(&world, &[]));
    let proxy = Proxy::before(&one.url);
    let (here, there) = (world.over(&proxy.url), world.over(&two.url));
    let claim = ["claim", "--board", "a", "--wait", "1m", "--request", "q1", "-q"];

    let mut waiting = here.spawn(&claim);
    let waiters = || waiting_at(one.url.trim_start_matches("http://"));
    eventually("it waits", || (waiters() == 1).then_some(()));
    waiting.kill().expect("killed");
    waiting.wait().expect("gone");
    // Until the server notices, it could claim the task for the dead client, and release it.
    eventually("the server knows", || (waiters() == 0).then_some(()));
    there.ok(&["add", "one", "--board", "a"]);
    assert_eq!(there.ok(&claim), "task/a-2@1");
    assert_eq!(there.ok(&claim), "task/a-2@1", "the same request is the same claim");
    there.ok(&["done", "task/a-2@1"]);

    there.ok(&["add", "two", "--board", "a"]);
    proxy.lose(usize::MAX / 2);
    let claim = ["claim", "--board", "a", "--request", "q2", "-q"];
    let before = proxy.lost();
    let mut deaf = here.spawn(&claim);
    eventually("its answer is lost", || (proxy.lost() > before).then_some(()));
    deaf.kill().expect("killed");
    deaf.wait().expect("gone");
    // The server that could not deliver the claim may have released it. Then it is claimed again.
    let token = there.ok(&claim);
    there.ok(&["guard", &token]);
    let shown: serde_json::Value = serde_json::from_str(&there.ok(&["--json", "show", "a-3"])).expect("JSON");
    assert_eq!(shown["task"]["attempts"], 1, "{shown}");
    there.ok(&["done", &token]);
    let kinds = {
        world.readable();
        runtime().block_on(account(&world.url()))
    };
    assert_eq!(kinds["task.completed"].len(), 2);
}

#[test]
fn a_server_that_is_down_is_one_line_and_a_hint() {
    let sealed = Sealed::sqlite().over("http://127.0.0.1:9");
    insta::assert_snapshot!(sealed.transcript(
        "
        list
        add one
        --url http://127.0.0.1:9 init
        --json list
        backup copy.db
    "
    ));
    assert!(!sealed.path().join(".fence").exists(), "nothing is made here");
}

/// A waiting client retries for as long as it wants to wait, and not only for the two seconds of a first connection.
#[test]
fn a_waiter_survives_a_restart() {
    let world = Sealed::sqlite();
    world.ok(&["init"]);
    world.ok(&["add", "held", "--board", "later"]);
    world.ok(&["--run", "other", "claim", "later-1"]);
    let address = lasting_address();
    let mut server = Serving::start(&world, &["--listen", &address]);
    let there = world.over(&server.url);
    let waiting = there.spawn(&["claim", "--board", "later", "--wait", "5m", "-q"]);
    #[expect(clippy::disallowed_methods, reason = "a client's patience is real time")]
    let pass = |seconds| std::thread::sleep(Duration::from_secs(seconds));
    eventually("it waits", || (waiting_at(&address) == 1).then_some(()));
    pass(1);
    server.kill();
    pass(3);
    server = Serving::start(&world, &["--listen", &address]);
    world.ok(&["add", "now", "--board", "later"]);
    let waited = finished(waiting.wait_with_output().expect("it ends"));
    assert_eq!((waited.code, waited.out.as_str()), (0, "task/later-2@1"), "{waited:?}");
    drop(server);
}

#[test]
fn a_supervised_command_finds_the_server() {
    let world = Sealed::sqlite();
    world.ok(&["init"]);
    let server = Serving::start(&world, &[]);
    let there = world.over(&server.url);
    let printed =
        there.ok(&["lock", "deploy", "--", "sh", "-c", "echo $FENCE_URL $FENCE_DB; fence guard $FENCE_LOCK"]);
    assert!(printed.starts_with(&format!("{}\nok: held by run lock-", server.url)), "{printed}");
    // A database that a flag names is kept.
    let db = world.url();
    let words = ["--db", &db, "lock", "deploy", "--", "sh", "-c", "echo $FENCE_DB $FENCE_URL"];
    assert_eq!(there.ok(&words), db);
    let gone =
        finished(there.command("fence").args(["lock", "deploy", "--", "true"]).output().expect("fence"));
    assert_eq!(gone.code, 0, "{gone:?}");
}
