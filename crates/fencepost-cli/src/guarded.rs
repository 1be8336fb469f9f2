//! Whether a line of shell that an agent is about to run contains a guarded command, such as `git push`.
//!
//! [`find`] looks through separators, subshells, keywords, functions of the line, quotes and escapes, braces, variables
//! assigned in the line, substitutions, here-documents and pipes into a shell, and programs that run another command
//! (`sudo`, `env`, `xargs`, `bash -c`, `ssh`, `fence guard … -- …`). A program or subcommand that is not known before
//! the line runs counts as guarded if the rest of the rule's words match: `git $verb`, `$tool push`. A line that cannot
//! be parsed counts as guarded if it contains the last word of a rule.
//!
//! It does not see, and the git fence has to catch, if it is a push: aliases and functions defined elsewhere; scripts
//! and `make release`; code of other languages (`python -c`); encoded text (`base64 -d | sh`); command lines that
//! come whole from the environment (`$CMD`, `"$@"`); programs that push by themselves.
//!
//! A dry run is guarded like the real command, because its options mean different things to different programs.
//! `--help` right after the command, and nothing else, is not.

mod expand;
mod look;
mod parse;
mod rules;
mod syntax;
#[cfg(test)]
mod tests;
mod word;
mod wrappers;

use std::cell::Cell;

pub use rules::{DEFAULT, Rules};

/// Longer lines are not parsed.
const MAX_LINE: usize = 256 * 1024;

/// Steps that one line may take, at a few nanoseconds each. A line without tricks takes a few per character.
const FUEL: usize = 4_000_000;

/// A guarded command in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The rule's text: `git push`.
    pub rule: String,
    /// The command as it would run, for the message; `…` stands for text that is not known before.
    pub command: String,
}

/// The first guarded command that the line runs.
pub fn find(line: &str, rules: &Rules) -> Option<Found> {
    if line.len() > MAX_LINE || line.contains('\0') {
        return coarse(line, rules);
    }
    let fuel = Cell::new(FUEL);
    let found = look::Look::new(rules, &fuel).text(line, 0, &[]);
    if found.is_none() && fuel.get() == 0 { coarse(line, rules) } else { found }
}

fn coarse(text: &str, rules: &Rules) -> Option<Found> {
    let rule = rules.coarse(text)?.to_owned();
    let command = text.chars().take(200).filter(|c| *c != '\0').collect();
    Some(Found { rule, command })
}
