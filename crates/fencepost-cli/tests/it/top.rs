//! `fence top`: the page, the JSON, and the live view in a real terminal.

use crate::{
    on_both,
    screen::Terminal,
    sealed::{Sealed, Serving, eventually, lasting_address, without_times},
    serve::{metrics, waiting},
};
use rustix::process::Signal;
use serde_json::{Value, json};

const SIZE: (usize, usize) = (130, 40);

/// One run works; one task failed, two wait behind it; two tasks wait for agents that are not there; a mailbox is paused.
fn busy(sealed: &Sealed) {
    sealed.ok(&["init"]);
    let commands = "
        add 'design the schema' --board auth
        add 'write the parser' --board auth --after auth-1
        add 'test the parser' --board auth --after auth-2
        --run r1 claim auth-1
        fail task/auth-1@1 --reason 'the network is down'
        add 'for an agent that is offline' --board ops
        add 'for an agent that nobody knows' --board ops
        agent join bob --max-concurrent 3
        agent join cy
        assign ops-1 cy
        assign ops-2 zed
        mail push box {}
        mail pause box --reason 'the disk is full'
        add 'build it' --board ops
        call agent/poll {\"agent\":\"bob\",\"run\":\"bob-1\",\"host\":\"build-1\",\"ttl_ms\":1800000}
    ";
    let shown = sealed.transcript(commands);
    assert!(!shown.contains("(exit "), "{shown}");
    sealed.sql("update agent set heard_until = 0 where name = 'cy'");
    sealed.readable();
}

on_both! {
    fn a_page_shows_what_runs_and_what_is_stuck(sealed: Sealed) {
        busy(&sealed);
        let said = sealed.ok(&["top"]);
        assert_eq!(said.lines().next(), sealed.ok(&["top", "--once"]).lines().next(), "no terminal, one page");
        let (first, rest) = said.split_once("\n\n").expect("a summary");
        assert!(first.starts_with("fence top  1 of 2 agents online  1 running  6 stuck  "), "{first}");
        insta::assert_snapshot!("top", without_times(rest));

        let json: Value = serde_json::from_str(&sealed.ok(&["--json", "top"])).expect("JSON");
        let stuck = |kind: &str, what: &str| (json!(kind), json!([what]));
        let found = json["stuck"].as_array().expect("a list").iter();
        let found: Vec<_> = found.map(|stuck| (stuck["kind"].clone(), stuck["what"].clone())).collect();
        assert_eq!(found, [
            stuck("failed", "auth-1"),
            stuck("blocked", "auth-2"),
            stuck("blocked", "auth-3"),
            stuck("stranded", "ops-1"),
            stuck("stranded", "ops-2"),
            stuck("paused", "box"),
        ]);
        let running = &json["running"][0];
        assert_eq!(
            [&running["run"], &running["agent"], &running["host"], &running["trigger"], &running["claims"][0]],
            ["bob-1", "bob", "build-1", "pool_task", "task/ops-3@1"]
        );
        assert_eq!(json["agents"][1]["state"], "offline");
        assert_eq!(json["events"].as_array().map(Vec::len), Some(10));
    }

    at once:
    /// Another process changes the fleet, and the view shows it without a key. Afterwards the terminal is as it was.
    fn the_view_follows_the_fleet_and_leaves_the_terminal_as_it_was(sealed: Sealed) {
        busy(&sealed);
        let mut terminal = Terminal::start(&sealed, SIZE, "fence top");
        let screen = terminal.shows("1 of 2 agents online");
        for text in ["bob-1", "task/ops-3@1", "pool_task", "waits for auth-1, which failed", "fence agent recall cy", "░░░"] {
            assert!(screen.contains(text), "{text}:\n{screen}");
        }
        // After a stop the shell has used the terminal, so all is drawn again.
        terminal.signal(Signal::STOP);
        terminal.signal(Signal::CONT);
        eventually("it is drawn again", || (terminal.raw().matches("\x1b[?1049h").count() == 2).then_some(()));
        terminal.shows("waits for auth-1, which failed");
        sealed.ok(&["settle", "bob-1"]);
        let screen = terminal.until("the run is over", |screen| {
            screen.contains("completed  task/ops-3@1") && screen.contains("0 running")
        });
        assert!(screen.contains("████"), "{screen}");
        sealed.ok(&["add", "\u{1b}]0;owned\u{7}\u{202e}\u{9b}2J", "--board", "late"]);
        let screen = terminal.shows("task/late-1");
        assert!(screen.contains(r"\u{1b}]0;owned\u{7}"), "{screen}");
        // Ctrl-Z does nothing.
        terminal.press("\x1a");
        terminal.press("q");
        assert_eq!(terminal.ended(&sealed), 0);

        let terminal = Terminal::start(&sealed, SIZE, "fence top");
        terminal.shows("agents online");
        terminal.signal(Signal::TERM);
        assert_eq!(terminal.ended(&sealed), 128 + 15);

        // A narrow terminal scrolls, and Ctrl-C ends it.
        let mut terminal = Terminal::start(&sealed, (40, 10), "fence top");
        terminal.until("the top", |screen| screen.contains("\nstuck") && !screen.contains("BOARD"));
        terminal.press("\x1b[F");
        terminal.until("the end", |screen| screen.contains("late   ░░░"));
        terminal.press("\x03");
        assert_eq!(terminal.ended(&sealed), 128 + 2);
    }
}

/// The calls that a server has answered.
fn calls(address: &str) -> u64 {
    let metrics = metrics(address);
    let counts = metrics.lines().filter(|line| line.starts_with("fence_ops_total{"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Times tick, and the fleet is not asked: the only call is the one that waits for news.
#[test]
fn an_idle_view_makes_no_calls() {
    let sealed = Sealed::served(Sealed::sqlite());
    busy(&sealed);
    let url = sealed.server().expect("a server");
    let address = url.trim_start_matches("http://");
    let mut terminal = Terminal::start(&sealed, SIZE, "fence top");
    terminal.shows("bob-1");
    eventually("it waits for news", || (waiting(address) == 1).then_some(()));
    let before = calls(address);
    let line = |screen: &str| screen.lines().find(|line| line.starts_with("bob-1")).map(str::to_owned);
    let mut seen = vec![line(&terminal.screen())];
    terminal.until("three seconds pass on the screen", |screen| {
        // From a minute on it counts minutes.
        let now = line(screen);
        seen.extend((seen.last() != Some(&now)).then_some(now));
        seen.len() > 3 || screen.contains("1m ago")
    });
    assert_eq!((waiting(address), calls(address)), (1, before), "{seen:?}");
    sealed.ok(&["add", "news", "--board", "late"]);
    terminal.shows("task/late-1");
    assert!(calls(address) > before + 5, "it reads again");
    terminal.press("q");
    assert_eq!(terminal.ended(&sealed), 0);
}

#[test]
fn a_server_that_goes_away_and_comes_back() {
    let world = Sealed::sqlite();
    busy(&world);
    let address = lasting_address();
    let mut server = Serving::start(&world, &["--listen", &address]);
    let there = world.over(&server.url);
    let mut terminal = Terminal::start(&there, SIZE, "fence top");
    terminal.shows("bob-1");
    server.kill();
    let screen = terminal.shows("does not answer");
    assert!(screen.contains("trying again") && screen.contains("bob-1"), "what was known stays:\n{screen}");
    world.ok(&["add", "meanwhile", "--board", "late"]);
    let _server = Serving::start(&world, &["--listen", &address]);
    terminal
        .until("it goes on", |screen| screen.contains("meanwhile") && !screen.contains("does not answer"));
    terminal.press("q");
    assert_eq!(terminal.ended(&there), 0);
}
