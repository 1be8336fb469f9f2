//! The log, on standard error: text for a person, JSON for whatever collects it.
//!
//! Who reads it may be slow, or have stopped reading. The server does not wait for that: a bounded number of lines,
//! and of bytes, is kept, and what does not fit is counted.

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

/// Lines are short, 200 bytes or so; but an error's text may be of any length, so their bytes are bounded as well.
const LINES: usize = 10_000;
const BYTES: usize = 8 * 1024 * 1024;
/// At the end, so long the last lines may take.
const FAREWELL: Duration = Duration::from_secs(1);

enum Said {
    /// The room it takes is free again once it is written.
    Line(Vec<u8>, OwnedSemaphorePermit),
    /// All before this is written.
    End(SyncSender<()>),
}

/// Where lines are left. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    lines: SyncSender<Said>,
    /// In bytes.
    room: Arc<Semaphore>,
    lost: Arc<AtomicU64>,
}

impl Logs {
    pub fn begin() -> Self {
        let json = streams::error_width().is_none();
        let (logs, said) = Self::keeping(LINES, BYTES);
        let lost = logs.lost.clone();
        std::thread::spawn(move || write(&said, &lost, json));
        let wanted = std::env::var("FENCE_LOG").ok().and_then(|wanted| wanted.parse::<Targets>().ok());
        let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
        let all = tracing_subscriber::registry().with(filter);
        let own = logs.clone();
        let layer = fmt::layer().with_writer(move || own.clone());
        // Whoever has set up logs already keeps them.
        let _ = match json {
            true => all.with(layer.json().flatten_event(true)).try_init(),
            false => all.with(layer.with_target(false)).try_init(),
        };
        logs
    }

    fn keeping(lines: usize, bytes: usize) -> (Self, Receiver<Said>) {
        let (lines, said) = sync_channel(lines);
        (Self { lines, room: Arc::new(Semaphore::new(bytes)), lost: Arc::default() }, said)
    }

    /// Is there room for it? If nobody is there any more to write it, it is not missed either.
    fn keep(&self, line: &[u8]) -> bool {
        // What is longer than can be said fits nowhere.
        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX);
        let Ok(room) = self.room.clone().try_acquire_many_owned(bytes) else { return false };
        !matches!(self.lines.try_send(Said::Line(line.to_vec(), room)), Err(TrySendError::Full(_)))
    }

    /// The last lines are written, if anybody reads them.
    pub fn end(self) {
        let (written, end) = sync_channel(1);
        if self.lines.try_send(Said::End(written)).is_ok() {
            let _ = end.recv_timeout(FAREWELL);
        }
    }
}

/// One call for each line.
impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if !self.keep(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write(said: &Receiver<Said>, lost: &AtomicU64, json: bool) {
    for said in said {
        match said {
            Said::Line(line, _room) => streams::log(&line, json),
            Said::End(written) => drop(written.send(())),
        }
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} lines of the log were not read in time, and are lost");
            match json {
                true => streams::complain_json(
                    &serde_json::json!({ "level": "WARN", "message": text }).to_string(),
                ),
                false => streams::complain(&format!("WARN {text}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_counted_and_not_waited_for() {
        let (mut logs, said) = Logs::keeping(2, BYTES);
        for line in ["one", "two", "three", "four"] {
            logs.write_all(line.as_bytes()).expect("it never fails");
        }
        assert_eq!(logs.lost.load(Ordering::Relaxed), 2);
        assert!(matches!(said.try_recv(), Ok(Said::Line(line, _)) if line == b"one"));
        drop(said);
        logs.write_all(b"five").expect("also if nobody is there any more");
    }

    #[test]
    fn long_lines_are_kept_up_to_so_many_bytes() {
        let (mut logs, said) = Logs::keeping(LINES, 10);
        let lost = |logs: &Logs| logs.lost.load(Ordering::Relaxed);
        logs.write_all(b"longer than all there is").expect("it never fails");
        assert_eq!(lost(&logs), 1);
        for line in ["sixsix", "fives", "four"] {
            logs.write_all(line.as_bytes()).expect("it never fails");
        }
        assert_eq!(lost(&logs), 2, "only what does not fit beside the others");
        for kept in ["sixsix", "four"] {
            assert!(matches!(said.try_recv(), Ok(Said::Line(line, _)) if line == kept.as_bytes()));
        }
        logs.write_all(b"ten of ten").expect("it never fails");
        assert_eq!(lost(&logs), 2, "what was taken made room");
        assert!(said.try_recv().is_ok());
    }
}
