//! Listening: connections in, the router's answers out.

use crate::{App, door::Peer, log::Cut, router};
use axum::{Router, extract::Request};
use fencepost::{Error, Result};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{net::SocketAddr, time::Duration};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Out of file descriptors, most likely: those who hang up give some back.
const REST: Duration = Duration::from_millis(100);

/// A fleet that is about to be served: the address is taken.
#[derive(Debug)]
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    pub async fn bind(app: App) -> Result<Self> {
        let listen = app.settings.listen;
        let taken = |e: std::io::Error| {
            Error::unavailable(format!("cannot listen on {listen}: {e}"))
                .hint("--listen names another address; port 0 takes any that is free")
        };
        let listener = TcpListener::bind(listen).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        Ok(Self { app, listener, address })
    }

    /// Where it listens, with the port that it was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until told to stop: then nobody is let in any more, those who wait are asked to come back, and what
    /// was begun is finished.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let router = router(self.app.clone());
        let open = GracefulShutdown::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.connection(stream, peer, &router, &open),
                    Err(e) => {
                        tracing::warn!("a connection could not be accepted: {e}");
                        tokio::time::sleep(REST).await;
                    }
                },
            }
        }
        drop(self.listener);
        self.app.stop();
        open.shutdown().await;
        self.app.begun.close();
        self.app.begun.wait().await;
        Ok(())
    }

    fn connection(&self, stream: TcpStream, peer: SocketAddr, router: &Router, open: &GracefulShutdown) {
        let settings = &self.app.settings;
        // A reply is one write, and nobody should wait for the next one.
        let _ = stream.set_nodelay(true);
        let cut = CancellationToken::new();
        let (router, own) = (router.clone(), cut.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(Cut(own.clone()));
            router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_time)
            .max_buf_size(settings.header_size.max(8192))
            .serve_connection(TokioIo::new(stream), service);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(e) = ended {
                    tracing::debug!("a connection ended: {e}");
                },
                () = cut.cancelled() => tracing::debug!("a connection was cut off"),
            }
        });
    }
}
