//! The standard streams of a command.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    process::Command,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    sync::oneshot,
    task::JoinHandle,
};

/// The receiver of a command's output.
pub trait Sink: Send + 'static {
    fn take(&mut self, from: Stream, bytes: &[u8]);
    /// Returns when it can take more. Meanwhile the command may have to wait.
    fn room(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// Which streams of the command are pipes of ours. The others are the supervisor's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Captured {
    Output,
    OutputAndError,
}

/// Our ends of the pipes.
#[derive(Debug)]
pub struct Pipes<S> {
    feeding: Option<JoinHandle<()>>,
    collecting: JoinHandle<S>,
    ended: oneshot::Sender<()>,
}

impl<S: Sink> Pipes<S> {
    /// Connects the pipes. All output is read, so that the command does not block. Without an input the command has the
    /// supervisor's own.
    pub fn attach(
        command: &mut Command,
        input: Option<Vec<u8>>,
        captured: Captured,
        sink: S,
    ) -> io::Result<Self> {
        let mut feeding = None;
        if let Some(input) = input {
            let (theirs, ours) = io::pipe()?;
            let mut input_end = pipe::Sender::from_owned_fd(OwnedFd::from(ours))?;
            command.stdin(theirs);
            // A command need not read all of its input.
            feeding =
                Some(tokio::spawn(async move { input_end.write_all(&input).await.unwrap_or_default() }));
        }
        let (ours, theirs) = io::pipe()?;
        let output_end = pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?;
        command.stdout(theirs);
        let error_end = match captured {
            Captured::Output => None,
            Captured::OutputAndError => {
                let (ours, theirs) = io::pipe()?;
                command.stderr(theirs);
                Some(pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?)
            }
        };
        let (ended, has_ended) = oneshot::channel();
        Ok(Self { feeding, collecting: tokio::spawn(collect(output_end, error_end, sink, has_ended)), ended })
    }

    /// The sink with all output, once the group is empty. A process that left the group may still have a pipe open.
    pub async fn finish(self) -> io::Result<S> {
        drop(self.ended);
        if let Some(feeding) = &self.feeding {
            feeding.abort();
        }
        self.collecting.await.map_err(io::Error::other)
    }
}

async fn collect<S: Sink>(
    output: pipe::Receiver,
    error: Option<pipe::Receiver>,
    mut sink: S,
    mut ended: oneshot::Receiver<()>,
) -> S {
    let (mut output, mut error) = (Some(output), error);
    let mut chunks = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    while output.is_some() || error.is_some() {
        tokio::select! {
            () = sink.room() => {}
            _ = &mut ended => break,
        }
        tokio::select! {
            read = next(&mut output, &mut chunks.0) => match read {
                0 => output = None,
                n => sink.take(Stream::Output, &chunks.0[..n]),
            },
            read = next(&mut error, &mut chunks.1) => match read {
                0 => error = None,
                n => sink.take(Stream::Error, &chunks.1[..n]),
            },
            _ = &mut ended => break,
        }
    }
    // The output that counts is in the pipes by now. The runtime may not know yet that they are readable, so this reads them.
    for (from, pipe) in [(Stream::Output, output), (Stream::Error, error)] {
        if let Some(Ok(pipe)) = pipe.map(pipe::Receiver::into_nonblocking_fd) {
            let mut pipe = File::from(pipe);
            // A process that left the group may still write. More than this was not there when the group ended.
            for _ in 0..PIPE_MOST / chunks.0.len() {
                match pipe.read(&mut chunks.0) {
                    Ok(n @ 1..) => sink.take(from, &chunks.0[..n]),
                    _ => break,
                }
            }
        }
    }
    sink
}

/// The most bytes that a pipe can contain (`fs.pipe-max-size`).
const PIPE_MOST: usize = 1024 * 1024;

/// The number of bytes read; 0 at the end.
async fn next(pipe: &mut Option<pipe::Receiver>, chunk: &mut [u8]) -> usize {
    match pipe {
        Some(pipe) => pipe.read(chunk).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

/// The first bytes of the output, up to a limit, and one more that shows that it was longer.
#[derive(Debug)]
pub struct FirstBytes {
    pub bytes: Vec<u8>,
    limit: usize,
}

impl FirstBytes {
    pub fn up_to(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }
}

impl Sink for FirstBytes {
    fn take(&mut self, _: Stream, bytes: &[u8]) {
        let room = (self.limit + 1).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The last bytes of the output, up to a limit.
#[derive(Debug)]
pub struct LastBytes {
    bytes: VecDeque<u8>,
    limit: usize,
}

impl LastBytes {
    pub fn up_to(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit }
    }

    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend(&bytes[bytes.len().saturating_sub(self.limit)..]);
        self.bytes.drain(..self.bytes.len().saturating_sub(self.limit));
    }

    /// The end of the output as a text that a fleet accepts.
    pub fn text(self) -> String {
        let bytes = Vec::from(self.bytes);
        // A character that was cut in two is no character.
        let is_cut = bytes.len() >= self.limit;
        let begins = if is_cut { bytes.iter().take_while(|&&b| b & 0xc0 == 0x80).count() } else { 0 };
        let text = String::from_utf8_lossy(&bytes[begins..]);
        // A text in PostgreSQL cannot contain a zero.
        text.trim_end().replace('\0', "\u{fffd}")
    }
}
