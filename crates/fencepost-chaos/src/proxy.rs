//! A proxy whose connections can be delayed, cut and frozen.

use crate::{Result, context};
use fencepost::sync::lock;
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

/// How bytes are forwarded, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Each chunk is delayed by this much.
    Delay(Duration),
    /// Nothing is forwarded and nothing is closed.
    Freeze,
}

#[derive(Debug)]
pub struct Proxy {
    /// The address that it listens on.
    pub address: String,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    to: Mutex<String>,
    mode: watch::Sender<Mode>,
    /// Counts up. A change ends all open connections.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    pub async fn to(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(context("a port"))?;
        let address = listener.local_addr().map_err(context("a port"))?.to_string();
        let shared = Arc::new(Shared {
            to: Mutex::new(server.into()),
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
        });
        let forwarding = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = forwarding.clone();
                tokio::spawn(async move { shared.forward(client).await });
            }
        });
        Ok(Self { address, shared, accepting })
    }

    /// Forwards new connections to another address.
    pub fn redirect(&self, server: &str) {
        *lock(&self.shared.to) = server.into();
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Ends every open connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    async fn forward(&self, client: TcpStream) -> io::Result<()> {
        let mut cuts = self.cuts.subscribe();
        let to = lock(&self.to).clone();
        let server = TcpStream::connect(to).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            ended = self.copy(from_client, to_server) => ended,
            ended = self.copy(from_server, to_client) => ended,
            _ = cuts.changed() => Ok(()),
        }
    }

    async fn copy(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut mode = self.mode.subscribe();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            let now = mode.wait_for(|mode| *mode != Mode::Freeze).await.map_or(Mode::Pass, |mode| *mode);
            if let Mode::Delay(by) = now {
                sleep(by).await;
            }
            to.write_all(&chunk[..length]).await?;
        }
    }
}
