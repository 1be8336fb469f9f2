//! The live view: the screen is drawn from the report, and keys act on the workers.

use super::Crew;
use crate::{
    environment::host,
    run_files::RunFiles,
    view::{
        Input, Screen,
        work::{self, Action, LogPane, WorkView},
    },
};
use fencepost::{Op, Result, agent};
use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use std::time::Duration;

/// Often enough for a last line of output that changes.
const REDRAW: Duration = Duration::from_millis(250);
/// How much of a log the pane reads.
const LOG_BYTES: u64 = 64 * 1024;

impl Crew<'_> {
    /// Shows the view until the terminal is gone. Signals reach the workers in their own way.
    pub async fn show(&self, screen: &mut Screen, agents: &[String]) -> Result<()> {
        let title = format!("fence work · {} · {}", agents.join(", "), self.shown);
        let mut view = WorkView { title, ..WorkView::default() };
        let mut redraw = tokio::time::interval(REDRAW);
        // Driven together with the input: keys work while the fleet does not answer.
        let mut calls = FuturesUnordered::new();
        loop {
            self.report.fill(&mut view, self.service.stop.is_draining());
            if let Some(log) = &mut view.log {
                log.lines = last_lines(&log.run);
            }
            screen.draw(|frame| work::draw(frame, &view))?;
            let input = tokio::select! {
                input = screen.next() => input,
                Some(()) = calls.next() => continue,
                _ = redraw.tick() => continue,
            };
            let Input::Key(key) = input else { continue };
            match work::key(&mut view, key) {
                Some(Action::OpenLog(run)) => view.log = Some(LogPane { run, ..LogPane::default() }),
                Some(Action::Drain) if self.service.stop.is_draining() => self.service.stop.end(None),
                Some(Action::Drain) => self.service.stop.drain(),
                Some(Action::Pause | Action::Resume) if !calls.is_empty() => {
                    self.report.note("the fleet has not answered yet");
                }
                Some(Action::Pause) => calls.extend(self.pauses()),
                Some(Action::Resume) => calls.extend(self.resumes()),
                Some(Action::CloseLog) | None => {}
            }
        }
    }

    /// Calls that pause the agents which are not paused.
    fn pauses(&self) -> Vec<LocalBoxFuture<'_, ()>> {
        let working = self.report.agents().into_iter().filter(|(_, pause)| pause.is_none());
        let pause = |(agent, _): (String, _)| {
            let reason = Some(pause_reason());
            let pause = agent::Pause { agent: Some(agent.clone()), reason, ..agent::Pause::default() };
            self.call(agent, pause).boxed_local()
        };
        working.map(pause).collect()
    }

    /// Calls that resume the agents which were paused here. A pause that somebody else or a usage limit set stays.
    fn resumes(&self) -> Vec<LocalBoxFuture<'_, ()>> {
        let paused = self.report.agents().into_iter().filter_map(|(agent, pause)| Some((agent, pause?)));
        let (ours, others): (Vec<_>, Vec<_>) =
            paused.partition(|(_, pause)| pause.reason.as_ref() == Some(&pause_reason()));
        for (agent, _) in others {
            self.report
                .note(&format!("{agent}: not paused here; fence agent resume {agent} lifts the pause"));
        }
        let resume = |(agent, _): (String, _)| {
            let resume = agent::Resume { agent: Some(agent.clone()), ..agent::Resume::default() };
            self.call(agent, resume).boxed_local()
        };
        ours.into_iter().map(resume).collect()
    }

    /// Makes a call for an agent. Its worker reports the event that follows.
    async fn call<O: Op>(&self, agent: String, op: O) {
        if let Err(error) = self.service.as_agent(&agent).connection.call(op).await {
            self.report.note(error.message());
        }
    }
}

/// The reason of a pause that was made in the view of this process, and of no other pause.
fn pause_reason() -> String {
    format!("paused in the view of fence work, process {} on {}", std::process::id(), host())
}

/// The end of a run's log, by lines.
fn last_lines(run: &str) -> Vec<String> {
    let Some(mut log) = RunFiles::find(run).and_then(|files| files.log()) else { return Vec::new() };
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    if log.seek_to_last(LOG_BYTES).is_err() {
        return Vec::new();
    }
    while let Ok(n @ 1..) = log.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..n]);
    }
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}
