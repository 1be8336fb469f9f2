//! Keys and certificates, as a user meets them: a real server, real clients.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
    serve::Served,
};

/// A certificate authority and a certificate for localhost that it signed: `NAME-ca.pem`, `NAME.pem`, `NAME.key`.
pub fn authority(sealed: &Sealed, name: &str) {
    let script = format!(
        "set -e
         ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
         openssl req -x509 $ec -days 2 -subj '/CN={name} authority' -keyout ca.key -out {name}-ca.pem
         openssl req -new $ec -subj /CN=localhost -keyout {name}.key -out csr
         printf 'subjectAltName=DNS:localhost\n' > ext
         openssl x509 -req -in csr -CA {name}-ca.pem -CAkey ca.key -set_serial 1 -days 2 -extfile ext -out {name}.pem"
    );
    let made = sealed.sh(&script);
    assert_eq!(made.code, 0, "{made:?}");
}

on_both! {
    without a server:

    fn keys_decide_who_may_call(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one", "--board", "auth"]);
        let key = |name: &str, role: &str| sealed.ok(&["key", "add", name, "--role", role, "-q"]);
        let (agent, reader) = (key("codex-2", "agent"), key("eye", "reader"));
        let server = Served::start(&sealed, &["--key-trust", "10ms"]);
        let there = sealed.over(&format!("http://{}", server.address));
        let by = |key: &str, words: &str| there.fence(&[&["--key", key], words.split(' ').collect::<Vec<_>>().as_slice()].concat());
        let none = there.fence(&["list"]);
        let wrong = there.sh("FENCE_KEY=fence_00 fence list");
        let describe = |said: &crate::sealed::Finished| format!("{} (exit {})", said.err, said.code);
        insta::assert_snapshot!("let_in", [none, wrong, by(&reader, "claim"), by(&reader, "key list")].iter().map(describe).collect::<Vec<_>>().join("\n\n"));
        assert_eq!(by(&reader, "list").code, 0);
        assert_eq!(by(&agent, "claim auth-1 -q").out, "task/auth-1@1");
        let secret = there.sh(&format!("FENCE_KEY={agent} FENCE_RUN=me fence --json claims"));
        assert!(secret.out.contains("\"agent\":\"codex-2\""), "{secret:?}");
        let lift = by(&agent, "lift claude-1");
        assert!(lift.code == 1 && lift.err.contains("run/lift needs admin"), "{lift:?}");
        // The key is revoked from here on.
        sealed.ok(&["key", "revoke", "codex-2"]);
        eventually("it is refused", || (by(&agent, "list").code == 1).then_some(()));
        let refused = by(&agent, "done task/auth-1@1");
        assert!(refused.code == 1 && refused.err.contains("this key is not known here, or was revoked"), "{refused:?}");
        sealed.ok(&["guard", "task/auth-1@1"]);
        // The fleet stays closed when its last key is revoked. On the machine of the database there is a way back in.
        sealed.ok(&["key", "revoke", "eye"]);
        eventually("it is refused, too", || (by(&reader, "list").code == 1).then_some(()));
        let open = there.fence(&["key", "add", "me", "--role", "admin"]);
        assert!(open.code == 1 && open.err.contains("a key is needed to call this fleet"), "{open:?}");
        assert_eq!(by(&key("kim", "admin"), "key list").code, 0);
    }

    /// The children of a worker have its key, unless it withholds it. A profile can give them another one.
    fn a_worker_can_withhold_its_key(sealed: Sealed) {
        sealed.ok(&["init"]);
        let admin = sealed.ok(&["key", "add", "kim", "--role", "admin", "-q"]);
        let agent = sealed.ok(&["key", "add", "bob", "--role", "agent", "-q"]);
        let server = Served::start(&sealed, &[]);
        let there = sealed.over(&format!("http://{}", server.address));
        there.first_commit();
        let work = |key: &str, words: &str| {
            sealed.ok(&["add", "one", "--board", "b"]);
            there.sh(&format!(
                "rm -f told; FENCE_KEY={key} fence work --agent bob --count 1 {words} || exit; cat told"
            ))
        };
        let told = format!("> {}/told", there.path().display());
        let child = format!("-- sh -c '(echo \"child ${{FENCE_KEY-none}}\"; fence list >/dev/null 2>&1; echo $?) >{told}'");

        let said = work(&agent, &child);
        assert!(said.out.ends_with(&format!("child {agent}\n0")) && !said.err.contains("admin"), "{said:?}");
        let said = work(&admin, &child);
        assert!(said.out.ends_with(&format!("child {admin}\n0")), "{said:?}");
        assert!(said.err.contains("children get the key of this worker, and it is an admin's"), "{said:?}");
        let setup = format!("--worktree --setup 'echo setup ${{FENCE_KEY-none}} >{told}'");
        for (setup, told_by_setup) in [("", ""), (&setup[..], "setup none")] {
            let said = work(&admin, &format!("--no-key {setup} {child}"));
            assert!(said.out.ends_with("child none\n1") && !said.out.contains("fence_"), "{said:?}");
            assert!(said.out.contains(told_by_setup), "{said:?}");
            assert!(!said.err.contains("admin"), "{said:?}");
        }
        there.write("ours.toml", format!("env = {{ FENCE_KEY = '{agent}' }}\nno_verdict = 'done'\n"));
        let said = work(&admin, &format!("--no-key --profile ours.toml {child}"));
        assert!(said.out.ends_with(&format!("child {agent}\n0")), "{said:?}");
        // A file with the key would give it back to them.
        there.write("fence.toml", format!("key = '{admin}'\n"));
        there.ok(&["trust"]);
        let refused = work(&admin, &format!("--no-key {child}"));
        assert!(refused.code == 1 && refused.err.contains("fence.toml, which children read, too"), "{refused:?}");
    }
}

#[test]
fn an_https_server_is_trusted_by_its_authority() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one", "--board", "auth"]);
    authority(&sealed, "ours");
    authority(&sealed, "theirs");
    // In `[serve]`, too, a path is relative to the file.
    let file = "[serve]\ntls-cert = \"ours.pem\"\ntls-key = \"ours.key\"\n";
    std::fs::write(sealed.path().join("fence.toml"), file).expect("written");
    std::fs::create_dir_all(sealed.path().join("deep/er")).expect("made");
    let config = sealed.path().join("fence.toml").display().to_string();
    let server = Served::start_with(&sealed, &[], &[("FENCE_CONFIG", &config)]);
    let url = format!("https://localhost:{}", server.address.rsplit_once(':').expect("a port").1);
    let there = sealed.over(&url);
    let ca = |name: &str| sealed.path().join(name).display().to_string();
    let list = |words: &[&str]| there.fence(&[words, &["list"]].concat());

    assert_eq!(list(&["--ca", &ca("ours-ca.pem")]).code, 0);
    let variable = there.sh(&format!("FENCE_CA={} fence list", ca("ours-ca.pem")));
    assert_eq!(variable.code, 0, "{variable:?}");
    let shown: Vec<_> =
        [&[][..], &["--ca", &ca("theirs-ca.pem")], &["--ca", &ca("nowhere.pem")], &["--ca", &ca("ours.key")]]
            .iter()
            .map(|words| {
                let said = list(words);
                assert_eq!(said.code, 1, "{said:?}");
                said.err.replace(&url, "URL").replace(&ca(""), "DIR/")
            })
            .collect();
    insta::assert_snapshot!(shown.join("\n\n"));

    // The file applies to all directories below it, and supervised commands get the settings.
    std::fs::create_dir(there.path().join("deep")).expect("made");
    std::fs::copy(sealed.path().join("ours-ca.pem"), there.path().join("ca.pem")).expect("copied");
    std::fs::write(there.path().join("fence.toml"), "ca = \"ca.pem\"\n").expect("written");
    there.ok(&["trust"]);
    let deep =
        there.sh("cd deep && fence list && fence lock deploy -- sh -c 'cd / && fence guard $FENCE_LOCK'");
    assert!(deep.code == 0 && deep.out.contains("ok: held by run lock-"), "{deep:?}");
    // So does a keeper, which is a separate process. Nobody else renews here.
    let run = |line: &str| {
        let said = there.sh(&format!("cd deep && FENCE_RUN=kept fence {line}"));
        assert_eq!(said.code, 0, "{line}: {said:?}");
        said.out
    };
    run("claim auth-1 --keep --ttl 10s -q");
    let expires_at = || {
        let claims: serde_json::Value = serde_json::from_str(&run("--json claims")).expect("JSON");
        claims["claims"][0]["expires_at"].as_str().expect("it is held").to_owned()
    };
    let first = expires_at();
    eventually("the keeper renews it", || (expires_at() > first).then_some(()));
    run("done task/auth-1@1");
}

#[test]
fn a_public_server_without_encryption_warns() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let reader = sealed.ok(&["key", "add", "eye", "--role", "reader", "-q"]);
    let mut serve = sealed.command("fence");
    serve.args(["serve", "--listen", "0.0.0.0:0"]);
    let server = Served::run(serve);
    // A reader's key is not enough for all checks.
    let port = server.address.rsplit_once(':').expect("a port").1;
    let doctor = sealed.over(&format!("http://127.0.0.1:{port}")).fence(&["--key", &reader, "doctor"]);
    assert!(doctor.out.contains("not checked: that needs an admin's key"), "{doctor:?}");
    let log = server.log();
    assert!(
        log.contains("other machines can reach http://") && log.contains(", and nothing is encrypted"),
        "{log}"
    );
    let loopback = Served::start(&sealed, &[]).log();
    assert!(!loopback.contains("encrypted"), "{loopback}");
}

/// Errors are explained, with a hint: a plain client at an https server and the other way round, a
/// certificate for another name, that of an authority, and one of yesterday.
#[test]
fn tls_errors_are_explained() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    authority(&sealed, "ours");
    // A day that is over.
    let made = sealed.sh(
        "openssl x509 -req -in csr -CA ours-ca.pem -CAkey ca.key -set_serial 2 -extfile ext -out old.pem -days -1",
    );
    assert_eq!(made.code, 0, "{made:?}");
    let serve = |cert: &str, key: &str| Served::start(&sealed, &["--tls-cert", cert, "--tls-key", key]);
    let plain = Served::start(&sealed, &[]);
    let (secure, old, root) =
        (serve("ours.pem", "ours.key"), serve("old.pem", "ours.key"), serve("ours-ca.pem", "ca.key"));
    let port = |server: &Served| server.address.rsplit_once(':').expect("a port").1.to_owned();
    let ca = sealed.path().join("ours-ca.pem").display().to_string();
    let shown = [
        format!("http://127.0.0.1:{}", port(&secure)),
        format!("https://localhost:{}", port(&plain)),
        format!("https://127.0.0.1:{}", port(&secure)),
        format!("https://localhost:{}", port(&old)),
        format!("https://localhost:{}", port(&root)),
    ]
    .map(|url| {
        let said = sealed.over(&url).fence(&["--ca", &ca, "list"]);
        assert_eq!(said.code, 1, "{said:?}");
        said.err.replace(&url, "URL")
    });
    insta::assert_snapshot!("tls", shown.join("\n\n"));
}

/// Whoever listens in reads the key. (0.0.0.0 is this machine, and not by a name that says so.)
#[test]
fn a_key_that_is_sent_without_encryption_is_a_warning() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let key = sealed.ok(&["key", "add", "eye", "--role", "reader", "-q"]);
    let server = Served::start(&sealed, &["--name", "0.0.0.0"]);
    let port = server.address.rsplit_once(':').expect("a port").1.to_owned();
    let warning =
        format!("warning: the key is sent to http://0.0.0.0:{port} without encryption: use https://");
    let there = sealed.over(&format!("http://0.0.0.0:{port}"));
    let said = there.fence(&["--key", &key, "list"]);
    assert_eq!((said.code, said.err), (0, warning));
    let json = there.fence(&["--key", &key, "--json", "list"]);
    assert!(json.code == 0 && json.err.starts_with(r#"{"warning":"#), "{json:?}");
    let here = sealed.over(&format!("http://127.0.0.1:{port}")).fence(&["--key", &key, "list"]);
    assert_eq!((here.code, here.err.as_str()), (0, ""));
}
