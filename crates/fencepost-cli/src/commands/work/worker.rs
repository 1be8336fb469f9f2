//! One agent of a worker process: it polls while it has room, and starts a child for each trigger.

use super::{Crew, Role, settling::fit_reason};
use crate::{commands::poll::new_run, environment::host, supervise::Service};
use fencepost::{
    Backoff, Code, Millis, Result, WAIT_MAX,
    agent::{self, Role as Has, Trigger, Type},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::{cell::RefCell, time::Duration};

/// The pause after a child that was only told that the pool has tasks: the next poll would tell the same at once.
const AFTER_NOTICE: Duration = Duration::from_secs(10);

/// The wait of the first poll for a trigger. It is short, so that a worker reports a spend limit soon and not after [`WAIT_MAX`].
const FIRST_WAIT: Millis = Millis::seconds(2);

/// How long a worker waits if it cannot pause its agent.
const UNPAUSED: Duration = Duration::from_secs(60);

pub struct Worker<'w> {
    pub crew: &'w Crew<'w>,
    pub agent: String,
    /// Acts for the agent.
    pub service: Service<'w>,
    /// The pauses after children that could not be started, such as on a full disk.
    pub backoff: RefCell<Backoff>,
}

impl<'w> Worker<'w> {
    pub fn new(crew: &'w Crew<'w>, agent: &str) -> Self {
        Self {
            crew,
            agent: agent.into(),
            service: crew.service.as_agent(agent),
            backoff: RefCell::new(Service::BACKOFF),
        }
    }

    /// Works until it is told to stop. An error that a retry cannot help stops the other workers, too.
    pub async fn work(&self) -> Result<()> {
        let done = self.join_and_work().await;
        if done.is_err() {
            self.service.stop.drain();
        }
        done
    }

    async fn join_and_work(&self) -> Result<()> {
        self.join().await?;
        tokio::select! {
            done = self.work_until_stopped() => done,
            never = self.follow_pauses(), if self.crew.report.is_live() => match never {},
        }
    }

    async fn work_until_stopped(&self) -> Result<()> {
        self.clean_up().await?;
        let mut children = FuturesUnordered::new();
        let most = usize::from(self.crew.args.max_concurrent);
        let mut polling = None;
        let mut idle = false;
        // The first error. The children that run go on.
        let mut failed: Result<()> = Ok(());
        loop {
            let may_poll =
                !self.service.stop.is_draining() && failed.is_ok() && (!idle || children.is_empty());
            if polling.is_none() && may_poll && children.len() < most && self.crew.reserve() {
                polling = Some(Box::pin(self.next()));
            }
            if polling.is_none() && children.is_empty() {
                return failed;
            }
            let error = tokio::select! {
                polled = async { polling.as_mut().expect("checked by its condition").await }, if polling.is_some() => {
                    polling = None;
                    match polled {
                        Ok(Some(trigger)) => {
                            idle = false;
                            children.push(self.child(trigger));
                            None
                        }
                        Ok(None) => {
                            self.crew.give_back();
                            // A child may cause more work for this agent.
                            if children.is_empty() {
                                return failed;
                            }
                            idle = true;
                            None
                        }
                        Err(error) => Some(error),
                    }
                }
                Some(result) = children.next() => {
                    idle = false;
                    result.err()
                }
            };
            if let Some(error) = error {
                // A pause or a spend limit stops nothing that runs; other errors stop the other workers, too.
                if !matches!(error.code(), Code::Paused | Code::BudgetRefused) {
                    self.service.stop.drain();
                }
                failed = failed.and(Err(error));
            }
        }
    }

    /// Joins as the agent. Its settings stay as they are.
    async fn join(&self) -> Result<()> {
        let role = self.crew.args.role.map(|role| match role {
            Role::Lead => Has::Lead,
            Role::Worker => Has::Worker,
        });
        let join = agent::Join { agent: self.agent.clone(), role, ..agent::Join::default() };
        let joined = self.service.call_until_answered(join).await?;
        self.crew.report.joined(&joined.agent);
        Ok(())
    }

    /// The next trigger; `None` if it is time to stop, or if there is nothing to do and the worker does not wait for more.
    async fn next(&self) -> Result<Option<Trigger>> {
        let mut run = new_run(&self.agent);
        let mut backoff = Service::BACKOFF;
        let mut wait = FIRST_WAIT;
        while !self.service.stop.is_draining() {
            let answer = tokio::select! {
                answer = self.service.connection.call(self.poll(&run, std::mem::replace(&mut wait, WAIT_MAX))) => answer,
                // A poll that succeeded meanwhile gives its trigger back.
                () = self.service.stop.draining() => return Ok(None),
            };
            match answer {
                Ok(polled) => {
                    // A poll of a paused agent is refused.
                    if !self.crew.report.is_live() {
                        self.crew.report.paused(&self.agent, None);
                    }
                    match polled.trigger {
                        Some(trigger) => {
                            self.crew.report.below_limits(&self.agent);
                            return Ok(Some(trigger));
                        }
                        None if self.crew.args.drain => return Ok(None),
                        None => {}
                    }
                }
                // The same run: the retry returns the trigger of the first call, if there was one.
                Err(error) if Service::may_pass(&error) => self.service.back_off(&error, &mut backoff).await,
                Err(error) => match error.code() {
                    // The next poll waits until it is resumed.
                    Code::Paused if !self.crew.args.drain => drop(self.report_pause().await),
                    // The next poll waits until the limit frees, or until somebody raises it.
                    Code::BudgetRefused if !self.crew.args.drain => {
                        self.crew.report.at_limit(&self.agent, &error)
                    }
                    // The reply was lost, and the lease ended meanwhile.
                    Code::LeaseExpired => run = new_run(&self.agent),
                    _ => return Err(error),
                },
            }
        }
        Ok(None)
    }

    fn poll(&self, run: &str, wait: Millis) -> agent::Poll {
        agent::Poll {
            agent: self.agent.clone(),
            run: run.into(),
            ttl_ms: Some(self.crew.start_lease),
            host: Some(host()),
            wait_ms: (!self.crew.args.drain).then_some(wait),
            ..self.crew.poll.clone()
        }
    }

    /// Waits after a trigger that claimed nothing.
    pub async fn after_notice(&self) {
        tokio::select! {
            () = tokio::time::sleep(AFTER_NOTICE) => {}
            () = self.service.stop.draining() => {}
        }
    }

    /// The agent cannot work for a while: no worker gets a trigger for it. Returns whether the fleet knows that.
    pub async fn pause(&self, reason: &str, span: Option<Millis>) -> bool {
        let pause = agent::Pause {
            agent: Some(self.agent.clone()),
            reason: Some(fit_reason(reason)),
            for_ms: span,
            ..agent::Pause::default()
        };
        match self.service.call_until_answered(pause).await {
            Ok(paused) => {
                let pause = paused.agents.into_iter().find(|agent| agent.name == self.agent);
                self.crew.report.paused(&self.agent, pause.and_then(|agent| agent.paused));
                true
            }
            Err(error) => {
                self.service.warn(&error);
                false
            }
        }
    }

    /// Waits, instead of a pause that the fleet refused: the next child would fail in the same way.
    pub async fn wait_unpaused(&self) {
        tokio::select! {
            () = tokio::time::sleep(UNPAUSED) => {}
            () = self.service.stop.draining() => {}
        }
    }
}

/// Does the trigger claim anything?
pub fn is_notice(trigger: &Trigger) -> bool {
    trigger.kind == Type::PoolTasksAvailable
}

/// The work of a trigger in a few words: `auth-3 write the parser`, `2 messages`, `general: 3 unread posts`.
pub fn what(trigger: &Trigger) -> String {
    let count = |one: &str, n: i64| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
    let n = trigger.count.unwrap_or_default();
    match (&trigger.task, trigger.kind) {
        (Some(task), _) => format!("{} {}", task.id, task.title),
        (None, Type::InboxMessage) => count("message", n),
        (None, Type::UnreadMentions) => count("mention", n),
        (None, Type::UnreadWakeup) => {
            let channels = trigger.channels.iter();
            let said = channels.map(|given| {
                format!("{}: {}", given.channel, count("unread post", given.posts.len() as i64))
            });
            said.collect::<Vec<_>>().join(", ")
        }
        (None, Type::TasksFinished) => count("finished task", n),
        (None, Type::PoolTasksAvailable) => format!("{} in the pool", count("task", n)),
        (None, _) => String::new(),
    }
}
