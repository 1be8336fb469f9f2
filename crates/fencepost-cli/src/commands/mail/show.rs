use super::text;
use crate::{context::Context, output::events::EventLines};
use clap::Args;
use fencepost::{Result, event, mail};
use std::process::ExitCode;

/// How many of the latest events are shown: a message that is retried for ever has very many.
const HISTORY: i64 = 30;

/// Show a message in full, with its outputs, its failure and its latest events
#[derive(Debug, Args)]
pub struct Show {
    /// The message, such as 7
    #[arg(value_name = "ID", value_parser = super::number)]
    message: i64,
}

impl Show {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Show { message: self.message }).await?;
        if context.json() {
            return context.print(&reply, |_| String::new());
        }
        let history = event::List {
            resource: Some(format!("message/{}", self.message)),
            last: Some(HISTORY),
            ..event::List::default()
        };
        let history = context.call(history).await?.events;
        context.print(&reply, |reply| {
            let terminal = &context.terminal;
            let mut page = text::page(&reply.message, terminal);
            if !history.is_empty() {
                page += &format!("\n{}\n", EventLines::of(&history, terminal).page(&history));
            }
            page + &text::advice(&reply.message).map_or(String::new(), |advice| format!("\nhint: {advice}\n"))
        })
    }
}
