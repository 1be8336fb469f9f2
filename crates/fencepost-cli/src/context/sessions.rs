//! The records of the agent's session that the process belongs to.

use super::Context;
use crate::{
    environment::variable,
    identity::{self, Identity, Reason},
    session::{self, Deadline, Held, Locked, Sessions},
};
use fencepost::{Clock, Result, claim::Claim};
use serde_json::Value;

impl Context {
    /// The runs whose records count for a process in an agent's session, the innermost first: a run that was named, a subagent, the
    /// session. None for a person.
    pub fn session_runs(&self) -> Vec<String> {
        let (own, session) = (self.identity(), self.session());
        let mut runs = Vec::new();
        if session.reason.is_agent() {
            runs.extend(identity::with_session(&own.run));
            runs.extend(identity::with_session(&session.run).into_iter().filter(|run| *run != own.run));
        }
        let session = runs.last().cloned();
        // A subagent and its run both name the session: it counts once, and last.
        runs.retain(|run| Some(run) != session.as_ref());
        runs.into_iter().chain(session).collect()
    }

    /// The runs in whose records a claim of this process is remembered. A subagent stands for itself. If a client was started for a run,
    /// its hooks act for that one, and a claim for a run that a command names is its session's, too.
    pub fn records(&self) -> Vec<String> {
        let own = self.identity();
        let session = self.session();
        match (own.reason.is_agent(), session.reason.is_agent(), &own.reason) {
            (true, ..) => vec![own.run.clone()],
            (false, true, Reason::Variable) => vec![own.run.clone(), session.run],
            (false, true, _) => vec![session.run],
            (false, false, _) => Vec::new(),
        }
    }

    /// The agent's session that this process belongs to, or its subagent, which the client's hook names by `FENCE_RUN`; whatever run a flag
    /// names.
    fn session(&self) -> Identity {
        let named = match self.named_run() {
            Some(_) => identity::identify(None, variable(identity::RUN)),
            None => self.identity().clone(),
        };
        if named.reason.is_agent() { named } else { identity::identify(None, None) }
    }

    /// Remembers claims that a command of an agent's session made, perhaps for another run: the hooks of the session look after them.
    pub fn remember(&self, claims: &[Claim]) {
        for run in self.records() {
            self.remember_for(&run, claims);
        }
    }

    /// The same for a session whose run is known.
    pub fn remember_for(&self, run: &str, claims: &[Claim]) {
        let Ok(location) = self.location() else { return };
        if claims.is_empty() {
            return;
        }
        // A server of MCP began long ago.
        let (fleet, now) = (location.absolute_url(), Clock::System.read());
        let held = claims.iter().map(|claim| Held::confirmed(claim, &fleet, now)).collect();
        let mut locked = Locked::open(run, Deadline::from_now());
        locked.session.hold(held);
        // Without the file, the hooks find the claims of the session's own run.
        let _ = locked.save(now);
    }

    /// Calls an op. The agent's session that this process belongs to records the claims that it ends by it.
    pub(super) async fn recorded<T>(
        &self,
        op: &str,
        call: impl Future<Output = Result<T>>,
        texts: impl FnOnce(&T) -> Result<(Value, Value)>,
    ) -> Result<T> {
        let runs = if session::ends(op) { self.session_runs() } else { Vec::new() };
        if runs.is_empty() {
            return call.await;
        }
        let (fleet, address) = (self.connection().await?, self.location()?.absolute_url());
        Sessions { runs: &runs, fleet, address: &address }.call(op, call, texts, self.terminal.now()).await
    }
}
