//! One child: from a trigger to its settlement.

use super::{
    capture::{Activity, Capture},
    place::{self, Place},
    profile::{PromptBy, Words},
    prompt::Facts,
    reading::Reading,
    report::Ended as Report,
    settling::{self, Decision, End, fit, fit_reason},
    worker::{Worker, is_notice, what},
};
use crate::{
    identity,
    names::unique,
    run_files::{GIVEN, Identified, PROMPT, RunFiles, State, TRIGGER},
    supervise::{
        self, Captured, Ended, Job, LeaseRenewer, Observer, Pipes, Service, Signals, TerminalAccess,
    },
    worktree::Tree,
};
use fencepost::{
    Clock, Code, Error, Millis, Result, agent::Trigger, claim::Claim, lock, run, run::settle::Outcome, task,
};
use fencepost_client::renewal::{self, Ticks};
use std::{
    cell::{Cell, RefCell},
    ffi::OsString,
    process::Command,
    sync::Arc,
    time::Duration,
};

/// A command that fails within this time failed at once.
const AT_ONCE: Millis = Millis::seconds(2);
/// So many such failures in a row stop the worker: the command does not work, and would use up the attempts of everything.
const QUICK_FAILURES: u32 = 5;
/// How much of a result is kept with the work.
const OUTPUT: usize = 256 * 1024;
/// How often to look for signs of life.
const LOOK: Duration = Duration::from_secs(1);

/// A child and what it was started for.
pub struct Child<'w> {
    pub worker: &'w Worker<'w>,
    pub trigger: &'w Trigger,
    files: RunFiles,
    state: RefCell<State>,
    pub renewer: LeaseRenewer,
    activity: Arc<Activity>,
    pub began: Ticks,
    /// How long its command ran, in milliseconds.
    took: Cell<i64>,
    /// The work only went back, such as an offer without a decision.
    undecided: Cell<bool>,
}

/// The end of a child whose work is settled.
struct Ending {
    decision: Decision,
    reading: Reading,
    /// Claims were lost, so the work is not accepted.
    lost: bool,
    /// The last line of its output, if its command failed at once.
    failed: Option<String>,
    /// The client cannot work now, and the fleet refused to pause its agent.
    unpaused: bool,
}

/// How a command ended, and what its output told.
pub struct Finished {
    pub end: End,
    reading: Reading,
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
        state.task = trigger.task.as_ref().map(|task| task.id.clone());
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
            ttl_ms: Some(self.crew.args.ttl),
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
        let finished = self.supervise(command, input, self).await?;
        self.took.set(renewal::now() - started);
        match finished {
            Some(finished) => self.settle(finished, place).await.map(Some),
            None => Ok(None),
        }
    }

    /// The command of the child, and its standard input.
    fn command(&self, tree: Option<&Tree>) -> Result<(Command, Vec<u8>)> {
        let crew = self.worker.crew;
        let path = tree.map(|tree| tree.path.display().to_string());
        let facts = Facts {
            agent: &self.worker.agent,
            run: &self.trigger.run,
            tree: path.as_deref(),
            branch: tree.and_then(|tree| tree.branch.as_deref()),
        };
        let prompt = crew.prompts.of(self.trigger, &facts)?;
        self.files.write(PROMPT, &prompt)?;
        let directory = tree.map_or_else(std::env::current_dir, |tree| Ok(tree.path.clone()));
        self.state.borrow_mut().client =
            directory.ok().map(|directory| (self.worker.crew.profile_name.clone(), directory));
        let mut line = self.words()?;
        let input = match crew.profile.prompt {
            PromptBy::Stdin => prompt.into_bytes(),
            PromptBy::Argument => {
                line.push(prompt.into());
                Vec::new()
            }
        };
        let mut command = supervise::command(&line, self.renewer.first(), self.worker.service.context)?;
        if let Some(tree) = tree {
            tree.enter(&mut command);
        }
        command.envs(&crew.profile.env);
        self.set_environment(&mut command);
        Ok((command, input))
    }

    /// The command line, without a prompt.
    fn words(&self) -> Result<Vec<OsString>> {
        let crew = self.worker.crew;
        if !crew.args.command.is_empty() {
            return Ok(crew.args.command.clone());
        }
        let session = self.session();
        let words = Words::new(vec![
            ("agent", self.worker.agent.clone()),
            ("run", self.trigger.run.clone()),
            ("session", session.clone().unwrap_or_default()),
            ("fleet_directories", self.fleet_directories()),
            ("fleet_is_remote", self.fleet_directories().eq("[]").to_string()),
            ("given_directory", self.files.path(GIVEN).display().to_string()),
        ]);
        let resume = session.map_or(&[][..], |_| &crew.profile.resume);
        let line = [&crew.profile.command[..], resume, &crew.profile.last].concat();
        Ok(words.fill(&line)?.into_iter().map(OsString::from).collect())
    }

    /// The session of an earlier attempt on this machine whose work was interrupted. A client finds its sessions only in the directory
    /// where they began.
    fn session(&self) -> Option<String> {
        let ours = self.state.borrow();
        if self.worker.crew.profile.resume.is_empty() || ours.task.is_none() {
            return None;
        }
        let is_earlier = |state: &State| {
            (&state.task, &state.fleet, &state.client) == (&ours.task, &ours.fleet, &ours.client)
                && state.run != ours.run
        };
        let states = RunFiles::all().into_iter().filter_map(|files| files.state());
        states.filter(is_earlier).max_by_key(|state| state.began)?.session
    }

    pub fn set_environment(&self, command: &mut Command) {
        let single = match self.trigger.claims.as_slice() {
            [only] => Some(&only.token),
            _ => None,
        };
        match single {
            Some(token) => command.env("FENCE_CLAIM", token),
            // Our own environment may have another claim.
            None => command.env_remove("FENCE_CLAIM"),
        };
        command
            .env(identity::RUN, &self.trigger.run)
            .env("FENCE_AGENT", &self.worker.agent)
            .env("FENCE_TRIGGER", self.trigger.kind.as_str())
            .env("FENCE_TRIGGER_FILE", self.files.path(TRIGGER));
    }

    /// The directory of an embedded fleet's database, as a list in TOML; empty if the fleet is elsewhere.
    fn fleet_directories(&self) -> String {
        let file = self.worker.crew.database_file.as_ref();
        let directory = file.and_then(|file| file.path().parent()).map(|path| path.display().to_string());
        serde_json::json!(Vec::from_iter(directory)).to_string()
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

    /// Settles the work of a child that has no place to work.
    async fn settle_unstarted(&self, decision: &Decision, tree: Option<Box<Tree>>) -> Result<()> {
        let (end, reading) = (End::Interrupted("not started".into()), Reading::default());
        let lost = self.settle_run(&end, decision, &reading, "").await?;
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

    async fn settle(&self, finished: Finished, place: &Place) -> Result<Ending> {
        let Finished { end, reading, tail, .. } = finished;
        let own = self.verdict(&end).await?;
        let mut decision = settling::decide(&end, own, &reading, self.worker.crew.profile.no_verdict);
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
        let stopped = reading.stopped.as_ref().filter(|_| matches!(end, End::Exited(1..)));
        let mut unpaused = false;
        if let Some(stopped) = stopped {
            // Before the work goes back: no worker of this agent may start it again until the client works.
            let now = Clock::System.read();
            unpaused = !self.worker.pause(&stopped.reason(), stopped.pause(now)).await;
        }
        let lost = match is_notice(self.trigger) {
            true => self.end_notice(decision.outcome).await?,
            false => self.settle_run(&end, &decision, &reading, &tail).await?,
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
    async fn end(&self, ending: &Ending, kept: Option<String>) {
        self.report(&ending.decision, &ending.reading, ending.lost, kept);
        self.set_ended(&ending.decision, ending.reading.session.as_ref());
        self.count_failures(ending.failed.as_deref()).await;
        if ending.unpaused {
            self.worker.wait_unpaused().await;
        }
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
        end: &End,
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
            exit: Some(match end {
                End::Exited(code) => code.to_string(),
                End::Stopped => "stopped".into(),
                End::Interrupted(why) => why.split(':').next().unwrap_or_default().into(),
                End::Lost(_) => "lost".into(),
            }),
            cost: reading.cost(),
            delay_ms: decision.delay,
        };
        match self.worker.service.call_until_answered(settle).await {
            Ok(reply) => {
                self.undecided.set(reply.settled.is_empty() && !reply.back.is_empty());
                Ok(!reply.lost.is_empty())
            }
            // The child settled the run itself.
            Err(error) if error.code() == Code::AlreadyFinished => Ok(false),
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

    /// The session is kept for the next attempt if the work was interrupted. After a failure a new session is better.
    fn set_ended(&self, decision: &Decision, session: Option<&String>) {
        let mut state = self.state.borrow_mut();
        state.ended = Some(decision.outcome.as_str().into());
        state.session = session.filter(|_| decision.outcome == Outcome::Released).cloned();
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
