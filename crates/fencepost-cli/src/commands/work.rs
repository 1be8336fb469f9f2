mod callback;
mod capture;
mod child;
mod command;
mod ending;
mod left_behind;
mod live;
mod pauses;
mod place;
pub(super) mod profile;
mod prompt;
mod reading;
mod report;
mod settling;
mod worker;

use super::{duration, one_of, poll::wanted::Wanted};
use crate::{
    context::Context,
    environment::variable,
    location::DatabaseFile,
    output::streams,
    run_files::RunFiles,
    settings::without_password,
    supervise::{Service, exit_code},
    view::Screen,
    worktree::Repository,
};
use clap::{Args, ValueEnum, ValueHint};
use fencepost::{Code, Error, Millis, Result, agent, agent::Type, key, storm};
use fencepost_client::renewal::{self, Ticks};
use futures_util::future::join_all;
use profile::{NoVerdict, Profile};
use prompt::Prompts;
use report::Report;
use std::{cell::Cell, ffi::OsString, path::PathBuf, process::ExitCode, rc::Rc};
use worker::Worker;

/// Start a process for every trigger of an agent: an agent's client, or any command
///
/// The worker joins as the agent, polls, and starts one child process per trigger. The work is claimed before the child starts, and the
/// claim is renewed while the child lives. If the claim is lost, the child is ended; if the worker dies, even by kill -9, its children
/// die with it, and the work goes to another worker.
///
/// The child gets its prompt on standard input (or as an argument: see its profile), and in its environment FENCE_RUN, FENCE_AGENT,
/// FENCE_TRIGGER (the type), FENCE_TRIGGER_FILE (the trigger as JSON), FENCE_CLAIM (if there is one claim), the fleet in FENCE_DB or
/// FENCE_URL, and this worker's key in FENCE_KEY (see --no-key). So `fence done`, `fence fail`, `fence settle` and the others work in it. What it prints is kept: fence log RUN -f.
///   exit 0       done, if the child said so itself (fence done); with the profile exec it need not
///   exit 75      the work goes back for a minute; the attempt does not count
///   other codes  the attempt failed; the work is tried again after a while, if attempts are left
///
/// The first TERM or Ctrl-C drains: no new work, children have --shutdown-timeout to end, then they are ended and their work goes
/// back. The second one ends them at once. A drain never costs an attempt.
///
/// Examples:
///   fence work --agent lead --role lead --profile claude
///   fence work --profile codex --agents 3 --worktree
///   fence work --agent bob --board auth --max-concurrent 4 -- ./handle.sh
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Work {
    /// Run this many agents in one process, named after the profile: claude-1, claude-2, …
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    agents: Option<u16>,
    /// The agent's role  [default: as it is; a new agent is a worker]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "lead|worker")]
    role: Option<Role>,
    #[command(flatten)]
    wanted: Wanted,
    /// The most children of each agent in this process. The agent's own limit counts for all its processes: fence agent join
    #[arg(long, value_name = "N", env = "MAX_CONCURRENT_TASKS", hide_env_values = true, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_concurrent: u16,
    /// How to start a client and read its output: claude, codex, exec, or a file of your own
    /// [default: exec, if a command is given]
    #[arg(long, value_name = "NAME", env = "FENCE_PROFILE", hide_env_values = true)]
    profile: Option<String>,
    /// Exit 0 without a verdict of the child is a failed attempt, is done, or gives the work back  [default: the profile's]
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        value_name = "fail|done|release",
        env = "FENCE_NO_VERDICT",
        hide_env_values = true
    )]
    no_verdict: Option<NoVerdict>,
    /// A directory with your own prompts, such as task_assigned.md  [default: fence/prompts in your settings]
    #[arg(long, value_name = "DIR", env = "FENCE_PROMPTS", hide_env_values = true, value_hint = ValueHint::AnyPath)]
    prompts: Option<PathBuf>,
    /// Give each child a git work tree of its own, on a branch named after task and fence: fence/auth-3@2. It starts from the finished
    /// branches of the tasks that its task waits for, merged. The other options of work trees imply this one
    #[arg(long, env = "FENCE_WORKTREE", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new())]
    worktree: bool,
    /// Where a work tree starts if its task waits for none  [default: HEAD]
    #[arg(long, value_name = "BRANCH", env = "FENCE_BASE", hide_env_values = true)]
    base: Option<String>,
    /// Merge the branch of a task that is done into this one, under the lock git/BRANCH
    #[arg(long, value_name = "BRANCH", env = "FENCE_MERGE_INTO", hide_env_values = true)]
    merge_into: Option<String>,
    /// A command line that prepares a new work tree, such as 'npm install'
    #[arg(long, value_name = "COMMAND", env = "FENCE_SETUP", hide_env_values = true)]
    setup: Option<String>,
    /// Ignored files to copy into a new work tree, such as .env
    #[arg(long, value_name = "FILE", env = "FENCE_COPY", hide_env_values = true, value_delimiter = ',')]
    copy: Vec<String>,
    /// A second attempt takes over the work tree that the first one left, with its changes
    #[arg(long)]
    reuse_tree: bool,
    /// The directory for work trees  [default: .fence/trees in the repository]
    #[arg(long, value_name = "DIR", env = "FENCE_TREES", hide_env_values = true, value_hint = ValueHint::AnyPath)]
    trees: Option<PathBuf>,
    /// Do not give the children this worker's key (FENCE_KEY). Without a key of their own their `fence` commands are refused by a server
    /// that asks for one; their exit codes decide
    #[arg(long)]
    no_key: bool,
    /// Lease: how long the work stays claimed if this machine dies. A number without a unit is milliseconds
    #[arg(long, value_name = "DURATION", value_parser = milliseconds, env = "TRIGGERING_LEASE_TIMEOUT_MS", hide_env_values = true, default_value = "45s")]
    ttl: Millis,
    /// The longest time for a child; then the attempt has failed
    #[arg(long, value_name = "DURATION", value_parser = duration, env = "FENCE_MAX_TIME", hide_env_values = true, default_value = "2h")]
    max_time: Millis,
    /// End a child that gives no sign of life for this long: no output, no fence command
    #[arg(long, value_name = "DURATION", value_parser = duration, env = "FENCE_STALL", hide_env_values = true, default_value = "10m")]
    stall: Millis,
    /// The time between TERM and KILL
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    grace: Millis,
    /// How long a drain waits for children. A number without a unit is milliseconds
    #[arg(long, value_name = "DURATION", value_parser = milliseconds, env = "SHUTDOWN_TIMEOUT", hide_env_values = true, default_value = "30s")]
    shutdown_timeout: Millis,
    /// Stop after this many triggers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when there is nothing to do
    #[arg(long)]
    drain: bool,
    /// Print a line per event instead of the live view
    #[arg(long)]
    plain: bool,
    /// Print a profile, and end
    #[arg(long, value_name = "NAME")]
    show_profile: Option<String>,
    /// Print the prompt of a type of trigger, and end
    #[arg(long, value_name = "TYPE")]
    show_prompt: Option<String>,
    /// The command, instead of the profile's
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Lead,
    Worker,
}

/// A duration, or milliseconds as in the variables of other systems.
fn milliseconds(text: &str) -> Result<Millis, String> {
    text.parse().map(Millis).or_else(|_| duration(text))
}

/// The variable that sets the lease until a child has started, in milliseconds; also the default of `--ttl`.
const START_LEASE: &str = "TRIGGERING_LEASE_TIMEOUT_MS";

/// The lease until a child has started: a worker that dies before loses the work soon. It is this process's variable, or else the
/// fleet's setting, and never longer than the lease of a running child.
fn start_lease(set: Option<&str>, fleet: Millis, ttl: Millis) -> Result<Millis> {
    let lease = set.map_or(Ok(fleet), milliseconds);
    let lease = lease.map_err(|e| Error::new(Code::Invalid, format!("{START_LEASE}: {e}")))?;
    Ok(lease.min(ttl))
}

/// The state that the workers of this process share.
struct Crew<'c> {
    args: Work,
    profile: Profile,
    prompts: Prompts,
    poll: agent::Poll,
    /// The lease until a child has started. Then the lease is `--ttl`.
    start_lease: Millis,
    service: Service<'c>,
    database_file: Option<DatabaseFile>,
    /// Children get work trees of this repository.
    repository: Option<Repository>,
    /// The fleet's address for people, and as it names the fleet in the files of a run; both without a password.
    shown: String,
    fleet: String,
    /// The profile, by name.
    profile_name: String,
    agents: Vec<String>,
    report: Rc<Report>,
    /// When the files of old runs were last removed.
    pruned: Cell<Ticks>,
    /// How many triggers may still be started.
    left: Cell<Option<u64>>,
    /// Commands that failed at once, in a row.
    quick_failures: Cell<u32>,
    /// Why the process cannot go on.
    broken: Cell<Option<Broken>>,
}

/// The command cannot be started, or fails at once every time.
#[derive(Debug, Clone)]
struct Broken {
    code: u8,
    message: String,
}

impl Work {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if let Some(name) = &self.show_profile {
            return shown(&Profile::text(name)?);
        }
        if let Some(kind) = &self.show_prompt {
            let types: Vec<Type> = Type::ORDER.into_iter().chain([Type::PoolTasksAvailable]).collect();
            let kind = one_of("type of trigger", &types, Type::as_str, kind)?;
            return shown(&prompt::template(kind, self.prompts.as_ref())?);
        }
        let (name, profile) = self.profile()?;
        let agents = self.names(&name, context)?;
        let prompts = Prompts::load(self.prompts.clone())?;
        if let Some(program) = self.missing_program(&profile) {
            streams::print_error(&streams::label("error", &format!("`{program}`: not found")));
            return Ok(ExitCode::from(127));
        }
        let location = context.location()?;
        self.check_key(context)?;
        let database_file = location.database_file();
        let repository = self.repository(context).await?;
        let service = Service::new(context).await?;
        if !self.no_key && location.is_remote() {
            warn_of_admin(&service, context).await;
        }
        let mut signals = Service::signals()?;
        let mut screen = if self.plain || context.json() { None } else { Screen::open()? };
        let report = Rc::new(Report::new(context, screen.is_some()));
        let service = match (&screen, report.clone()) {
            (Some(_), report) => service.telling(move |line| report.note(line)),
            (None, _) => service,
        };
        // A fleet that does not answer now has the default: the first poll says that it does not answer.
        let shown = service.connection.call(storm::Show { limit: Some(1) }).await.ok();
        let setting = storm::Setting::StartLeaseMs;
        let fleet = shown.and_then(|shown| shown.settings.into_iter().find(|view| view.name == setting));
        let fleet = Millis(fleet.map_or_else(|| setting.default_value(), |view| view.value));
        let crew = Crew {
            poll: self.wanted.poll_for_all()?,
            start_lease: start_lease(variable(START_LEASE).as_deref(), fleet, self.ttl)?,
            report,
            pruned: Cell::new(i64::MIN),
            left: Cell::new(self.count),
            quick_failures: Cell::new(0),
            broken: Cell::new(None),
            shown: location.shown(),
            fleet: without_password(&location.absolute_url()),
            profile_name: name,
            agents,
            args: self,
            profile,
            prompts,
            service,
            database_file,
            repository,
        };
        crew.prune();
        let workers = crew.agents.iter().map(|agent| Worker::new(&crew, agent));
        let workers = join_all(workers.map(|worker| async move { worker.work().await }));
        let results = tokio::select! {
            results = workers => results,
            never = crew.service.listen(&mut signals) => match never {},
            never = crew.end_after_drain() => match never {},
            never = crew.show_if_live(&mut screen, &crew.agents) => match never {},
        };
        // The terminal is restored before anything else is printed.
        drop(screen);
        results.into_iter().collect::<Result<Vec<()>>>()?;
        crew.end()
    }

    fn profile(&self) -> Result<(String, Profile)> {
        let name = match (&self.profile, self.command.is_empty()) {
            (Some(name), _) => name.clone(),
            (None, false) => "exec".into(),
            (None, true) => {
                return Err(Error::new(Code::Invalid, "no profile and no command is named")
                    .hint("fence work --profile claude, or fence work -- ./handle.sh"));
            }
        };
        let mut profile = Profile::load(&name)?;
        if !self.command.is_empty() {
            profile.command = Vec::new();
        } else if profile.command.is_empty() {
            return Err(Error::new(Code::Invalid, format!("profile `{name}` has no command"))
                .hint(format!("fence work --profile {name} -- ./handle.sh")));
        }
        profile.no_verdict = self.no_verdict.unwrap_or(profile.no_verdict);
        Ok((name, profile))
    }

    /// The repository of the work trees. What dead workers left in the middle of is removed.
    async fn repository(&self, context: &Context) -> Result<Option<Repository>> {
        let given = [&self.base, &self.merge_into, &self.setup].iter().any(|option| option.is_some());
        if !(self.worktree || given || self.reuse_tree || self.trees.is_some() || !self.copy.is_empty()) {
            return Ok(None);
        }
        let here = std::env::current_dir().map_err(|e| Error::unavailable(e.to_string()))?;
        let repository = Repository::find(&here, self.trees.clone()).await?;
        let invalid = |message| Err(Error::new(Code::Invalid, message));
        if let Some(base) = &self.base
            && repository.commit(base).await?.is_none()
        {
            return invalid(format!("`{base}`, given with --base, is no branch and no commit"));
        }
        // Not a tag or a branch of a remote: a merge moves it.
        if let Some(into) = &self.merge_into
            && !repository.branch_exists(into).await?
        {
            return invalid(format!("`{into}`, given with --merge-into, is no branch of this repository"));
        }
        for problem in repository.sweep().await? {
            context.warn(&problem);
        }
        Ok(Some(repository))
    }

    /// A key in a settings file is read by every `fence` that the children start.
    fn check_key(&self, context: &Context) -> Result<()> {
        match context.settings().1.with("key").filter(|_| self.no_key) {
            None => Ok(()),
            Some(file) => Err(Error::new(
                Code::Invalid,
                format!("the key is in {}, which children read, too", file.display()),
            )
            .hint("with --no-key, give the worker its key in FENCE_KEY alone")),
        }
    }

    /// A misspelt program is noticed before anything is claimed.
    fn missing_program(&self, profile: &Profile) -> Option<String> {
        let given = self.command.first().cloned();
        let program = given.or_else(|| profile.command.first().map(OsString::from))?;
        let path = PathBuf::from(&program);
        let is_there = match path.components().count() {
            // A path is relative to the child's directory, which may not exist yet.
            2.. => !path.is_absolute() || path.exists(),
            _ => std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
                .any(|directory| directory.join(&program).exists()),
        };
        (!is_there).then(|| path.display().to_string())
    }

    /// The agents of this process.
    fn names(&self, profile: &str, context: &Context) -> Result<Vec<String>> {
        let Some(count) = self.agents else { return Ok(vec![context.required_agent()?]) };
        if context.flag("agent").is_some() {
            return Err(Error::new(Code::Invalid, "--agents names the agents itself: leave out --agent"));
        }
        let path = PathBuf::from(profile);
        let stem = path.file_stem().map_or(profile.into(), |stem| stem.to_string_lossy());
        Ok((1..=count).map(|n| format!("{stem}-{n}")).collect())
    }
}

/// An admin's key may do everything, and so may a child that gets it. Only an admin may list the keys.
async fn warn_of_admin(service: &Service<'_>, context: &Context) {
    if context.key().is_none() {
        return;
    }
    let list = key::List { all: false, limit: Some(1) };
    if service.connection.call(list).await.is_ok() {
        let message = "children get the key of this worker, and it is an admin's: use the key of the agent, or --no-key";
        context.warn(&Error::new(Code::Invalid, message));
    }
}

fn shown(text: &str) -> Result<ExitCode> {
    streams::print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

impl Crew<'_> {
    /// Shows the live view, if there is a screen. The work goes on without one.
    async fn show_if_live(&self, screen: &mut Option<Screen>, agents: &[String]) -> std::convert::Infallible {
        if let Some(shown) = screen
            && let Err(error) = self.show(shown, agents).await
        {
            // The terminal is restored, and the rest is told by lines.
            *screen = None;
            self.report.print_lines();
            self.service.warn(&error);
        }
        std::future::pending().await
    }

    /// Ends the children when a drain has lasted too long.
    async fn end_after_drain(&self) -> std::convert::Infallible {
        self.service.stop.draining().await;
        // Real time: the children are real processes.
        tokio::time::sleep(self.args.shutdown_timeout.into()).await;
        self.service.stop.end(None);
        std::future::pending().await
    }

    fn end(self) -> Result<ExitCode> {
        if let Some(Broken { code, message }) = self.broken.take() {
            streams::print_error(&streams::label("error", &message));
            return Ok(ExitCode::from(code));
        }
        Ok(match self.service.stop.ended_by() {
            Some(signal) => exit_code(signal),
            None => ExitCode::SUCCESS,
        })
    }

    /// Removes the files of old runs, from time to time.
    fn prune(&self) {
        let now = renewal::now();
        if now.saturating_sub(self.pruned.get()) >= Millis::minutes(60).0 {
            self.pruned.set(now);
            RunFiles::prune();
        }
    }

    /// Stops the whole process: the command does not work.
    fn break_off(&self, code: u8, message: String) {
        self.broken.set(Some(Broken { code, message }));
        self.service.stop.drain();
    }

    /// Reserves a trigger; false if there were enough.
    fn reserve(&self) -> bool {
        match self.left.get() {
            None => true,
            Some(0) => false,
            Some(left) => {
                self.left.set(Some(left - 1));
                true
            }
        }
    }

    fn give_back(&self) {
        self.left.set(self.left.get().map(|left| left + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_until_a_child_has_started() {
        let minutes = Millis::minutes;
        for (set, ttl, expected) in [
            (None, Millis::seconds(45), Some(45)),
            (None, minutes(60), Some(45)),
            (None, Millis::seconds(20), Some(20)),
            (Some("10000"), minutes(60), Some(10)),
            (Some("2m"), minutes(2), Some(120)),
            (Some("90000"), minutes(1), Some(60)),
            (Some("soon"), minutes(1), None),
        ] {
            assert_eq!(
                start_lease(set, Millis::seconds(45), ttl).ok(),
                expected.map(Millis::seconds),
                "{set:?} {ttl}"
            );
        }
    }
}
