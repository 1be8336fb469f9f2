//! One command, one file. A command translates: words into an op, the reply into text.

use crate::{
    context::Context,
    environment::{duration, variable},
    identity,
    output::{events::time_of_day, text::wrapped},
};
use clap::{Args, Subcommand};
use fencepost::{Code, Error, Result, files};
use std::process::ExitCode;

/// Declares the commands, in the groups under which `--help` lists them.
macro_rules! commands {
    ($($heading:literal { $($file:ident::$command:ident),* $(,)? })*) => {
        $($(mod $file;)*)*

        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($($command($file::$command),)*)*
        }

        impl Command {
            pub async fn run(self, context: &Context) -> Result<ExitCode> {
                // Boxed: one future with all commands in it would have many kilobytes.
                match self {
                    $($(Command::$command(command) => Box::pin(command.run(context)).await,)*)*
                }
            }
        }

        const GROUPS: &[(&str, &[&str])] = &[$(($heading, &[$(stringify!($file)),*])),*];
    };
}

/// Declares the verbs of a noun: one verb, one file.
macro_rules! verbs {
    ($($file:ident::$verb:ident),* $(,)?) => {
        $(mod $file;)*

        #[derive(Debug, clap::Subcommand)]
        enum Verb {
            $($verb($file::$verb),)*
        }

        impl Verb {
            async fn run(
                self,
                context: &$crate::context::Context,
            ) -> fencepost::Result<std::process::ExitCode> {
                match self {
                    $(Verb::$verb(verb) => Box::pin(verb.run(context)).await,)*
                }
            }
        }
    };
}

commands! {
    "Plan" {
        demo::Demo, demo_agent::DemoAgent, init::Init, setup::Setup, add::Add, import::Import, edit::Edit, note::Note, dep::Dep, list::List, show::Show, log::Log,
        board::Board, wait::Wait, r#loop::Loop,
    }
    "Work" {
        prime::Prime, ready::Ready, claim::Claim, renew::Renew, progress::Progress, checkpoint::Checkpoint,
        done::Done, fail::Fail, release::Release, guard::Guard, ack::Ack, hook::Hook, git::Git, lock::Lock, once::Once, mail::Mail, watchdog::Watchdog,
    }
    "Act for an agent" {
        work::Work, mcp::Mcp, agent::Agent, pause::Pause, resume::Resume, poll::Poll, settle::Settle, inbox::Inbox, channel::Channel,
    }
    "Steer" {
        why::Why, offer::Offer, assign::Assign, accept::Accept, reject::Reject, park::Park,
        unpark::Unpark, cancel::Cancel, retry::Retry, reopen::Reopen,
    }
    "Look after the fleet" {
        status::Status, top::Top, whoami::Whoami, claims::Claims, unclaim::Unclaim, lift::Lift, runs::Runs, end::End, events::Events,
        serve::Serve, key::Key, route::Route, storm::Storm, spend::Spend, doctor::Doctor, config::Config, trust::Trust, prune::Prune, backup::Backup, export::Export, call::Call, completions::Completions,
        man::Man, keep::Keep,
    }
}

/// Does a command read `fence.toml`? Commands that nobody types, and those for shells and installers, do not. Nor does `trust`,
/// which decides which file is read.
pub fn reads_settings(name: Option<&str>) -> bool {
    !matches!(name, Some("keep" | "watchdog" | "completions" | "man" | "trust"))
}

impl Default for Command {
    fn default() -> Self {
        Command::Status(status::Status {})
    }
}

/// The list of commands for `--help`, in groups, in lines of this width.
pub fn grouped(command: &clap::Command, width: Option<usize>) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        // The module of `loop` has a name that the language reserves.
        let names = names.iter().map(|name| name.trim_start_matches("r#"));
        let shown = names.filter_map(|name| command.find_subcommand(name)).filter(|c| !c.is_hide_set());
        for command in shown {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let line = format!("  {:<12} {about}", command.get_name());
            text.push_str(&width.map_or_else(|| line.clone(), |width| wrapped(&line, width, 0, 15)));
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// The claim that a command acts under.
#[derive(Debug, Args)]
pub struct Held {
    /// The token that `claim` printed  [default: FENCE_CLAIM, else this run's only claim]
    pub token: Option<String>,
}

impl Held {
    pub async fn token(self, context: &Context) -> Result<String> {
        context.token(self.token).await
    }
}

/// Replaces the global `--key` in a command that has a `--key` of its own. Otherwise clap would confuse the two, and a task's key
/// would be sent to the server.
#[derive(Debug, Args)]
pub struct ServerKey {
    #[arg(id = "key", long = "server-key", value_name = "KEY", hide = true)]
    key: Option<String>,
}

/// The id of a task, which may be given as a resource: `task/auth-3`.
fn task_id(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.strip_prefix("task/").unwrap_or(text).to_owned())
}

/// The id of a task, for a command that only reads: the task may be given as a token, too.
fn task_of(text: &str) -> Result<String, std::convert::Infallible> {
    let id = text.rsplit_once('@').map_or(text, |(id, _)| id);
    task_id(id)
}

/// A priority; the engine refuses numbers outside of 0 to 100.
fn priority(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| "a priority is a number from 0 to 100, higher first; 50 is the default".to_owned())
}

/// Refuses in an agent's session, and in a child of a worker: `action`, such as "lifts the guard", is for a person.
fn check_person(action: &str) -> Result<()> {
    // Also if the agent names another run.
    let identity = identity::identify(None, None);
    let message = match variable("FENCE_TRIGGER") {
        _ if identity.reason.is_agent() => {
            format!("this is an agent's session (run `{}`), and only a person {action}", identity.run)
        }
        Some(_) => format!("this process was started by fence work, and only a person {action}"),
        None => return Ok(()),
    };
    Err(Error::new(Code::Forbidden, message).hint("a person runs it in a terminal of their own"))
}

/// The reason for waiting, for the progress line: ``lock `deploy` is held by run … until 12:04:10``.
fn wait_reason<T>(answer: &Result<T>) -> String {
    let Err(error) = answer else { return String::new() };
    let until = error.field("expires_at").and_then(|at| at.as_str());
    let clock = until.and_then(|at| Some((at, at.parse().ok()?)));
    clock.map_or_else(
        || error.message().to_owned(),
        |(at, time)| error.message().replace(at, &time_of_day(time)),
    )
}

/// Does the name of a file stand for standard input? It does for `-`, and for `@-` as in a text.
fn is_stdin(file: &str) -> bool {
    matches!(file, "-" | "@-")
}

/// The longest plan. A server takes 2 MiB, unless its settings raise the limit.
const PLAN_MAX: u64 = 64 * 1024 * 1024;

/// The longest text of an argument, and the longest line of a file. No field takes as much.
const TEXT_MAX: u64 = 16 * 1024 * 1024;

/// Opens a file that the command line names. Somebody else may have made it, so it is a regular file. Only a descriptor that the
/// caller opened may be a pipe: `<(…)` in a shell is `/dev/fd/63`.
fn open(path: &str) -> std::io::Result<std::fs::File> {
    if path == "/dev/stdin" || path.starts_with("/dev/fd/") {
        return std::fs::File::open(path);
    }
    files::open_regular(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::Other => std::io::Error::other(format!("{e}; a pipe is read with `-`")),
        _ => e,
    })
}

/// The text of a file with at most so many bytes, or of standard input for `-`.
fn read_file(file: &str, most: u64) -> Result<String> {
    let text = match is_stdin(file) {
        true => files::text_of(std::io::stdin(), most),
        false => open(file).and_then(|file| files::text_of(file, most)),
    };
    text.map_err(|e| Error::new(Code::Invalid, format!("`{file}` cannot be read: {e}")))
}

/// A payload, a body or an output: the text itself, `@file` for a file, `-` or `@-` for standard input; `@@` for a text that begins
/// with an `@`. Notes, reasons and titles are always the text itself, because they may begin with a mention.
fn text(given: String) -> Result<String> {
    let unreadable = |e: std::io::Error| {
        Error::new(Code::Invalid, format!("`{given}` cannot be read: {e}"))
            .hint("@FILE is a file, - is standard input; a text that begins with @ is written @@")
    };
    match given.strip_prefix('@') {
        _ if is_stdin(&given) => read(std::io::stdin()).map_err(unreadable),
        Some(rest) if rest.starts_with('@') => Ok(rest.to_owned()),
        Some(path) => open(path).and_then(read).map_err(unreadable),
        None => Ok(given),
    }
}

/// The body of a post or of an inbox message. It may begin with a mention, so `@` has no meaning and only `-` is special.
fn body(given: String) -> Result<String> {
    if is_stdin(&given) { text(given) } else { Ok(given) }
}

/// JSON that was given as TEXT.
fn json(field: &str, given: String) -> Result<serde_json::Value> {
    let text = text(given)?;
    serde_json::from_str(&text).map_err(|e| Error::new(Code::Invalid, format!("`{field}` is not JSON: {e}")))
}

/// One of a few words.
fn one_of<T: Copy>(what: &str, all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Result<T> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let all: Vec<_> = all.iter().copied().map(name).collect();
        Error::new(Code::Invalid, format!("`{text}` is not a {what}"))
            .hint(format!("one of {}", all.join(", ")))
    })
}

/// Reads up to the limit of a text. The engine refuses a longer one and names the limit of its field. An endless input does not fill
/// the memory.
fn read(from: impl std::io::Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut from.take(TEXT_MAX), &mut bytes)?;
    let is_cut = bytes.len() as u64 == TEXT_MAX;
    String::from_utf8(bytes).or_else(|e| match e.utf8_error().error_len() {
        // The limit may fall into the middle of a character.
        None if is_cut => Ok(String::from_utf8_lossy(e.as_bytes()).into_owned()),
        _ => Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not UTF-8")),
    })
}
