//! A line that shows the progress of long work on a terminal. Elsewhere, and with `--json`, there is none.

use super::{
    streams,
    text::{self, cut},
};
use nix::sys::signal::{SigSet, Signal, raise};
use std::time::Duration;
use tokio::time::Instant;

/// Often enough to look alive, seldom enough to cost nothing.
const EVERY: Duration = Duration::from_millis(100);

/// One line that is drawn over itself, and removed at the end.
#[derive(Debug)]
pub struct Progress {
    /// The width of the terminal; `None` if there is none.
    width: Option<usize>,
    /// When the line was drawn last. This is real time and not the fleet's: it limits how often the line changes.
    drawn: Option<Instant>,
}

impl Progress {
    pub fn new(json: bool) -> Self {
        Self { width: streams::error_width().filter(|_| !json), drawn: None }
    }

    /// Is there a terminal to draw on?
    pub fn is_visible(&self) -> bool {
        self.width.is_some()
    }

    /// Draws the line, but not more often than ten times a second.
    pub fn show(&mut self, line: impl FnOnce() -> String) {
        let Some(width) = self.width else { return };
        if self.drawn.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        // The last column stays free: some terminals begin a new line once it is filled.
        streams::draw(&cut(&text::line(&line()), width.saturating_sub(1)));
        self.drawn = Some(Instant::now());
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            streams::draw("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// While this value lives, an interrupt (Ctrl-C) removes the line before it kills this process. The process still dies of the
/// signal: a shell goes on with its script after a command that handles an interrupt and exits. Commands that handle signals
/// themselves do not need it.
#[derive(Debug)]
pub struct ClearOnInterrupt(Option<SigSet>);

impl ClearOnInterrupt {
    /// Threads that are started later must block the signal, too, so this comes before the first call.
    pub fn new() -> Self {
        let interrupt = SigSet::from(Signal::SIGINT);
        let is_blocked = interrupt.thread_block().is_ok();
        if is_blocked {
            std::thread::spawn(move || {
                if interrupt.wait().is_ok() {
                    streams::draw("");
                    let _ = interrupt.thread_unblock();
                    let _ = raise(Signal::SIGINT);
                }
            });
        }
        Self(is_blocked.then_some(interrupt))
    }
}

impl Drop for ClearOnInterrupt {
    fn drop(&mut self) {
        let _ = self.0.as_ref().map(SigSet::thread_unblock);
    }
}
