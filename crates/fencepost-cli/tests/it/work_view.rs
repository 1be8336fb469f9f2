//! The live view of `fence work`, in a real terminal.

use crate::{
    on_both,
    running::{Running, until},
    screen::Terminal,
    sealed::Sealed,
    work::{WAITS, add, begun, begun_one, go, task},
};
use std::fs;

const SIZE: (usize, usize) = (130, 30);

on_both! {
    at once:
    /// Keys pause, resume, show a log and drain, and the terminal is as before.
    fn keys_act_on_the_workers(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 3);
        sealed.script("cmd", &format!("echo \"at work on $FENCE_CLAIM\"; {WAITS}"));
        let mut terminal = Terminal::start(&sealed, SIZE, "fence work --agent bob -- ./cmd");
        terminal.shows("at work on task/b-1@1");
        begun_one(&sealed);
        assert!(terminal.screen().starts_with("working  "), "{}", terminal.screen());
        terminal.press("p");
        terminal.until("it is paused, and its child runs on", |screen| {
            screen.starts_with("paused: paused in the view of fence work") && screen.contains("1 running")
        });
        go(&sealed);
        terminal.until("the child is done", |screen| screen.contains("1 done") && screen.contains("nothing runs now"));
        assert_eq!(sealed.fence(&["poll", "--agent", "bob"]).code, 6, "no new work");
        fs::remove_file(sealed.path().join("go")).expect("removed");
        terminal.press("p");
        terminal.until("it works again", |screen| {
            screen.starts_with("working  ") && screen.contains("bob: resumed") && screen.contains("at work on task/b-2@1")
        });
        until("the second child has begun", || begun(&sealed).len() == 2);

        // A pause by somebody else is shown, and stays.
        sealed.ok(&["agent", "pause", "bob", "--reason", "lunch"]);
        terminal.until("it is paused", |screen| screen.starts_with("paused: lunch  "));
        terminal.press("p");
        let screen = terminal.shows("fence agent resume bob lifts the pause");
        assert!(screen.starts_with("paused: lunch  "), "{screen}");
        sealed.ok(&["agent", "resume", "bob"]);
        terminal.until("it is resumed", |screen| screen.starts_with("working  "));

        terminal.press("l");
        terminal.until("the output is shown", |screen| {
            screen.contains("output of bob-") && screen.contains("\nat work on task/b-2@1") && screen.contains("esc close")
        });
        terminal.press("\x1b");
        terminal.shows("1 running");
        terminal.press("d");
        terminal.until("it drains", |screen| screen.starts_with("draining  "));
        go(&sealed);
        assert_eq!(terminal.ended(&sealed), 0);
        assert_eq!(task(&sealed, "b-2").0, "completed");
        assert_eq!(task(&sealed, "b-3"), ("unassigned".into(), 0, String::new()), "no new work");

        // The second q ends the child, and its work goes back.
        fs::remove_file(sealed.path().join("go")).expect("removed");
        let mut terminal = Terminal::start(&sealed, SIZE, "fence work --agent bob -- ./cmd");
        terminal.shows("at work on task/b-3@1");
        terminal.press("q");
        terminal.until("it drains", |screen| screen.starts_with("draining  "));
        terminal.press("q");
        assert_eq!(terminal.ended(&sealed), 0);
        assert_eq!(task(&sealed, "b-3"), ("unassigned".into(), 0, String::new()));
    }
}

/// A usage limit of one agent does not pause the others: only the paused one is named, and `p` lifts only its own pauses.
#[test]
fn some_agents_are_paused() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let mut terminal = Terminal::start(&sealed, SIZE, "fence work --agents 2 -- true");
    terminal.shows("exec-2: joined");
    sealed.ok(&["agent", "pause", "exec-2", "--reason", "usage limit"]);
    terminal.until("one is paused", |screen| screen.starts_with("working  exec-2 is paused: usage limit  "));
    terminal.press("p");
    terminal.until("all are paused", |screen| screen.starts_with("paused: paused in the view"));
    terminal.press("p");
    terminal.until("the first one works again", |screen| {
        screen.starts_with("working  exec-2 is paused: usage limit  ")
            && screen.contains("fence agent resume exec-2 lifts the pause")
    });
    terminal.press("q");
    assert_eq!(terminal.ended(&sealed), 0);
}

/// A job in the background of a terminal would be stopped if it touched the terminal's modes.
#[test]
fn a_job_in_the_background_prints_lines() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    add(&sealed, 1);
    sealed.script("jobs", "set -m; fence work --agent bob --count 1 -- true & wait $!; echo ended with $?");
    let said = Running::program(&sealed, "script", &["-qec", "bash ./jobs", "/dev/null"]).end().out;
    assert!(said.contains("b-1 task 1 done") && said.contains("ended with 0"), "{said}");
    assert!(!said.contains("\x1b[?1049h"), "{said:?}");
}
