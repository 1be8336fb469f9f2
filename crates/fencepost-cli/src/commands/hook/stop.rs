//! The agent stops. Without a person it must first finish what it holds; with one, its claims wait for the person.

use super::{Call, Event, alive, reply::Reply, tokens};
use crate::{
    environment::variable,
    identity,
    session::{self, Fleet, Locked, Session},
};
use fencepost::{Result, claim, run};

impl Call<'_> {
    pub(super) async fn stop(&self, event: Event) -> Result<Reply> {
        if event == Event::SubagentStop && self.input.agent_id.is_none() {
            return Ok(Reply::Silent);
        }
        let (fleet, run) = (self.fleet().await?, self.run());
        let mut locked = Locked::open(&run, self.deadline);
        let claims = self.held(&fleet, &run, &locked.session).await?;
        if claims.is_empty() {
            return Ok(Reply::Silent);
        }
        let is_subagent = event == Event::SubagentStop;
        if !is_subagent && !self.is_headless() {
            // A run that the session named may not have begun.
            let _ = fleet.call(run::Wait { run, waiting: true }).await;
            locked.session.is_waiting = true;
            locked.save(self.context.terminal.now())?;
            return Ok(Reply::Silent);
        }
        let held: Vec<String> = claims.iter().map(|claim| claim.token.clone()).collect();
        // Once for the same claims: an agent that cannot finish must be able to stop.
        if self.input.stop_hook_active || locked.session.stop_refused == held {
            if is_subagent && !self.context.is_run_named() {
                self.release(&fleet, &claims, "its subagent stopped").await;
                drop(locked);
                let here = self.context.location()?.absolute_url();
                session::given_back(&self.run(), &here, &claims, self.context.terminal.now());
            }
            return Ok(Reply::Silent);
        }
        locked.session.stop_refused = held;
        // Without the file the client's own mark has to do: `stop_hook_active`.
        let _ = locked.save(self.context.terminal.now());
        let how = match self.hook.mcp {
            true => "Complete it, fail it or give it back with the tool `finish`",
            false => {
                "Complete it (fence done), fail it (fence fail --reason WHY) or give it back (fence release --note HOW_FAR)"
            }
        };
        Ok(Reply::GoOn(format!("fence: you still hold {}. {how}, then stop.", tokens(&claims))))
    }

    /// The live claims of a run, and those that the session made for other runs.
    pub(super) async fn held(
        &self,
        fleet: &Fleet,
        run: &str,
        session: &Session,
    ) -> Result<Vec<claim::Claim>> {
        let mut claims = super::claims(fleet, &[run.to_owned()]).await?;
        let here = self.context.location()?.absolute_url();
        for held in session.held.iter().filter(|held| held.fleet == here) {
            let known = claims.iter().any(|claim| claim.token == held.token);
            claims.extend(if known { None } else { alive(fleet, &held.token).await? });
        }
        Ok(claims)
    }

    /// Gives claims back, as far as that works.
    pub(super) async fn release(&self, fleet: &Fleet, claims: &[claim::Claim], why: &str) {
        for claim in claims {
            let note = Some(format!("given back: {why}"));
            let _ = fleet.call(claim::Release { token: claim.token.clone(), note }).await;
        }
    }

    /// Does no person look at the session?
    fn is_headless(&self) -> bool {
        // A worker started it.
        if self.context.is_run_named() {
            return true;
        }
        match self.hook.client.as_str() {
            "claude" => variable("CLAUDE_CODE_ENTRYPOINT").is_some_and(|entry| entry.starts_with("sdk")),
            "codex" => identity::client().is_some_and(|client| client.has_argument("exec")),
            _ => false,
        }
    }
}
