//! Advice for a wrong command line, where clap's own words would mislead.

use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::num::{IntErrorKind, ParseIntError};

/// Words that people type and that could mean several commands, each with the commands to type instead. A word that means one
/// command is an alias of that command.
const ADVICE: &[(&[&str], &[&str])] = &[
    (
        &["undo", "revert"],
        &[
            "`fence release` gives back a claim",
            "`fence retry TASK` lets a failed or cancelled task be tried again",
            "`fence reopen TASK` adds a new task for a completed one",
        ],
    ),
    (
        &["next", "pull"],
        &[
            "`fence claim` claims the best task that is ready",
            "`fence done --next` completes your task and claims the next",
            "`fence ready` lists the tasks that can be claimed",
        ],
    ),
    (
        &["rm", "remove", "delete", "drop", "del"],
        &[
            "`fence cancel TASK` cancels a task; it is kept",
            "`fence release` gives back a claim",
            "`fence prune` removes old data",
        ],
    ),
    (
        &["send", "message", "msg", "tell"],
        &[
            "`fence inbox send AGENT TEXT` sends a message to an agent",
            "`fence channel post CHANNEL TEXT` posts to a channel",
            "`fence mail push MAILBOX PAYLOAD` pushes a message into a queue",
        ],
    ),
    (&["post", "say", "chat"], &["`fence channel post CHANNEL TEXT` posts to a channel"]),
    (&["push", "enqueue", "publish"], &["`fence mail push MAILBOX PAYLOAD` pushes a message into a queue"]),
    (
        &["pop", "dequeue", "consume"],
        &[
            "`fence mail claim MAILBOX` claims a message",
            "`fence mail work MAILBOX -- CMD` runs a command for each message",
        ],
    ),
    (
        &["join", "register"],
        &["`fence agent join NAME` registers an agent", "`fence channel join CHANNEL` joins a channel"],
    ),
    (
        &["hold", "block"],
        &[
            "`fence park TASK --reason TEXT` sets a task aside",
            "`fence dep add TASK OTHER` makes a task wait for another",
            "`fence pause AGENT` gives an agent no new work; `fence mail pause MAILBOX` pauses a queue",
        ],
    ),
    (
        &["unblock", "unhold"],
        &[
            "`fence unpark TASK` lets a parked task be claimed again",
            "`fence dep rm TASK OTHER` stops a task from waiting for another",
            "`fence resume AGENT` resumes an agent; `fence mail resume MAILBOX` resumes a queue",
        ],
    ),
    (
        &["tail", "follow", "watch"],
        &[
            "`fence events --follow` shows events as they happen",
            "`fence wait TASK` waits until a task is completed",
        ],
    ),
    (
        &["stop", "quit", "exit"],
        &["`fence end` ends this run and gives back its claims", "`fence release` gives back one claim"],
    ),
    (
        &["todo", "queue", "backlog"],
        &[
            "`fence ready` lists the tasks that can be claimed",
            "`fence list --open` lists the tasks that are not finished",
        ],
    ),
    (
        &["logs", "journal"],
        &["`fence log TASK` shows the history of a task", "`fence events` shows the log of the fleet"],
    ),
    (
        &["abort", "kill-task"],
        &["`fence cancel TASK` cancels a task; it is kept", "`fence release` gives back a claim"],
    ),
    (
        &["unassign", "reassign"],
        &[
            "`fence unclaim TASK` takes a task away from its holder",
            "`fence assign TASK AGENT` assigns it to another agent",
        ],
    ),
    (
        &["dump", "save"],
        &["`fence export FILE` exports the whole fleet", "`fence backup FILE` copies its database"],
    ),
    (
        &["restore", "load"],
        &[
            "`fence import jsonl FILE` imports a file of `fence export`",
            "use --db with a file that `fence backup` made",
        ],
    ),
    (&["version"], &["`fence --version` prints it"]),
    (
        &["dashboard", "watch", "monitor"],
        &["`fence top` shows the whole fleet", "`fence` alone shows your run and what is ready"],
    ),
    (
        &["run", "exec"],
        &[
            "`fence mail work MAILBOX -- CMD` runs a command for each message",
            "`fence guard -- CMD` and `fence lock NAME -- CMD` run one under a claim",
        ],
    ),
];

/// The same error, with advice.
pub fn advised(error: Error, command: &Command) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => with_commands(error, command),
        ErrorKind::ValueValidation => not_a_number(&error, command).unwrap_or(error),
        _ => error,
    }
}

/// Replaces Rust's "invalid digit found in string" for an argument that is a number.
fn not_a_number(error: &Error, command: &Command) -> Option<Error> {
    let source = std::error::Error::source(error)?.downcast_ref::<ParseIntError>()?;
    let why = match source.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "it is too large",
        _ => "it is not a whole number",
    };
    let (arg, value) = (error.get(ContextKind::InvalidArg)?, error.get(ContextKind::InvalidValue)?);
    let message = format!("invalid value '{value}' for '{arg}': {why}\n");
    Some(Error::raw(ErrorKind::ValueValidation, message).with_cmd(command))
}

/// Names the commands that an unknown word could mean.
fn with_commands(mut error: Error, command: &Command) -> Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    // After a noun, as in `fence mail next`, the word means something else.
    let before = std::env::args().skip(1).take_while(|arg| arg != word);
    if before.into_iter().any(|arg| command.find_subcommand(arg).is_some()) {
        return error;
    }
    let Some((_, tips)) = ADVICE.iter().find(|(words, _)| words.contains(&word.as_str())) else {
        return error;
    };
    error.remove(ContextKind::SuggestedSubcommand);
    let tips = tips.iter().map(|tip| clap::builder::StyledStr::from(*tip)).collect();
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every advised command must exist, and a word that is a command must not be in the list.
    #[test]
    fn advice_names_existing_commands() {
        let command = super::super::definition();
        for (words, tips) in ADVICE {
            for word in *words {
                assert!(command.find_subcommand(word).is_none(), "`{word}` is a command");
            }
            for tip in *tips {
                for advice in tip.split('`').skip(1).step_by(2) {
                    let words = advice.split(' ').filter(|word| word.chars().all(char::is_lowercase));
                    let mut at = &command;
                    for word in words.skip(1) {
                        at = match at.find_subcommand(word) {
                            Some(found) => found,
                            None => panic!("`{advice}`: there is no `{word}`"),
                        };
                    }
                }
            }
        }
    }
}
