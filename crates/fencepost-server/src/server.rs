//! Listening: connections in, the router's answers out.

mod tls;
mod write_timeout;

use crate::{
    access::peer::Peer, app::App, http::response::Refusal, jobs, limits::permits::LimitReached,
    router::router, settings::Settings,
};
use axum::{Router, extract::Request};
use fencepost::{BoxFuture, Code, Error, Result};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use rustix::net::sockopt;
use std::{
    io::{ErrorKind, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tls::Tls;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use write_timeout::WriteTimeout;

/// Out of file descriptors, most likely: those who hang up give some back.
const REST: Duration = Duration::from_millis(100);

/// A peer that says nothing for so long is asked whether it is there, so often and in such steps: one that waits for a
/// claim, and whose machine is gone, is forgotten after 30 s.
const SILENCE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

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
            app.access.check_exposure(&app.fleet, &app.settings).await?;
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
    /// was begun is finished, if that does not take too long.
    pub fn run<'s>(self, stop: impl Future<Output = ()> + Send + 's) -> BoxFuture<'s, Result<()>> {
        self.run_until(Box::pin(stop))
    }

    /// Not generic, so that the server is compiled here and not by whoever runs it.
    fn run_until<'s>(self, mut stop: BoxFuture<'s, ()>) -> BoxFuture<'s, Result<()>> {
        Box::pin(async move {
            let router = router(self.app.clone());
            let open = GracefulShutdown::new();
            let cut = CancellationToken::new();
            self.app.running.spawn(jobs::run(self.app.clone()));
            let mut is_short = false;
            loop {
                let accepted = tokio::select! {
                    () = &mut stop => break,
                    accepted = self.listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, peer)) => {
                        is_short = false;
                        self.connection(stream, Peer(peer), &router, open.watcher(), cut.child_token());
                    }
                    // Its client is gone already, which says nothing about the next one.
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(e) => {
                        if !std::mem::replace(&mut is_short, true) {
                            tracing::warn!("a connection could not be accepted: {e}");
                        }
                        tokio::select! {
                            () = &mut stop => break,
                            () = sleep(REST) => {}
                        }
                    }
                }
            }
            drop(self.listener);
            self.app.stop();
            let finished = async {
                open.shutdown().await;
                self.app.running.close();
                self.app.running.wait().await;
            };
            // Real time: whoever stops us waits no longer.
            if timeout(self.app.settings.stop_time, finished).await.is_err() {
                let left = self.app.usage().connections;
                tracing::warn!("not all was finished in time: {left} connections are cut off");
                cut.cancel();
            }
            Ok(())
        })
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: Peer,
        router: &Router,
        open: Watcher,
        cut: CancellationToken,
    ) {
        let permit = match self.app.connections.acquire(peer.network()) {
            Ok(permit) => permit,
            Err(reached) => return self.refuse(stream, peer, reached),
        };
        // A reply is one write, and nobody should wait for the next one.
        let _ = stream.set_nodelay(true);
        watch_peer(&stream, self.app.settings.slow_reader);
        let (router, settings) = (router.clone(), self.app.settings.clone());
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let _permit = permit;
            let stream = WriteTimeout::new(stream, settings.slow_reader);
            let conversation = async {
                let Some(acceptor) = acceptor else {
                    return converse(stream, peer, router, open, &settings).await;
                };
                // Real time: who does not finish the handshake is not waited for.
                match timeout(settings.header_time, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, peer, router, open, &settings).await,
                    Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            };
            let _ = cut.run_until_cancelled(conversation).await;
        });
    }

    /// Says so in one write, without waiting. (In TLS there is nothing to be said before the handshake.)
    fn refuse(&self, stream: TcpStream, peer: Peer, reached: LimitReached) {
        self.app.telemetry.metrics.refused_connections.inc();
        let (settings, from) = (&self.app.settings, peer.network());
        let error = match reached {
            LimitReached::Total => {
                Error::unavailable(format!("{} are connected, which is the most", settings.connections))
                    .hint("ask again later; fence serve --connections says how many may")
            }
            LimitReached::Caller => {
                let most = settings.address_connections;
                let message = format!("{most} are connected from {from}, which is the most of one address");
                Error::new(Code::RateLimited, message).hint(
                    "close some; behind a proxy all come from its address: fence serve --address-connections",
                )
            }
        };
        tracing::debug!("a connection from {from} was turned away: {}", error.message());
        if self.tls.is_none()
            && let Ok(mut stream) = stream.into_std()
        {
            let refusal = Refusal::from(error.with("retry_after_ms", 1000));
            let _ = stream.write(refusal.to_http1().as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// The system sees what we cannot: that a peer is gone without a word, and that what it took from us is not taken by the
/// other end, or not read there.
fn watch_peer(stream: &TcpStream, patience: Duration) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, SILENCE);
    let _ = sockopt::set_tcp_keepintvl(stream, PROBE);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
    #[cfg(target_os = "linux")]
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
}

/// Serves one connection to its end.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    router: Router,
    open: Watcher,
    settings: &Settings,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_time)
        .max_buf_size(settings.header_size.max(8192))
        .serve_connection(TokioIo::new(stream), service);
    if let Err(e) = open.watch(connection).await {
        tracing::debug!("a connection ended: {e}");
    }
}
