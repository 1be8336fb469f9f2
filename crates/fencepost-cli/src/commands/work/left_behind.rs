//! A worker that starts looks at what an earlier one left behind: it kills the processes, and gives the work back at once instead of
//! when the lease ends.

use super::worker::Worker;
use crate::{
    run_files::{RunFiles, State},
    supervise::watchdog,
    worktree::Finished,
};
use fencepost::{Code, Result, run};

impl Worker<'_> {
    pub async fn clean_up(&self) -> Result<()> {
        for files in RunFiles::all() {
            let ours = |state: &State| state.agent == self.agent && state.fleet == self.crew.fleet;
            let Some(state) = files.state().filter(ours).filter(State::is_left_behind) else { continue };
            state.kill(|group, run| watchdog::kill(group, Some(run)));
            // Only now: nobody may get the work while a process of the run lives.
            let end = run::End {
                run: state.run.clone(),
                reason: Some("its worker died".into()),
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
            self.leave_tree_of(&state).await?;
            files.set_state(&State { ended: Some("its worker died".into()), ..state })?;
        }
        Ok(())
    }

    /// Removes the work tree of a run that was left behind, if it holds no work.
    async fn leave_tree_of(&self, state: &State) -> Result<()> {
        let (Some(repository), Some(path)) = (&self.crew.repository, &state.tree) else { return Ok(()) };
        let Some(tree) = repository.open(path).await? else { return Ok(()) };
        if let Finished::Kept { path, why } = tree.finish(false).await? {
            let text = format!(
                "{}: the work tree of run {} is kept: {}; {why}",
                self.agent,
                state.run,
                path.display()
            );
            self.crew.report.notice_line(&text);
        }
        Ok(())
    }
}
