//! A way to a server on which answers get lost.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

#[derive(Debug, Default)]
pub struct Line {
    pub url: String,
    loses: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
}

impl Line {
    /// To a server's URL.
    pub fn to(url: &str) -> Self {
        let server = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let line = Self { url, ..Self::default() };
        let (loses, lost) = (line.loses.clone(), line.lost.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, loses, lost) = (server.clone(), loses.clone(), lost.clone());
                std::thread::spawn(move || carry(client, &server, &loses, &lost));
            }
        });
        line
    }

    /// The next answers, this many of them, arrive here and go no further.
    pub fn lose(&self, answers: usize) {
        self.loses.store(answers, Ordering::SeqCst);
    }

    /// How many did not arrive.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

/// Ends, and closes both sides, when one of them does or an answer is lost.
fn carry(mut client: TcpStream, server: &str, loses: &AtomicUsize, lost: &AtomicUsize) -> Option<()> {
    let mut server = TcpStream::connect(server).ok()?;
    let (mut from_client, mut to_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    std::thread::spawn(move || {
        let mut bytes = [0; 65536];
        while let Some(read) = from_client.read(&mut bytes).ok().filter(|read| *read > 0) {
            if to_server.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 65536];
    while let Some(read) = server.read(&mut bytes).ok().filter(|read| *read > 0) {
        let drops = |left: usize| left.checked_sub(1);
        if loses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, drops).is_ok() {
            lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        client.write_all(&bytes[..read]).ok()?;
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    Some(())
}
