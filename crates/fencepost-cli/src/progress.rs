//! A line on long work, for whoever watches it on a terminal. Elsewhere, and with `--json`, there is none.

use crate::{
    out,
    screen::{self, cut},
};
use nix::sys::signal::{SigSet, Signal, raise};
use std::time::Duration;
use tokio::time::Instant;

/// Quick enough to look alive, seldom enough to cost nothing.
const EVERY: Duration = Duration::from_millis(100);

/// One line that is drawn over itself, and gone at the end.
#[derive(Debug)]
pub struct Progress {
    /// The width of the terminal, if there is one to draw on.
    width: Option<usize>,
    /// When it was drawn. Not the fleet's time: this is about how often a person's eye is troubled.
    drawn: Option<Instant>,
}

impl Progress {
    pub fn new(json: bool) -> Self {
        Self { width: out::error_width().filter(|_| !json), drawn: None }
    }

    /// Is there anybody to see it?
    pub fn is_seen(&self) -> bool {
        self.width.is_some()
    }

    /// Says how far it is, unless it has just been said.
    pub fn show(&mut self, line: impl FnOnce() -> String) {
        let Some(width) = self.width else { return };
        if self.drawn.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        // The last column stays free: some terminals go on to the next line once it is filled.
        out::draw(&cut(&screen::line(&line()), width.saturating_sub(1)));
        self.drawn = Some(Instant::now());
    }

    /// Takes the line away, for something that is to stay.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            out::draw("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// While this lives, an interrupt (Ctrl-C) takes the line away before it ends us. It ends us as ever: a shell that sees a
/// command exit after an interrupt, and not die of it, goes on with its script. A command that hears signals itself does
/// without.
#[derive(Debug)]
pub struct Tidy(Option<SigSet>);

impl Tidy {
    /// Threads that are started later must not hear the signal either, so this comes before the first call.
    pub fn new() -> Self {
        let interrupt = SigSet::from(Signal::SIGINT);
        let held_back = interrupt.thread_block().is_ok();
        if held_back {
            std::thread::spawn(move || {
                if interrupt.wait().is_ok() {
                    out::draw("");
                    let _ = interrupt.thread_unblock();
                    let _ = raise(Signal::SIGINT);
                }
            });
        }
        Self(held_back.then_some(interrupt))
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        let _ = self.0.as_ref().map(SigSet::thread_unblock);
    }
}
