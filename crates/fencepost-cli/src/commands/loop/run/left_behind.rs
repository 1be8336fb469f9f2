//! A chain that starts looks at what an earlier one on this machine left behind when it died: it kills the processes and ends the run,
//! so that the story comes back at once and not when its lease ends.

use super::{Chain, owner};
use crate::{run_files::RunFiles, supervise::watchdog};
use fencepost::{Code, Result, run};

impl Chain<'_> {
    pub async fn end_left_behind(&self, fleet: &str) -> Result<()> {
        for files in RunFiles::all() {
            let Some(mut state) = files.state() else { continue };
            if state.agent != owner(&self.id) || state.fleet != fleet || !state.is_left_behind() {
                continue;
            }
            state.kill(|group, run| watchdog::kill(group, Some(run)));
            // Only now: nobody may get the story while a process of that chain lives. The attempt counts: it may have died of it.
            let end = run::End {
                run: state.run.clone(),
                reason: Some("its chain died".into()),
                ..run::End::default()
            };
            match self.service.call_until_answered(end).await {
                Ok(_) => self.report.note("plan", "resumed", &format!("run {} had died", state.run)),
                // Its lease ended long ago, or it held nothing.
                Err(error) if error.code() == Code::NotFound => {}
                Err(error) => return Err(error),
            }
            state.ended = Some("its chain died".into());
            files.set_state(&state)?;
        }
        RunFiles::prune();
        Ok(())
    }
}
