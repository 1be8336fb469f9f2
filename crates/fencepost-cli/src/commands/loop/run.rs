//! `fence loop run`: the chain. It claims a story, runs the steps of its config, and gives a verdict; then the next story.

mod attempt;
mod branch;
mod command;
mod config;
mod finish;
mod left_behind;
mod look;
mod printed;
mod report;
mod resume;

use super::{duration, next, start::Plan};
use crate::{
    context::Context,
    environment::host,
    identity,
    location::DatabaseFile,
    names::unique,
    output::streams,
    run_files::{RunFiles, State},
    settings::without_password,
    supervise::{Service, exit_code},
    worktree::Repository,
};
use attempt::{Attempt, Ended};
use clap::{Args, ValueHint};
use config::Config;
pub use config::FILE as LOOP_FILE;
use fencepost::{
    Code, Error, Millis, Result, WAIT_MAX, admin, claim,
    loops::{self, next::Reason},
    run,
};
use report::Report;
use std::{path::PathBuf, process::ExitCode};

/// Run a chain: claim a story, run its steps, give a verdict, and go on with the next story
///
/// The steps are in loop.toml (--show-config prints an example). Each story works on the branch loop/LOOP/STORY, in a git work tree of
/// its own; a story that passes is merged into loop/LOOP/main, and the stories that wait for it start from there. The chain commits,
/// and records the commit: review and judge get the diff of that commit. Before every side effect the chain checks its claim.
///
/// A step gets its context as JSON on standard input and in the file FENCE_STEP_FILE: the story, the feedback of the last verdict, the
/// data of earlier steps, the commit, the results of the checks, what other stories learned. Its environment also has FENCE_LOOP,
/// FENCE_STORY, FENCE_STEP, FENCE_ROUND, FENCE_COMMIT, FENCE_DIFF (a file), FENCE_CLAIM and FENCE_RUN.
///   exit 0       the step is done; a step with json = true prints {"verdict", "feedback", "learned", "cost", …}
///   other codes  it is tried again (retries), then the story gets a failing verdict with the end of its output as feedback
///
/// You may start several chains. They never do the same story at the same time. A chain that is killed is followed by another one,
/// which goes on after the last finished step.
///
/// Exits with 0 when the loop is finished, 4 if other chains hold all stories that could be done now (already_claimed), 3 if none is
/// ready, 5 if the loop was cancelled or the chain lost its claim. The first TERM or Ctrl-C ends the chain after the step that runs, the
/// second one at once; the story goes back.
///
/// Examples:
///   fence loop run auth-v1
///   fence loop run auth-v1 --prd prd.json         start it, if it is not
///   fence loop run auth-v1 --wait                 stay while others work, and take what becomes free
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Run {
    #[arg(value_name = "LOOP", required_unless_present = "show_config")]
    id: Option<String>,
    /// The config  [default: loop.toml in the repository, if you trust it]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    #[command(flatten)]
    plan: Plan,
    /// If other chains hold the stories, wait up to this long for one; without a value, until the loop is finished
    #[arg(long, value_parser = duration, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<Millis>>,
    /// Stop after this many stories
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// The directory for work trees  [default: .fence/trees in the repository]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    trees: Option<PathBuf>,
    /// Print an example of a config, and end
    #[arg(long)]
    show_config: bool,
}

/// One chain: a run that does stories one after the other.
struct Chain<'c> {
    id: String,
    run: String,
    agent: Option<String>,
    config: Config,
    service: Service<'c>,
    database_file: Option<DatabaseFile>,
    repository: Repository,
    /// The fleet's id, for the trailers of commits.
    fleet: String,
    files: RunFiles,
    report: Report<'c>,
}

impl Run {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if self.show_config {
            streams::print(config::EXAMPLE.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        let id = self.id.clone().unwrap_or_default();
        if context.named_run().is_some() {
            // Two chains of one run would have the same story.
            return Err(Error::new(Code::Invalid, "a chain has a run of its own: leave out --run"));
        }
        let here = std::env::current_dir().unwrap_or_default();
        let repository = Repository::find(&here, self.trees.clone()).await?;
        let config = Config::load(self.config.as_deref(), repository.directory())?;
        let location = context.location()?;
        let database_file = location.database_file();
        let service = Service::new(context).await?;
        let mut signals = Service::signals()?;
        let report = Report::new(context, &id);
        // Everything that can be wrong with the repository is found before anything is started.
        branch::check(&repository, &config, &id).await?;
        match self.plan.start(id.clone())? {
            Some(start) => match context.call(start).await {
                Ok(started) => report.started(started.started),
                // The same plan, and every story has ended. A chain may have died before it did what the config says at the end.
                Err(error) if error.code() == Code::AlreadyFinished => {}
                Err(error) => return Err(error),
            },
            None => drop(context.call(loops::Show { id: Some(id.clone()), story: None }).await?),
        }
        for problem in repository.sweep().await? {
            context.warn(&problem);
        }
        let run = unique(&format!("loop-{}-", id.get(..40).unwrap_or(&id)));
        let files = RunFiles::create(&run)?;
        let fleet = without_password(&location.absolute_url());
        let mut state =
            State::new(&run, &owner(&id), &fleet).map_err(|e| Error::unavailable(e.to_string()))?;
        files.set_state(&state)?;
        let chain = Chain {
            agent: context.agent(),
            config,
            database_file,
            repository: repository.for_run(&run),
            fleet: context.call(admin::About {}).await?.fleet,
            files,
            service,
            report,
            run,
            id,
        };
        chain.require_passed().await?;
        branch::begin(&chain.repository, &chain.config, &chain.id).await?;
        chain.end_left_behind(&fleet).await?;
        let ended = tokio::select! {
            ended = chain.work(self.wait, self.count) => ended,
            never = chain.service.listen(&mut signals) => match never {},
        };
        chain.give_back().await;
        state.ended = Some("ended".into());
        let _ = chain.files.set_state(&state);
        ended
    }
}

/// The owner of a chain's files. An agent's name has no slash, so no worker takes them for its own.
fn owner(id: &str) -> String {
    format!("loop/{id}")
}

impl Chain<'_> {
    /// Does stories until there is none for it.
    async fn work(&self, wait: Option<Option<Millis>>, count: Option<u64>) -> Result<ExitCode> {
        let mut done = 0;
        loop {
            if self.service.stop.is_draining() || count.is_some_and(|count| done >= count) {
                return Ok(self.service.stop.ended_by().map_or(ExitCode::SUCCESS, exit_code));
            }
            let next = tokio::select! {
                next = self.next(wait) => next?,
                () = self.service.stop.draining() => continue,
            };
            self.require_passed().await?;
            if let Some(reason) = next.reason {
                let message = next.message.clone().unwrap_or_default();
                self.report.nothing(reason, &message);
                if reason == Reason::Finished {
                    self.finish(&next.brief).await?;
                    return Ok(ExitCode::SUCCESS);
                }
                return Ok(ExitCode::from(next::code(reason).exit_code()));
            }
            done += 1;
            match Attempt::begin(self, next)?.run().await {
                Ok(Ended::Judged) => {}
                Ok(Ended::Stopped) => self.give_back().await,
                // Not a story later: the one that has it now may be working in this repository.
                Ok(Ended::Lost(status)) => {
                    let code = if status == "cancelled" { Code::Cancelled } else { Code::LeaseExpired };
                    return Ok(ExitCode::from(code.exit_code()));
                }
                Err(error) => {
                    // A problem of this machine costs no attempt. Any other one does, so that a story that cannot be done is skipped.
                    if !matches!(error.code(), Code::Unavailable | Code::Internal) {
                        self.end_run("its chain could not go on").await;
                    }
                    self.give_back().await;
                    return Err(error);
                }
            }
        }
    }

    /// Refuses a repository without the work of the stories that have passed: another clone, or one whose branch is gone.
    async fn require_passed(&self) -> Result<()> {
        let shown = loops::Show { id: Some(self.id.clone()), story: None };
        let shown = self.service.call_until_answered(shown).await?;
        let passed = shown.stories.into_iter().filter(|story| story.status == loops::Status::Passed);
        let commits: Vec<String> = passed.filter_map(|story| story.commit).collect();
        let main = branch::main(&self.id);
        if commits.is_empty() || self.repository.contains_all(&main, &commits).await? {
            return Ok(());
        }
        let message =
            format!("`{main}` does not have the commits of the stories that passed in this repository");
        Err(Error::new(Code::Invalid, message).hint("run the chain in the repository of the other chains"))
    }

    /// The plan step: claims the next story.
    async fn next(&self, wait: Option<Option<Millis>>) -> Result<loops::next::NextStory> {
        let op = |wait_ms| loops::Next {
            id: self.id.clone(),
            run: self.run.clone(),
            agent: self.agent.clone(),
            ttl_ms: Some(self.config.lease),
            wait_ms,
        };
        let Some(limit) = wait else { return self.service.call_until_answered(op(None)).await };
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        let mut told = false;
        loop {
            let step = if told { left.min(WAIT_MAX) } else { Millis(0) };
            let reply = self.service.call_until_answered(op(Some(step))).await?;
            left = Millis(left.0 - step.0);
            let is_not_yet = matches!(reply.reason, Some(Reason::AlreadyClaimed | Reason::NoneReady));
            if !is_not_yet || left.0 <= 0 {
                return Ok(reply);
            }
            if !told {
                self.report.waiting(reply.reason, reply.message.as_deref().unwrap_or_default());
                told = true;
            }
        }
    }

    /// Gives the story back, if the chain holds one. If the fleet does not answer, the lease ends.
    async fn give_back(&self) {
        let held =
            self.service.connection.call(claim::List { run: Some(self.run.clone()), limit: None }).await;
        for claim in held.map(|held| held.claims).unwrap_or_default() {
            let release = claim::Release { note: None, ..claim::Release::new(&claim.token) };
            let _ = self.service.connection.call(release).await;
        }
        self.end_run("its chain ended").await;
    }

    async fn end_run(&self, reason: &str) {
        let end = run::End { run: self.run.clone(), reason: Some(reason.into()), ..run::End::default() };
        let _ = self.service.connection.call(end).await;
    }

    /// The name that commits are made under, if the user has none.
    fn author(&self) -> String {
        self.agent.clone().unwrap_or_else(|| format!("loop on {}", host()))
    }

    /// The environment of every command of the chain.
    fn variables(&self, token: &str, story: &str) -> Vec<(&'static str, String)> {
        vec![
            ("FENCE_CLAIM", token.to_owned()),
            (identity::RUN, self.run.clone()),
            ("FENCE_LOOP", self.id.clone()),
            ("FENCE_STORY", story.to_owned()),
        ]
    }
}
