//! A database that stops answering, or is lost, under a supervised command: the command ends before its lease.

use crate::{
    proxy::{Mode, Proxy},
    running::{
        Running, STUBBORN, ask, ask_at, beats, last_beat, leader, lease_end, members, over_by, paused, read,
        until,
    },
    sealed::Sealed,
};
use fencepost::Fleet;
use rustix::process::Signal;
use std::{
    fs,
    sync::{Arc, Mutex, mpsc},
};

/// The database stops answering: the command runs on as long as that is safe, and no longer.
fn it_ends_before_its_lease(sealed: &Sealed, ttl: &str, silence: impl FnOnce(), answers: impl FnOnce()) {
    let words = ["lock", "deploy", "--ttl", ttl, "--", "bash", "-c", STUBBORN];
    let fence = Running::fence(sealed, &words);
    let leader = leader(sealed);
    until("its children beat", || beats(sealed).is_some());
    silence();
    let silent_since = last_beat(sealed);
    let said = fence.end();
    assert_eq!((said.code, members(leader)), (5, vec![]), "{said:?}");
    let reason = "error: claim `lock/deploy@1` could not be renewed before its lease ended: ";
    assert!(said.err.starts_with(reason), "{said:?}");
    // After a pause of the machine it may be time for KILL at once.
    let term = read(&sealed.path().join("term"));
    assert!(term == "term\n" || term.is_empty() && paused(sealed), "it got TERM before KILL: {term:?}");
    answers();
    over_by(sealed, lease_end(sealed));
    let last = last_beat(sealed);
    assert!(last.since(silent_since).0 > 500, "it was given up at once: {silent_since} to {last}");
}

/// Another process is in the middle of a write, and stays there.
#[test]
fn a_sqlite_that_another_process_holds() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let (go, going) = mpsc::channel::<()>();
    let going = Arc::new(Mutex::new(going));
    let (holds, held) = mpsc::channel();
    let url = sealed.url();
    let mut holder = None;
    let hold = || {
        let write = move |fleet: Fleet| async move {
            let write = fleet.transaction(move |_| {
                let _ = holds.send(());
                let _ = going.lock().expect("not poisoned").recv();
                Box::pin(async { Ok(()) })
            });
            write.await.expect("it was let go")
        };
        holder = Some(std::thread::spawn(move || ask_at(&url, write)));
        held.recv().expect("it holds");
    };
    it_ends_before_its_lease(&sealed, "12s", hold, || go.send(()).expect("it waits"));
    holder.expect("it held").join().expect("it ended");
}

/// The connection stays open, and nothing comes through; or it is closed, and so is every new one.
#[test]
fn a_postgres_that_does_not_answer() {
    let falls = |mode| {
        let direct = Sealed::postgres();
        direct.ok(&["init"]);
        let proxy = Proxy::before(&direct.url());
        let sealed = direct.over(&proxy.url);
        it_ends_before_its_lease(&sealed, "12s", || proxy.set(mode), || proxy.set(Mode::Open));
    };
    // Both wait for most of the time.
    std::thread::scope(|scope| {
        for mode in [Mode::Mute, Mode::Cut] {
            scope.spawn(move || falls(mode));
        }
    });
}

/// The lease begins when PostgreSQL grants it, not when the reply arrives.
#[test]
fn a_postgres_that_answers_slowly_and_then_no_more() {
    let direct = Sealed::postgres();
    direct.ok(&["init"]);
    let proxy = Proxy::before(&direct.url());
    let sealed = direct.over(&proxy.url);
    proxy.set(Mode::Slow);
    it_ends_before_its_lease(&sealed, "15s", || proxy.set(Mode::Mute), || proxy.set(Mode::Open));
}

/// A process can go on using an open file that lost its name, but nobody else finds it.
#[test]
fn no_command_outlives_the_file_of_its_fleet() {
    let losses = [
        ("removed", "rm -rf .fence"),
        ("replaced", "rm -rf .fence; fence init"),
        // The inode is another, and the content is the same.
        ("put in its place", "cp .fence/fence.db copy; mv .fence/fence.db old; mv copy .fence/fence.db"),
    ];
    let verbs = [&["lock", "deploy"][..], &["guard", "task/auth-1@1"]];
    for ((what, loss), verb) in losses.into_iter().flat_map(|loss| verbs.map(|verb| (loss, verb))) {
        let sealed = Sealed::sqlite();
        sealed.ok(&["init"]);
        sealed.ok(&["add", "a task", "--board", "auth"]);
        sealed.ok(&["claim", "auth-1"]);
        let script = "echo $$ > leader; exec sleep 1000";
        let fence = Running::fence(&sealed, &[verb, &["--", "sh", "-c", script]].concat());
        let leader = leader(&sealed);
        let lost = sealed.sh(loss);
        assert_eq!(lost.code, 0, "{lost:?}");
        let said = fence.end();
        assert_eq!((said.code, members(leader)), (5, vec![]), "{what}, {verb:?}: {said:?}");
        assert!(
            said.err.contains("is over: its fleet was removed or replaced"),
            "{what}, {verb:?}: {said:?}"
        );
    }
}

/// The same name and the same fence, but in another fleet under the same address.
#[test]
fn no_command_outlives_the_schema_of_its_fleet() {
    let sealed = Sealed::postgres();
    sealed.ok(&["init"]);
    let script = "echo $$ > leader; exec sleep 1000";
    let old = Running::fence(&sealed, &["lock", "deploy", "--", "sh", "-c", script]);
    let old_leader = leader(&sealed);
    let url = sealed.url();
    let schema = url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).expect("a schema");
    let drop_it: &'static str = format!("drop schema {schema} cascade").leak();
    let dropped = ask(&sealed, async |fleet| {
        fleet.transaction(move |tx| Box::pin(async move { tx.execute(drop_it, vec![]).await })).await
    });
    dropped.expect("dropped");
    sealed.ok(&["init"]);
    fs::remove_file(sealed.path().join("leader")).expect("it was ready");
    let new = Running::fence(&sealed, &["lock", "deploy", "--", "sh", "-c", script]);
    let new_leader = leader(&sealed);
    let said = old.end();
    assert_eq!((said.code, members(old_leader)), (5, vec![]), "{said:?}");
    assert!(sealed.ok(&["guard", "lock/deploy@1"]).starts_with("ok: held by run lock-"));
    assert_eq!(members(new_leader).len(), 1, "the other has it, and works");
    new.send(Signal::TERM);
    assert_eq!(new.end().code, 143);
}
