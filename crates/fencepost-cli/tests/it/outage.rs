//! PostgreSQL is restarted under a server: calls fail clearly or succeed, and then everything goes on.

use crate::{
    sealed::{Sealed, eventually},
    serve::{Served, answer},
};
use fencepost::{Code, Fleet, admin, event, task};
use fencepost_client::Connection;
use fencepost_testing::postgres::Cluster;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A follower of the log that reconnects with its last id, as a browser does.
struct Follower {
    seen: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicUsize>,
}

impl Follower {
    fn of(server: &Served) -> Self {
        let follower = Self { seen: Arc::default(), ended: Arc::default() };
        let (address, seen, ended) = (server.address.clone(), follower.seen.clone(), follower.ended.clone());
        std::thread::spawn(move || {
            let mut last = "start".to_owned();
            // Until the server is gone.
            while let Ok(mut stream) = std::net::TcpStream::connect(&address) {
                let asked = write!(
                    stream,
                    "GET /v1/events?kind=task HTTP/1.1\r\nHost: {address}\r\nLast-Event-ID: {last}\r\nConnection: close\r\n\r\n"
                );
                let lines = BufReader::new(stream).lines().map_while(Result::ok);
                let mut id = None;
                for line in lines.take_while(|_| asked.is_ok()) {
                    if line.is_empty() {
                        // A message is over. An id with no data is where to read on from.
                        last = id.take().unwrap_or(last);
                    } else if let Some(text) = line.strip_prefix("id: ") {
                        id = Some(text.to_owned());
                    } else if let Some(data) = line.strip_prefix("data: ") {
                        let data: Value = serde_json::from_str(data).expect("JSON");
                        // The last message before a disconnect is an error, and has no id.
                        let Some(id) = id.take() else { continue };
                        seen.lock()
                            .expect("not poisoned")
                            .push(format!("{} {}", data["kind"], data["resource"]));
                        last = id;
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
                #[expect(
                    clippy::disallowed_methods,
                    reason = "as a browser does: retry: 1000, and less for a test"
                )]
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        follower
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

#[test]
fn postgres_is_restarted_under_a_server() {
    let cluster = Cluster::start();
    let sealed = Sealed::sqlite().over(&cluster.url());
    sealed.ok(&["init"]);
    let server = Served::start(&sealed, &[]);
    let there = sealed.over(&format!("http://{}", server.address));
    there.ok(&["add", "held", "--board", "later"]);
    there.ok(&["--run", "other", "claim", "later-1"]);
    let follower = Follower::of(&server);
    // A waiter on the command line, and one that uses HTTP directly.
    let waiting = there.spawn(&["claim", "--board", "later", "--wait", "5m", "-q"]);
    let waits = |run| json!({ "board": "later", "run": run, "wait_ms": 300_000 });
    let plain = server.send("task/claim", &waits("plain"));
    eventually("two wait, and one follows", || (server.waiting() == 3).then_some(()));

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = format!("http://{}", server.address);
    let (over, shown) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (url, over, shown) = (url.clone(), over.clone(), shown.clone());
            runtime.spawn(async move {
                let fleet = Connection::open(&url).await.expect("a connection");
                let mut done = 0;
                // Once more after the outage.
                for n in 0.. {
                    let last = over.load(Ordering::SeqCst);
                    match one(&fleet, &format!("c{client}"), n).await {
                        Ok(()) => done += 1,
                        Err(error) => shown.lock().expect("not poisoned").push(error),
                    }
                    if last {
                        break;
                    }
                }
                done
            })
        })
        .collect();
    cluster.crash();
    // Longer than a client tries to reach a new server: 2 s. In real time.
    let crashed = tokio::time::Instant::now();
    while crashed.elapsed() < Duration::from_secs(3) {
        let (status, said) = answer(server.send("task/claim", &waits("late")));
        assert!(status == 503 && said["error"]["hint"].is_string(), "who comes now is told: {status} {said}");
    }
    cluster.restart();
    over.store(true, Ordering::SeqCst);
    let done: u64 = runtime.block_on(async {
        let mut sum = 0;
        for client in clients {
            sum += client.await.expect("a client");
        }
        sum
    });
    for error in shown.lock().expect("not poisoned").iter() {
        assert!([Code::Unavailable, Code::OutcomeUnknown].contains(&error.code()), "{error:?}");
        assert!(error.hint_text().is_some(), "{error:?}");
    }
    assert!(done >= 4, "it went on");

    // Waiters go on waiting, except those in the middle of a reply; and they find new work.
    there.ok(&["add", "now", "--board", "later"]);
    there.ok(&["add", "too", "--board", "later"]);
    let waited = crate::sealed::finished(waiting.wait_with_output().expect("it ends"));
    assert!(waited.code == 0 && waited.out.starts_with("task/later-"), "{waited:?}");
    let (status, said) = answer(plain);
    let unknown = status == 503 && said["error"]["code"] == "outcome_unknown";
    assert!(status == 200 || unknown, "{status} {said}");

    // The follower has seen every event once, in order.
    let fleet = runtime.block_on(Fleet::open(&cluster.url())).expect("the fleet");
    let log = || {
        runtime.block_on(async {
            let (mut lines, mut list) = (
                Vec::new(),
                event::List { kind: Some("task".into()), limit: Some(1000), ..Default::default() },
            );
            loop {
                let page = fleet.call(list.clone()).await.expect("a page");
                lines.extend(
                    page.events.iter().map(|event| format!("\"{}\" \"{}\"", event.kind, event.resource)),
                );
                list.since = Some(page.position);
                if !page.more {
                    return lines;
                }
            }
        })
    };
    eventually("the follower has seen all of it", || (follower.seen().len() >= log().len()).then_some(()));
    assert_eq!(
        follower.seen(),
        log(),
        "the follower began anew {} times",
        follower.ended.load(Ordering::SeqCst)
    );
    let completed = log().iter().filter(|line| line.starts_with("\"task.completed")).count();
    assert!(completed as u64 >= done, "what was answered is there: {completed} of {done}");
    assert!(runtime.block_on(fleet.call(admin::Check {})).expect("the check runs").ok);
}

/// A new task, from its creation to its completion.
async fn one(fleet: &Connection, client: &str, n: u64) -> fencepost::Result<()> {
    let board = format!("{client}n{n}");
    fleet.call(task::Add::new(&board, "work")).await?;
    let claimed = fleet.call(task::Claim::next(&board, format!("{client}-{n}"))).await?;
    fleet.call(task::Done::new(&claimed.claim.token)).await?;
    Ok(())
}
