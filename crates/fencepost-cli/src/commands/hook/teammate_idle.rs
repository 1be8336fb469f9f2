//! A teammate is about to go idle: it is offered the next task.

use super::{Call, quoted, reply::Reply};
use crate::session::Locked;
use fencepost::{Result, task};

impl Call<'_> {
    pub(super) async fn teammate_idle(&self) -> Result<Reply> {
        let fleet = self.fleet().await?;
        let ready = task::Ready { board: self.hook.board.clone(), agent: self.context.agent(), limit: None };
        let ready = fleet.call(ready).await?.tasks;
        let mut locked = Locked::open(&self.run(), self.deadline);
        // Each task once: a teammate that does not take it may go idle.
        let Some(task) = ready.into_iter().find(|task| !locked.session.offered.contains(&task.id)) else {
            return Ok(Reply::Silent);
        };
        locked.session.offered.push(task.id.clone());
        // Without the record it would be offered again and again.
        locked.save(self.context.terminal.now())?;
        let how = match self.hook.mcp {
            true => format!("The tool `claim` with the task {} takes it", task.id),
            false => format!("fence claim {} --keep --run NAME takes it, for a run of your own", task.id),
        };
        Ok(Reply::Offer(format!("fence: {} is ready: {}. {how}.", task.id, quoted(&task.title))))
    }
}
