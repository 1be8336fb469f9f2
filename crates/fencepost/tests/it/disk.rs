//! Full disks, files that are not fleets, directories that cannot be written.

use fencepost::{Code, Fleet, Options, Result, task};
use fencepost_testing::{
    World,
    world::{options, patient},
};
use futures_util::future::join_all;
use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
};

async fn add(fleet: &Fleet, title: &str) -> Result<String> {
    Ok(fleet.call(task::Add::new("auth", title)).await?.task.title)
}

/// Adds small tasks, and notes that fill the disk. (If a statement over a set finds no room, SQLite undoes only that. If a
/// single insert does, such as a note's, it undoes the whole transaction.)
async fn many(fleet: &Fleet, round: usize) -> Vec<Result<String>> {
    let calls = (0..32).map(async |n| {
        let name = format!("{round}-{n}");
        if n % 4 > 0 {
            return add(fleet, &name).await;
        }
        let text = format!("{name} {}", "x".repeat(15_000));
        fleet.call(task::Note { task: "auth-1".into(), text, request: None }).await?;
        Ok(name)
    });
    join_all(calls).await
}

/// Every stored task and note, read by another process.
fn stored(url: &str) -> BTreeSet<String> {
    let conn = rusqlite::Connection::open(url).unwrap();
    let sql = "select title from task union all select substr(body, 1, instr(body, ' ') - 1) from note";
    let mut rows = conn.prepare(sql).unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Runs a test of this file in its own process, through a shell.
fn child(name: &str, script: &str, url: &str) -> String {
    let exe = std::env::current_exe().unwrap();
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(exe)
        .args(["--ignored", "--exact", &format!("disk::{name}"), "--nocapture"])
        .env("FENCE_TEST_CHILD_URL", url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    String::from_utf8(child.stdout).unwrap()
}

fn child_url() -> String {
    std::env::var("FENCE_TEST_CHILD_URL").expect("this is not a test: it is run by one")
}

/// The rest of each line that starts with this word.
fn said<'o>(output: &'o str, word: &str) -> Vec<&'o str> {
    output.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
}

#[tokio::test]
async fn only_acknowledged_writes_survive_a_full_disk() {
    let world = World::sqlite().await;
    let mut options = options(&world.clock);
    options.max_pages = Some(400);
    let fleet = Fleet::open_with(&world.url, options).await.unwrap();
    let mut told = BTreeSet::from([add(&fleet, "first").await.unwrap()]);
    let mut refused = 0;
    for round in 0..20 {
        for answer in many(&fleet, round).await {
            match answer {
                Ok(name) => drop(told.insert(name)),
                Err(e) => {
                    assert_eq!(e.code(), Code::Unavailable, "{e}");
                    assert!(e.hint_text().unwrap().contains("make room"), "{e:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100, "the disk was never full: {refused}");
    drop(fleet);
    assert_eq!(stored(&world.url), told);
    world.assert_sound().await;
}

#[tokio::test]
async fn only_acknowledged_writes_survive_a_file_size_limit() {
    let world = World::sqlite().await;
    // 2 MiB, and a fleet without tasks has almost 1: `ulimit -f` counts in blocks of 512 bytes.
    let output = child("fills_its_disk", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", &world.url);
    let told: BTreeSet<String> = said(&output, "told").into_iter().map(str::to_owned).collect();
    let failed = said(&output, "failed");
    assert!(told.len() > 20 && failed.len() > 20, "{output}");
    assert!(failed.iter().all(|code| ["unavailable", "outcome_unknown"].contains(code)), "{failed:?}");
    assert_eq!(stored(&world.url), told);
    world.assert_sound().await;
    world.add("there is room again").await;
}

#[tokio::test]
#[ignore = "the child of a test"]
async fn fills_its_disk() {
    let fleet = Fleet::open(&child_url()).await.unwrap();
    println!("told {}", add(&fleet, "first").await.unwrap());
    for round in 0..12 {
        for answer in many(&fleet, round).await {
            match answer {
                Ok(name) => println!("told {name}"),
                Err(e) => println!("failed {}", e.code()),
            }
        }
    }
}

async fn refusal(url: &str, options: Options) -> String {
    let error = Fleet::open_with(url, options).await.expect_err("it is refused");
    shown(error.code().as_str(), error.message(), error.hint_text())
}

fn shown(code: &str, message: &str, hint: Option<&str>) -> String {
    format!("{code}: {message}\nhint: {}", hint.unwrap_or("-"))
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn files_that_are_not_fleets_are_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let hidden = |text: String| text.replace(&dir.path().display().to_string(), "DIR");
    std::fs::write(at("notes.txt"), "not a database, but long enough to have a header. ".repeat(20)).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let other = rusqlite::Connection::open(at("other.db")).unwrap();
    other.execute_batch("create table bookmark(url text); insert into bookmark values ('x')").unwrap();
    drop(other);
    let before: Vec<_> = ["notes.txt", "other.db"].map(|name| std::fs::read(at(name)).unwrap()).into();

    let open = async |url: &str| hidden(refusal(url, Options::default()).await);
    insta::assert_snapshot!(open(&at("notes.txt")).await, @r"
    invalid: `DIR/notes.txt`: the file is not a SQLite database
    hint: name another file, or move this one away
    ");
    insta::assert_snapshot!(open(&at("other.db")).await, @r"
    invalid: `DIR/other.db`: a SQLite database of another program, not a fleet
    hint: name another file; fence will create it
    ");
    insta::assert_snapshot!(open(&at("folder")).await, @r"
    invalid: `DIR/folder` is a directory, not a database file
    hint: -
    ");
    insta::assert_snapshot!(open(&at("missing/fence.db")).await, @r"
    unavailable: `DIR/missing/fence.db`: the database file cannot be opened
    hint: check that its directory exists and can be written
    ");
    insta::assert_snapshot!(open(":memory:").await, @r"
    invalid: a fleet lives in a file, so that other processes can share it
    hint: name a file, such as .fence/fence.db
    ");
    insta::assert_snapshot!(open("").await, @r"
    invalid: a fleet lives in a file, so that other processes can share it
    hint: name a file, such as .fence/fence.db
    ");
    insta::assert_snapshot!(open("mysql://localhost/fleet").await, @r"
    invalid: `mysql` is not a kind of database that fence knows
    hint: a file path, sqlite:PATH or postgres://user@host/database
    ");

    let after: Vec<_> = ["notes.txt", "other.db"].map(|name| std::fs::read(at(name)).unwrap()).into();
    assert!(before == after, "it was written to");
    assert_eq!(listing(dir.path()), ["folder", "notes.txt", "other.db"]);
}

/// Root ignores permissions unless it drops the capability to do so.
fn bound_by_permissions() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "exec setpriv --bounding-set=-dac_override,-dac_read_search -- \"$@\""
    } else {
        "exec \"$@\""
    }
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    let path = locked.join("fence.db").display().to_string();
    let opening = |path: &str| {
        let output = child("opens_and_adds", bound_by_permissions(), path);
        let lines = ["opened", "added", "error", "hint"]
            .iter()
            .flat_map(|word| said(&output, word).into_iter().map(move |said| format!("{word} {said}")));
        lines.collect::<Vec<_>>().join("\n").replace(&dir.path().display().to_string(), "DIR")
    };
    set_mode(&locked, 0o555);
    insta::assert_snapshot!(opening(&path), @r"
    error unavailable: `DIR/locked/fence.db`: the database file cannot be opened
    hint check that its directory exists and can be written
    ");
    assert!(listing(&locked).is_empty());

    set_mode(&locked, 0o755);
    insta::assert_snapshot!(opening(&path), @"added one");
    set_mode(&path, 0o444);
    insta::assert_snapshot!(opening(&path), @r"
    error unavailable: the database cannot be written
    hint check the permissions of the file and of its directory
    ");
    set_mode(&path, 0o644);
    for lock in ["-queue", "-turn"] {
        std::fs::remove_file(format!("{path}{lock}")).unwrap();
    }
    set_mode(&locked, 0o555);
    insta::assert_snapshot!(opening(&path), @r"
    error unavailable: cannot write `DIR/locked/fence.db-queue`: Permission denied (os error 13)
    hint a fleet needs to write in the directory it lives in
    ");
    set_mode(&locked, 0o755);
    assert_eq!(stored(&path), ["one".to_owned()].into());
}

#[tokio::test]
#[ignore = "the child of a test"]
async fn opens_and_adds() {
    let tell = |e: fencepost::Error| {
        println!("error {e}\nhint {}", e.hint_text().unwrap_or("-"));
    };
    match Fleet::open(&child_url()).await {
        Err(e) => tell(e),
        Ok(fleet) => match add(&fleet, "one").await {
            Ok(title) => println!("added {title}"),
            Err(e) => tell(e),
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_processes_create_one_fleet_at_once() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("fence.db").display().to_string();
        let opening = (0..16).map(|_| Fleet::open_with(&url, patient()));
        let fleets: Vec<_> = join_all(opening).await.into_iter().map(Result::unwrap).collect();
        let adding = fleets.iter().enumerate().map(|(n, fleet)| {
            let title = format!("{round}-{n}");
            async move { add(fleet, &title).await.unwrap() }
        });
        let added: BTreeSet<_> = join_all(adding).await.into_iter().collect();
        assert_eq!(added.len(), 16);
        assert_eq!(stored(&url), added);
    }
}
