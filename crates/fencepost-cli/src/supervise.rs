//! Running a command under a claim: the claim is kept while the command runs, and nothing of the command runs
//! without the claim.
//!
//! One dispatcher puts all that happens in one line: signals, news of the claim, the end of a process, time. A
//! pure [rule](rule) says what to do about each, and the [group](group) does it. What leaves the command's process
//! group (a daemon with a session of its own, the jobs of an interactive shell) is out of reach; whatever checks
//! the fence refuses it all the same.

mod group;
mod keep;
mod pipes;
mod rule;
mod signals;
pub mod watchdog;

use crate::{context::Context, out};
use fencepost::{Clock, Code, Error, Millis, Result, claim::Claim};
use group::Group;
pub use group::Seat;
pub use keep::Keep;
pub use pipes::Pipes;
pub use rule::Ended;
use rule::{Act, Event, Rule, Ticks};
pub use signals::Signals;
use std::{
    ffi::{OsStr, OsString},
    io,
    process::{Command, ExitCode},
    time::Duration,
};
use tokio::sync::mpsc;
use watchdog::{NAP, Watchdog};

/// How long the first and the last question may take. The last one as long as giving back: a disk may need seconds for a
/// commit, and a claim that was lost must not look kept.
const PATIENCE: Duration = Duration::from_secs(30);
const LAST_LOOK: Duration = Duration::from_secs(10);
/// How often a group that was told to end is looked at: nothing announces that a grandchild is gone.
const POLL: Duration = Duration::from_millis(10);

/// A command that knows its fleet and its agent.
pub fn command(words: &[OsString], claim: &Claim, context: &Context) -> Result<Command> {
    let (program, rest) = words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(rest);
    context.lead(&mut command)?;
    if let Some(agent) = &claim.agent {
        command.env("FENCE_AGENT", agent);
    }
    Ok(command)
}

/// A command to be run under a claim.
#[derive(Debug)]
pub struct Job {
    pub command: Command,
    pub seat: Seat,
    /// Between telling it to end and killing it.
    pub grace: Millis,
}

/// Runs the command under the claim, which must be alive, and keeps the claim for as long. If it is recalled, it is
/// ended as if its claim were lost.
pub async fn run(
    keep: Keep,
    job: Job,
    mut signals: Signals,
    recall: impl Future<Output = Error>,
) -> Result<Ended> {
    let lease = match keep.renew(PATIENCE).await {
        Event::Kept(lease) => lease,
        Event::Lost(error) => return Ok(Ended::Lost(error)),
        Event::Silent(error) => return Err(error),
        _ => {
            let message = format!("claim `{}` is over: it was handed in", keep.token());
            return Ok(Ended::Lost(Error::new(Code::AlreadyFinished, message)));
        }
    };
    let mut watchdog = Watchdog::start()?;
    let program = job.command.get_program().to_string_lossy().into_owned();
    let mut group = match Group::start(job.command, job.seat) {
        Ok(group) => group,
        Err(error) => {
            watchdog.dismiss();
            return Ok(not_started(&program, &error));
        }
    };
    let mut rule = Rule::new(keep.token(), lease, job.grace);
    watchdog.order(group.id(), rule.watchdog_kills_at());

    let (news, mut heard) = mpsc::channel(1);
    let keeping = tokio::spawn(keep.clone().run(lease, news));
    let mut recalled = false;
    tokio::pin!(recall);
    let ended = loop {
        let wake = nap(&rule);
        let event = tokio::select! {
            signal = signals.next() => Event::Signal(signal),
            error = &mut recall, if !recalled => {
                recalled = true;
                Event::Lost(error)
            }
            Some(event) = heard.recv() => event,
            () = tokio::time::sleep(wake) => Event::Tick,
        };
        // A child's signal only says that it is time to look; and we look at every turn.
        let event = (!is_childs(&event)).then_some(event);
        for event in event.into_iter().chain(group.look()) {
            for act in rule.on(event, ask_the_clock()) {
                match act {
                    Act::Send(signal) => group.send(signal),
                    Act::GiveTerminal => group.give_terminal(),
                    Act::KillAt(at) => watchdog.order(group.id(), at),
                }
            }
        }
        if let Some(ended) = rule.ended() {
            break ended;
        }
    };
    group.bury(matches!(ended, Ended::Lost(_)), watchdog.dismiss());
    let ended = match ended {
        // It may have been lost since it was last looked at.
        Ended::Exited(code) => match keep.check(LAST_LOOK).await {
            Some(Event::Lost(error)) => Ended::Lost(error),
            _ => Ended::Exited(code),
        },
        lost => lost,
    };
    // Only now: while it is looked at, it is kept.
    keeping.abort();
    Ok(ended)
}

impl Ended {
    /// The command's own code; 5 if its claim was lost, and the reason.
    pub fn code(self) -> Result<ExitCode> {
        match self {
            Ended::Exited(code) | Ended::NotStarted(code) => Ok(ExitCode::from(code)),
            // A claim that is not to be found is over, too.
            Ended::Lost(error) if error.code() == Code::NotFound => {
                Err(Error::new(Code::LeaseExpired, error.message())
                    .hint(error.hint_text().unwrap_or_default()))
            }
            Ended::Lost(error) => Err(error),
        }
    }
}

/// As shells do.
fn not_started(program: &str, error: &io::Error) -> Ended {
    let (code, what) = match error.kind() {
        io::ErrorKind::NotFound => (127, "not found".to_owned()),
        io::ErrorKind::PermissionDenied => (126, "may not be executed".to_owned()),
        _ => (126, error.to_string()),
    };
    // A lock is held, and is to be given back whether this can be said or not.
    out::complain(&out::label("error", &format!("`{program}`: {what}")));
    Ended::NotStarted(code)
}

fn is_childs(event: &Event) -> bool {
    matches!(event, Event::Signal(rustix::process::Signal::CHILD))
}

/// Until the next thing is due, but never for long: see [`NAP`].
fn nap(rule: &Rule) -> Duration {
    let due = rule.next().map_or(i64::MAX, |at| at - ask_the_clock());
    let most = if rule.is_ending() { POLL } else { NAP };
    span(due).clamp(Duration::from_millis(1), most)
}

/// Nothing, if it is in the past.
fn span(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn ask_the_clock() -> Ticks {
    Clock::System.ticks()
}
