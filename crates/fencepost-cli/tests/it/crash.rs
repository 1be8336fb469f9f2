//! kill -9 at random moments. Everything acknowledged is kept, nothing is lost, and nothing is done twice.

use crate::{
    on_both,
    running::{read, until},
    sealed::Sealed,
};
use fencepost::{Clock, Code, Fleet, ManualClock, Options, Time, admin, event, task};
use std::{
    collections::{HashMap, HashSet},
    os::unix::process::CommandExt,
    process::Stdio,
    time::Duration,
};

/// With fewer acknowledged tasks and completions the test means nothing.
const ENOUGH: usize = 20;

/// Adds, claims and completes for ever, and records the replies.
const WORK: &str = r#"
while :; do
  id=$(fence add "from $FENCE_RUN" --board auth --json 2>/dev/null) && echo "added $id" >> acks
  if token=$(fence claim -q --board auth 2>/dev/null); then
    echo "claimed $token" >> acks
    fence done "$token" --output "by $FENCE_RUN" >/dev/null 2>&1 && echo "done $token $FENCE_RUN" >> acks
  fi
done"#;

on_both! {
    fn kills(sealed: Sealed) {
        kill_at_random(&sealed, 20);
    }

    #[ignore = "long: make soak"]
    fn soak_a_hundred_kills(sealed: Sealed) {
        kill_at_random(&sealed, 100);
    }
}

/// Kills three working shells and their commands, this many times or more: until the shells did enough to tell.
fn kill_at_random(sealed: &Sealed, kills: usize) {
    sealed.ok(&["init"]);
    let acks = sealed.path().join("acks");
    let count = |word: &str| read(&acks).lines().filter(|line| line.starts_with(word)).count();
    let mut round = 0;
    while round < kills || count("added") <= ENOUGH || count("done") <= ENOUGH {
        let shells: Vec<_> = (0..3)
            .map(|shell| {
                let mut command = sealed.command("bash");
                command.args(["-c", WORK]).env("FENCE_RUN", format!("r{round}-{shell}"));
                command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
                command.spawn().expect("a shell")
            })
            .collect();
        // After the first acknowledgement, at any moment.
        let enough = read(&acks).lines().count() + fastrand::usize(1..=12);
        until("the shells work", || read(&acks).lines().count() >= enough);
        wait(Duration::from_micros(fastrand::u64(0..20_000)));
        for mut shell in shells {
            let group = rustix::process::Pid::from_child(&shell);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
            shell.wait().expect("gone");
        }
        round += 1;
    }
    tokio::runtime::Runtime::new().expect("a runtime").block_on(account(sealed, &read(&acks)));
}

/// All processes are dead. Finishes the remaining tasks, and counts.
async fn account(sealed: &Sealed, acks: &str) {
    let before = Fleet::open(&sealed.url()).await.expect("it opens after every crash");
    let report = before.call(admin::Check {}).await.expect("the check runs");
    assert!(report.ok, "{:#?}", report.violations);

    // An hour later every lease is over.
    let mut options = Options::default();
    let now = before.call(task::Add::new("auth", "the last")).await.expect("added").task.created_at;
    options.clock = Clock::Manual(ManualClock::at(Time(now.0 + 3_600_000)));
    drop(before);
    let fleet = Fleet::open_with(&sealed.url(), options).await.expect("it opens");
    // A server may still claim for a client that just died, and release that.
    let mut patience = 600;
    loop {
        match fleet.call(task::Claim::next("auth", "survivor")).await {
            Ok(claimed) => drop(fleet.call(task::Done::new(&claimed.claim.token)).await.expect("accepted")),
            Err(e) if e.code() == Code::BoardFinished => break,
            Err(e) if e.code() == Code::NoneReady && patience > 0 => {
                patience -= 1;
                wait(Duration::from_millis(100));
            }
            Err(e) => panic!("{e}"),
        }
    }
    let report = fleet.call(admin::Check {}).await.expect("the check runs");
    assert!(report.ok, "{:#?}", report.violations);

    let mut tasks = HashMap::new();
    let mut list = task::List { limit: Some(1000), ..task::List::default() };
    loop {
        let page = fleet.call(list.clone()).await.expect("a page");
        list.after = page.tasks.last().map(|task| task.id.clone());
        tasks.extend(page.tasks.into_iter().map(|task| (task.id.clone(), task)));
        if !page.more {
            break;
        }
    }
    let mut finished = HashSet::new();
    let (mut added, mut done) = (0, 0);
    for line in acks.lines() {
        match line.split_once(' ') {
            Some(("added", reply)) => {
                let reply: task::add::Added = serde_json::from_str(reply).expect("a whole reply");
                assert!(tasks.contains_key(&reply.task.id), "{} was acknowledged and is gone", reply.task.id);
                added += 1;
            }
            Some(("done", ack)) => {
                let (token, run) = ack.split_once(' ').expect("token and run");
                let id = token.trim_start_matches("task/").split('@').next().expect("an id");
                assert!(finished.insert(id.to_owned()), "{id} was accepted twice");
                let shown = fleet.call(task::Show { task: id.into() }).await.expect("the task").task;
                assert_eq!(shown.status, task::Status::Completed);
                assert_eq!(shown.output.as_deref(), Some(format!("by {run}").as_str()), "{id}");
                done += 1;
            }
            _ => {}
        }
    }
    let unfinished: Vec<_> = tasks.values().filter(|task| !task.status.is_finished()).collect();
    assert!(unfinished.is_empty(), "{unfinished:?}");
    assert!(
        added > ENOUGH && done > ENOUGH,
        "the test did too little to mean anything: {added} added, {done} done"
    );
    let completed = completions(&fleet).await;
    assert_eq!(completed.len(), completed.iter().collect::<HashSet<_>>().len());
}

async fn completions(fleet: &Fleet) -> Vec<String> {
    let mut all = Vec::new();
    let mut list =
        event::List { kind: Some("task.completed".into()), limit: Some(1000), ..event::List::default() };
    loop {
        let page = fleet.call(list.clone()).await.expect("a page");
        list.since = Some(page.position);
        all.extend(page.events.into_iter().map(|event| event.resource));
        if !page.more {
            return all;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the moment of the kill is what the test is about")]
fn wait(span: Duration) {
    std::thread::sleep(span);
}
