//! The output of a command, passed on as it comes, with its beginning kept.

use super::pipes::{FirstBytes, Sink, Stream};
use crate::output::streams;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};
use tokio::sync::{Notify, oneshot};

/// How much may wait for the reader of our output before the command has to wait, too.
const WAITING_MOST: usize = 1024 * 1024;

/// Keeps the beginning of each stream, and passes everything on to our own streams. A thread of its own writes, because a reader
/// that reads slowly must not keep this process from renewing its claim.
#[derive(Debug)]
pub struct Tee {
    output: FirstBytes,
    error: FirstBytes,
    forward: Option<Forward>,
}

#[derive(Debug)]
struct Forward {
    chunks: mpsc::Sender<(Stream, Vec<u8>)>,
    waiting: Arc<Waiting>,
    written: oneshot::Receiver<()>,
}

/// The bytes that are not written yet.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    fewer: Notify,
}

/// The rest of the output is on its way to our own streams.
#[derive(Debug)]
pub struct Forwarded(Option<oneshot::Receiver<()>>);

impl Tee {
    /// Keeps so many bytes of each stream, and also passes everything on if that is wanted.
    pub fn new(limit: usize, passes_on: bool) -> io::Result<Self> {
        if passes_on { Self::passing_on(limit) } else { Ok(Self::keeping(limit)) }
    }

    fn passing_on(limit: usize) -> io::Result<Self> {
        let (chunks, received) = mpsc::channel::<(Stream, Vec<u8>)>();
        let (done, written) = oneshot::channel();
        let waiting = Arc::<Waiting>::default();
        let own = waiting.clone();
        std::thread::Builder::new().name("tee".into()).spawn(move || {
            for (to, bytes) in received {
                match to {
                    Stream::Output => streams::pass_on_output(&bytes),
                    Stream::Error => streams::pass_on_error(&bytes),
                }
                own.bytes.fetch_sub(bytes.len(), Ordering::SeqCst);
                own.fewer.notify_one();
            }
            let _ = done.send(());
        })?;
        Ok(Self { forward: Some(Forward { chunks, waiting, written }), ..Self::keeping(limit) })
    }

    /// Only keeps so many bytes of each stream.
    pub fn keeping(limit: usize) -> Self {
        Self { output: FirstBytes::up_to(limit), error: FirstBytes::up_to(limit), forward: None }
    }

    /// The kept bytes of standard output and standard error. Each has one byte more than the limit if there was more.
    pub fn finish(self) -> (Vec<u8>, Vec<u8>, Forwarded) {
        (self.output.bytes, self.error.bytes, Forwarded(self.forward.map(|forward| forward.written)))
    }
}

impl Forwarded {
    /// Returns when all output was passed on.
    pub async fn written(self) {
        if let Some(written) = self.0 {
            let _ = written.await;
        }
    }
}

impl Sink for Tee {
    fn take(&mut self, from: Stream, bytes: &[u8]) {
        match from {
            Stream::Output => self.output.take(from, bytes),
            Stream::Error => self.error.take(from, bytes),
        }
        if let Some(forward) = &self.forward {
            forward.waiting.bytes.fetch_add(bytes.len(), Ordering::SeqCst);
            let _ = forward.chunks.send((from, bytes.to_vec()));
        }
    }

    async fn room(&mut self) {
        let Some(forward) = &self.forward else { return };
        while forward.waiting.bytes.load(Ordering::SeqCst) >= WAITING_MOST {
            forward.waiting.fewer.notified().await;
        }
    }
}
