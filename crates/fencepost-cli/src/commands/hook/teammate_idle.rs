//! A teammate is about to go idle: it is offered the next task.

use super::{Call, reply::Reply, session::quoted, soon};
use fencepost::{Result, task};

impl Call<'_> {
    pub(super) async fn teammate_idle(&self) -> Result<Reply> {
        let fleet = self.fleet().await?;
        let ready =
            task::Ready { board: self.hook.board.clone(), agent: self.context.agent(), limit: Some(1) };
        let Some(task) = soon(fleet.call(ready)).await?.tasks.into_iter().next() else {
            return Ok(Reply::Silent);
        };
        let how = match self.hook.mcp {
            true => format!("The tool `claim` with the task {} takes it", task.id),
            false => format!("fence claim {} --keep --run NAME takes it, for a run of your own", task.id),
        };
        Ok(Reply::Offer(format!("fence: {} is ready: {}. {how}.", task.id, quoted(&task.title))))
    }
}
