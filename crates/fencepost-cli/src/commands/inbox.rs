//! Inboxes: one verb, one file.

pub mod text;

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![send::Send, list::List, read::Read, respond::Respond, delegate::Delegate];

/// Pass on to an agent what comes from outside, and deal with it: read, respond, delegate; alone it lists your agent's
///
/// A message is unread until somebody deals with it. `fence poll` gives unread ones to a run of the agent, under a claim;
/// then only who names the claim's token may (with keys: whose key is that agent's). An answer is stored with the message;
/// posting it where the message came from is yours. Underneath it is the mailbox `inbox/AGENT`, which only `inbox send` fills
/// and only AGENT claims from; an operator (an admin's key, or no key) may repair it with `fence mail`.
///
/// Examples:
///   fence inbox send lead "the site is down" --source slack --channel ops --sender kim
///   fence inbox list lead
///   fence inbox respond message/7@1 "it is up again"
///   fence inbox delegate 8 --to bob               a task is made of it, for bob
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Inbox {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Inbox {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::List(list::List::default())).run(context).await
    }
}

/// The message that is meant.
#[derive(Debug, Args)]
struct Which {
    /// Its number, such as 7, while nobody has it; its token, such as message/7@1, while you hold it
    #[arg(value_name = "MESSAGE")]
    message: String,
}

impl Which {
    /// The token, if it was named or this run has it; else the number.
    async fn message(self, context: &Context) -> Result<String> {
        let which = context.token(Some(super::mail::resource(&self.message))).await?;
        Ok(match which.strip_prefix("message/") {
            Some(number) if !number.contains('@') => number.to_owned(),
            _ => which,
        })
    }
}
