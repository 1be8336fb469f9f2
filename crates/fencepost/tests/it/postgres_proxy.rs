//! A proxy before PostgreSQL that can cut a connection at a chosen statement.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Where the next connection is cut. It applies once; later connections pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Before the server gets a statement that contains this text.
    Before(&'static str),
    /// After the server has committed: its reply is lost.
    AfterCommit,
    /// All connections, from a statement that contains this text on.
    All(&'static str),
}

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    wire: Arc<Wire>,
}

#[derive(Debug, Default)]
struct Wire {
    server: String,
    cut: Mutex<Option<Cut>>,
    commits: AtomicU64,
    flights: AtomicU64,
    /// Replies are delayed a little, so that everything a client sends without waiting for them is sent first.
    slow: AtomicBool,
    /// The server's clock is an hour ahead.
    ahead: AtomicBool,
    /// All connections are closed, and new ones are refused.
    shut: watch::Sender<bool>,
    turned_away: AtomicU64,
}

/// The state of one connection.
#[derive(Debug, Default)]
struct Way {
    deaf: AtomicBool,
    flying: AtomicBool,
    unanswered: AtomicU64,
}

impl Proxy {
    /// `server`: host and port.
    pub async fn to(server: &str) -> Self {
        Self::at("127.0.0.1:0", server).await
    }

    pub async fn at(address: &str, server: &str) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = Arc::new(Wire { server: server.into(), ..Wire::default() });
        let ours = wire.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let wire = wire.clone();
                tokio::spawn(async move { wire.carry(client).await });
            }
        });
        Self { port, wire: ours }
    }

    pub fn cut(&self, cut: Cut) {
        *self.wire.cut.lock().expect("not poisoned") = Some(cut);
    }

    /// Closes all connections and refuses new ones.
    pub fn shut(&self) {
        self.wire.shut.send_replace(true);
    }

    /// Accepts connections again.
    pub fn open(&self) {
        self.wire.shut.send_replace(false);
    }

    /// How many connections were refused.
    pub fn turned_away(&self) -> u64 {
        self.wire.turned_away.load(Ordering::SeqCst)
    }

    /// Applies to statements that are prepared from now on.
    pub fn set_the_servers_clock_ahead_an_hour(&self) {
        self.wire.ahead.store(true, Ordering::SeqCst);
    }

    /// Delays replies, so that flights can be counted.
    pub fn slow(&self) {
        self.wire.slow.store(true, Ordering::SeqCst);
    }

    /// How often a client sent something after all its earlier messages were answered. This is at least the number of round
    /// trips, and more if the client is slow to send messages that belong together.
    pub fn flights(&self) -> u64 {
        self.wire.flights.load(Ordering::SeqCst)
    }

    /// How many COMMITs were sent by clients.
    pub fn commits(&self) -> u64 {
        self.wire.commits.load(Ordering::SeqCst)
    }
}

impl Wire {
    /// Ends, and closes both sides, as soon as one direction does.
    async fn carry(&self, client: TcpStream) -> io::Result<()> {
        if *self.shut.borrow() {
            self.turned_away.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        let mut shut = self.shut.subscribe();
        tokio::select! {
            ended = self.connect(client) => ended,
            _ = shut.wait_for(|shut| *shut) => Ok(()),
        }
    }

    async fn connect(&self, mut client: TcpStream) -> io::Result<()> {
        let mut server = TcpStream::connect(&self.server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let length = client.read_u32().await?;
        let mut hello = vec![0; length as usize - 4];
        client.read_exact(&mut hello).await?;
        server.write_u32(length).await?;
        server.write_all(&hello).await?;
        const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
        if hello == SSL_REQUEST {
            copy_bidirectional(&mut client, &mut server).await?;
            return Ok(());
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // The server's greeting ends the first flight.
        let way = Way { flying: true.into(), unanswered: 1.into(), ..Way::default() };
        tokio::select! {
            ended = self.requests(from_client, to_server, &way) => ended,
            ended = self.answers(from_server, to_client, &way) => ended,
        }
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: &Way) -> io::Result<()> {
        let mut prepared = HashMap::new();
        loop {
            let mut message = Message::read(&mut from).await?;
            if message.kind == b'P' && self.ahead.load(Ordering::SeqCst) {
                let text = String::from_utf8_lossy(&message.body);
                let ahead = text.replace("clock_timestamp()", "(clock_timestamp() + interval '1 hour')");
                message.body = ahead.into_bytes();
            }
            if !way.flying.swap(true, Ordering::SeqCst) {
                self.flights.fetch_add(1, Ordering::SeqCst);
            }
            way.unanswered
                .fetch_add(u64::from(message.kind == b'S' || message.kind == b'Q'), Ordering::SeqCst);
            let mut texts =
                message.body.split(|byte| *byte == 0).map(String::from_utf8_lossy).map(String::from);
            let mut text = || texts.next().unwrap_or_default();
            let runs = match message.kind {
                b'P' => {
                    prepared.insert(text(), text());
                    None
                }
                // A portal's name comes first; it is always the unnamed one.
                b'B' => (text(), prepared.get(&text()).cloned()).1,
                b'Q' => Some(text()),
                _ => None,
            };
            if let Some(sql) = runs {
                self.commits.fetch_add(u64::from(sql == "commit"), Ordering::SeqCst);
                let mut cut = self.cut.lock().expect("not poisoned");
                match *cut {
                    Some(Cut::Before(part)) if sql.contains(part) => {
                        *cut = None;
                        return Ok(());
                    }
                    Some(Cut::AfterCommit) if sql == "commit" => {
                        *cut = None;
                        way.deaf.store(true, Ordering::SeqCst);
                    }
                    Some(Cut::All(part)) if sql.contains(part) => {
                        *cut = None;
                        self.shut.send_replace(true);
                        return Ok(());
                    }
                    _ => {}
                }
            }
            message.write(&mut to).await?;
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: &Way) -> io::Result<()> {
        loop {
            let message = Message::read(&mut from).await?;
            if message.kind == b'Z' {
                if self.slow.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                if way.unanswered.fetch_sub(1, Ordering::SeqCst) == 1 {
                    way.flying.store(false, Ordering::SeqCst);
                }
            }
            if !way.deaf.load(Ordering::SeqCst) {
                message.write(&mut to).await?;
            } else if message.kind == b'C' && message.body.starts_with(b"COMMIT") {
                return Ok(());
            }
        }
    }
}

struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Message {
    async fn read(from: &mut OwnedReadHalf) -> io::Result<Self> {
        let kind = from.read_u8().await?;
        let mut body = vec![0; from.read_u32().await? as usize - 4];
        from.read_exact(&mut body).await?;
        Ok(Self { kind, body })
    }
    async fn write(&self, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut bytes = vec![self.kind];
        bytes.extend((self.body.len() as u32 + 4).to_be_bytes());
        bytes.extend(&self.body);
        to.write_all(&bytes).await
    }
}
