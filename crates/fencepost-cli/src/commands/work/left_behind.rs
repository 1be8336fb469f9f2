//! A worker that starts looks at what an earlier one left behind: it kills the processes, and gives the work back at once instead of
//! when the lease ends.

use super::worker::Worker;
use crate::{
    environment::host,
    names::unique,
    run_files::{RunFiles, State},
    supervise::watchdog,
    worktree::{Finished, Opened},
};
use fencepost::{Code, Result, run, task};
use std::path::Path;

/// How such a run ended.
const DIED: &str = "its worker died";

impl Worker<'_> {
    pub async fn clean_up(&self) -> Result<()> {
        for files in RunFiles::all() {
            let ours = |state: &State| state.agent == self.agent && state.fleet == self.crew.fleet;
            let Some(mut state) = files.state().filter(ours) else { continue };
            if state.is_left_behind() {
                self.end_left_behind(&state).await?;
                state.ended = Some(DIED.into());
                files.set_state(&state)?;
            }
            // The tree may also be one that an earlier worker could not look at.
            if state.ended.as_deref() == Some(DIED)
                && let Some(tree) = &state.tree
            {
                match self.leave_tree_of(&state, tree).await {
                    Ok(true) => files.set_state(&State { tree: None, ..state })?,
                    Ok(false) => {}
                    // One tree is no reason not to start.
                    Err(error) => self.service.warn(&error),
                }
            }
        }
        Ok(())
    }

    async fn end_left_behind(&self, state: &State) -> Result<()> {
        state.kill(|group, run| watchdog::kill(group, Some(run)));
        // Only now: nobody may get the work while a process of the run lives.
        let end = run::End {
            run: state.run.clone(),
            reason: Some(DIED.into()),
            // The work did not fail, so its attempt does not count.
            owner_gone: true,
            ..run::End::default()
        };
        match self.service.call_until_answered(end).await {
            Ok(ended) => self.crew.report.left_behind(&self.agent, &ended.run),
            // Its lease ended long ago, or it got no trigger.
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes the work tree of a run that was left behind, if it holds no work, and says so otherwise. False if it is for another
    /// worker to do: this one has no work trees, or those of another repository.
    async fn leave_tree_of(&self, state: &State, path: &Path) -> Result<bool> {
        if !path.exists() {
            return Ok(true);
        }
        let Some(repository) = &self.crew.repository else { return Ok(false) };
        let why = match repository.open(path).await? {
            Opened::Unknown => return Ok(false),
            // The next attempt has taken it over.
            Opened::InUse => return Ok(true),
            Opened::Broken => "it is not complete".into(),
            Opened::Ready(tree) => match tree.finish(false).await? {
                Finished::Removed => return Ok(true),
                Finished::Kept { why, .. } => why,
            },
        };
        let text = format!("{} on {}; {why}", path.display(), host());
        self.crew.report.notice_line(&format!("{}: {}", self.agent, kept(&state.run, &text)));
        if let Some(task) = state.task() {
            self.note_kept(task, &state.run, &text).await;
        }
        Ok(true)
    }

    /// Says in the notes of a task that the work tree of a run is kept.
    pub async fn note_kept(&self, task: &str, run: &str, text: &str) {
        let note = task::Note { task: task.into(), text: kept(run, text), request: Some(unique("")) };
        if let Err(error) = self.service.call_until_answered(note).await {
            self.service.warn(&error);
        }
    }
}

fn kept(run: &str, text: &str) -> String {
    format!("the work tree of {run} is kept: {text}")
}
