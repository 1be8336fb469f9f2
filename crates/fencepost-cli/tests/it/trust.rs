//! Files of a project are used only if the user trusts them.

use crate::sealed::{Finished, Sealed, finished};
use std::{
    fs,
    io::{ErrorKind, Read},
    net::TcpListener,
};

fn write(sealed: &Sealed, name: &str, text: &str) {
    let path = sealed.path().join(name);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}

/// Runs shell commands, without paths that differ.
fn sh(sealed: &Sealed, script: &str) -> Finished {
    let said = sealed.sh(script);
    let here = fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    Finished { out: said.out.replace(&here, "HERE"), err: said.err.replace(&here, "HERE"), ..said }
}

#[test]
fn an_untrusted_project_gets_no_key() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "ours", "--board", "auth"]);
    let thief = TcpListener::bind("127.0.0.1:0").expect("a port");
    write(&sealed, "fence.toml", &format!("url = \"http://{}\"\n", thief.local_addr().expect("its address")));
    thief.set_nonblocking(true).expect("set");
    // The same from a directory below.
    let list = "mkdir -p deep && cd deep && FENCE_RUN=me FENCE_KEY=fence_secret fence list";
    let listed = sh(&sealed, list);
    assert!(listed.code == 0 && listed.out.contains("ours"), "{listed:?}");
    assert_eq!(
        listed.err,
        "warning: HERE/fence.toml is not trusted, so it is not read: `fence trust` shows it and trusts it"
    );
    assert_eq!(thief.accept().expect_err("nobody came").kind(), ErrorKind::WouldBlock);

    // After `trust` it decides. That also shows that the thief would have got the key.
    sealed.ok(&["trust"]);
    thief.set_nonblocking(false).expect("set");
    let mut asked = sealed
        .command("bash")
        .args(["-c", &list.replace("fence list", "exec fence list")])
        .spawn()
        .expect("bash");
    let (mut stream, _) = thief.accept().expect("somebody came");
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") && !String::from_utf8_lossy(&heard).contains("fence_secret") {
        let mut byte = [0; 1];
        assert_eq!(stream.read(&mut byte).expect("more"), 1, "{heard:?}");
        heard.extend(byte);
    }
    asked.kill().expect("killed");
    asked.wait().expect("its end");
    assert!(String::from_utf8_lossy(&heard).contains("fence_secret"), "{heard:?}");
}

#[test]
fn trust_is_shown_listed_revoked_and_ends_with_a_change() {
    let sealed = Sealed::sqlite();
    let mut told = String::new();
    let mut tell = |script: &str| {
        let said = sh(&sealed, script);
        let (out, err) = (said.out.replace('\n', "\n  "), said.err.replace('\n', "\n  "));
        told.push_str(&format!("$ {script}\n  {out}\n  {err}\n  (exit {})\n", said.code).replace("  \n", ""));
    };
    tell("fence trust");
    write(
        &sealed,
        "fence.toml",
        "agent = \"kim\"\nkey = \"fence_secret\"\ndb = \"postgres://kim:secret@host/db\"\n",
    );
    write(&sealed, "inner/fence.toml", "agent = \"lee\"\n[serve]\nname = [\"a\", \"b\"]\n");
    tell("fence --json whoami | cut -c1-9");
    tell("fence trust");
    tell("cd inner && fence config show | grep -w agent | xargs");
    tell("cd inner && fence trust && fence config show | grep -w agent | xargs");
    tell("echo '# more' >> inner/fence.toml; cd inner && fence config show | grep -w agent | xargs");
    tell("fence trust --list");
    tell("fence trust --revoke inner/fence.toml");
    tell("rm fence.toml; fence trust --list");
    tell("fence trust --revoke");
    tell("fence trust --revoke");
    tell("fence trust --list");
    tell("echo 'ulr = \"x\"' > fence.toml; fence trust 2>&1 | head -1; fence --json trust --list");
    insta::assert_snapshot!(told);

    // The file that the user names, and the user's own, need no trust.
    let own = sh(
        &sealed,
        "mkdir -p .config/fence; echo 'agent = \"own\"' > .config/fence/fence.toml; rm fence.toml
         fence config show | grep -w agent; cd .config/fence && fence config show | grep -w agent
         FENCE_CONFIG=../../inner/fence.toml fence config show | grep -w agent; fence trust --list",
    );
    assert_eq!(own.err, "");
    let lines: Vec<_> =
        own.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let home = "agent own HERE/.config/fence/fence.toml";
    assert_eq!(lines, [home, home, "agent lee ../../inner/fence.toml", "nothing is trusted"]);
}

/// Only root can create a file of another user. (The rule about owners has its own tests.)
#[test]
fn a_fleet_of_another_user_is_used_only_if_it_is_trusted() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "theirs", "--board", "auth"]);
    let list = |path: &str| {
        let chown = sealed.sh(&format!("chown 1234 {path}"));
        assert_eq!(chown.code, 0, "{chown:?}");
        sh(&sealed, "fence list")
    };
    for path in [".fence", ".fence/fence.db"] {
        let refused = list(path);
        assert_eq!(refused.code, 1);
        assert_eq!(
            refused.err,
            "error: the fleet in HERE/.fence belongs to user 1234, and is not trusted\n\
             hint: fence trust allows it; --db or FENCE_DB names another"
        );
        let named = sh(&sealed, "fence --db .fence/fence.db list");
        assert!(named.code == 0 && named.out.contains("theirs"), "{named:?}");
        sealed.sh("chown 0 .fence .fence/fence.db");
    }
    assert_eq!(list(".fence").code, 1);
    assert_eq!(sh(&sealed, "fence trust").out, "HERE/.fence is trusted: a fleet of user 1234");
    assert!(sh(&sealed, "fence list").out.contains("theirs"));
    // Another owner needs another decision. Under `sudo` the calling user's fleet needs none.
    sealed.sh("chown 1235 .fence");
    assert_eq!(sh(&sealed, "fence list").code, 1);
    let sudo = sh(&sealed, "SUDO_UID=1235 fence list");
    assert!(sudo.out.contains("theirs"), "{sudo:?}");
    sealed.sh("chown 1234 .fence");
    assert_eq!(sh(&sealed, "fence trust --revoke .").out, "HERE/.fence is no longer trusted");
    let doctor = finished(sealed.command("fence").arg("doctor").output().expect("fence"));
    assert!(doctor.code == 1 && doctor.out.contains("belongs to user 1234"), "{doctor:?}");
}
