//! Mailboxes: one verb, one file.

mod content;
mod text;

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![
    push::Push,
    work::Work,
    claim::Claim,
    checkpoint::Checkpoint,
    done::Done,
    fail::Fail,
    release::Release,
    take::Take,
    peek::Peek,
    stats::Stats,
    list::List,
    show::Show,
    redrive::Redrive,
    discard::Discard,
    reset::Reset,
    pause::Pause,
    resume::Resume,
    configure::Configure,
];

/// Use mailboxes, which are durable queues of messages; without a verb it shows their counts
///
/// A message is claimed, processed and completed. Its outputs are stored in the same transaction as the completion. If its holder
/// dies, the message goes back in the queue. The first message creates a mailbox.
///
/// Examples:
///   fence mail push session/42 '{"tool": "grep"}'
///   fence mail work session/42 -- ./handle.sh     run a command for each message
///   fence mail claim session/42 --wait 1m         or claim a message by hand
///   fence mail done message/7@1 --output '{"title": "found it"}'
///   fence mail list --status failed               list failed messages
///   fence mail show 7                             show one, and why it failed
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Mail {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Mail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::Stats(stats::Stats::default())).run(context).await
    }
}

/// The claim that a verb acts under.
#[derive(Debug, Args)]
struct Held {
    /// The token that `mail claim` printed  [default: FENCE_CLAIM, else this run's only claim]
    token: Option<String>,
}

impl Held {
    async fn token(self, context: &Context) -> Result<String> {
        context.token(self.token.as_deref().map(resource)).await
    }
}

/// The resource of a message: `message/7` for `7`.
pub fn resource(text: &str) -> String {
    if text.parse::<i64>().is_ok() { format!("message/{text}") } else { text.to_owned() }
}

/// The number of a message, given as `7`, `message/7` or `message/7@1`.
pub fn number(text: &str) -> Result<i64, String> {
    let plain = text.strip_prefix("message/").unwrap_or(text);
    let plain = plain.split_once('@').map_or(plain, |(number, _)| number);
    plain.parse().map_err(|_| "not a message's number, such as 7 or message/7".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_can_be_named_in_several_ways() {
        for name in ["7", "message/7", "message/7@12"] {
            assert_eq!(number(name), Ok(7));
        }
        assert!(number("session/42").is_err() && number("task/auth-7").is_err());
        assert_eq!((resource("7"), resource("message/7@1")), ("message/7".into(), "message/7@1".into()));
    }
}
