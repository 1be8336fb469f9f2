//! Pauses of an agent, by whomever: the worker reports when one begins and ends.

use super::worker::Worker;
use crate::supervise::Service;
use fencepost::{Clock, Error, Millis, Result, WAIT_MAX, agent, agent::PauseState, event};
use std::convert::Infallible;

impl Worker<'_> {
    /// Follows the agent's events, and reports its pauses at once. Only for a person who looks at the view: every event of the fleet
    /// wakes this call, and a fleet has many workers. A worker without a view reports what its polls say.
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
        let pause = self.report_pause().await?;
        let (since, wait_ms) = (Some(position), Some(until_its_end(pause.as_ref())));
        let next = event::List { since, resource, limit: Some(1), wait_ms, ..Default::default() };
        self.service.connection.call(next).await.map(drop)
    }

    /// Reads and reports whether the agent is paused.
    pub async fn report_pause(&self) -> Result<Option<PauseState>> {
        let agents = self.service.connection.call(agent::List::default()).await?.agents;
        let agent = agents.into_iter().find(|agent| agent.name == self.agent);
        let pause = agent.ok_or_else(|| Error::unavailable("the agent has left"))?.paused;
        self.crew.report.paused(&self.agent, pause.clone());
        Ok(pause)
    }
}

/// How long to wait for news: no event tells the end of a pause that ends by itself.
fn until_its_end(pause: Option<&PauseState>) -> Millis {
    let left = pause.and_then(|pause| pause.until).map(|until| until.since(Clock::System.read()));
    // This machine's clock may differ from the fleet's.
    left.map_or(WAIT_MAX, |left| left.clamp(Millis::seconds(1), WAIT_MAX))
}
