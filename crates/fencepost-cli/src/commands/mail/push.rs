mod lines;

use super::{
    super::{ServerKey, duration, priority, text as read_text},
    content, text,
};
use crate::context::Context;
use clap::Args;
use fencepost::{Json, Millis, Result, mail, mail::push_many::Item};
use std::process::ExitCode;

/// Push a message into a mailbox, or a file of messages
///
/// A payload that is a JSON object or array is stored as JSON, everything else as text. With --lines each line is a message. If the
/// command is interrupted, repeat it with the same --key, and it goes on where it stopped.
///
/// Examples:
///   fence mail push session/42 '{"tool": "grep", "found": 3}' --type tool_use
///   some-hook | fence mail push session/42 -
///   fence mail push session/42 @notes.md --text --delay 10m --header from=kim
///   fence mail push imports --lines rows.jsonl --key import-7
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Push {
    /// The mailbox, such as session/42; created if it does not exist
    mailbox: String,
    /// The payload: TEXT, @file, or - for standard input
    #[arg(conflicts_with = "lines", required_unless_present = "lines")]
    payload: Option<String>,
    /// Push each line of this file, or of standard input for -
    #[arg(long, short = 'f', value_name = "FILE")]
    lines: Option<String>,
    /// Store the payload as text, even if it looks like JSON
    #[arg(long)]
    text: bool,
    /// The type of the message, a word of your choice
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// A key of your choice: a second message with the same key is not pushed. With --lines, each key gets the line number
    #[arg(id = "message_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
    /// 0 to 100, higher first  [default: 50]
    #[arg(long, short, value_parser = priority, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The time before it can be claimed
    #[arg(long, value_parser = duration)]
    delay: Option<Millis>,
    /// The lane, within which a strict mailbox keeps the order
    #[arg(long)]
    lane: Option<String>,
    /// A header; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// The most attempts  [default: the mailbox's]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i64>,
}

impl Push {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if let Some(file) = self.lines.clone() {
            return lines::push(context, &file, |line, number| self.item(line, number)).await;
        }
        let payload = read_text(self.payload.clone().unwrap_or_default())?;
        let Item { mailbox, payload, kind, key, priority, delay_ms, lane, headers, max_attempts } =
            self.item(&payload, None)?;
        let op = mail::Push {
            mailbox,
            payload,
            kind,
            key,
            priority,
            delay_ms,
            lane,
            headers,
            max_attempts,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let existing = if reply.existing { "  (existed already)" } else { "" };
            format!("{}{existing}", text::message(&reply.message, &context.terminal))
        })
    }

    /// The message of a text, which may be a line of a file.
    fn item(&self, text: &str, line: Option<usize>) -> Result<Item> {
        let key = self.key.as_ref();
        Ok(Item {
            mailbox: self.mailbox.clone(),
            payload: Some(if self.text { Json::of(text)? } else { content::payload(text)? }),
            kind: self.kind.clone(),
            key: key.map(|key| line.map_or_else(|| key.clone(), |line| format!("{key}:{line}"))),
            priority: self.priority,
            delay_ms: self.delay,
            lane: self.lane.clone(),
            headers: self.header.iter().cloned().collect(),
            max_attempts: self.max_attempts,
        })
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not a header such as from=kim")?;
    Ok((name.to_owned(), value.to_owned()))
}
