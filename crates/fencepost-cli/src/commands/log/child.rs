//! The output of a child of `fence work`.

use crate::{
    context::Context,
    output::{streams, untrusted},
    run_files::{LogReader, RunFiles},
};
use fencepost::{Code, Error, Result, run};
use std::{process::ExitCode, time::Duration};

/// How often to look for more output.
const LOOK: Duration = Duration::from_millis(100);

/// Prints what the child of this run has printed; with `follow` also what it prints until it ends.
pub async fn print(files: &RunFiles, name: &str, follow: bool, context: &Context) -> Result<ExitCode> {
    let unreadable =
        |e: std::io::Error| Error::unavailable(format!("the log of run `{name}` cannot be read: {e}"));
    let printing = async {
        let mut lines = Lines { run: name, json: context.json(), rest: Vec::new() };
        let mut log: Option<LogReader> = None;
        let mut chunk = vec![0; 64 * 1024];
        loop {
            // Asked before the log is read: output that came before the end is printed.
            let over =
                !follow || files.state().is_none_or(|state| state.ended.is_some() || state.is_left_behind());
            log = log.or_else(|| files.log());
            while let Some(log) = &mut log
                && let n @ 1.. = log.read(&mut chunk).map_err(unreadable)?
            {
                lines.print(&chunk[..n])?;
            }
            if over {
                return lines.end();
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    match context.while_read(printing).await {
        Some(printed) => printed.map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A run that has no files here: where it ran.
pub async fn elsewhere(name: &str, context: &Context) -> Result<Option<Error>> {
    let runs = context.call(run::List { run: Some(name.into()), all: true, limit: Some(1) }).await?.runs;
    let Some(run) = runs.first() else { return Ok(None) };
    let place = match &run.host {
        Some(host) => format!("it ran on {host}"),
        None => "`fence work` did not start it".into(),
    };
    Ok(Some(
        Error::new(Code::NotFound, format!("there is no log of run `{name}` on this machine: {place}"))
            .hint("fence log RUN works on the machine of the run, for the user of its worker"),
    ))
}

/// Output that arrives in pieces, printed by lines.
struct Lines<'l> {
    run: &'l str,
    json: bool,
    rest: Vec<u8>,
}

impl Lines<'_> {
    fn print(&mut self, bytes: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        self.write(&whole)
    }

    /// The last line need not have an end.
    fn end(mut self) -> Result<()> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() { Ok(()) } else { self.write(&rest) }
    }

    fn write(&self, lines: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(lines);
        let lines = text.lines().map(|line| match self.json {
            true => serde_json::json!({ "run": self.run, "line": line }).to_string(),
            false => untrusted::in_a_line(line),
        });
        let lines = lines.collect::<Vec<_>>().join("\n");
        if self.json { streams::print_json(&lines) } else { streams::print(&lines) }
    }
}
