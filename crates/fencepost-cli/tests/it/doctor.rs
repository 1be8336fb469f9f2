//! `fence doctor`: its findings and its hints.

use crate::{on_both, sealed::Sealed};
use fencepost_testing::postgres::fsync;
use serde_json::Value;

/// The findings, as `name level`, and the whole of them.
fn examine(sealed: &Sealed, words: &[&str]) -> (i32, Vec<String>, Value) {
    let said = sealed.fence(&[&["--json", "doctor"], words].concat());
    let all: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let text = |finding: &Value, field: &str| finding[field].as_str().expect("a text").to_owned();
    let findings = all.as_array().expect("a list");
    let short = findings.iter().map(|found| format!("{} {}", text(found, "name"), text(found, "level")));
    (said.code, short.collect(), all.clone())
}

/// The output for people, without paths that differ.
fn findings(sealed: &Sealed, words: &[&str]) -> String {
    let said = sealed.fence(&[&["doctor"], words].concat());
    let here = std::fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    format!("{}\n(exit {})", said.out.replace(&here, "HERE"), said.code)
}

/// Changes rows directly in the database.
fn damage(sealed: &Sealed, sql: &'static str) {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let fleet = fencepost::Fleet::open(&sealed.url()).await.expect("the fleet");
        let changed = fleet.transaction(move |tx| Box::pin(async move { tx.execute(sql, vec![]).await }));
        assert!(changed.await.expect("changed") > 0);
    });
}

const WELL: [&str; 8] = [
    "fleet ok",
    "database ok",
    "schema ok",
    "durability ok",
    "clock ok",
    "integrity ok",
    "keepers ok",
    "run ok",
];

/// A fleet in a work tree has one more finding. The PostgreSQL of `make test` does not survive a power cut, and doctor notices.
fn well(sealed: &Sealed) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let is_weak = sealed.url().starts_with("postgres") && !runtime.block_on(fsync());
    let copy = sealed.is_in_its_work_tree().then_some("copy ok");
    let known = |line| if is_weak && line == "durability ok" { "durability warning" } else { line };
    WELL.into_iter().map(known).chain(copy).map(str::to_owned).collect()
}

on_both! {
    fn a_healthy_fleet(sealed: Sealed) {
        sealed.ok(&["init"]);
        let (code, findings, all) = examine(&sealed, &[]);
        assert_eq!((code, findings), (0, well(&sealed)), "{all:#}");
        assert_eq!(all[7]["message"], "me: FENCE_RUN names it");
        let about: Value = serde_json::from_str(&sealed.ok(&["call", "admin/about"])).expect("JSON");
        let id = about["fleet"].as_str().expect("an id");
        assert!(all[1]["message"].as_str().expect("a text").ends_with(&format!(", fleet {id}")), "{all:#}");
        assert!(all[2]["message"].as_str().expect("a text").starts_with("version "), "{all:#}");
        let durability = all[3]["message"].as_str().expect("a text");
        let says = ["synchronous=full", "synchronous_commit=on", "undo acknowledged changes: fsync=off"];
        assert!(says.iter().any(|says| durability.contains(says)), "{all:#}");
    }

    fn damage_is_a_problem(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one", "--board", "auth"]);
        sealed.ok(&["add", "two", "--board", "auth"]);
        sealed.ok(&["claim", "auth-1"]);
        damage(&sealed, "update task set run = null where n = 1");
        let (code, findings, all) = examine(&sealed, &[]);
        assert_eq!(code, 1, "{all:#}");
        assert!(findings.contains(&"integrity problem".into()), "{all:#}");
        let problem = all.as_array().expect("a list").iter().find(|found| found["level"] == "problem").expect("one");
        assert_eq!(
            problem["message"],
            "`task/auth-1` breaks a promise: a task is held exactly while it is reviewing or in progress"
        );
        let said = sealed.fence(&["doctor"]);
        assert!(said.out.contains("problem  integrity   `task/auth-1` breaks a promise"), "{}", said.out);
        assert!(said.out.contains("hint: stop the agents"), "{}", said.out);
        assert_eq!(said.code, 1);
    }

    /// A file without a lock was left behind by a keeper that was killed.
    fn the_file_of_a_dead_keeper_is_removed(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        sealed.ok(&["claim", "--keep", "-q"]);
        let (code, findings, all) = examine(&sealed, &[]);
        assert_eq!((code, &findings), (0, &well(&sealed)), "{all:#}");
        let message = all[6]["message"].as_str().expect("a text");
        let pid = message.strip_prefix("process ").and_then(|rest| rest.strip_suffix(" keeps run me")).expect(message);
        let pid = rustix::process::Pid::from_raw(pid.parse().expect("a number")).expect("an id");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        let (code, _, all) = crate::sealed::eventually("it is known to be gone", || {
            let (code, findings, all) = examine(&sealed, &[]);
            findings.contains(&"keepers warning".into()).then_some((code, findings, all))
        });
        assert_eq!(code, 0, "a warning is no problem");
        assert!(all[6]["message"].as_str().expect("a text").ends_with("was killed; its file was removed"), "{all:#}");
        let (_, findings, all) = examine(&sealed, &[]);
        assert_eq!((findings, all[6]["message"].as_str()), (well(&sealed), Some("none")));
        sealed.ok(&["done"]);
    }

    fn a_clock_that_was_set_back_is_a_warning(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        // The fleet's clock is an hour ahead of the machine's.
        if sealed.url().starts_with("postgres") {
            damage(&sealed, "update fleet set boot = extract(epoch from pg_postmaster_start_time())::text, ahead_ms = 3600000,
                               seen_at = (extract(epoch from clock_timestamp()) * 1000)::bigint + 3600000");
        } else {
            damage(&sealed, "update fleet set ahead_ms = ahead_ms + 3600000");
        }
        sealed.reopen();
        let (code, findings, all) = examine(&sealed, &[]);
        assert_eq!((code, findings[4].as_str()), (0, "clock warning"), "{all:#}");
        let message = all[4]["message"].as_str().expect("a text");
        assert!(message.starts_with("the fleet's clock is ") && message.ends_with(" ahead of this machine's"), "{message}");
        let hint = all[4]["hint"].as_str().expect("a text");
        assert!(hint.ends_with("fence call admin/set_clock"), "{hint}");
        // The hint is enough to correct it.
        sealed.ok(&["claim"]);
        let set = sealed.ok(&["call", "admin/set_clock"]);
        // A server may have had a run for its jobs.
        let set: Value = serde_json::from_str(&set).expect("JSON");
        assert!(set["ended"].as_u64() >= Some(1), "{set:#}");
        let (code, findings, all) = examine(&sealed, &[]);
        assert_eq!((code, findings), (0, well(&sealed)), "{all:#}");
    }

    without a server:

    /// `doctor` does not migrate the schema.
    fn an_old_schema_is_a_warning(sealed: Sealed) {
        assert_eq!(sealed.sh("mkdir -m 700 .fence").code, 0);
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let mut old = fencepost::Options::default();
            old.schema_version = Some(1);
            fencepost::Fleet::open_with(&sealed.url(), old).await.expect("an old fleet");
        });
        for _ in 0..2 {
            let (code, findings, all) = examine(&sealed, &[]);
            assert_eq!((code, findings[1].as_str()), (0, "schema warning"), "{all:#}");
            let message = all[1]["message"].as_str().expect("a text");
            assert!(message.contains("the fleet has schema version 1, and this fence knows version "), "{message}");
            assert_eq!(all[1]["hint"], "fence init brings it up to date, as any other command does");
        }
        sealed.ok(&["init"]);
        assert_eq!(examine(&sealed, &[]).1, well(&sealed));
    }
}

#[test]
fn there_is_no_fleet() {
    let sealed = Sealed::sqlite();
    insta::assert_snapshot!(findings(&sealed, &[]), @r"
    ok       fleet       HERE/.fence/fence.db: every work tree of this git repository shares it
    problem  database    there is no fleet at HERE/.fence/fence.db
                         hint: fence init creates it; --db or FENCE_DB names another
    ok       keepers     none
    ok       run         me: FENCE_RUN names it
    (exit 1)
    ");
    assert!(!sealed.path().join(".fence").exists(), "looking makes nothing");
}

#[test]
fn the_database_cannot_be_reached() {
    let sealed = Sealed::sqlite();
    insta::assert_snapshot!(findings(&sealed, &["--db", "postgres://kim:secret@127.0.0.1:1/x?password=secret"]), @r"
    ok       fleet       postgres://kim:…@127.0.0.1:1/x?password=…: --db names it
    problem  database    PostgreSQL cannot be reached: error connecting to server: Connection refused (os error 111)
                         hint: is it running, and is the address right?
    ok       keepers     none
    ok       run         me: FENCE_RUN names it
    (exit 1)
    ");
}

#[test]
fn the_file_is_no_database() {
    let sealed = Sealed::sqlite();
    std::fs::write(sealed.path().join("notes.txt"), "not a database\n".repeat(100)).expect("written");
    insta::assert_snapshot!(findings(&sealed, &["--db", "notes.txt"]), @r"
    ok       fleet       notes.txt: --db names it
    problem  database    `notes.txt`: the file is not a SQLite database
                         hint: name another file, or move this one away
    ok       keepers     none
    ok       run         me: FENCE_RUN names it
    (exit 1)
    ");
}

#[test]
fn an_unused_database_in_a_work_tree() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let made = sealed.sh("git -c user.name=x -c user.email=x@x commit -q --allow-empty -m one && git worktree add -q tree && mkdir tree/.fence && touch tree/.fence/fence.db");
    assert_eq!(made.code, 0, "{made:?}");
    let said = sealed.sh("cd tree && FENCE_RUN=me fence doctor; echo \"(exit $?)\"");
    assert!(said.out.contains("warning  work tree   "), "{}", said.out);
    assert!(said.out.contains("tree/.fence/fence.db is a database that no command uses"), "{}", said.out);
    assert!(said.out.ends_with("(exit 0)"), "{}", said.out);
    assert!(
        !sealed.ok(&["doctor"]).contains("work tree  "),
        "in the main work tree it is the one that is used"
    );
    let said = sealed.sh("mkdir lost && echo 'gitdir: /nowhere' > lost/.git && cd lost && FENCE_RUN=me fence doctor; echo \"(exit $?)\"");
    assert!(said.out.contains("lost/.git names a git directory that does not exist"), "{}", said.out);
}

/// Files with modes of older versions, or of a chmod.
#[test]
fn files_that_others_can_read_are_named() {
    let sealed = Sealed::sqlite();
    let umask = |words: &str| sealed.sh(&format!("umask 000; export FENCE_RUN=me; {words}"));
    let modes = || sealed.sh("cd .fence; stat -c '%n %a' . * | sort").out;
    let made = umask(
        "fence init && fence add one && fence claim --keep -q && fence backup .fence/copy.db && fence list > /dev/null",
    );
    assert_eq!(made.code, 0, "{made:?}");
    let private = modes();
    for line in private.lines() {
        let mode = if line.starts_with(". ") || line.contains("-keepers ") { " 700" } else { " 600" };
        assert!(line.ends_with(mode), "{private}");
    }
    assert!(
        private.contains("fence.db-queue")
            && private.contains("fence.db-turn")
            && private.contains("copy.db"),
        "{private}"
    );
    assert_eq!(sealed.sh("stat -c %a .fence/fence.db-keepers/* .fence/.gitignore").out, "600\n600");
    assert!(!examine(&sealed, &[]).1.contains(&"files warning".into()));

    // Existing files keep their modes until the user follows the hint.
    assert_eq!(umask("chmod 755 .fence; chmod 644 .fence/fence.db*; fence done").code, 0);
    let (code, findings, all) = examine(&sealed, &[]);
    assert_eq!((code, findings.contains(&"files warning".into())), (0, true), "{all:#}");
    let found = all.as_array().expect("a list").iter().find(|found| found["name"] == "files").expect("it");
    let message = found["message"].as_str().expect("a text");
    assert!(message.contains("/.fence (755), ") && message.contains("fence.db-queue (644)"), "{message}");
    // A keeper that ends opens and closes the database, and then a file of it may vanish under the command.
    let mend = found["hint"].as_str().expect("a command");
    crate::sealed::eventually("the hint mends it", || (sealed.sh(mend).code == 0).then_some(()));
    assert!(!examine(&sealed, &[]).1.contains(&"files warning".into()));

    // Shared with a group: also files that are created later, with any umask.
    crate::sealed::eventually("the keeper has gone", || {
        std::fs::read_dir(sealed.path().join(".fence/fence.db-keepers"))
            .expect("it")
            .next()
            .is_none()
            .then_some(())
    });
    let umask = |words: &str| sealed.sh(&format!("umask 077; export FENCE_RUN=me; {words}"));
    let shared = umask(
        "fence init --shared && rm .fence/fence.db-queue && fence add two && fence claim --keep -q && fence backup .fence/copy2.db",
    );
    assert_eq!(shared.code, 0, "{shared:?}");
    assert!(!sealed.path().join(".fence/fence.db-keepers").exists());
    let shared = modes();
    for line in shared.lines().filter(|line| line.starts_with("fence.db") && !line.contains("-keepers")) {
        assert!(line.ends_with(" 660"), "{shared}");
    }
    assert!(shared.contains(". 2770") && shared.contains("copy2.db 660"), "{shared}");
    assert!(examine(&sealed, &[]).2.to_string().contains(" keeps run me"));
    sealed.ok(&["done"]);
    let (_, findings, all) = examine(&sealed, &[]);
    assert!(!findings.contains(&"files warning".into()), "{all:#}");
    assert_eq!(umask("chmod o+r .fence/fence.db").code, 0);
    let (_, _, all) = examine(&sealed, &[]);
    assert!(all.to_string().contains("chmod o-rwx "), "{all:#}");

    let said = sealed.sh("mkdir -m 755 team && fence init --db team/x.db --shared");
    assert!(said.code == 1 && said.err.ends_with("chmod g+rwxs team"), "{said:?}");
    let said = sealed.sh("chmod g+rwxs team && fence init --db team/x.db --shared && stat -c %a team/x.db");
    assert!(said.out.ends_with("\n660"), "{said:?}");
    let said = sealed.fence(&["init", "--shared", "--db", "postgres://localhost/x"]);
    assert!(said.err.contains("--shared is for a fleet in a file"), "{said:?}");
}

/// Another user, or a cloned repository, may have put them there.
#[test]
fn strange_files_among_keepers_files_are_not_touched() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    sealed.ok(&["add", "two"]);
    let planted = sealed.sh(
        "mkdir -m 755 .fence/fence.db-keepers && cd .fence/fence.db-keepers && mkfifo pipe
         echo secret > ../../secret && chmod 600 ../../secret && touch -d 2001-01-01 ../../secret && ln -s ../../secret link
         chmod 644 ../../secret && chmod 600 ../../secret && ln -s ../../made dangling
         [ $(id -u) != 0 ] || { touch -d 2001-01-01 other && chown 12345 other; }",
    );
    assert_eq!(planted.code, 0, "{planted:?}");
    let about =
        || sealed.sh("stat -L -c '%a %Y %Z' secret; cd .fence/fence.db-keepers; stat -c '%n %a %Y %Z' *").out;
    let before = about();
    assert!(before.starts_with("600 "), "{before}");
    sealed.ok(&["claim"]);
    sealed.ok(&["release"]);
    sealed.ok(&["claim"]);
    sealed.ok(&["done"]);
    assert_eq!(about(), before, "nothing was touched");
    // `doctor` does not block on a pipe.
    let (code, findings, all) = examine(&sealed, &[]);
    let strange = findings.iter().filter(|found| *found == "keepers warning").count();
    assert_eq!((code, strange), (0, before.lines().count() - 1), "{all:#}");
    assert!(
        all.to_string().contains("fence.db-keepers/link is not a keeper's file, and is not touched: "),
        "{all:#}"
    );
    assert_eq!(about(), before);
    assert!(!sealed.path().join("made").exists());

    // If others can write the directory, the files go elsewhere, and everything works.
    assert_eq!(sealed.sh("rm -r .fence/fence.db-keepers && chmod 777 .fence").code, 0);
    sealed.ok(&["claim", "--keep", "-q"]);
    assert!(!sealed.path().join(".fence/fence.db-keepers").exists());
    let (_, _, all) = examine(&sealed, &[]);
    assert!(all.to_string().contains(" keeps run me"), "{all:#}");
    sealed.ok(&["done"]);
    crate::sealed::eventually("the keeper was woken", || {
        (!examine(&sealed, &[]).2.to_string().contains(" keeps run me")).then_some(())
    });
}

/// A fleet in a work tree is one of the files that git ignores, and `git clean -fdx` deletes those.
#[test]
fn a_backup_outside_of_git_is_suggested() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one"]);
    let copy = || {
        let (_, _, all) = examine(&sealed, &[]);
        let found = all.as_array().expect("a list").iter().find(|found| found["name"] == "copy").expect("it");
        let text = |field: &str| found[field].as_str().expect("a text").to_owned();
        (text("message"), text("hint"))
    };
    let (message, hint) = copy();
    assert_eq!(message, "git clean -fdx would delete this fleet, and there is no backup elsewhere");
    // Outside of the work tree, as a home is.
    let home = tempfile::tempdir().expect("a directory");
    let command =
        hint.replace(&format!("{}/.local", sealed.path().display()), &home.path().display().to_string());
    let said = sealed.sh(&format!("{command} && git clean -qfdx && ls -A"));
    assert_eq!(said.out.lines().last(), Some(".git"), "{said:?}");
    let copied = command.strip_prefix("fence backup ").expect("a command");
    let said = sealed
        .sh(&format!("fence init && cp {copied} .fence/fence.db && rm -f .fence/fence.db-* && fence list"));
    assert!(said.out.contains("main-1"), "{said:?}");
    let modes = sealed.sh(&format!("stat -c %a {copied} $(dirname {copied}) && {hint}"));
    assert_eq!(modes.out.lines().take(2).collect::<Vec<_>>(), ["600", "700"], "{modes:?}");
    let (message, next) = copy();
    assert_eq!(format!("fence backup {}", message.strip_prefix("the newest backup is ").expect("it")), hint);
    assert!(next > hint, "a name of its own");
}

/// Two entries of an index are swapped, as by a bad disk. Every row exists and every promise holds, but a lookup by number does
/// not find them.
#[test]
fn a_damaged_index_is_a_problem() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    for n in 0..20 {
        sealed.ok(&["add", &format!("task {n}")]);
    }
    let path = sealed.path().join(".fence/fence.db");
    let fleet = rusqlite::Connection::open(&path).expect("the fleet");
    let number = |sql: &str| fleet.query_row(sql, [], |row| row.get::<_, u32>(0)).expect(sql) as usize;
    number("pragma wal_checkpoint(truncate)");
    let size = number("pragma page_size");
    let page = number("select rootpage from sqlite_master where name = 'task_number'") - 1;
    drop(fleet);
    let mut bytes = std::fs::read(&path).expect("the file");
    let leaf = &mut bytes[page * size..];
    assert_eq!(leaf[0], 10, "a leaf of an index");
    let (first, second) = leaf[8..12].split_at_mut(2);
    first.swap_with_slice(second);
    std::fs::write(&path, bytes).expect("written");
    let (code, findings, all) = examine(&sealed, &[]);
    assert_eq!((code, findings[5].as_str()), (1, "integrity problem"), "{all:#}");
    assert!(all[5]["message"].as_str().expect("a text").starts_with("the database is damaged: "), "{all:#}");
    assert!(all.to_string().contains("missing from index task_number"), "{all:#}");
    assert!(all.to_string().contains("fence backup FILE"), "{all:#}");
}

/// An empty file is no fleet, and `doctor` does not make it one.
#[test]
fn an_empty_file_stays_empty() {
    let sealed = Sealed::sqlite();
    std::fs::write(sealed.path().join("empty.db"), "").expect("written");
    let shown = findings(&sealed, &["--db", "empty.db"]);
    assert!(shown.contains("problem  database    there is no fleet at empty.db"), "{shown}");
    assert_eq!(std::fs::metadata(sealed.path().join("empty.db")).expect("the file").len(), 0);
}
