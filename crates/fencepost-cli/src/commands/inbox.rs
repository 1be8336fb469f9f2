//! Inboxes: one verb, one file.

pub mod text;

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![send::Send, list::List, read::Read, respond::Respond, delegate::Delegate];

/// Send messages to an agent's inbox, and answer them; without a verb it lists your agent's inbox
///
/// A message is unread until somebody reads it, responds to it or delegates it. `fence poll` returns unread messages under a claim;
/// then these verbs need the token of the claim (and, with keys, a key of that agent). A response is stored with the message, and
/// posting it to its source is up to you. An inbox is the mailbox `inbox/AGENT`. Only `inbox send` fills it,
/// and only AGENT claims from it. An operator (an admin's key, or no key) may repair it with `fence mail`.
///
/// Examples:
///   fence inbox send lead "the site is down" --source slack --channel ops --sender kim
///   fence inbox list lead
///   fence inbox respond message/7@1 "it is up again"
///   fence inbox delegate 8 --to bob               make a task of it, for bob
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

/// A message on the command line.
#[derive(Debug, Args)]
struct Which {
    /// Its number, such as 7; while you hold it, its token, such as message/7@1
    #[arg(value_name = "MESSAGE")]
    message: String,
}

impl Which {
    /// The token, if it was given or if this run holds the message; else the number.
    async fn message(self, context: &Context) -> Result<String> {
        let which = context.token(Some(super::mail::resource(&self.message))).await?;
        Ok(match which.strip_prefix("message/") {
            Some(number) if !number.contains('@') => number.to_owned(),
            _ => which,
        })
    }
}
