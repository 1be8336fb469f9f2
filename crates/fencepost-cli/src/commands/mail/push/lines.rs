//! A file with a message on each line, pushed a batch at a time.

use super::super::text::how_many;
use crate::{commands::is_stdin, context::Context, output::progress::Progress};
use fencepost::{Code, Error, Result, mail, mail::push_many::Item};
use fencepost_import::json_lines::on_line;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    process::ExitCode,
};

/// As many as a call may have, and well below the 2 MiB that a server reads of a request.
const MESSAGES: usize = 1000;
const BYTES: usize = 1024 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Sum {
    pushed: usize,
    /// Those that were there already, by their keys.
    existing: usize,
}

/// What is sent together, and on which lines it stood.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    lines: Vec<usize>,
    bytes: usize,
}

/// Reads as it goes: a file may be larger than memory.
pub async fn push(
    context: &Context,
    file: &str,
    item: impl Fn(&str, Option<usize>) -> Result<Item>,
) -> Result<ExitCode> {
    let unreadable =
        |e: io::Error| Error::new(Code::Invalid, format!("`{file}` cannot be read: {e}")).with("file", file);
    let input: Box<dyn BufRead> = match is_stdin(file) {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(unreadable)?)),
    };
    let mut progress = Progress::new(context.json());
    let (mut sum, mut batch, mut calls) = (Sum::default(), Batch::default(), 0);
    for (n, line) in input.lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        let item = item(&line, Some(n + 1))?;
        let size = serde_json::to_string(&item).map_err(Error::internal)?.len();
        if batch.items.len() == MESSAGES || (batch.bytes + size > BYTES && !batch.items.is_empty()) {
            send(context, std::mem::take(&mut batch), &mut calls, &mut sum).await?;
            progress.show(|| sum.told());
        }
        batch.items.push(item);
        batch.lines.push(n + 1);
        batch.bytes += size;
    }
    if !batch.items.is_empty() {
        send(context, batch, &mut calls, &mut sum).await?;
    }
    drop(progress);
    context.print(&sum, Sum::told)
}

async fn send(context: &Context, batch: Batch, calls: &mut usize, sum: &mut Sum) -> Result<()> {
    let request = context.request().map(|id| if *calls == 0 { id } else { format!("{id}.{calls}") });
    let sent = context.call(mail::PushMany { messages: batch.items, request }).await;
    let sent = sent.map_err(|error| sum.half_way(blame(error, &batch.lines)))?;
    *calls += 1;
    sum.existing += sent.existing.len();
    sum.pushed += sent.messages.len() - sent.existing.len();
    Ok(())
}

/// A refusal of one message, said of its line.
fn blame(error: Error, lines: &[usize]) -> Error {
    let field = error.field("field").and_then(Value::as_str).unwrap_or_default();
    let index = match field.strip_prefix("messages[").and_then(|rest| rest.split_once(']')) {
        Some((index, _)) => index.parse().ok(),
        None => (lines.len() == 1 && !field.is_empty()).then_some(0),
    };
    match index.and_then(|index: usize| lines.get(index)) {
        Some(line) => on_line(error, *line),
        None => error,
    }
}

impl Sum {
    fn told(&self) -> String {
        match self.existing {
            0 => format!("pushed {}", how_many(self.pushed)),
            there => format!("pushed {}; {there} were there already", how_many(self.pushed)),
        }
    }

    fn half_way(&self, error: Error) -> Error {
        if self.pushed + self.existing == 0 {
            return error;
        }
        let said = error.hint_text().map(|hint| format!("; {hint}")).unwrap_or_default();
        error.hint(format!("{} before it; with --key the same again goes on{said}", self.told()))
    }
}
