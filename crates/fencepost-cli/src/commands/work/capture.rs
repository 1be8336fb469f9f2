//! The output of a child: kept in its log, read for what a client tells, with its end and its last line in memory.

use super::{
    profile::Profile,
    reading::{Lines, Reading},
};
use crate::{
    run_files::LogWriter,
    supervise::{LastBytes, Sink, Stream},
};
use fencepost_client::renewal::{self, Ticks};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicI64, Ordering},
};

/// How much of the end of the output is kept with the attempt.
const TAIL: usize = 16 * 1024;
/// The longest last line that is shown.
const SHOWN: usize = 500;

/// Signs of life, for the one who watches the child.
#[derive(Debug)]
pub struct Activity {
    /// When it last printed something.
    at: AtomicI64,
    told: Mutex<Told>,
}

/// What the output told so far. A client may tell its cost only at its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    pub last_line: String,
    pub usd: Option<f64>,
    pub tokens: Option<f64>,
}

impl Activity {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { at: AtomicI64::new(renewal::now()), told: Mutex::default() })
    }

    /// The child shows a sign of life.
    pub fn sign(&self) {
        self.at.store(renewal::now(), Ordering::Relaxed);
    }

    pub fn at(&self) -> Ticks {
        self.at.load(Ordering::Relaxed)
    }

    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct Capture {
    log: LogWriter,
    lines: Lines,
    /// The end of both streams, and of standard output alone.
    tail: LastBytes,
    output: LastBytes,
    /// The line that is being printed, of both streams.
    line: Vec<u8>,
    activity: Arc<Activity>,
}

impl Capture {
    pub fn new(log: LogWriter, profile: &Profile, activity: &Arc<Activity>) -> Self {
        let (tail, output, line) = (LastBytes::up_to(TAIL), LastBytes::up_to(TAIL), Vec::new());
        Self { log, lines: Lines::new(profile), tail, output, line, activity: activity.clone() }
    }

    /// Returns the facts that the output told, the end of both streams, and the end of standard output.
    pub fn finish(mut self) -> (Reading, String, String) {
        self.lines.end_line();
        (self.lines.reading, self.tail.text(), self.output.text())
    }

    fn show_last_line(&mut self, bytes: &[u8]) {
        let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
            let room = SHOWN.saturating_sub(self.line.len());
            self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
            return;
        };
        let (whole, begun) = bytes.split_at(end);
        let start = whole.iter().rposition(|&byte| byte == b'\n');
        let last = match start {
            Some(start) => whole[start + 1..].to_vec(),
            None => [std::mem::take(&mut self.line), whole.to_vec()].concat(),
        };
        self.line = begun[1..][..begun.len().min(SHOWN + 1) - 1].to_vec();
        let last = String::from_utf8_lossy(&last[..last.len().min(SHOWN)]).trim().to_owned();
        if !last.is_empty() {
            self.activity.lock().last_line = last;
        }
    }
}

impl Sink for Capture {
    fn take(&mut self, from: Stream, bytes: &[u8]) {
        self.activity.sign();
        // A full disk must not stop the child: its work counts, not its log.
        let _ = self.log.write(bytes);
        if from == Stream::Output {
            self.lines.take(bytes);
            self.output.take(bytes);
            let (usd, tokens) = (self.lines.reading.usd, self.lines.reading.tokens());
            let mut told = self.activity.lock();
            (told.usd, told.tokens) = (usd, tokens);
        }
        self.tail.take(bytes);
        self.show_last_line(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(dir: &std::path::Path) -> (Capture, Arc<Activity>) {
        let activity = Activity::new();
        let profile =
            toml::from_str("[[read]]\nwhere = { \"/type\" = \"end\" }\nresult = \"/text\"\nusd = [\"/usd\"]\ntokens_in = [\"/in\"]").unwrap();
        (Capture::new(LogWriter::open(dir).unwrap(), &profile, &activity), activity)
    }

    #[test]
    fn any_output_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (mut output, activity) = capture(dir.path());
        output.take(Stream::Output, b"one\ntw");
        output.take(Stream::Error, b"o\n");
        assert_eq!(activity.told().last_line, "two");
        output.take(Stream::Output, b"\xff\xfe\0binary\nno newline");
        assert_eq!(activity.told().last_line, "\u{fffd}\u{fffd}\0binary");
        let (reading, tail, output) = output.finish();
        assert_eq!(output, "one\ntw\u{fffd}\u{fffd}\u{fffd}binary\nno newline");
        assert_eq!(tail, "one\ntwo\n\u{fffd}\u{fffd}\u{fffd}binary\nno newline");
        assert_eq!(reading, Reading::default());
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut output, activity) = capture(dir.path());
        for n in 0..200 {
            output.take(Stream::Output, "é".repeat(1000 + n).as_bytes());
        }
        // A message in pieces, the last of them without a line end.
        output.take(Stream::Output, b"\n{\"type\":\"e");
        output.take(Stream::Error, b"between\n");
        output
            .take(Stream::Output, b"nd\", \"usd\": 0.5, \"in\": 7}\n{\"type\": \"end\", \"text\": \"well\"}");
        let Told { usd, tokens, .. } = activity.told();
        assert_eq!((usd, tokens), (Some(0.5), Some(7.0)), "while it runs");
        let (reading, tail, _) = output.finish();
        assert!(tail.len() <= TAIL && tail.starts_with('é') && tail.ends_with("\"well\"}"), "{}", tail.len());
        assert_eq!(reading.result.as_deref(), Some("well"));
    }
}
