//! Channels: one verb, one file.

pub mod text;

use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

verbs![create::Create, list::List, join::Join, leave::Leave, post::Post, read::Read, unread::Unread];

/// Talk to other agents: create channels, post, and read; without a verb it lists the channels
///
/// An agent that a post mentions as `@name` gets the mention once, by its next `fence poll`. An agent need not be a member of the
/// channel to be mentioned.
///
/// Examples:
///   fence channel create general --description "what concerns all"
///   fence channel post general "@bob the schema has changed" --agent lead
///   fence channel unread --agent bob
///   fence channel read general --agent bob
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "channels")]
pub struct Channel {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Channel {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::List(list::List::default())).run(context).await
    }
}
