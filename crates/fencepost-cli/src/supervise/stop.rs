//! Stopping in two stages: first no more is claimed, then running commands are ended.

use rustix::process::Signal;
use std::cell::Cell;
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Working,
    Draining,
    Ending,
}

#[derive(Debug)]
pub struct Stop {
    stage: watch::Sender<Stage>,
    ended_by: Cell<Option<Signal>>,
}

impl Default for Stop {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Working), ended_by: Cell::new(None) }
    }
}

impl Stop {
    /// Stops claiming.
    pub fn drain(&self) {
        self.reach(Stage::Draining);
    }

    /// Ends running commands, because of this signal or for another reason.
    pub fn end(&self, by: Option<Signal>) {
        self.ended_by.set(by);
        self.reach(Stage::Ending);
    }

    pub fn is_draining(&self) -> bool {
        *self.stage.borrow() >= Stage::Draining
    }

    pub fn is_ending(&self) -> bool {
        *self.stage.borrow() >= Stage::Ending
    }

    pub fn ended_by(&self) -> Option<Signal> {
        self.ended_by.get()
    }

    pub async fn draining(&self) {
        self.reached(Stage::Draining).await;
    }

    pub async fn ending(&self) {
        self.reached(Stage::Ending).await;
    }

    /// Moves to a later stage, and never back.
    fn reach(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let further = *now < stage;
            if further {
                *now = stage;
            }
            further
        });
    }

    async fn reached(&self, stage: Stage) {
        // The sender is part of this value, so it cannot be gone.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }
}
