//! The record of a session: in two fleets, without its fleet, and if it cannot be written.

use crate::{
    hooks::{
        before, claimed, denied, fleet, hook, hook_with, in_session, passes, recorded, session, told,
        with_input,
    },
    lost_sessions::{GONE, edits, overslept, record, record_file, tool, tool_with},
    sealed::{Sealed, Serving, lasting_address},
};
use serde_json::{Value, json};
use std::path::PathBuf;

fn lock_file(sealed: &Sealed, run: &str) -> PathBuf {
    record_file(sealed, run).with_file_name(format!("session-{run}.lock"))
}

/// A claim in one fleet does not hide the loss in another one, and tokens of both may be the same.
#[test]
fn a_session_works_in_two_fleets() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let token = claimed(&sealed, "claude", "auth-1");
    let other = |words: &str| {
        let said =
            in_session(&sealed, "claude", &format!("export FENCE_DB=$PWD/other.db; fence {words}; exit $?"));
        assert_eq!(said.code, 0, "{said:?}");
        said.out
    };
    other("init");
    other("add web --board auth");
    assert_eq!(other("claim auth-1 -q"), token);
    edits(&sealed, "claude").iter().for_each(passes);
    sealed.ok(&["unclaim", "auth-1"]);
    sealed.ok(&["claim", "auth-1", "--run", "two"]);
    assert!(told(&hook(&sealed, "claude", "post-tool-use")).contains(&format!("you lost claim {token}")));
    let edit = tool(&sealed, "claude", "Edit", json!({}), &[]);
    assert!(told(&edit).contains("Run two holds task/auth-1 now.") && told(&edit).contains("another claim"));
    other("done auth-1");
    assert!(denied(&tool(&sealed, "claude", "Edit", json!({}), &[])).contains(&token));
    in_session(&sealed, "claude", "fence ack");
    passes(&tool(&sealed, "claude", "Edit", json!({}), &[]));
}

/// A directory without a fleet: what the session holds elsewhere counts.
#[test]
fn the_standing_counts_in_a_directory_without_a_fleet() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 3);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let push = || {
        let mut event = recorded("claude", "pre-tool-use");
        event["tool_input"] = json!({ "command": "git -C \"$WORK\" push" });
        let mut command = sealed.command("fence");
        command.current_dir(elsewhere.path()).args(["hook", "pre-tool-use"]);
        with_input(command, event.to_string().as_bytes())
    };
    passes(&push());
    claimed(&sealed, "claude", "auth-1");
    passes(&push());
    in_session(&sealed, "claude", "fence done");
    assert!(told(&push()).contains("completed its claim"));
    claimed(&sealed, "claude", "auth-2");
    in_session(&sealed, "claude", "fence release");
    assert!(denied(&push()).contains("gave its work back"));
    let token = claimed(&sealed, "claude", "auth-3");
    sealed.ok(&["unclaim", "auth-3"]);
    assert!(denied(&push()).contains(&format!("lost claim {token}")));
}

/// A server that is down: the record decides, and the hooks of git ask nobody about the claim.
#[test]
fn a_server_that_is_down_stops_pushes_and_no_commits() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one", "--board", "auth"]);
    // Nobody else gets this port while the server is down.
    let server = Serving::start(&sealed, &["--listen", &lasting_address()]);
    let there = sealed.over(&server.url);
    there.first_commit();
    let git = |line: &str| in_session(&there, "claude", &format!("{line}; exit $?"));
    let made =
        git("git init -q --bare there.git && git remote add origin \"$PWD/there.git\" && fence git install");
    assert_eq!(made.code, 0, "{made:?}");
    let token = claimed(&there, "claude", "auth-1");
    let message = "git commit -q --allow-empty -m x && git log -1 --format=%B";
    let committed = git(message);
    assert!(committed.code == 0 && committed.out.contains(&format!("Fence: {token}")), "{committed:?}");
    drop(server);
    let committed = git(message);
    assert!(committed.code == 0 && !committed.out.contains("Fence:"), "{committed:?}");
    let refused = git("git push -q origin HEAD:x");
    assert!(refused.code != 0 && refused.err.contains("nobody can tell"), "{refused:?}");
    // A hotfix.
    there.ok(&["lift", &session("claude"), "--for", "1h"]);
    let pushed = git("git push -q origin HEAD:x");
    assert_eq!(pushed.code, 0, "{pushed:?}");
}

/// A script of the session made a fleet, claimed in it, and removed it.
#[test]
fn a_fleet_that_is_gone_is_forgotten() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "auth-1");
    let script = "export FENCE_DB=$PWD/gone.db; fence init && fence add x && fence claim -q && rm gone.db*";
    assert_eq!(in_session(&sealed, "claude", &format!("{script}; exit $?")).code, 0);
    assert_eq!(record(&sealed, &session("claude"))["held"].as_array().map(Vec::len), Some(2));
    passes(&before(&sealed, "claude", "git push", &[]));
    assert_eq!(record(&sealed, &session("claude"))["held"].as_array().map(Vec::len), Some(1));
    in_session(&sealed, "claude", "fence done");
    assert!(told(&before(&sealed, "claude", "git push", &[])).contains("completed its claim"));
    edits(&sealed, "claude").iter().for_each(passes);
}

/// A link and `..` lead to the same fleet.
#[test]
fn a_fleet_has_one_address() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    std::os::unix::fs::symlink(".", sealed.path().join("link")).expect("linked");
    for alias in ["$PWD/link/.fence", "$PWD/.fence/../.fence", ".fence"] {
        let script = format!("export FENCE_DB={alias}/fence.db; fence claim -q auth-1 --resume; exit $?");
        let said = in_session(&sealed, "claude", &script);
        assert_eq!(said.code, 0, "{alias}: {said:?}");
        assert_eq!(record(&sealed, &session("claude"))["held"].as_array().map(Vec::len), Some(1), "{alias}");
    }
}

/// The key of this directory's fleet is for that one alone.
#[test]
fn a_hook_sends_no_key_to_another_fleet() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    claimed(&sealed, "claude", "auth-1");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("its address");
    let address = format!("http://{port}");
    let asked = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = other.accept().expect("a connection");
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let length = stream.read(&mut part).expect("a request");
            request.extend_from_slice(&part[..length]);
            if length == 0 || request.windows(4).any(|end| end == b"\r\n\r\n") {
                break;
            }
        }
        let _ = stream.write_all(
            b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
        String::from_utf8_lossy(&request).into_owned()
    });
    let run = session("claude");
    let mut changed = record(&sealed, &run);
    changed["held"][0]["fleet"] = json!(address);
    std::fs::write(record_file(&sealed, &run), changed.to_string()).expect("written");
    let push = json!({ "command": "git push" });
    tool_with(&sealed, "claude", "Bash", push, &[], &[("FENCE_KEY", "fk_of_this_fleet")]);
    // If the hook asked nobody, this is the connection that the other side waits for.
    drop(std::net::TcpStream::connect(port));
    let request = asked.join().expect("asked");
    assert!(request.contains("HTTP/1.1") && !request.contains("fk_of_this_fleet"), "{request}");
}

/// In a client's sandbox the record can be read and not be locked. The loss on it counts.
#[test]
fn a_record_that_cannot_be_written_still_counts() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let run = session("claude");
    let token = claimed(&sealed, "claude", "auth-1");
    sealed.ok(&["unclaim", "auth-1"]);
    assert!(told(&hook(&sealed, "claude", "post-tool-use")).contains(&token));
    let lock = lock_file(&sealed, &run);
    std::fs::remove_file(&lock).expect("there is a lock");
    std::fs::create_dir(&lock).expect("made");
    for _ in 0..2 {
        assert!(denied(&before(&sealed, "claude", "ls", &[])).contains(&token));
    }
}

/// Another hook of the session waits for the fleet, and has locked the record. The shell code around this one must not end it: then the
/// tool would pass.
#[test]
fn a_locked_record_does_not_hold_a_hook_up() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let run = session("claude");
    let token = claimed(&sealed, "claude", "auth-1");
    sealed.ok(&["unclaim", "auth-1"]);
    assert!(told(&hook(&sealed, "claude", "post-tool-use")).contains(&token));
    let lock = std::fs::File::open(lock_file(&sealed, &run)).expect("there is a lock");
    lock.lock().expect("locked");
    let soon = [("FENCE_HOOK_TIMEOUT", "100ms")];
    assert!(denied(&tool_with(&sealed, "claude", "Edit", json!({}), &[], &soon)).contains(&token));
    assert!(
        denied(&tool_with(&sealed, "claude", "Bash", json!({ "command": "ls" }), &[], &soon))
            .contains(&token)
    );
    hook_with(&sealed, &["post-tool-use"], &recorded("claude", "post-tool-use"), &soon);
    // Nor the commands that write the record, such as a person's.
    let ack = json!({ "command": "fence ack" });
    passes(&tool_with(&sealed, "claude", "Bash", ack, &[], &soon));
    let said = in_session(&sealed, "claude", "export FENCE_HOOK_TIMEOUT=100ms; fence ack; exit $?");
    assert!(said.code == 1 && said.err.contains("another process has locked it"), "{said:?}");
    let said = sealed.sh(&format!("FENCE_HOOK_TIMEOUT=100ms fence lift {run}"));
    assert!(said.code == 1 && said.err.contains("another process has locked it"), "{said:?}");
    let said = in_session(&sealed, "claude", "export FENCE_HOOK_TIMEOUT=100ms; fence claim auth-1; exit $?");
    assert_eq!(said.code, 0, "{said:?}");
    sealed.ok(&["unclaim", "auth-1"]);
    lock.unlock().expect("unlocked");
    assert!(denied(&before(&sealed, "claude", "ls", &[])).contains(&token));
    in_session(&sealed, "claude", "fence ack");
    passes(&before(&sealed, "claude", "ls", &[]));
}

/// A laptop slept past its lease, and woke without a network.
#[test]
fn a_lapse_is_acknowledged_without_the_fleet() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let token = claimed(&sealed, "claude", "auth-1");
    overslept(&sealed, &session("claude"));
    let call =
        |name: &str, line: &str| tool_with(&sealed, "claude", name, json!({ "command": line }), &[], &GONE);
    denied(&call("Edit", ""));
    denied(&call("Bash", "ls"));
    passes(&call("Bash", "fence ack"));
    let said = in_session(&sealed, "claude", "export FENCE_URL=http://127.0.0.1:9; fence ack; exit $?");
    assert!(said.code == 0 && said.out.contains(&format!("acknowledged: {token} is over")), "{said:?}");
    passes(&call("Edit", ""));
    passes(&call("Bash", "ls"));
    denied(&call("Bash", "git push"));
}

/// The record has the address of the fleet with its password. Nobody sees that.
#[test]
fn an_acknowledgement_shows_no_password() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 1);
    let run = session("claude");
    let token = claimed(&sealed, "claude", "auth-1");
    overslept(&sealed, &run);
    denied(&tool_with(&sealed, "claude", "Edit", json!({}), &[], &GONE));
    let mut changed = record(&sealed, &run);
    changed["lost"][0]["fleet"] = json!("postgres://kim:secret@host/db");
    std::fs::write(record_file(&sealed, &run), changed.to_string()).expect("written");
    let said = in_session(&sealed, "claude", "fence ack --json; exit $?");
    assert!(said.out.contains(&token) && said.out.contains("kim:…@host"), "{said:?}");
    assert!(!said.out.contains("secret") && !said.err.contains("secret"), "{said:?}");
}

/// Nothing is lost on the record: an edit passes, whatever became of the fleet.
#[test]
fn a_fleet_that_cannot_be_reached_never_blocks_an_edit() {
    let sealed = Sealed::sqlite();
    fleet(&sealed, 2);
    let edit = || tool_with(&sealed, "claude", "Edit", json!({ "new_string": "git push" }), &[], &GONE);
    let shell = |line: &str| tool_with(&sealed, "claude", "Bash", json!({ "command": line }), &[], &GONE);
    passes(&edit());
    denied(&shell("git push"));
    let token = claimed(&sealed, "claude", "");
    for _ in 0..2 {
        passes(&edit());
        passes(&shell("cargo test"));
        assert!(denied(&shell("git push")).contains("nobody can tell"));
        in_session(&sealed, "claude", &format!("fence done {token}"));
    }
}

#[test]
fn an_acknowledgement_needs_a_session() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let said = sealed.fence(&["ack"]);
    assert!(said.code == 1 && said.err.contains("agent's session"), "{said:?}");
    let said = in_session(&sealed, "claude", "fence ack --json; exit $?");
    let reply: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((said.code, &reply["acknowledged"]), (0, &json!([])), "{said:?}");
}
