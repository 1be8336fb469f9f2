//! The session is over: its claims are given back, also those of its subagents.

use super::{Call, quoted, reply::Reply};
use crate::session;
use fencepost::{Result, run};

impl Call<'_> {
    pub(super) async fn session_end(&self) -> Result<Reply> {
        // A named run may be used by others, and `fence work` settles its own.
        if self.context.is_run_named() {
            return Ok(Reply::Silent);
        }
        let now = self.context.terminal.now();
        let (fleet, session) = (self.fleet().await?, self.session_run());
        let here = self.context.location()?.absolute_url();
        let why = match &self.input.reason {
            Some(reason) => format!("the session ended ({})", quoted(reason)),
            None => "the session ended".to_owned(),
        };
        let claims =
            self.held(&fleet, &session, &session::known(std::slice::from_ref(&session), now).session).await?;
        self.release(&fleet, &claims, &why).await;
        session::given_back(&session, &here, &claims, now);
        let alive = fleet.call(run::List { limit: Some(1000), ..run::List::default() }).await?.runs;
        let subagents = format!("{session}.");
        let ours = alive.into_iter().map(|run| run.name);
        for name in ours.filter(|run| *run == session || run.starts_with(&subagents)) {
            let claims = super::claims(&fleet, std::slice::from_ref(&name)).await?;
            self.release(&fleet, &claims, &why).await;
            session::given_back(&name, &here, &claims, now);
            fleet.call(run::End { run: name, reason: Some(why.clone()), ..run::End::default() }).await?;
        }
        Ok(Reply::Silent)
    }
}
