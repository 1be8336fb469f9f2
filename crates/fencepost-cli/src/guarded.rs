//! The net: does a line of shell that an agent is about to run name a guarded command, such as `git push`?
//!
//! A line is caught if the words of a rule stand in it, anywhere, unless [`harmless`] proves that they only are text: the argument of an
//! `echo`, the message of a commit. Nothing is executed or expanded. A gap in that proof costs a question, never a push.
//!
//! Out of reach are words that are not in the line: `git $verb`, aliases, scripts, `make release`, encoded text, a message that git
//! kept and another command reads back. The git fence refuses those pushes.

mod harmless;
mod rules;
pub mod shell;
#[cfg(test)]
pub mod tests;
mod words;

pub use harmless::is_fence;
pub use rules::{DEFAULT, Rules};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The rule's text: `git push|send-pack`.
    pub rule: String,
    /// The words that were found: `git push`.
    pub command: String,
}

/// The first rule whose words stand in the line, and are not proven harmless.
pub fn find(line: &str, rules: &Rules) -> Option<Found> {
    // Most lines have none of the words, so that nothing has to be proven.
    rules.named_in(line)?;
    rules.named_in(&harmless::removed(line, rules))
}
