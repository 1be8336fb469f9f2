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

/// Pass messages through mailboxes: durable queues; alone it shows them
///
/// A message is claimed, processed and completed, and what came of it is stored with the completion, at once or not at
/// all. If its holder dies, it comes back by itself. A mailbox is made by its first message.
///
/// Examples:
///   fence mail push session/42 '{"tool": "grep"}'
///   fence mail work session/42 -- ./handle.sh     run a command for each message, as they come
///   fence mail claim session/42 --wait 1m         or take one by hand, and complete it:
///   fence mail done message/7@1 --output '{"title": "found it"}'
///   fence mail list --status failed               what was given up, and
///   fence mail show 7                             why
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
    /// The claim, as `mail claim` printed it  [default: FENCE_CLAIM, else this run's only claim]
    token: Option<String>,
}

impl Held {
    async fn token(self, context: &Context) -> Result<String> {
        context.token(self.token.as_deref().map(resource)).await
    }
}

/// `message/7`, also for `7`.
pub fn resource(text: &str) -> String {
    if text.parse::<i64>().is_ok() { format!("message/{text}") } else { text.to_owned() }
}

/// A message by its number, as in `7`, `message/7` or `message/7@1`.
pub fn number(text: &str) -> Result<i64, String> {
    let plain = text.strip_prefix("message/").unwrap_or(text);
    let plain = plain.split_once('@').map_or(plain, |(number, _)| number);
    plain.parse().map_err(|_| "not a message's number, such as 7 or message/7".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_by_several_names() {
        for name in ["7", "message/7", "message/7@12"] {
            assert_eq!(number(name), Ok(7));
        }
        assert!(number("session/42").is_err() && number("task/auth-7").is_err());
        assert_eq!((resource("7"), resource("message/7@1")), ("message/7".into(), "message/7@1".into()));
    }
}
