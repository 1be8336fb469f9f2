//! Listening: accepts connections and serves the router on them.

mod tls;
mod write_timeout;

use crate::{
    access::peer::Peer, app::App, environment::Environment, http::response::Refusal, jobs,
    limits::permits::LimitReached, router::router, settings::Settings,
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

/// After a failed accept. The process most likely has no file descriptor left, and a closed connection frees one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TCP keepalive: a waiting client whose machine is gone is noticed after 30 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A server that is bound to its address and accepts no connection yet.
#[derive(Debug)]
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    environment: Option<Environment>,
}

impl Server {
    /// Binds the address, and sets the settings of the scheduler that the server's environment has.
    pub fn bind(app: App) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let listen = app.settings.listen;
            app.access.check_exposure(&app.fleet, &app.settings).await?;
            let tls = app.settings.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
            let cannot_listen = |e: std::io::Error| {
                Error::unavailable(format!("cannot listen on {listen}: {e}"))
                    .hint("--listen names another address; port 0 takes any that is free")
            };
            let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
            let address = listener.local_addr().map_err(cannot_listen)?;
            let environment = Environment::start(&app, address.port()).await?;
            Ok(Self { app, listener, address, tls, environment })
        })
    }

    /// The address that it listens on, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// A function that reads the TLS certificate again. Call it when the files have changed.
    pub fn certificate_reloader(&self) -> impl Fn() -> Result<()> + Send + 'static {
        let tls = self.tls.clone();
        move || tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// Serves until `stop` returns. Then it accepts no more connections, ends every wait with an error, and finishes the
    /// running calls, up to [`Settings::stop_time`].
    pub fn run<'s>(self, stop: impl Future<Output = ()> + Send + 's) -> BoxFuture<'s, Result<()>> {
        self.run_until(Box::pin(stop))
    }

    /// Not generic, so that it is compiled in this crate and not in every crate that calls it.
    fn run_until<'s>(mut self, mut stop: BoxFuture<'s, ()>) -> BoxFuture<'s, Result<()>> {
        Box::pin(async move {
            let router = router(self.app.clone());
            let open = GracefulShutdown::new();
            let cut = CancellationToken::new();
            self.app.running.spawn(jobs::run(self.app.clone()));
            if let Some(environment) = self.environment.take() {
                self.app.running.spawn(environment.keep(self.app.clone()));
            }
            let mut failing = false;
            loop {
                let accepted = tokio::select! {
                    () = &mut stop => break,
                    accepted = self.listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, peer)) => {
                        failing = false;
                        self.connection(stream, Peer(peer), &router, open.watcher(), cut.child_token());
                    }
                    // Its client is gone already. The next accept may succeed.
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(e) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!("a connection could not be accepted: {e}");
                        }
                        tokio::select! {
                            () = &mut stop => break,
                            () = sleep(ACCEPT_PAUSE) => {}
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
            // Real time: it limits how long a stop takes.
            if timeout(self.app.settings.stop_time, finished).await.is_err() {
                let left = self.app.usage().connections;
                tracing::warn!("not every call finished in time: {left} connections are closed");
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
        // A reply is one write: send it at once.
        let _ = stream.set_nodelay(true);
        detect_dead_peer(&stream, self.app.settings.slow_reader);
        let (router, settings) = (router.clone(), self.app.settings.clone());
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let _permit = permit;
            let stream = WriteTimeout::new(stream, settings.slow_reader);
            let serving = async {
                let Some(acceptor) = acceptor else {
                    return serve_connection(stream, peer, router, open, &settings).await;
                };
                // Real time: it limits the handshake.
                match timeout(settings.header_time, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => serve_connection(stream, peer, router, open, &settings).await,
                    Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            };
            let _ = cut.run_until_cancelled(serving).await;
        });
    }

    /// Sends a refusal in one write, without waiting. A TLS connection is only closed: before the handshake nothing can be
    /// sent.
    fn refuse(&self, stream: TcpStream, peer: Peer, reached: LimitReached) {
        self.app.telemetry.metrics.refused_connections.inc();
        let (settings, from) = (&self.app.settings, peer.network());
        let error = match reached {
            LimitReached::Total => {
                Error::unavailable(format!("the limit of {} connections is reached", settings.connections))
                    .hint("retry later; fence serve --connections sets the limit")
            }
            LimitReached::Caller => {
                let most = settings.address_connections;
                let message = format!("the limit of {most} connections from {from} is reached");
                Error::new(Code::RateLimited, message).hint(
                    "close some; behind a proxy all have its address: fence serve --address-connections sets the limit",
                )
            }
        };
        tracing::debug!("a connection from {from} was refused: {}", error.message());
        if self.tls.is_none()
            && let Ok(mut stream) = stream.into_std()
        {
            let refusal = Refusal::from(error.with("retry_after_ms", 1000));
            let _ = stream.write(refusal.to_http1().as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// Lets the system notice a peer that is gone without closing its connection, and a peer that does not acknowledge or
/// read what was sent.
fn detect_dead_peer(stream: &TcpStream, patience: Duration) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES);
    #[cfg(target_os = "linux")]
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
}

/// Serves one connection to its end.
async fn serve_connection(
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
