//! Runs a command under a claim: the claim is renewed while the command runs, and no process of the command outlives the claim.
//!
//! One dispatcher puts all events in order: signals, changes of the claim, the end of a process, time. A pure [rule](rule)
//! decides what to do about each, and the [group](group) does it. A process that leaves the command's process group (a daemon with
//! a session of its own, the jobs of an interactive shell) is out of reach. Everything that checks the fence still refuses it.

mod group;
mod lease;
mod pipes;
mod rule;
mod service;
mod signals;
mod stop;
mod tee;
pub mod watchdog;

use crate::{context::Context, output::streams};
use fencepost::{Code, Error, Millis, Result, claim::Claim};
use fencepost_client::renewal;
use group::Group;
pub use group::TerminalAccess;
pub use lease::{LeaseRenewer, is_finished};
pub use pipes::{Captured, FirstBytes, LastBytes, Pipes, Sink, Stream};
pub use rule::Ended;
use rule::{Act, Event, Rule};
pub use service::Service;
pub use signals::{Signals, exit_code};
use std::{
    ffi::{OsStr, OsString},
    io,
    process::{Command, ExitCode},
    time::Duration,
};
pub use stop::Stop;
pub use tee::{Forwarded, Tee};
use tokio::sync::mpsc;
use watchdog::{LONGEST_SLEEP, Watchdog};

/// The timeout of the first renewal.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of the last check. A disk may need seconds for a commit, and a lost claim must not look alive.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to look at a group that was told to end, at first: no signal reports the end of a grandchild.
const POLL: Duration = Duration::from_millis(10);
/// The poll interval grows to at most `RARER` × `POLL`. Each look reads all of `/proc`: every 10 ms that is a quarter of a core.
const RARER: u32 = 10;

/// A command that gets the fleet and the agent of this one.
pub fn command(words: &[OsString], claim: &Claim, context: &Context) -> Result<Command> {
    let (program, rest) = words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(rest);
    context.pass_on(&mut command)?;
    if let Some(agent) = &claim.agent {
        command.env("FENCE_AGENT", agent);
    }
    Ok(command)
}

/// A command to be run under a claim.
#[derive(Debug)]
pub struct Job {
    pub command: Command,
    pub terminal: TerminalAccess,
    /// The time between TERM and KILL.
    pub grace: Millis,
    /// Processes that left the command's group and have this run in `FENCE_RUN` are ended with it.
    pub run: Option<String>,
}

/// Somebody who wants to know how a command is doing.
pub trait Observer {
    /// It runs, in this process group.
    fn started(&self, _group: i32) {}
    /// Its lease was confirmed, and ends at this moment.
    fn leased_until(&self, _ends: renewal::Ticks) {}
}

impl Observer for () {}

/// Runs the command under the claim, which must be alive, and renews the claim meanwhile. When `recall` returns, the command is
/// ended as if its claim were lost.
pub async fn run(
    renewer: LeaseRenewer,
    mut job: Job,
    mut signals: Signals,
    recall: impl Future<Output = Error>,
    observer: &dyn Observer,
) -> Result<Ended> {
    let lease = match renewer.renew(FIRST_TIMEOUT).await {
        Event::Renewed(lease) => lease,
        Event::Lost(error) => return Ok(Ended::Lost(error)),
        Event::NoAnswer(error) => return Err(error),
        _ => {
            let message = format!("claim `{}` is over: it was finished", renewer.token());
            return Ok(Ended::Lost(Error::new(Code::AlreadyFinished, message)));
        }
    };
    let mut rule = Rule::new(renewer.token(), lease, job.grace);
    let mut watchdog = Watchdog::start(job.run.as_deref(), rule.watchdog_kills_at())?;
    watchdog.mark(&mut job.command);
    let program = job.command.get_program().to_string_lossy().into_owned();
    let mut group = match Group::start(job.command, job.terminal, job.run) {
        Ok(group) => group,
        Err(error) => {
            watchdog.dismiss();
            return not_started(&program, &error);
        }
    };
    watchdog.instruct(group.id(), rule.watchdog_kills_at());
    observer.started(group.id());
    observer.leased_until(lease.ends());

    let (sender, mut changes) = mpsc::channel(1);
    let renewing = tokio::spawn(renewer.clone().started().run(Some(lease), sender));
    let mut recalled = false;
    let mut looks = 0;
    tokio::pin!(recall);
    let ended = loop {
        looks += u32::from(rule.is_ending());
        let pause = pause(&rule, looks);
        let event = tokio::select! {
            signal = signals.next() => Event::Signal(signal),
            error = &mut recall, if !recalled => {
                recalled = true;
                Event::Lost(error)
            }
            Some(event) = changes.recv() => event,
            () = tokio::time::sleep(pause) => Event::Tick,
        };
        // CHLD only says that the group may have changed, and every turn polls the group.
        let event = (!is_child_signal(&event)).then_some(event);
        for event in event.into_iter().chain(group.poll()) {
            if let Event::Renewed(lease) = &event {
                observer.leased_until(lease.ends());
            }
            for act in rule.on(event, renewal::now()) {
                match act {
                    Act::Send(signal) => group.send(signal),
                    Act::GiveTerminal => group.give_terminal(),
                    Act::KillAt(at) => watchdog.instruct(group.id(), at),
                }
            }
        }
        if let Some(ended) = rule.ended() {
            break ended;
        }
    };
    group.finish(matches!(ended, Ended::Lost(_)), watchdog.dismiss());
    let ended = match ended {
        // The claim may have been lost since the last check.
        Ended::Exited(code) => match renewer.check(LAST_TIMEOUT).await {
            Some(Event::Lost(error)) => Ended::Lost(error),
            _ => Ended::Exited(code),
        },
        lost => lost,
    };
    // Only now: the claim is renewed during the last check.
    renewing.abort();
    Ok(ended)
}

impl Ended {
    /// The command's own exit code; the reason, with exit code 5, if its claim was lost.
    pub fn code(self) -> Result<ExitCode> {
        match self {
            Ended::Exited(code) => Ok(ExitCode::from(code)),
            Ended::NotStarted { code, why, .. } => {
                streams::print_error(&streams::label("error", &why));
                Ok(ExitCode::from(code))
            }
            // A claim that is not found is over, too.
            Ended::Lost(error) if error.code() == Code::NotFound => {
                Err(Error::new(Code::LeaseExpired, error.message())
                    .hint(error.hint_text().unwrap_or_default()))
            }
            Ended::Lost(error) => Err(error),
        }
    }
}

/// The error as a shell reports it, with the same exit code. That the machine has no room for a process now may pass.
fn not_started(program: &str, error: &io::Error) -> Result<Ended> {
    let (code, what) = match error.kind() {
        io::ErrorKind::NotFound => (127, "not found".to_owned()),
        io::ErrorKind::PermissionDenied => (126, "cannot be executed".to_owned()),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            return Err(Error::unavailable(format!("`{program}` cannot be started: {error}")));
        }
        _ => (126, error.to_string()),
    };
    let too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
    Ok(Ended::NotStarted { code, why: format!("`{program}`: {what}"), too_long })
}

fn is_child_signal(event: &Event) -> bool {
    matches!(event, Event::Signal(rustix::process::Signal::CHILD))
}

/// The time until the next deadline, but never long: see [`LONGEST_SLEEP`].
fn pause(rule: &Rule, looks: u32) -> Duration {
    let due = rule.next().map_or(i64::MAX, |at| at - renewal::now());
    let most = if rule.is_ending() { POLL * looks.clamp(1, RARER) } else { LONGEST_SLEEP };
    Duration::from(Millis(due)).clamp(Duration::from_millis(1), most)
}
