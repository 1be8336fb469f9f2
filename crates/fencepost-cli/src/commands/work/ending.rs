//! The end of a child: its verdict, the settlement of its run, and the report.

use super::{
    callback,
    child::{Child, Finished},
    place::{self, Place},
    profile::NoVerdict,
    reading::Reading,
    report::Ended as Report,
    settling::{self, Decision, End, fit, fit_reason},
    worker::{Worker, is_notice, what},
};
use crate::{supervise::Service, worktree::Tree};
use fencepost::{Clock, Code, Millis, Result, run, run::settle::Outcome, task};
use fencepost_client::renewal;

/// A command that fails within this time failed at once.
const AT_ONCE: Millis = Millis::seconds(2);
/// So many such failures in a row stop the worker: the command does not work, and would use up the attempts of everything.
const QUICK_FAILURES: u32 = 5;
/// How much of a result is kept with the work.
const OUTPUT: usize = 256 * 1024;

/// The end of a child whose work is settled.
pub struct Ending {
    pub decision: Decision,
    reading: Reading,
    /// Claims were lost, so the work is not accepted.
    lost: bool,
    /// The last line of its output, if its command failed at once.
    failed: Option<String>,
    /// The client cannot work now, and the fleet refused to pause its agent.
    unpaused: bool,
}

impl Child<'_> {
    /// Settles the work of a child that has no place to work.
    pub async fn settle_unstarted(&self, decision: &Decision, tree: Option<Box<Tree>>) -> Result<()> {
        let reading = Reading::default();
        let lost = self.settle_run(Some("not started".into()), decision, &reading, "").await?;
        let kept = match tree {
            Some(tree) => self.leave(tree, decision).await,
            None => None,
        };
        let at_once = decision.outcome == Outcome::Failed && !decision.for_good;
        let last = decision.reason.clone().unwrap_or_default();
        let ending = Ending {
            decision: decision.clone(),
            reading,
            lost,
            failed: at_once.then_some(last),
            unpaused: false,
        };
        self.end(&ending, kept).await;
        Ok(())
    }

    /// Settles the work of a wake-up that had no child.
    pub async fn settle_callback(&self, decision: Decision, result: &str) -> Result<()> {
        let reading = Reading::default();
        let lost = self.settle_run(None, &decision, &reading, result).await?;
        self.end(&Ending { decision, reading, lost, failed: None, unpaused: false }, None).await;
        Ok(())
    }

    pub async fn settle(&self, finished: Finished, place: &Place) -> Result<Ending> {
        let Finished { end, reading, tail, output } = finished;
        let own = self.verdict(&end).await?;
        let mut decision = settling::decide(&end, own, &reading, self.no_verdict());
        if let (Place::Tree(tree), Outcome::Done) = (place, decision.outcome) {
            let integrated = match own {
                // The run stays alive while the files of a finished task are committed and merged.
                Some(_) => self.renewer.while_held(self.integrate(tree, true)).await.and_then(|done| done),
                None => self.integrate(tree, false).await,
            };
            match integrated {
                Ok(other) => decision = other.unwrap_or(decision),
                Err(error) if place::lost(&error) => decision = Decision::released(error.message()),
                Err(error) => return Err(error),
            }
        }
        if let Some(wakeup) = &self.trigger.wakeup {
            let result = callback::result(&reading, &output, &self.worker.crew.profile);
            decision = self.call_back(wakeup, own, decision, result).await?;
        }
        let stopped = reading.stopped.as_ref().filter(|_| matches!(end, End::Exited(1..)));
        let mut unpaused = false;
        if let Some(stopped) = stopped {
            // Before the work goes back: no worker of this agent may start it again until the client works.
            let now = Clock::System.read();
            unpaused = !self.worker.pause(&stopped.reason(), stopped.pause(now)).await;
        }
        let lost = match is_notice(self.trigger) {
            true => self.end_notice(decision.outcome).await?,
            false => self.settle_run(Some(settling::exit(&end)), &decision, &reading, &tail).await?,
        };
        let failed = own.is_none() && decision.outcome == Outcome::Failed && self.took.get() < AT_ONCE.0;
        let last = tail.lines().next_back().unwrap_or_default().to_owned();
        Ok(Ending {
            decision,
            reading,
            lost: lost && own.is_none(),
            failed: failed.then_some(last),
            unpaused,
        })
    }

    /// The last steps, after the work is settled.
    pub async fn end(&self, ending: &Ending, kept: Option<String>) {
        self.report(&ending.decision, &ending.reading, ending.lost, kept);
        self.set_ended(&ending.decision, ending.reading.session.as_ref());
        self.count_failures(ending.failed.as_deref()).await;
        if ending.unpaused {
            self.worker.wait_unpaused().await;
        }
    }

    /// The meaning of exit 0 without a verdict. The answer to a wake-up is the result itself, so it needs none.
    fn no_verdict(&self) -> NoVerdict {
        match &self.trigger.wakeup {
            Some(_) => NoVerdict::Done,
            None => self.worker.crew.profile.no_verdict,
        }
    }

    /// The child's own verdict, if it ended all its claims itself.
    async fn verdict(&self, end: &End) -> Result<Option<Outcome>> {
        if is_notice(self.trigger) {
            return Ok((*end == End::Exited(0)).then_some(Outcome::Done));
        }
        let mut backoff = Service::BACKOFF;
        loop {
            match self.renewer.verbs().await {
                Err(error) if Service::may_pass(&error) && !self.worker.service.stop.is_ending() => {
                    self.worker.service.back_off(&error, &mut backoff).await;
                }
                verbs => return Ok(verbs?.and_then(|verbs| settling::verdict(&verbs))),
            }
        }
    }

    /// Settles the run. Returns whether claims were lost.
    async fn settle_run(
        &self,
        exit: Option<String>,
        decision: &Decision,
        reading: &Reading,
        tail: &str,
    ) -> Result<bool> {
        if decision.for_good
            && let [claim] = self.trigger.claims.as_slice()
        {
            // A settlement is tried again while attempts are left. If the claim is over, the settlement says so.
            let reason = decision.reason.as_deref().map(fit_reason).unwrap_or_default();
            let _ = self.worker.service.call_until_answered(task::Fail::new(&claim.token, reason)).await;
        }
        let output = match decision.outcome {
            // A client's last message says more than its output.
            Outcome::Done => reading.result.clone().unwrap_or_else(|| tail.to_owned()),
            _ => tail.to_owned(),
        };
        let settle = run::Settle {
            run: self.trigger.run.clone(),
            outcome: decision.outcome,
            output: Some(fit(&output, OUTPUT)).filter(|output| !output.is_empty()),
            reason: decision.reason.as_deref().map(fit_reason),
            exit,
            cost: reading.cost(),
            delay_ms: decision.delay,
        };
        match self.worker.service.call_until_answered(settle).await {
            Ok(reply) => {
                self.undecided.set(reply.settled.is_empty() && !reply.back.is_empty());
                Ok(!reply.lost.is_empty())
            }
            // The child settled the run itself.
            Err(error) if error.code() == Code::AlreadyFinished => {
                if let Some(cost) = reading.cost() {
                    let charge = run::Charge { run: self.trigger.run.clone(), cost };
                    self.worker.service.call_until_answered(charge).await?;
                }
                Ok(false)
            }
            Err(error) if error.ends_claim() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Ends the run that held the lock of a notice. Tasks that its child claimed go back, too.
    async fn end_notice(&self, outcome: Outcome) -> Result<bool> {
        let end = run::End {
            run: self.trigger.run.clone(),
            reason: Some("its command is over".into()),
            // They did not fail if the child was stopped.
            owner_gone: outcome == Outcome::Released,
            ..run::End::default()
        };
        match self.worker.service.call_until_answered(end).await {
            Err(error) if error.code() != Code::NotFound => Err(error),
            _ => Ok(false),
        }
    }

    fn report(&self, decision: &Decision, reading: &Reading, lost: bool, kept: Option<String>) {
        let ended = Report {
            what: &what(self.trigger),
            outcome: if self.undecided.get() { Outcome::Released } else { decision.outcome },
            lost,
            reason: decision.reason.as_deref(),
            took: Millis(renewal::now() - self.began),
            usd: reading.usd,
            tokens: reading.tokens(),
            kept,
        };
        self.worker.crew.report.ended(&self.worker.agent, &self.trigger.run, &ended);
    }

    /// The session is kept for the next attempt if the work was interrupted, and for the next wake-up in the channel also if it is
    /// done. After a failure a new session is better.
    pub fn set_ended(&self, decision: &Decision, session: Option<&String>) {
        let mut state = self.state.borrow_mut();
        state.ended = Some(decision.outcome.as_str().into());
        let is_kept = match decision.outcome {
            Outcome::Released => true,
            Outcome::Done => self.trigger.wakeup.is_some(),
            Outcome::Failed => false,
        };
        state.session = session.filter(|_| is_kept).cloned();
        // If this fails, the next worker finds nothing to clean up.
        let _ = self.files.set_state(&state);
    }

    /// Stops the worker after several failures at once in a row. `failed` is the last line of one.
    async fn count_failures(&self, failed: Option<&str>) {
        let crew = self.worker.crew;
        let failures = if failed.is_some() { crew.quick_failures.get() + 1 } else { 0 };
        crew.quick_failures.set(failures);
        if failures < QUICK_FAILURES || crew.service.stop.is_draining() {
            return;
        }
        let last = failed.filter(|last| !last.is_empty()).map_or(String::new(), |last| format!(": {last}"));
        let reason = fit_reason(&format!("its command failed at once {failures} times in a row{last}"));
        crew.break_off(1, format!("{}: {reason}", self.worker.agent));
        // Otherwise a service manager would start the workers again, and the next attempts would fail.
        for agent in &crew.agents {
            Worker::new(crew, agent).pause(&reason, None).await;
        }
    }
}
