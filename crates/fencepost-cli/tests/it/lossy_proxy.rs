//! A proxy before a server that loses replies.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

#[derive(Debug, Default)]
pub struct LossyProxy {
    pub url: String,
    loses: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
}

impl LossyProxy {
    /// Before the server at this URL.
    pub fn to(url: &str) -> Self {
        let server = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let proxy = Self { url, ..Self::default() };
        let (loses, lost) = (proxy.loses.clone(), proxy.lost.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, loses, lost) = (server.clone(), loses.clone(), lost.clone());
                std::thread::spawn(move || carry(client, &server, &loses, &lost));
            }
        });
        proxy
    }

    /// Drops the next replies, this many.
    pub fn lose(&self, replies: usize) {
        self.loses.store(replies, Ordering::SeqCst);
    }

    /// How many replies were dropped.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

/// Copies both ways. Closes both sides when one of them closes, or when a reply is dropped.
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
