//! One child: from a trigger to its settlement.

use super::{
    callback::Delivered,
    capture::{Activity, Capture},
    ending::Ending,
    place::{self, Place},
    reading::Reading,
    settling::{self, Decision, End},
    worker::{Worker, is_notice, what},
};
use crate::{
    names::unique,
    run_files::{Identified, RunFiles, State, TRIGGER},
    supervise::{
        self, Captured, Ended, Job, LeaseRenewer, Observer, Pipes, Service, Signals, TerminalAccess,
    },
    worktree::Tree,
};
use fencepost::{
    Clock, Code, Error, Millis, Result, agent::Trigger, claim::Claim, lock, run, run::settle::Outcome,
};
use fencepost_client::renewal::{self, Ticks};
use std::{
    cell::{Cell, RefCell},
    process::Command,
    sync::Arc,
    time::Duration,
};

/// How often to look for signs of life.
const LOOK: Duration = Duration::from_secs(1);

/// A child and what it was started for.
pub struct Child<'w> {
    pub worker: &'w Worker<'w>,
    pub trigger: &'w Trigger,
    pub files: RunFiles,
    pub state: RefCell<State>,
    pub renewer: LeaseRenewer,
    activity: Arc<Activity>,
    pub began: Ticks,
    /// How long its command ran, in milliseconds.
    pub took: Cell<i64>,
    /// The work only went back, such as an offer without a decision.
    pub undecided: Cell<bool>,
}

/// How a command ended, and what its output told.
pub struct Finished {
    pub end: End,
    pub reading: Reading,
    /// The end of both streams, and of standard output alone.
    pub tail: String,
    pub output: String,
}

impl Worker<'_> {
    /// Runs a child for the trigger, and settles the trigger.
    pub async fn child(&self, trigger: Trigger) -> Result<()> {
        let begun = match self.begin(&trigger).await {
            Ok(Some(child)) => child.run().await,
            // Another process of this agent looks at the pool.
            Ok(None) => {
                self.after_notice().await;
                return Ok(());
            }
            Err(error) => Err(error),
        };
        match begun {
            Ok(()) => {
                self.crew.prune();
                if is_notice(&trigger) {
                    self.after_notice().await;
                }
                Ok(())
            }
            // A claim was lost while the child was prepared. What is left of it goes back.
            Err(error) if place::lost(&error) => {
                self.give_back(&trigger).await;
                self.crew.report.forget(&trigger.run);
                self.service.warn(&error);
                Ok(())
            }
            // The child was not started, or nobody knows what became of it. Its work goes back.
            Err(error) => {
                self.give_back(&trigger).await;
                self.crew.report.forget(&trigger.run);
                if !Service::may_pass(&error) {
                    return Err(error);
                }
                let mut backoff = self.backoff.borrow().clone();
                self.service.back_off(&error, &mut backoff).await;
                self.backoff.replace(backoff);
                Ok(())
            }
        }
    }

    async fn begin<'w>(&'w self, trigger: &'w Trigger) -> Result<Option<Child<'w>>> {
        let mut claims = trigger.claims.clone();
        if is_notice(trigger) {
            match self.claim_notice(&trigger.run).await {
                Ok(claim) => claims.push(claim),
                Err(error) if error.code() == Code::AlreadyClaimed => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let files = RunFiles::create(&trigger.run)?;
        let mut state = State::new(&trigger.run, &self.agent, &self.crew.fleet)
            .map_err(|e| Error::unavailable(e.to_string()))?;
        state.subject = subject(trigger);
        files.set_state(&state)?;
        files.write(TRIGGER, &serde_json::to_string_pretty(trigger).map_err(Error::internal)?)?;
        let first = claims.first().cloned().ok_or_else(|| Error::internal("a trigger without a claim"))?;
        let activity = Activity::new();
        self.crew.report.begun(&self.agent, trigger, &what(trigger), &activity);
        let renewer = LeaseRenewer::new(&self.service.connection, self.crew.database_file.clone(), first);
        Ok(Some(Child {
            worker: self,
            trigger,
            files,
            state: RefCell::new(state),
            renewer: renewer.and(claims.split_off(1)).until_others_claim(),
            activity,
            began: renewal::now(),
            took: Cell::new(0),
            undecided: Cell::new(false),
        }))
    }

    /// A notice about the pool claims nothing. The child holds a lock instead, so that it has a lease like every other child, and
    /// that one notice starts one child of this agent and not one in every process.
    async fn claim_notice(&self, run: &str) -> Result<Claim> {
        let claim = lock::Claim {
            name: run::settle::notice_lock(&self.agent),
            run: run.into(),
            agent: Some(self.agent.clone()),
            ttl_ms: Some(self.crew.start_lease),
            max_ms: None,
            wait_ms: None,
            resume: false,
            request: Some(unique("")),
        };
        Ok(self.service.call_until_answered(claim).await?.claim)
    }

    /// Gives back the work of a child that was not started. If the fleet does not answer, the lease expires soon.
    async fn give_back(&self, trigger: &Trigger) {
        let settle = run::Settle {
            run: trigger.run.clone(),
            outcome: Outcome::Released,
            reason: Some("its command was not started".into()),
            ..run::Settle::default()
        };
        let _ = self.service.connection.call(settle).await;
        // Nothing is left behind that a later worker would have to clean up.
        if let Some(files) = RunFiles::find(&trigger.run)
            && let Some(state) = files.state()
        {
            let _ = files.set_state(&State { ended: Some("not started".into()), ..state });
        }
    }
}

/// The subject of the trigger in the files of its run.
fn subject(trigger: &Trigger) -> Option<String> {
    match (&trigger.task, &trigger.wakeup) {
        (Some(task), _) => Some(task.id.clone()),
        (None, Some(wakeup)) => Some(format!("channel/{}", wakeup.channel)),
        (None, None) => None,
    }
}

impl Observer for Child<'_> {
    fn started(&self, group: i32) {
        self.worker.backoff.borrow_mut().reset();
        self.state.borrow_mut().child = Identified::of(group);
        // Without the file an orphan is found by its environment, or its lease ends.
        let _ = self.files.set_state(&self.state.borrow());
        let worker = self.worker;
        worker.crew.report.started(&worker.agent, self.trigger, &what(self.trigger), group);
    }

    fn leased_until(&self, ends: Ticks) {
        self.worker.crew.report.leased_until(&self.trigger.run, ends);
    }
}

impl Child<'_> {
    async fn run(&self) -> Result<()> {
        if let Some(wakeup) = &self.trigger.wakeup
            && let Some(delivered) = Delivered::of(wakeup)
        {
            let decision = self.retry_callback(wakeup, &delivered).await?;
            return self.settle_callback(decision, &delivered.result).await;
        }
        let place = match self.place().await? {
            Place::None(decision, tree) => return self.settle_unstarted(&decision, tree).await,
            place => place,
        };
        match self.work_in(&place).await {
            Ok(Some(ending)) => {
                let kept = self.leave_tree(place, &ending.decision).await;
                self.end(&ending, kept).await;
                Ok(())
            }
            not_ended => {
                self.leave_tree(place, &Decision::released("its command was not started")).await;
                not_ended.map(drop)
            }
        }
    }

    /// Runs the command, and settles its work. `None`: it could not be started, and the worker stops.
    async fn work_in(&self, place: &Place) -> Result<Option<Ending>> {
        let (command, input) = self.command(place.tree())?;
        let started = renewal::now();
        let ttl = self.worker.crew.args.ttl;
        let renewer = self.renewer.clone().lengthened_after_start(ttl);
        let finished = self.supervise_under(renewer, command, input, self).await?;
        self.took.set(renewal::now() - started);
        match finished {
            Some(finished) => self.settle(finished, place).await.map(Some),
            None => Ok(None),
        }
    }

    /// Runs a command for this child until it ends. `None`: it could not be started, and the worker stops.
    pub async fn supervise(
        &self,
        command: Command,
        input: Vec<u8>,
        observer: &dyn Observer,
    ) -> Result<Option<Finished>> {
        self.supervise_under(self.renewer.clone(), command, input, observer).await
    }

    pub async fn supervise_under(
        &self,
        renewer: LeaseRenewer,
        mut command: Command,
        input: Vec<u8>,
        observer: &dyn Observer,
    ) -> Result<Option<Finished>> {
        let (crew, stop) = (self.worker.crew, &self.worker.service.stop);
        // The start of a command is a sign of life: the last one may have been long ago, before a wait for a lock.
        self.activity.sign();
        let capture = Capture::new(self.files.log_writer()?, &crew.profile, &self.activity);
        let pipes = Pipes::attach(&mut command, Some(input), Captured::OutputAndError, capture)
            .map_err(|e| Error::unavailable(format!("a child cannot be given its prompt: {e}")))?;
        let interrupted = Cell::new(None);
        let recall = async {
            let end = tokio::select! {
                () = stop.ending() => End::Stopped,
                end = self.overdue() => end,
            };
            crew.report.ending(&self.trigger.run);
            interrupted.set(Some(end));
            Error::new(Code::Cancelled, settling::STOPPED)
        };
        let job = Job {
            command,
            terminal: TerminalAccess::Background,
            grace: crew.args.grace,
            run: Some(self.trigger.run.clone()),
        };
        let ended = supervise::run(renewer, job, Signals::of_children()?, recall, observer).await?;
        let capture = pipes.finish().await.map_err(|e| Error::internal(e.to_string()))?;
        let (reading, tail, output) = capture.finish();
        let end = match (ended, interrupted.take()) {
            // This prompt is too long for an argument, and the next one may not be.
            (Ended::NotStarted { why, too_long: true, .. }, _) => End::Interrupted(why),
            (Ended::NotStarted { code, why, .. }, _) => {
                crew.break_off(code, why);
                self.worker.give_back(self.trigger).await;
                crew.report.forget(&self.trigger.run);
                self.set_ended(&Decision::released("its command was not started"), None);
                return Ok(None);
            }
            (Ended::Exited(code), _) if stop.is_draining() && Service::is_stop_signal(code) => End::Stopped,
            (Ended::Exited(code), _) => End::Exited(code),
            (Ended::Lost(_), Some(end)) => end,
            (Ended::Lost(error), None) => End::Lost(error.message().to_owned()),
        };
        Ok(Some(Finished { end, reading, tail, output }))
    }

    /// Returns when the child has run for too long, or has given no sign of life for too long.
    async fn overdue(&self) -> End {
        let args = &self.worker.crew.args;
        loop {
            let now = renewal::now();
            if now - self.began >= args.max_time.0 {
                return End::Interrupted(format!(
                    "max_time: its command ran for more than {}",
                    args.max_time
                ));
            }
            if now - self.last_sign(now) >= args.stall.0 {
                return End::Interrupted(format!("stalled: no sign of life for {}", args.stall));
            }
            let left = (self.began + args.max_time.0 - now).min(self.last_sign(now) + args.stall.0 - now);
            tokio::time::sleep(Duration::from(Millis(left)).clamp(Duration::from_millis(1), LOOK)).await;
        }
    }

    /// The last sign of life: output, or a `fence` command of the child, which touches the file of its trigger.
    fn last_sign(&self, now: Ticks) -> Ticks {
        let touched = self.files.changed_at(TRIGGER).map(|at| now - Clock::System.read().since(at).0.max(0));
        let touched = touched.unwrap_or(i64::MIN);
        self.activity.at().max(touched).max(self.began)
    }

    async fn leave_tree(&self, place: Place, decision: &Decision) -> Option<String> {
        match place {
            Place::Tree(tree) => self.leave(tree, decision).await,
            Place::Here | Place::None(..) => None,
        }
    }

    pub fn set_tree(&self, tree: &Tree) {
        self.state.borrow_mut().tree = Some(tree.path.clone());
        let _ = self.files.set_state(&self.state.borrow());
    }
}
