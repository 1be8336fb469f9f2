//! A worker that starts looks at what an earlier one left behind: it kills the processes, and gives the work back at once instead of
//! when the lease ends.

use super::worker::Worker;
use crate::{
    run_files::{RunFiles, State},
    supervise::watchdog,
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
            files.set_state(&State { ended: Some("its worker died".into()), ..state })?;
        }
        Ok(())
    }
}
