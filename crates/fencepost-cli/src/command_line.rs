//! The definition of the command line, and the way from its words to a command.

mod advice;

use crate::{
    commands,
    context::{Context, Invocation},
    output::{help, streams, untrusted},
    run_files,
    settings::{self, File},
};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use fencepost::{Code, Error};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Exactly-once work for fleets of AI agents.
///
/// A claim is a lease with a fencing token, and every write checks it. When a holder dies, its work goes back in the
/// queue. All state is in one database, which many processes share. Without a command, `fence` shows who you are,
/// what you hold, and what is ready.
#[derive(Debug, Parser)]
#[command(name = "fence", version)]
#[command(after_help = "Examples:
  fence init
  fence add \"write the parser\"
  fence claim                       claim the best task that is ready
  fence done                        complete it
  fence prime                       print the page to give to an agent

Exit codes:
  0  done
  1  failed
  2  wrong command line
  3  nothing to take
  4  not yours to take
  5  your claim is over
  6  held back, try later")]
struct Cli {
    /// The fleet: a file, sqlite:PATH or postgres://…  [env: FENCE_DB; default: this git repository's, else your own]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    db: Option<String>,
    /// The server of the fleet: http://… or https://…  [env: FENCE_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere", conflicts_with = "db")]
    url: Option<String>,
    /// The key for the server  [env: FENCE_KEY]
    #[arg(long, global = true, value_name = "KEY", help_heading = "Everywhere")]
    key: Option<String>,
    /// The certificate authority of an https server, a PEM file  [env: FENCE_CA; default: the system's]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    ca: Option<PathBuf>,
    /// The run to act for  [env: FENCE_RUN; default: this agent session's or terminal's]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    run: Option<String>,
    /// The agent to act as  [env: FENCE_AGENT]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    agent: Option<String>,
    /// The request id: repeating a command with the same id returns the first reply  [default: a new id]
    #[arg(long, global = true, value_name = "ID", help_heading = "Everywhere")]
    request: Option<String>,
    /// Print the reply as JSON, and errors as JSON on standard error
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    #[command(subcommand)]
    command: Option<commands::Command>,
}

/// All commands, in groups.
pub fn definition() -> clap::Command {
    grouped(reflowed(Cli::command()), None)
}

/// All commands, with help for a terminal of this width. (Lines of more than 100 columns are hard to read; clap limits its own
/// lines in the same way.)
fn definition_for(width: usize) -> clap::Command {
    let width = width.min(100);
    grouped(help::fitted(reflowed(Cli::command()), width), Some(width)).term_width(width)
}

fn grouped(command: clap::Command, width: Option<usize>) -> clap::Command {
    let groups = commands::grouped(&command, width);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// Joins the lines of paragraphs: the source is wrapped for editors, the help for terminals. Indented lines are examples, and
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
fn flags(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    match matches.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below))) {
        Some((command, below)) => flags(command, below),
        None => command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect(),
    }
}

/// Prints help, the version or a usage error, and exits. With `--json` the error is JSON.
fn exit_with(error: clap::Error, command: &clap::Command, words: &[OsString]) -> ! {
    if !error.use_stderr() {
        streams::print_help(&error.render());
        std::process::exit(error.exit_code());
    }
    // The error quotes the words of the user. The same words with escapes cause the same error.
    let safe: Vec<_> = words.iter().map(|word| untrusted::in_a_line(&word.to_string_lossy())).collect();
    let error = command.clone().try_get_matches_from(safe).err().unwrap_or(error);
    let error = advice::advised(error, command);
    let text = error.render();
    if std::env::args_os().any(|word| word == "--json") {
        let text = text.to_string();
        let (message, hint) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.trim_start_matches("error: ").trim();
        let error = Error::new(Code::Invalid, message).hint(hint.trim());
        streams::print_error_json(&error.to_json().to_string());
    } else {
        streams::print_usage_error(&text);
    }
    std::process::exit(2);
}

/// Runs the command that this process was started with.
pub async fn run() -> ExitCode {
    let definition = streams::width().map_or_else(definition, definition_for);
    let words: Vec<_> = std::env::args_os().collect();
    let first = definition
        .clone()
        .try_get_matches_from(words.clone())
        .unwrap_or_else(|e| exit_with(e, &definition, &words));
    let reads_file = commands::reads_settings(first.subcommand_name());
    let (matches, settings, file) = match settings::read(&definition, words.clone(), reads_file) {
        Ok(parsed) => parsed,
        Err(error) => return without_settings(first.get_flag("json")).fail(&error),
    };
    let Cli { run, request, json, command, .. } =
        Cli::from_arg_matches(&matches).unwrap_or_else(|e| exit_with(e, &definition, &words));
    let flags = flags(&definition, &matches);
    let context = Context::new(Invocation {
        run,
        request,
        json,
        settings,
        file,
        flags,
        command_line: self::definition,
    });
    run_files::sign_of_life();
    context.settings().1.untrusted.iter().for_each(|found| context.warn(&found.warning()));
    let done = command.unwrap_or_default().run(&context).await;
    context.flush().await;
    match done {
        Ok(code) => code,
        Err(error) => context.fail(&error),
    }
}

/// A context that can only report an error.
fn without_settings(json: bool) -> Context {
    Context::new(Invocation {
        run: None,
        request: None,
        json,
        settings: Vec::new(),
        file: File::default(),
        flags: Vec::new(),
        command_line: definition,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use unicode_width::UnicodeWidthStr;

    /// Adds the help of a command and of its subcommands.
    fn pages(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) {
        for (short, mut command) in [("-h", command.clone()), ("--help", command.clone())] {
            let page = if short == "-h" { command.render_help() } else { command.render_long_help() };
            pages.push((format!("{name} {short}"), page.to_string()));
        }
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            self::pages(command, &format!("{name} {}", command.get_name()), pages);
        }
    }

    fn all(mut command: clap::Command) -> Vec<(String, String)> {
        command.build();
        let mut all = Vec::new();
        pages(&command, "fence", &mut all);
        all
    }

    #[test]
    fn lists_and_examples_keep_their_columns() {
        let pages = all(definition_for(60));
        let page = |name: &str| pages.iter().find(|(page, _)| page == name).map(|(_, text)| text.as_str());
        for (name, says) in [
            (
                "fence --help",
                "  import       Import tasks, agents and conversations from\n               other systems\n",
            ),
            (
                "fence --help",
                "\n  fence claim                       claim the best task that\n                                    is",
            ),
            (
                "fence mail --help",
                "  fence mail work session/42 -- ./handle.sh\n      run a command for each message",
            ),
            (
                "fence mail --help",
                "  fence mail done message/7@1 --output \\\n      '{\"title\": \"found it\"}'",
            ),
        ] {
            let page = page(name).unwrap_or_default();
            assert!(page.contains(says), "{says}\n---\n{page}");
        }
    }

    #[test]
    fn help_fits_and_breaks_no_word() {
        let wide = all(definition().term_width(100_000));
        for width in [60, 80] {
            let narrow = all(definition_for(width));
            assert!(narrow.len() > 150 && narrow.len() == wide.len(), "{}", narrow.len());
            for ((name, narrow), (_, wide)) in narrow.iter().zip(&wide) {
                let known: BTreeSet<&str> = wide.split_whitespace().collect();
                for line in help::rest(narrow, width).lines() {
                    // A word that a user types in one piece stays in one piece.
                    let one_piece = help::words(line.trim_start()).filter(|word| *word != "\\").count() == 1;
                    assert!(line.trim_end().width() <= width || one_piece, "{name} at {width}:\n{line}");
                    let split = line.split_whitespace().find(|word| *word != "\\" && !known.contains(word));
                    assert_eq!(split, None, "{name} at {width}:\n{line}");
                }
            }
        }
    }
}
