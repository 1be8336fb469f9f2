//! The standard input and the standard output of a command.

use std::{
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

/// Our ends of both pipes.
#[derive(Debug)]
pub struct Pipes {
    feeding: JoinHandle<()>,
    collecting: JoinHandle<Vec<u8>>,
    ended: oneshot::Sender<()>,
}

impl Pipes {
    /// Connects the pipes. At most `limit` bytes of the output are kept, and one more that shows that it was longer. The rest is
    /// read and dropped, so that the command does not block.
    pub fn attach(command: &mut Command, input: Vec<u8>, limit: usize) -> io::Result<Self> {
        let (theirs, ours) = io::pipe()?;
        let mut input_end = pipe::Sender::from_owned_fd(OwnedFd::from(ours))?;
        command.stdin(theirs);
        let (ours, theirs) = io::pipe()?;
        let output_end = pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?;
        command.stdout(theirs);
        let (ended, has_ended) = oneshot::channel();
        Ok(Self {
            // A command need not read all of its input.
            feeding: tokio::spawn(async move { input_end.write_all(&input).await.unwrap_or_default() }),
            collecting: tokio::spawn(collect(output_end, limit, has_ended)),
            ended,
        })
    }

    /// The output, once the group is empty. A process that left the group may still have the pipe open.
    pub async fn finish(self) -> Vec<u8> {
        drop(self.ended);
        self.feeding.abort();
        self.collecting.await.unwrap_or_default()
    }
}

async fn collect(mut pipe: pipe::Receiver, limit: usize, mut ended: oneshot::Receiver<()>) -> Vec<u8> {
    let mut output = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    let mut keep = |chunk: &[u8]| {
        let room = (limit + 1).saturating_sub(output.len());
        output.extend_from_slice(&chunk[..chunk.len().min(room)]);
        output.len() <= limit
    };
    loop {
        tokio::select! {
            read = pipe.read(&mut chunk) => match read {
                Ok(0) | Err(_) => return output,
                Ok(n) => { keep(&chunk[..n]); }
            },
            _ = &mut ended => break,
        }
    }
    // The output that counts is in the pipe by now. The runtime may not know yet that it is readable, so this reads the pipe.
    if let Ok(pipe) = pipe.into_nonblocking_fd() {
        let mut pipe = File::from(pipe);
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            if !keep(&chunk[..n]) {
                break;
            }
        }
    }
    output
}
