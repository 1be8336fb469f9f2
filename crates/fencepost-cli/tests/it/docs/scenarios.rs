//! Recipes that need a server, a second machine or a sender of webhooks, run as written.

use super::page::scenario;
use crate::sealed::{Finished, Sealed, eventually, finished, lasting_address};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    net::TcpStream,
    process::{Child, Command, Stdio},
};

/// A script, with what it leaves in the background ended with it, and run to its last line unless one fails.
fn bash(sealed: &Sealed, script: &str) -> Command {
    let mut command = sealed.command("bash");
    command
        .args(["-ec", &format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}")])
        .env("FENCE_RUN", "me");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(child: Child) -> Finished {
    finished(child.wait_with_output().expect("its output"))
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().expect("a port")
}

/// The same script for a server at this address. It goes on when the server is there, as a reader would: a command waits
/// two seconds for it, and a busy machine may need longer.
fn listening(script: &str, address: &str) -> String {
    let serve = "fence serve &";
    assert!(script.contains(serve), "{script}");
    let there = format!(
        "for ((i = 0; i < 3000; i++)); do curl -s http://{address}/healthz >/dev/null && break; sleep 0.05; done"
    );
    script.replace("7373", port(address)).replace(serve, &format!("{serve} {there}"))
}

/// Each script is for a machine; here they are directories, and other names and ports.
#[test]
fn a_fleet_is_shared_between_machines_as_the_guide_says() {
    let scripts = scenario("share");
    let [first, server, client] = &scripts[..] else { panic!("{scripts:#?}") };
    let one = Sealed::sqlite();
    one.ok(&["init"]);
    // The port that it has by itself may be another's.
    let address = lasting_address();
    let mut tried = bash(&one, &listening(first, &address));
    tried.env("FENCE_LISTEN", &address);
    let tried = ended(tried.spawn().expect("bash"));
    assert!(tried.code == 0 && tried.out.contains("\"status\":\"completed\""), "{tried:?}");

    let (here, address) = (Sealed::postgres(), lasting_address());
    let port = port(&address);
    let ours = |script: &str| script.replace("7373", port).replace("fence.example.com", "localhost");
    let recipe = scenario("certificate").concat();
    let made = ended(bash(&here, &ours(&recipe)).spawn().expect("bash"));
    assert_eq!(made.code, 0, "{made:?}");
    let script =
        ours(server).replace("postgres://user:password@host/database?sslmode=verify-full", &here.url());
    assert!(script.contains(&here.url()) && script.contains("--name localhost"), "{script}");
    // In the shell that has just tried the first one.
    let mut serving = bash(&here, &format!("{script}\nread -r _ || true"));
    let mut serving = serving.env("FENCE_URL", "http://127.0.0.1:9").spawn().expect("bash");
    eventually("it listens", || TcpStream::connect(&address).is_ok().then_some(()));
    let there = Sealed::sqlite();
    for file in ["ca.pem", "builder.key"] {
        std::fs::copy(here.path().join(file), there.path().join(file)).expect("copied");
    }
    let worked = ended(bash(&there, &ours(client)).spawn().expect("bash"));
    assert!(worked.code == 0 && worked.out.contains("completed"), "{worked:?}");
    drop(serving.stdin.take());
    let served = ended(serving);
    assert_eq!(served.code, 0, "{served:?}");
    let shown = here.ok(&["--json", "show", "auth-1"]);
    assert!(shown.contains("\"status\":\"completed\"") && shown.contains("codex-2"), "{shown}");
}

/// The clients are stand-ins: a lead that makes tasks of a message, and a worker that cannot commit, as in the sandbox of Codex.
#[test]
fn a_lead_and_its_workers_are_started_as_the_guide_says() {
    let here = Sealed::sqlite();
    here.first_commit();
    here.script(
        "claude",
        r#"cat > /dev/null
        case $FENCE_TRIGGER in
            inbox_message) for file in README LICENCE; do fence add "write $file" --tag "$file"; done ;;
        esac
        fence settle "$FENCE_RUN""#,
    );
    here.script(
        "codex",
        r#"file=$(grep -o '"write [A-Z]*' "$FENCE_TRIGGER_FILE" | cut -d' ' -f2)
        echo "$file of $(git branch --show-current)" > "$file"
        fence done --output "$file is there""#,
    );
    let scripts = scenario("crew");
    let [init, lead, workers, tell] = &scripts[..] else { panic!("{scripts:#?}") };
    let path = "PATH=\"$PWD:$PATH\"";
    let said = ended(bash(&here, init).spawn().expect("bash"));
    assert_eq!(said.code, 0, "{said:?}");
    let running =
        [lead, workers].map(|script| bash(&here, &format!("{path}; exec {script}")).spawn().expect("bash"));
    let told = ended(bash(&here, tell).spawn().expect("bash"));
    assert_eq!(told.code, 0, "{told:?}");
    // A task is merged after it is completed.
    let merged =
        |file: &str| here.sh(&format!("git show main:{file}")).out.starts_with(&format!("{file} of fence/"));
    eventually("both are merged", || ["README", "LICENCE"].into_iter().all(merged).then_some(()));
    eventually("the lead has seen both", || {
        let runs = here.ok(&["runs", "--all"]);
        (!runs.contains("alive") && runs.contains("tasks_finished")).then_some(())
    });
    for process in running {
        let id = Pid::from_raw(i32::try_from(process.id()).expect("an id")).expect("an id");
        kill_process(id, Signal::TERM).expect("it runs");
        let said = ended(process);
        assert!(said.code == 0 && said.out.contains(": joined as "), "{said:?}");
    }
    assert_eq!(here.ok(&["list", "--status", "completed"]).lines().count(), 2);
    here.ok(&["doctor"]);
}

/// The same port, the same server, and who is Slack is the reader.
#[test]
fn slack_reaches_an_inbox_as_the_guide_says() {
    let scripts = scenario("slack");
    let [serve, slack, rest] = &scripts[..] else { panic!("{scripts:#?}") };
    for here in [Sealed::sqlite(), Sealed::postgres()] {
        here.ok(&["init"]);
        // The port that it has by itself may be another's.
        let address = lasting_address();
        let stray = r#"fence call route/deliver '{"source":"slack","channel":"C024BE91L","delivery":"Ev2","text":"hello"}'"#;
        let script = [serve, slack, stray, rest].join("\n");
        let mut command = bash(&here, &listening(&script, &address));
        command.env("FENCE_LISTEN", &address);
        let said = ended(command.spawn().expect("bash"));
        assert_eq!(said.code, 0, "{said:?}");
        let times = |text: &str| said.out.matches(text).count();
        assert_eq!(times("\"outcome\":\"routed\",\"message\":1,\"agent\":\"ops\""), 1, "{said:?}");
        assert_eq!(times("\"outcome\":\"repeated\",\"message\":1"), 2, "{said:?}");
        assert_eq!(times("please deploy the API"), 1, "the poll's text: {said:?}");
        assert!(
            said.out.contains("inbox_message ops-") && said.out.contains("\nclaim: message/1@1\n"),
            "{said:?}"
        );
        assert!(
            said.out.contains("\nchannel: C024BE91L\n") && said.out.contains("\nthread: 1.0\n"),
            "{said:?}"
        );
        assert!(said.out.contains("1 routed, 0 match no route"), "{said:?}");
    }
}

#[test]
fn a_fleet_is_made_on_postgresql_as_the_guide_says() {
    let here = Sealed::postgres();
    let script = scenario("postgres").concat();
    let ours = script
        .replace("postgres://user:password@host/database?schema=fencepost&sslmode=verify-full", &here.url());
    assert_ne!(ours, script);
    let mut made = bash(&here, &format!("{ours}fence add 'write the parser'"));
    let made = ended(made.env_remove("FENCE_DB").spawn().expect("bash"));
    assert_eq!(made.code, 0, "{made:?}");
    assert!(here.ok(&["list"]).contains("write the parser"));
}

#[test]
fn a_fleet_moves_to_postgresql_as_the_guide_says() {
    let (here, there) = (Sealed::sqlite(), Sealed::postgres());
    here.ok(&["init"]);
    here.ok(&["add", "write the parser"]);
    let script = scenario("move").concat();
    let ours = script.replace("postgres://localhost/fence", &format!("'{}'", there.url()));
    assert_ne!(ours, script);
    let moved = ended(bash(&here, &ours).spawn().expect("bash"));
    assert_eq!(moved.code, 0, "{moved:?}");
    assert!(there.ok(&["list"]).contains("write the parser"));
}
