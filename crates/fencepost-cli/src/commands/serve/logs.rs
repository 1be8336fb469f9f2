//! The log on standard error: text on a terminal, JSON elsewhere.
//!
//! The server never waits for a slow reader of the log. It queues a bounded number of lines and bytes, and drops and counts the
//! lines that do not fit.

use crate::output::streams;
use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// The limits of the queue. Lines have about 200 bytes, but the text of an error may be of any length, so bytes are limited, too.
const LINES: usize = 10_000;
const BYTES: usize = 8 * 1024 * 1024;
/// The longest time for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

enum Entry {
    /// The permit for its bytes is returned once it is written.
    Line(Vec<u8>, OwnedSemaphorePermit),
    /// Reports that all lines before it are written.
    End(SyncSender<()>),
}

/// The sending end of the queue. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    queue: SyncSender<Entry>,
    /// The bytes that are free.
    free: Arc<Semaphore>,
    dropped: Arc<AtomicU64>,
}

impl Logs {
    pub fn begin() -> Self {
        let json = streams::error_width().is_none();
        let (logs, entries) = Self::new(LINES, BYTES);
        let dropped = logs.dropped.clone();
        std::thread::spawn(move || write(&entries, &dropped, json));
        let wanted = std::env::var("FENCE_LOG").ok().and_then(|wanted| wanted.parse::<Targets>().ok());
        let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
        // At lower levels it logs each message of an agent, and three lines for each request.
        let filter = filter.with_target("rmcp", LevelFilter::WARN);
        let all = tracing_subscriber::registry().with(filter);
        let writer = logs.clone();
        let layer = fmt::layer().with_writer(move || writer.clone());
        // A subscriber that was set up before is kept.
        let _ = match json {
            true => all.with(layer.json().flatten_event(true)).try_init(),
            false => all.with(layer.with_target(false)).try_init(),
        };
        logs
    }

    fn new(lines: usize, bytes: usize) -> (Self, Receiver<Entry>) {
        let (queue, entries) = sync_channel(lines);
        (Self { queue, free: Arc::new(Semaphore::new(bytes)), dropped: Arc::default() }, entries)
    }

    /// Queues a line; false if it does not fit. After the writer has ended, a line counts as queued.
    fn queue(&self, line: &[u8]) -> bool {
        // A line that is longer than u32 does not fit anywhere.
        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX);
        let Ok(permit) = self.free.clone().try_acquire_many_owned(bytes) else { return false };
        !matches!(self.queue.try_send(Entry::Line(line.to_vec(), permit)), Err(TrySendError::Full(_)))
    }

    /// Waits until the last lines are written, if somebody reads them.
    pub fn end(self) {
        let (written, end) = sync_channel(1);
        if self.queue.try_send(Entry::End(written)).is_ok() {
            let _ = end.recv_timeout(LAST_LINES);
        }
    }
}

/// The subscriber calls it once per line.
impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if !self.queue(line) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write(entries: &Receiver<Entry>, dropped: &AtomicU64, json: bool) {
    for entry in entries {
        match entry {
            Entry::Line(line, _permit) => streams::log(&line, json),
            Entry::End(written) => drop(written.send(())),
        }
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let text = format!("{dropped} lines of the log were not read in time, and are lost");
            match json {
                true => streams::print_error_json(
                    &serde_json::json!({ "level": "WARN", "message": text }).to_string(),
                ),
                false => streams::print_error(&format!("WARN {text}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_counted_without_waiting() {
        let (mut logs, entries) = Logs::new(2, BYTES);
        for line in ["one", "two", "three", "four"] {
            logs.write_all(line.as_bytes()).expect("it never fails");
        }
        assert_eq!(logs.dropped.load(Ordering::Relaxed), 2);
        assert!(matches!(entries.try_recv(), Ok(Entry::Line(line, _)) if line == b"one"));
        drop(entries);
        logs.write_all(b"five").expect("even after the writer has ended");
    }

    #[test]
    fn the_queue_is_limited_in_bytes() {
        let (mut logs, entries) = Logs::new(LINES, 10);
        let dropped = |logs: &Logs| logs.dropped.load(Ordering::Relaxed);
        logs.write_all(b"longer than all there is").expect("it never fails");
        assert_eq!(dropped(&logs), 1);
        for line in ["sixsix", "fives", "four"] {
            logs.write_all(line.as_bytes()).expect("it never fails");
        }
        assert_eq!(dropped(&logs), 2, "only the line that does not fit");
        for kept in ["sixsix", "four"] {
            assert!(matches!(entries.try_recv(), Ok(Entry::Line(line, _)) if line == kept.as_bytes()));
        }
        logs.write_all(b"ten of ten").expect("it never fails");
        assert_eq!(dropped(&logs), 2, "written lines free their bytes");
        assert!(entries.try_recv().is_ok());
    }
}
