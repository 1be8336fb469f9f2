//! `fence`: exactly-once work for fleets of AI agents, from the command line.
//!
//! A command translates: words into an op, the reply into text. The rules are in the engine.
//!
//! A library, although only the binary uses it: cargo compiles a library while the crates below it are still being
//! turned into machine code, and a binary only after them. It makes `make` 18 s faster, of 4 min 4 s.

mod advice;
mod commands;
mod context;
mod foreign;
mod help;
mod keeper;
mod modes;
mod out;
mod own;
mod place;
mod process;
mod progress;
mod screen;
mod settings;
mod supervise;
mod text;
mod told;
mod trust;
mod whose;

use clap::{CommandFactory, FromArgMatches, Parser};
use context::{Context, Said};
use fencepost::{Code, Error};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Exactly-once work for fleets of AI agents.
///
/// A claim is a lease with a fencing token: every write checks it, and work whose holder died comes back by
/// itself. Everything happens in one database that many processes may share. Without a command, `fence` says who
/// you are, what you hold, and what is ready.
#[derive(Debug, Parser)]
#[command(name = "fence", version)]
#[command(after_help = "Examples:
  fence init
  fence add \"write the parser\"
  fence claim                       take the best task that is ready
  fence done                        finish it, and tell what came of it
  fence prime                       the page to give to an agent

Exit codes:
  0  done
  1  failed
  2  wrong command line
  3  nothing to take
  4  not yours to take
  5  your claim is over
  6  held back, try later")]
struct Cli {
    /// The fleet: a file, sqlite:PATH or postgres://…  [env: FENCE_DB; default: this git repository's, else yours]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    db: Option<String>,
    /// The server that has the fleet: http://… or https://…  [env: FENCE_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere", conflicts_with = "db")]
    url: Option<String>,
    /// The key that the server asks for  [env: FENCE_KEY]
    #[arg(long, global = true, value_name = "KEY", help_heading = "Everywhere")]
    key: Option<String>,
    /// Who vouches for an https server, a PEM file  [env: FENCE_CA; default: whom the system trusts]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    ca: Option<PathBuf>,
    /// The run that acts  [env: FENCE_RUN; default: this agent session's or terminal's]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    run: Option<String>,
    /// The agent that acts  [env: FENCE_AGENT]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    agent: Option<String>,
    /// Asking again with the same id gives the first answer  [default: a new one each time]
    #[arg(long, global = true, value_name = "ID", help_heading = "Everywhere")]
    request: Option<String>,
    /// Print the reply as JSON, and errors too, on standard error
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    #[command(subcommand)]
    command: Option<commands::Command>,
}

/// The command line, with its commands in groups.
fn command_line() -> clap::Command {
    grouped(reflowed(Cli::command()), None)
}

/// The same, with help for a terminal of this width. (Beyond 100 columns lines are hard to read; clap thinks so, too.)
fn command_line_in(width: usize) -> clap::Command {
    let width = width.min(100);
    grouped(help::fitted(reflowed(Cli::command()), width), Some(width)).term_width(width)
}

fn grouped(command: clap::Command, width: Option<usize>) -> clap::Command {
    let groups = commands::grouped(&command, width);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// Help is written in lines of our width and read in lines of the terminal's. Lines that are indented are examples, and
/// stay as they are.
fn reflowed(command: clap::Command) -> clap::Command {
    let about = command.get_long_about().map(|about| {
        let mut text = String::new();
        for line in about.to_string().lines() {
            let joins =
                !text.is_empty() && !text.ends_with('\n') && !line.is_empty() && !line.starts_with(' ');
            if !text.is_empty() {
                text.push(if joins { ' ' } else { '\n' });
            }
            text.push_str(line);
        }
        text
    });
    let command = match about {
        Some(about) => command.long_about(about),
        None => command,
    };
    command.mut_subcommands(reflowed)
}

/// The flags of the command that was called.
fn flags(command: &clap::Command, matches: &clap::ArgMatches) -> Vec<String> {
    match matches.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below))) {
        Some((command, below)) => flags(command, below),
        None => command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect(),
    }
}

/// Help, the version, or what is wrong with the command line; as JSON too, for whoever reads nothing else.
fn wrong(error: clap::Error, command: &clap::Command, words: &[OsString]) -> ! {
    if !error.use_stderr() {
        out::say_as_clap(&error.render());
        std::process::exit(error.exit_code());
    }
    // It quotes what was typed. The same words with escapes have the same fault.
    let safe: Vec<_> = words.iter().map(|word| foreign::in_a_line(&word.to_string_lossy())).collect();
    let error = command.clone().try_get_matches_from(safe).err().unwrap_or(error);
    let error = advice::advised(error, command);
    let text = error.render();
    if std::env::args_os().any(|word| word == "--json") {
        let text = text.to_string();
        let (message, hint) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.trim_start_matches("error: ").trim();
        let error = Error::new(Code::Invalid, message).hint(hint.trim());
        out::complain_json(&error.to_json().to_string());
    } else {
        out::complain_as_clap(&text);
    }
    std::process::exit(2);
}

/// Runs the command that this process was started with.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> ExitCode {
    let command = out::width().map_or_else(command_line, command_line_in);
    let words: Vec<_> = std::env::args_os().collect();
    let first =
        command.clone().try_get_matches_from(words.clone()).unwrap_or_else(|e| wrong(e, &command, &words));
    let parsed = settings::read(&command, words.clone(), &first);
    let (matches, settings, file) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let json = first.get_flag("json");
            return Context::new(Said { json, ..Said::default() }).fail(&error);
        }
    };
    let line = command;
    let Cli { run, request, json, command, .. } =
        Cli::from_arg_matches(&matches).unwrap_or_else(|e| wrong(e, &line, &words));
    let flags = flags(&line, &matches);
    let context = Context::new(Said { run, request, json, settings, file, flags });
    context.settings().1.untrusted.iter().for_each(|found| context.warn(&found.warning()));
    let done = command.unwrap_or_default().run(&context).await;
    context.flush().await;
    match done {
        Ok(code) => code,
        Err(error) => context.fail(&error),
    }
}
