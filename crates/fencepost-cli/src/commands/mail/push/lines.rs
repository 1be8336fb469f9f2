//! Pushing a file with one message per line, in batches.

use super::super::text::how_many;
use crate::{
    commands::{TEXT_MAX, is_stdin, open},
    context::Context,
    output::progress::Progress,
};
use fencepost::{Code, Error, Result, mail, mail::push_many::Item};
use fencepost_import::json_lines::on_line;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader, Read},
    process::ExitCode,
};

/// The limits of a batch: the most messages of a call, and well below the 2 MiB that a server reads of a request.
const MESSAGES: usize = 1000;
const BYTES: usize = 1024 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Sum {
    pushed: usize,
    /// Messages whose keys existed already.
    existing: usize,
}

/// Messages of one call, and their lines.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    lines: Vec<usize>,
    bytes: usize,
}

/// Pushes while it reads: a file may be larger than memory.
pub async fn push(
    context: &Context,
    file: &str,
    item: impl Fn(&str, Option<usize>) -> Result<Item>,
) -> Result<ExitCode> {
    let unreadable =
        |e: io::Error| Error::new(Code::Invalid, format!("`{file}` cannot be read: {e}")).with("file", file);
    let mut input: Box<dyn BufRead> = match is_stdin(file) {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(open(file).map_err(unreadable)?)),
    };
    let mut progress = Progress::new(context.json());
    let (mut sum, mut batch, mut calls) = (Sum::default(), Batch::default(), 0);
    for n in 0.. {
        let Some(line) = next_line(&mut input).map_err(unreadable)? else { break };
        if line.trim().is_empty() {
            continue;
        }
        let item = item(&line, Some(n + 1))?;
        let size = serde_json::to_string(&item).map_err(Error::internal)?.len();
        if batch.items.len() == MESSAGES || (batch.bytes + size > BYTES && !batch.items.is_empty()) {
            send(context, std::mem::take(&mut batch), &mut calls, &mut sum).await?;
            progress.show(|| sum.describe());
        }
        batch.items.push(item);
        batch.lines.push(n + 1);
        batch.bytes += size;
    }
    if !batch.items.is_empty() {
        send(context, batch, &mut calls, &mut sum).await?;
    }
    drop(progress);
    context.print(&sum, Sum::describe)
}

/// The next line without its end; `None` at the end of the file. A line without an end does not fill the memory.
fn next_line(input: &mut dyn BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if input.take(TEXT_MAX + 1).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    if line.len() as u64 > TEXT_MAX {
        return Err(io::Error::other(format!("a line is longer than {TEXT_MAX} bytes")));
    }
    if line.ends_with('\n') {
        line.pop();
        if line.ends_with('\r') {
            line.pop();
        }
    }
    Ok(Some(line))
}

async fn send(context: &Context, batch: Batch, calls: &mut usize, sum: &mut Sum) -> Result<()> {
    let request = context.request().map(|id| if *calls == 0 { id } else { format!("{id}.{calls}") });
    let sent = context.call(mail::PushMany { messages: batch.items, request }).await;
    let sent = sent.map_err(|error| sum.partly_pushed(located(error, &batch.lines)))?;
    *calls += 1;
    sum.existing += sent.existing.len();
    sum.pushed += sent.messages.len() - sent.existing.len();
    Ok(())
}

/// The refusal of one message, with its line.
fn located(error: Error, lines: &[usize]) -> Error {
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
    fn describe(&self) -> String {
        match self.existing {
            0 => format!("pushed {}", how_many(self.pushed)),
            existing => format!("pushed {}; {existing} existed already", how_many(self.pushed)),
        }
    }

    fn partly_pushed(&self, error: Error) -> Error {
        if self.pushed + self.existing == 0 {
            return error;
        }
        let hint = error.hint_text().map(|hint| format!("; {hint}")).unwrap_or_default();
        error.hint(format!(
            "{} before it; repeat the command with the same --key to go on{hint}",
            self.describe()
        ))
    }
}
