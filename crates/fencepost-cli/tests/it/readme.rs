//! The README's commands, run as written: a reader who copies them sees what it shows.

use crate::{
    on_both,
    sealed::{Finished, Sealed, eventually, finished, lasting_address},
};
use std::{
    net::TcpStream,
    process::{Child, Command, Stdio},
};

const README: &str = include_str!("../../../../README.md");
const SERVER: &str = include_str!("../../../../docs/server.md");

on_both! {
    fn the_readme_tells_the_truth(sealed: Sealed) {
        let steps = steps(README);
        assert!(steps.len() > 15, "only {} commands were found in the README", steps.len());
        for (command, expected) in steps {
            if command == "fence init" && sealed.server().is_some() {
                // It was made where it is served.
                continue;
            }
            let run = || sealed.sh(&format!("{{ {command}\n}} 2>&1"));
            if command.starts_with("fence events") {
                sealed.readable();
            }
            let said = run();
            assert!(
                matches(&expected, &said.out),
                "$ {command}\n--- the README says\n{expected}\n--- it said (exit {})\n{}",
                said.code,
                said.out
            );
        }
    }
}

/// `$ command` lines of console blocks, `> ` for their continuation, each with the output below it.
fn steps(readme: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            steps.push((command.into(), String::new()));
        } else if let (true, Some((command, output))) = (inside, steps.last_mut()) {
            match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) if output.is_empty() => command.extend(["\n", more]),
                _ => output.extend([line, "\n"]),
            }
        }
    }
    steps
}

/// `…` stands for anything on its line; a line that is only `…` for any lines.
pub fn matches(expected: &str, said: &str) -> bool {
    let expected: Vec<&str> = expected.trim_end().lines().map(str::trim_end).collect();
    let said: Vec<&str> = said.trim_end().lines().map(str::trim_end).collect();
    lines_match(&expected, &said)
}

fn lines_match(expected: &[&str], said: &[&str]) -> bool {
    match (expected, said) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=said.len()).any(|skip| lines_match(rest, &said[skip..])),
        ([first, rest @ ..], [line, more @ ..]) => line_matches(first, line) && lines_match(rest, more),
        _ => false,
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = "";
    let mut open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        (last, open) = (part, true);
    }
    rest.is_empty() || (open && last.is_empty())
}

#[test]
fn a_wrong_readme_would_be_noticed() {
    assert!(matches("held by run a until …\nb", "held by run a until 12:00\nb"));
    assert!(!matches("held by run a until …\nb", "held by run b until 12:00\nb"));
    assert!(!matches("a", "a\nb"));
    assert!(matches("a\n…", "a\nb\nc"));
    assert!(!matches("", "something"));
    assert_eq!(
        steps("```console\n$ a\nb\n$ c <<X\n> d\n> X\n```\n```sh\n$ no\n```"),
        [("a".into(), "b\n".into()), ("c <<X\nd\nX".into(), String::new())]
    );
}

/// The blocks of a section that are scripts, in order.
pub fn scripts(section: &str) -> Vec<&'static str> {
    blocks(section, "sh")
}

/// The blocks of a section that are of one kind, in order.
pub fn blocks(section: &str, kind: &str) -> Vec<&'static str> {
    blocks_of(README.split("\n## ").find(|text| text.starts_with(section)).expect("the section"), kind)
}

fn blocks_of(text: &'static str, kind: &str) -> Vec<&'static str> {
    let begins = format!("```{kind}\n");
    let blocks = text.split(&begins).skip(1);
    blocks.map(|rest| rest.split("```").next().expect("its end")).collect()
}

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
fn a_fleet_is_shared_between_machines_as_the_readme_says() {
    let scripts = scripts("Share a fleet between machines");
    let [first, server, client] = scripts[..] else { panic!("{scripts:#?}") };
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
    let [recipe] = blocks_of(SERVER, "sh")[..] else { panic!("{SERVER}") };
    let made = ended(bash(&here, &ours(recipe)).spawn().expect("bash"));
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

/// The same port, the same server, and who is Slack is the reader.
#[test]
fn slack_reaches_an_inbox_as_the_readme_says() {
    let scripts = scripts("From Slack and GitHub");
    let [serve, slack, rest] = scripts[..] else { panic!("{scripts:#?}") };
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
