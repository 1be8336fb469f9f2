//! What a command is given on its standard input, and what it says on its standard output.

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

/// Both ends that are ours.
#[derive(Debug)]
pub struct Pipes {
    feeding: JoinHandle<()>,
    collecting: JoinHandle<Vec<u8>>,
    over: oneshot::Sender<()>,
}

impl Pipes {
    /// Of what it says no more is kept than the limit and a byte, so that it can be told; it is read to the end, so
    /// that the command is not held up.
    pub fn attach(command: &mut Command, input: Vec<u8>, limit: usize) -> io::Result<Self> {
        let (theirs, ours) = io::pipe()?;
        let mut input_end = pipe::Sender::from_owned_fd(OwnedFd::from(ours))?;
        command.stdin(theirs);
        let (ours, theirs) = io::pipe()?;
        let output_end = pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?;
        command.stdout(theirs);
        let (over, is_over) = oneshot::channel();
        Ok(Self {
            // Whoever does not read all of it has its reasons.
            feeding: tokio::spawn(async move { input_end.write_all(&input).await.unwrap_or_default() }),
            collecting: tokio::spawn(collect(output_end, limit, is_over)),
            over,
        })
    }

    /// All that it said, once nothing of its group is left. Who left the group may have the pipe still.
    pub async fn end(self) -> Vec<u8> {
        drop(self.over);
        self.feeding.abort();
        self.collecting.await.unwrap_or_default()
    }
}

async fn collect(mut pipe: pipe::Receiver, limit: usize, mut over: oneshot::Receiver<()>) -> Vec<u8> {
    let mut said = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    let mut keep = |chunk: &[u8]| {
        let room = (limit + 1).saturating_sub(said.len());
        said.extend_from_slice(&chunk[..chunk.len().min(room)]);
        said.len() <= limit
    };
    loop {
        tokio::select! {
            read = pipe.read(&mut chunk) => match read {
                Ok(0) | Err(_) => return said,
                Ok(n) => { keep(&chunk[..n]); }
            },
            _ = &mut over => break,
        }
    }
    // What is in the pipe now is all there is. The runtime may not have heard of it yet, so the pipe itself is asked.
    if let Ok(pipe) = pipe.into_nonblocking_fd() {
        let mut pipe = File::from(pipe);
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            if !keep(&chunk[..n]) {
                break;
            }
        }
    }
    said
}
