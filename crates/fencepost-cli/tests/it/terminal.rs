//! Output that only a terminal gets, and the help of every command.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
};
use std::{
    io::{Read, Write},
    process::Stdio,
    sync::{Arc, Mutex},
};

/// Runs a command on a pseudo terminal of this width, and shows its escapes.
fn on_a_terminal(sealed: &Sealed, columns: usize, command: &str) -> String {
    let size = format!("stty cols {columns} rows 24");
    let said = sealed.sh(&format!("script -qec '{size}; {command}' /dev/null < /dev/null"));
    said.out.replace('\r', "").replace('\x1b', "^")
}

/// The text without colours.
fn plain(shown: &str) -> String {
    let mut parts = shown.split("^[");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once(['m', 'K']).map_or(part, |(_, text)| text));
    first + &rest.collect::<String>()
}

on_both! {
    fn tables_fit_times_are_relative_and_states_have_colours(sealed: Sealed) {
        sealed.ok(&["init"]);
        let commands = "
            add 'design the whole schema, with every table, index and view that there will ever be' --board auth
            add 'write the parser' --board auth --after auth-1
            add 'given up' --board auth
            claim auth-1
            cancel auth-3
        ";
        sealed.transcript(commands);
        let shown = [60, 100].map(|columns| on_a_terminal(&sealed, columns, "fence list; fence board show auth"));
        // A moment later the half hour shows as 29 minutes.
        let shown = shown.join("\n\n").replace("30m", "29m");
        insta::assert_snapshot!("terminal", shown);
        let claims = on_a_terminal(&sealed, 80, "fence claims");
        assert!(claims.contains("s ago  in ") && !claims.contains("Z"), "{claims}");
        assert!(!on_a_terminal(&sealed, 80, "NO_COLOR=1 fence list").contains('^'), "no colour was asked for");
        let shown = on_a_terminal(&sealed, 80, "fence wait auth-1 --timeout 2s");
        assert!(shown.contains("^[Kwaiting 0s: 0 completed, 0 failed, 0 cancelled, 1 open"), "{shown}");
    }

    /// A waiting command shows the reason on a terminal. The line is removed at the end, and there is none elsewhere.
    fn waiting_shows_the_reason(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held", "--board", "a"]);
        sealed.ok(&["--run", "other", "--agent", "kim", "claim", "a-1"]);
        sealed.ok(&["--agent", "bob", "agent", "join"]);
        let held = "task `a-1` is held by run `other` (agent kim) until ";
        for (command, says) in [
            ("claim a-1", held),
            ("claim --board a", "nothing is ready on board `a`"),
            ("mail claim box", "nothing is ready in mailbox `box`"),
            ("mail take box", "nothing is ready in mailbox `box`"),
            ("poll --agent bob --pool off", "nothing to do for agent bob"),
        ] {
            let shown = on_a_terminal(&sealed, 120, &format!("fence {command} --wait 10ms"));
            let line = format!("^[Kwaiting 0s: {says}");
            assert!(shown.contains(&line), "fence {command}: {shown}");
            let (_, after) = shown.rsplit_once("waiting ").expect("the line");
            assert!(after.contains("^[K"), "it is taken away: {shown}");
            let json = on_a_terminal(&sealed, 120, &format!("fence --json {command} --wait 10ms"));
            assert!(!json.contains("waiting "), "{json}");
            let words: Vec<&str> = command.split(' ').chain(["--wait", "10ms"]).collect();
            let said = sealed.fence(&words);
            assert!(!said.err.contains("waiting "), "{said:?}");
        }
        let lock = "fence lock x -- fence lock x --wait=10ms -- true";
        let shown = on_a_terminal(&sealed, 120, lock);
        assert!(shown.contains("^[Kwaiting 0s: lock `x` is held by run `lock-"), "{shown}");
    }

    /// Ctrl-C removes the line, and the process dies of the signal, as shells expect.
    fn an_interrupt_leaves_a_clean_line(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held"]);
        sealed.ok(&["--run", "other", "claim", "main-1"]);
        let script = "script -qec 'stty cols 80 rows 24; trap : INT; fence claim main-1 --wait 1h; echo died of $?' /dev/null";
        // A shell ignores INT in background jobs, and `trap` cannot undo that.
        let mut child = sealed.command("env");
        child.args(["--default-signal=INT", "bash", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("bash");
        let (mut keys, mut out) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
        // A thread reads, so that waiting for a text has a limit.
        let shown = Arc::new(Mutex::new((String::new(), false)));
        let all = shown.clone();
        let reads = std::thread::spawn(move || {
            let mut some = [0; 1024];
            while let Some(n) = out.read(&mut some).ok().filter(|n| *n > 0) {
                all.lock().expect("not poisoned").0.push_str(&String::from_utf8_lossy(&some[..n]));
            }
            all.lock().expect("not poisoned").1 = true;
        });
        let read = |until: &str| {
            eventually(until, || {
                let shown = shown.lock().expect("not poisoned");
                (shown.1 || shown.0.contains(until)).then(|| shown.0.clone())
            })
        };
        assert!(read("waiting 0s: task `main-1` is held").contains("held"));
        keys.write_all(b"\x03").expect("typed");
        let shown = read("died of ");
        let (_, after) = shown.rsplit_once("waiting ").expect("the line");
        assert!(after.contains("\r\x1b[K"), "{shown:?}");
        drop(keys);
        let shown = read("\u{0}");
        assert!(shown.contains("died of 130"), "{shown:?}");
        child.wait().expect("its end");
        reads.join().expect("no panic");
    }
}

/// No line is wider than the terminal, however long the names are, and names that a person types next are complete.
#[test]
fn nothing_overruns_a_narrow_terminal() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let title = "design the whole schema, with every table, index and view that there will ever be";
    sealed.transcript(&format!(
        "
        add '{title}' --board authentication --tag rust
        add '{title}' --board authentication --after authentication-1
        add '{title}' --board authentication --after authentication-1 --after authentication-2
        add '{title}' --board a-board-with-quite-a-long-name
        agent join a-worker-with-a-long-name --capability rust --capability sql --max-concurrent 3
        agent join lead --role lead
        --run a-run-with-a-name-that-is-long --agent a-worker-with-a-long-name claim authentication-1
        claim a-board-with-quite-a-long-name-1
        park authentication-2 --reason '{title}'
        assign authentication-3 a-worker-with-a-long-name
        progress '{title}'
        mail push a-mailbox/with/a/long/name '{{\"tool\": 1}}' --type a_tool_that_is_used
        mail push other/mailbox '{{}}'
        mail claim a-mailbox/with/a/long/name
        mail pause other/mailbox --reason '{title}'
        inbox send a-worker-with-a-long-name '{title}' --source slack --sender kim --channel operations
        channel create a-channel-with-a-long-name --description '{title}'
        --agent lead channel join a-channel-with-a-long-name
        --agent lead channel post a-channel-with-a-long-name '@a-worker-with-a-long-name {title}'
        route add slack --text deploy --channel operations --to a-worker-with-a-long-name
        key add a-key-with-a-name-that-is-long --role agent --agent a-worker-with-a-long-name
        add short --board other
        --run ended-run-with-a-long-name claim other-1
        end ended-run-with-a-long-name --reason '{title}'
        poll --agent a-worker-with-a-long-name
    "
    ));
    std::fs::write(sealed.path().join("fence.toml"), "agent = \"a-worker-with-a-long-name\"\n")
        .expect("written");
    sealed.ok(&["trust"]);
    let commands = [
        ("status", &["task/a-board-with-quite-a-long-name-1@1"][..]),
        ("list", &["authentication-1", "authentication-3", "a-board-with-quite-a-long-name-1"]),
        ("ready", &[]),
        ("claims", &["task/authentication-1@1", "task/a-board-with-quite-a-long-name-1@1", "message/1@1"]),
        ("runs --all", &["a-run-with-a-name-that-is-long"]),
        ("board", &["authentication", "a-board-with-quite-a-long-name"]),
        ("board show authentication", &["authentication-1", "authentication-2", "authentication-3"]),
        ("agent", &["a-worker-with-a-long-name"]),
        ("mail", &["a-mailbox/with/a/long/name", "other/mailbox"]),
        ("mail stats other/mailbox", &["other/mailbox"]),
        ("mail list", &[]),
        ("mail show 1", &[]),
        ("inbox --agent a-worker-with-a-long-name", &[]),
        ("channel", &["a-channel-with-a-long-name"]),
        ("channel unread --agent a-worker-with-a-long-name", &["a-channel-with-a-long-name"]),
        ("route", &[]),
        ("key", &["a-key-with-a-name-that-is-long"]),
        ("config", &[]),
        ("trust --list", &[]),
        ("doctor", &[]),
        (
            "top --once",
            &["a-run-with-a-name-that-is-long", "a-board-with-quite-a-long-name", "other/mailbox"],
        ),
        ("whoami", &[]),
        ("why authentication-2", &["authentication-2"]),
        ("show authentication-1", &["authentication-1"]),
        ("log authentication-1", &["authentication-1"]),
        ("events --limit 100", &["task/authentication-1@1", "run/ended-run-with-a-long-name"]),
        ("--help", &[]),
        ("mail work --help", &[]),
        ("claim --nonsense-that-nobody-ever-heard-of", &[]),
    ];
    let all = commands.map(|(command, _)| format!("echo \"=== {command}\"; FENCE_RUN=me fence {command}"));
    sealed.script("all.sh", &all.join("\n"));
    for columns in [100, 60, 40] {
        let shown = plain(&on_a_terminal(&sealed, columns, "./all.sh"));
        let pages: Vec<&str> = shown.split("=== ").skip(1).collect();
        assert_eq!(pages.len(), commands.len());
        for (page, (command, whole)) in pages.iter().zip(commands) {
            let lines = page.lines().skip(1);
            assert!(lines.clone().count() > 0, "fence {command} shows nothing");
            for line in lines {
                // A path or a name that is longer than the line is alone on its line.
                let alone = !line.trim().contains(' ') && line.trim().len() > columns - 24;
                assert!(
                    line.chars().count() <= columns || alone,
                    "fence {command} at {columns}:\n{line}\n\n{page}"
                );
            }
            for name in whole {
                assert!(page.contains(name), "fence {command} at {columns}: {name} is cut\n{page}");
            }
        }
    }
}

/// Colours are used only on a terminal, and not with NO_COLOR.
#[test]
fn errors_warnings_and_hints_have_colours() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "x"]);
    let (error, hint) = ("^[1m^[31merror:^[0m ", "^[36mhint:^[0m ");
    let shown =
        on_a_terminal(&sealed, 80, "fence show main-9; fence claim --board main --ttl 5s; fence claim");
    assert!(shown.contains(error) && shown.contains(hint), "{shown}");
    assert!(on_a_terminal(&sealed, 80, "fence shwo").contains("31merror:"), "so has what clap says");
    std::fs::write(sealed.path().join("fence.toml"), "agent = \"kim\"\n").expect("written");
    let shown = on_a_terminal(&sealed, 80, "fence list");
    assert!(shown.contains("^[1m^[33mwarning:^[0m "), "{shown}");
    let shown = on_a_terminal(&sealed, 80, "NO_COLOR=1 fence show main-9");
    assert!(shown.contains("error: ") && !shown.contains('^'), "{shown}");
    let said = sealed.fence(&["show", "main-9"]);
    assert!(
        !said.err.contains('\x1b') && said.err.contains("error: ") && said.err.contains("hint: "),
        "{said:?}"
    );
}

/// The help is a snapshot, so that every change is deliberate.
#[test]
fn every_command_has_help() {
    let sealed = Sealed::sqlite();
    let help = sealed.ok(&["--help"]);
    let names: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once("  "))
        .map(|(name, _)| name.trim())
        .collect();
    let names: Vec<&str> = names
        .into_iter()
        .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let mut shown = help.clone();
    for name in &names {
        let help = sealed.ok(&[name, "--help"]);
        let (own, global) = help.split_once("Everywhere:").expect("what holds everywhere");
        assert!(global.contains("--json"), "{name}");
        // Every argument is explained, in the same line or in the next.
        let lines: Vec<&str> = own.lines().collect();
        for pair in lines
            .windows(2)
            .filter(|pair| ["<", "[", "-"].iter().any(|mark| pair[0].trim_start().starts_with(mark)))
        {
            let explained = pair[0].trim().contains("  ") || !pair[1].trim().is_empty();
            assert!(
                explained
                    || ["default: ", "possible values: ", "env: "].iter().any(|word| pair[0].contains(word)),
                "fence {name} has something without a word on it: {}",
                pair[0]
            );
        }
        shown.push_str(&format!("\n\n=== fence {name}\n{}", own.trim_end()));
    }
    insta::assert_snapshot!("help", shown);
}
