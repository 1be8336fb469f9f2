//! A person answered: the run no longer waits for one, and the agent is told what happened meanwhile.

use super::{Call, reply::Reply};
use fencepost::Result;

impl Call<'_> {
    pub(super) async fn user_prompt_submit(&self) -> Result<Reply> {
        self.news().await
    }
}
