//! Pauses of an agent, by whomever: the worker follows the agent's events, and reports when a pause begins and ends.

use super::worker::Worker;
use crate::supervise::Service;
use fencepost::{Clock, Error, Millis, Result, WAIT_MAX, agent, agent::PauseState, event};
use std::convert::Infallible;

impl Worker<'_> {
    /// Reports the pauses of the agent. While nothing happens to the agent, this makes no calls.
    pub async fn follow_pauses(&self) -> Infallible {
        let mut backoff = Service::BACKOFF;
        loop {
            // Polls report an outage, so this does not.
            if self.follow().await.is_ok() {
                backoff = Service::BACKOFF;
            } else {
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }

    /// Reports the present state, and returns when there is another one.
    async fn follow(&self) -> Result<()> {
        let resource = Some(format!("agent/{}", self.agent));
        let last = event::List { last: Some(1), resource: resource.clone(), ..event::List::default() };
        // Before the state is read, so that no change is missed.
        let position = self.service.connection.call(last).await?.position;
        let agents = self.service.connection.call(agent::List::default()).await?.agents;
        let agent = agents.into_iter().find(|agent| agent.name == self.agent);
        let agent = agent.ok_or_else(|| Error::unavailable("the agent has left"))?;
        let wait = until_its_end(agent.paused.as_ref());
        self.crew.report.paused(&self.agent, agent.paused);
        let since = Some(position);
        let next = event::List { since, resource, limit: Some(1), wait_ms: Some(wait), ..Default::default() };
        self.service.connection.call(next).await.map(drop)
    }
}

/// How long to wait for news: no event tells the end of a pause that ends by itself.
fn until_its_end(pause: Option<&PauseState>) -> Millis {
    let left = pause.and_then(|pause| pause.until).map(|until| until.since(Clock::System.read()));
    // This machine's clock may differ from the fleet's.
    left.map_or(WAIT_MAX, |left| left.clamp(Millis::seconds(1), WAIT_MAX))
}
