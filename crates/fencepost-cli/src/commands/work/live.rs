//! The live view: the screen is drawn from the report, and keys act on the workers.

use super::Crew;
use crate::{
    run_files::RunFiles,
    view::{
        Input, Screen,
        work::{self, Action, LogPane, WorkView},
    },
};
use fencepost::{Result, agent};
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
        loop {
            self.report.fill(&mut view, self.service.stop.is_draining());
            if let Some(log) = &mut view.log {
                log.lines = last_lines(&log.run);
            }
            screen.draw(|frame| work::draw(frame, &view))?;
            let input = tokio::select! {
                input = screen.next() => input,
                _ = redraw.tick() => continue,
            };
            if let Input::Key(key) = input
                && let Some(action) = work::key(&mut view, key)
            {
                self.act(action, &mut view, agents).await;
            }
        }
    }

    async fn act(&self, action: Action, view: &mut WorkView, agents: &[String]) {
        match action {
            Action::OpenLog(run) => view.log = Some(LogPane { run, ..LogPane::default() }),
            Action::CloseLog => {}
            Action::Drain if self.service.stop.is_draining() => self.service.stop.end(None),
            Action::Drain => self.service.stop.drain(),
            Action::Pause | Action::Resume => {
                for agent in agents {
                    let service = self.service.as_agent(agent);
                    let agent = Some(agent.clone());
                    let answer = match action {
                        Action::Pause => {
                            let reason = Some("paused in the view of fence work".into());
                            let pause = agent::Pause { agent, reason, ..agent::Pause::default() };
                            service.connection.call(pause).await.map(drop)
                        }
                        _ => {
                            let resume = agent::Resume { agent, ..agent::Resume::default() };
                            service.connection.call(resume).await.map(drop)
                        }
                    };
                    if let Err(error) = answer {
                        self.report.notice(error.message());
                    }
                }
            }
        }
    }
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
