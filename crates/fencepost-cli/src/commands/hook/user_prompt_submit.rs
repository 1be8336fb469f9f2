//! A person answered: the run no longer waits for one.

use super::{Call, reply::Reply, session::Locked, soon};
use fencepost::{Result, run};

impl Call<'_> {
    pub(super) async fn user_prompt_submit(&self) -> Result<Reply> {
        let run = self.session_run();
        let mut locked = Locked::open(&run);
        if locked.session.is_waiting {
            let resumed = soon(self.fleet().await?.call(run::Wait { run, waiting: false })).await;
            locked.session.is_waiting = false;
            locked.save(self.context.terminal.now())?;
            resumed?;
        }
        Ok(Reply::Silent)
    }
}
