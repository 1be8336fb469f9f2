//! Listening: connections in, the router's answers out.

use crate::{App, Settings, background, door::Peer, log::Cut, router, tls::Tls};
use axum::{Router, extract::Request};
use fencepost::{BoxFuture, Error, Result};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
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
    tls: Option<Arc<Tls>>,
}

impl Server {
    pub fn bind(app: App) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let listen = app.settings.listen;
            app.keys.check_reach(&app.fleet, &app.settings).await?;
            let tls = app.settings.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
            let taken = |e: std::io::Error| {
                Error::unavailable(format!("cannot listen on {listen}: {e}"))
                    .hint("--listen names another address; port 0 takes any that is free")
            };
            let listener = TcpListener::bind(listen).await.map_err(taken)?;
            let address = listener.local_addr().map_err(taken)?;
            Ok(Self { app, listener, address, tls })
        })
    }

    /// Where it listens, with the port that it was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Reads the certificate again, when it was renewed.
    pub fn renewal(&self) -> impl Fn() -> Result<()> + Send + 'static {
        let tls = self.tls.clone();
        move || tls.as_ref().map_or(Ok(()), |tls| tls.read_again())
    }

    /// Serves until told to stop: then nobody is let in any more, those who wait are asked to come back, and what
    /// was begun is finished.
    pub fn run<'s>(self, stop: impl Future<Output = ()> + Send + 's) -> BoxFuture<'s, Result<()>> {
        self.run_until(Box::pin(stop))
    }

    /// Not generic, so that the server is compiled here and not by whoever runs it.
    fn run_until<'s>(self, mut stop: BoxFuture<'s, ()>) -> BoxFuture<'s, Result<()>> {
        Box::pin(async move {
            let router = router(self.app.clone());
            let open = GracefulShutdown::new();
            self.app.begun.spawn(background::work(self.app.clone()));
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
        })
    }

    fn connection(&self, stream: TcpStream, peer: SocketAddr, router: &Router, open: &GracefulShutdown) {
        // A reply is one write, and nobody should wait for the next one.
        let _ = stream.set_nodelay(true);
        let (router, open, settings) = (router.clone(), open.watcher(), self.app.settings.clone());
        match self.tls.as_ref().map(|tls| tls.acceptor()) {
            None => drop(tokio::spawn(converse(stream, peer, router, open, settings))),
            Some(acceptor) => drop(tokio::spawn(async move {
                // Real time: who does not finish the handshake is not waited for.
                match tokio::time::timeout(settings.header_time, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, peer, router, open, settings).await,
                    Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            })),
        }
    }
}

/// Serves one connection to its end.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    open: Watcher,
    settings: Settings,
) {
    let cut = CancellationToken::new();
    let own = cut.clone();
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
    tokio::select! {
        ended = open.watch(connection) => if let Err(e) = ended {
            tracing::debug!("a connection ended: {e}");
        },
        () = cut.cancelled() => tracing::debug!("a connection was cut off"),
    }
}
