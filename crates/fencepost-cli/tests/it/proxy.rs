//! A proxy before a server or PostgreSQL that can be slow, mute or closed, and can lose replies or hold one back.

use crate::running::until;
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Open,
    /// Replies are delayed.
    Slow,
    /// Connections stay open, and nothing comes through.
    Mute,
    /// New connections are refused; open ones go on.
    Closed,
    /// New connections are refused, and open ones are closed.
    Cut,
}

#[derive(Debug)]
pub struct Proxy {
    /// The URL through the proxy.
    pub url: String,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    mode: Mutex<Mode>,
    /// How many replies are still to be lost.
    loses: AtomicUsize,
    lost: AtomicUsize,
    refused: AtomicUsize,
    /// Two for each open connection: one per direction.
    open: AtomicUsize,
    holds: Mutex<Holds>,
    released: Condvar,
}

/// One reply that is held back.
#[derive(Debug, Default)]
struct Holds {
    /// The text in its request.
    request: String,
    /// How many such requests come before it; `None` if no reply is to be held any more.
    before: Option<usize>,
    /// The proxy has the reply, and the client does not.
    has_it: bool,
}

impl Proxy {
    /// Before the server, or the PostgreSQL, at this URL.
    pub fn before(url: &str) -> Self {
        let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a URL");
        let server = host.rsplit('@').next().expect("host and port").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let proxy = Self { url: url.replacen(&server, &address, 1), state: Arc::default() };
        let state = proxy.state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                state.accept(client, &server);
            }
        });
        proxy
    }

    pub fn set(&self, mode: Mode) {
        *self.state.mode.lock().expect("not poisoned") = mode;
    }

    /// Refuses new connections, and waits until the open ones have ended.
    pub fn close(&self) {
        self.set(Mode::Closed);
        until("no connection is open", || self.state.open.load(Ordering::SeqCst) == 0);
    }

    /// Drops the next replies, this many.
    pub fn lose(&self, replies: usize) {
        self.state.loses.store(replies, Ordering::SeqCst);
    }

    /// How many replies were dropped.
    pub fn lost(&self) -> usize {
        self.state.lost.load(Ordering::SeqCst)
    }

    /// Holds back one reply: that to the request with this text in it before which so many others with the text come.
    pub fn hold(&self, request: &str, before: usize) {
        let holds = Holds { request: request.into(), before: Some(before), has_it: false };
        *self.state.holds.lock().expect("not poisoned") = holds;
    }

    pub fn has_it(&self) -> bool {
        self.state.holds.lock().expect("not poisoned").has_it
    }

    /// Passes the held reply on, and holds no other one.
    pub fn release(&self) {
        *self.state.holds.lock().expect("not poisoned") = Holds::default();
        self.state.released.notify_all();
    }

    /// How many connections were refused.
    pub fn refused(&self) -> usize {
        self.state.refused.load(Ordering::SeqCst)
    }
}

impl State {
    fn mode(&self) -> Mode {
        *self.mode.lock().expect("not poisoned")
    }

    fn accept(self: &Arc<Self>, client: TcpStream, server: &str) {
        // Counted first: if the count is 0 after closing, no connection comes through.
        self.open.fetch_add(2, Ordering::SeqCst);
        if matches!(self.mode(), Mode::Closed | Mode::Cut) {
            self.open.fetch_sub(2, Ordering::SeqCst);
            self.refused.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let Ok(server) = TcpStream::connect(server) else {
            self.open.fetch_sub(2, Ordering::SeqCst);
            return;
        };
        let back = (server.try_clone().expect("a clone"), client.try_clone().expect("a clone"));
        let held = Arc::<AtomicBool>::default();
        for ((from, to), replies) in [((client, server), false), (back, true)] {
            let (state, held) = (self.clone(), held.clone());
            std::thread::spawn(move || {
                state.carry(&from, &to, replies, &held);
                // One that is closed already cannot be shut down.
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                state.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// Copies bytes until one side closes, a reply is dropped, or the connection is cut. `held`: the connection's next reply is the
    /// one to be held.
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream, replies: bool, held: &AtomicBool) {
        let mut bytes = [0; 65536];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let mode = self.mode();
            if replies {
                if mode == Mode::Slow {
                    pass(DELAY);
                }
                let drops = |left: usize| left.checked_sub(1);
                if self.loses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, drops).is_ok() {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if held.swap(false, Ordering::SeqCst) {
                    self.keep_back();
                }
            } else if self.is_to_be_held(&bytes[..n]) {
                held.store(true, Ordering::SeqCst);
            }
            match mode {
                Mode::Mute => {}
                Mode::Cut => return,
                Mode::Open | Mode::Slow | Mode::Closed => {
                    if to.write_all(&bytes[..n]).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

impl State {
    fn is_to_be_held(&self, request: &[u8]) -> bool {
        let mut holds = self.holds.lock().expect("not poisoned");
        let Some(before) = holds.before else { return false };
        if !String::from_utf8_lossy(request).contains(&holds.request) {
            return false;
        }
        holds.before = before.checked_sub(1);
        before == 0
    }

    /// Returns when the reply is released.
    fn keep_back(&self) {
        let mut holds = self.holds.lock().expect("not poisoned");
        // A reply that was released before it came is not held.
        holds.has_it = !holds.request.is_empty();
        let _released = self.released.wait_while(holds, |holds| holds.has_it).expect("not poisoned");
    }
}

/// The delay of a slow proxy. (At 250 ms a renewal of a lease of 5 s takes too long to be of use, and the command is ended.)
const DELAY: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "a slow proxy is one that takes real time")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}
