//! A connection that can be delayed, cut and frozen.

use crate::{Result, said};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

/// What becomes of the bytes, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Each piece is late by this much.
    Delay(Duration),
    /// Nothing comes through, and nothing is closed.
    Freeze,
}

#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: String,
    line: Arc<Line>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Line {
    to: Mutex<String>,
    mode: watch::Sender<Mode>,
    /// Counts up: connections end that were made before.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    pub async fn to(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(said("no port"))?;
        let address = listener.local_addr().map_err(said("no port"))?.to_string();
        let line = Arc::new(Line {
            to: Mutex::new(server.into()),
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
        });
        let carrying = line.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let line = carrying.clone();
                tokio::spawn(async move { line.carry(client).await });
            }
        });
        Ok(Self { address, line, accepting })
    }

    /// From now on to another address.
    pub fn turn(&self, server: &str) {
        *self.line.to.lock().unwrap_or_else(PoisonError::into_inner) = server.into();
    }

    pub fn set(&self, mode: Mode) {
        self.line.mode.send_replace(mode);
    }

    /// Ends every connection that there is.
    pub fn cut(&self) {
        self.line.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Line {
    async fn carry(&self, client: TcpStream) -> io::Result<()> {
        let mut cuts = self.cuts.subscribe();
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let server = TcpStream::connect(to).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            ended = self.pump(from_client, to_server) => ended,
            ended = self.pump(from_server, to_client) => ended,
            _ = cuts.changed() => Ok(()),
        }
    }

    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut mode = self.mode.subscribe();
        let mut piece = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return Ok(());
            }
            let now = mode.wait_for(|mode| *mode != Mode::Freeze).await.map_or(Mode::Pass, |mode| *mode);
            if let Mode::Delay(by) = now {
                sleep(by).await;
            }
            to.write_all(&piece[..length]).await?;
        }
    }
}
