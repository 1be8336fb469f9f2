//! One HTTP request and its response, or why there is none.

use bytes::Bytes;
use fencepost::{
    BoxFuture, Code, Error, Result,
    tls::{self, Distrust},
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, body::Body as _, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{path::Path, sync::Arc, time::Duration};

const CONNECT: Duration = Duration::from_secs(5);
/// A machine that lost its power closes no connection. These keepalives end a long wait for it after a minute.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Shorter than proxies commonly allow, so that no request uses a connection that the other side is about to close.
const IDLE: Duration = Duration::from_secs(30);

/// The memory that a server has for all replies (`--reply-memory`), so no reply is larger.
const REPLY_MAX: usize = 256 * 1024 * 1024;

/// An HTTP client that keeps connections open for the next request.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    reply_max: usize,
}

/// Why there is no response.
#[derive(Debug)]
pub enum HttpError {
    /// The server did not get the request.
    NotSent(Reason),
    /// The response was lost. The server may have carried out the request.
    Lost(Reason),
    /// The response is larger than a client accepts.
    TooLarge(Reason),
}

impl HttpError {
    pub fn reason(&self) -> &Reason {
        match self {
            HttpError::NotSent(reason) | HttpError::Lost(reason) | HttpError::TooLarge(reason) => reason,
        }
    }
}

/// The cause of a failure, and a hint if one is known.
#[derive(Debug, Clone, Default)]
pub struct Reason {
    pub what: String,
    pub hint: Option<&'static str>,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl Reason {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        if let Some((distrust, what)) = tls::distrust(error) {
            return Self { what, hint: Some(hint_for(distrust)) };
        }
        match causes(error).any(|e| e.downcast_ref().is_some_and(hyper::Error::is_parse)) {
            true => Self { what: "it does not speak HTTP".into(), hint: Some(NOT_HTTP) },
            false => Self { what: root_cause(error), hint: None },
        }
    }
}

const NOT_HTTP: &str = "is this the address of a `fence serve`? use https:// if it has a certificate";

fn hint_for(distrust: Distrust) -> &'static str {
    match distrust {
        Distrust::Signer => {
            "if you made its certificate yourself, name its signer's certificate with --ca or FENCE_CA"
        }
        Distrust::IsAuthority => {
            "a server's own certificate has CA:FALSE and is signed by an authority: docs/server.md shows how to make one"
        }
        Distrust::Name => {
            "use a name that is in the server's certificate, or add this name to the certificate"
        }
        Distrust::Time => "its owner must renew it; or is the clock of this machine wrong?",
        Distrust::NotTls => "use http:// for a `fence serve` without --tls-cert",
        Distrust::Other => "is this the address of a `fence serve`, and is its certificate right?",
    }
}

impl Http {
    /// `authority` is a PEM file with the certificate authorities to trust for https; `None` trusts those of the system.
    pub fn new(https: bool, authority: Option<&Path>) -> Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(2));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(https, authority)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, reply_max: REPLY_MAX })
    }

    pub async fn post(
        &self,
        to: &Uri,
        headers: &HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), HttpError> {
        let mut request =
            Request::post(to).body(Full::new(body)).map_err(|e| HttpError::NotSent(Reason::of(&e)))?;
        *request.headers_mut() = headers.clone();
        let json = header::HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        let response = self.send(request, limit).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request once and returns the response.
    pub fn send(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Response<Bytes>, HttpError>> {
        let answer = async {
            let response = self.client.request(request).await.map_err(|e| {
                let reason = Reason::of(&e);
                if e.is_connect() { HttpError::NotSent(reason) } else { HttpError::Lost(reason) }
            })?;
            let (head, body) = response.into_parts();
            if body.size_hint().lower() > self.reply_max as u64 {
                return Err(self.too_large());
            }
            let body = Limited::new(body, self.reply_max).collect().await.map_err(|e| {
                if e.is::<LengthLimitError>() { self.too_large() } else { HttpError::Lost(Reason::of(&*e)) }
            })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let late = move |_| {
            let what = format!("it did not answer within {} s", limit.as_secs());
            HttpError::Lost(Reason { what, hint: None })
        };
        Box::pin(async move { tokio::time::timeout(limit, answer).await.map_err(late)? })
    }

    fn too_large(&self) -> HttpError {
        let what = format!("answered with more than {} MiB", self.reply_max / 1024 / 1024);
        HttpError::TooLarge(Reason { what, hint: None })
    }
}

/// An error and its chain of sources.
fn causes<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The text of the last source: the errors above it say only that something went wrong.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

/// Reads the system's certificates only if needed, because that takes milliseconds.
fn tls(https: bool, authority: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match authority {
        _ if !https => {}
        Some(file) => {
            roots.add_parsable_certificates(read(file)?);
            if roots.is_empty() {
                return Err(unusable(file, "there is no certificate in it"));
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::internal)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn read(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    certificates.map_err(|e| unusable(file, e))
}

fn unusable(file: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(
        Code::Invalid,
        format!("the certificate authorities in `{}` cannot be used: {why}", file.display()),
    )
    .hint("--ca or FENCE_CA names a PEM file with the certificate that signed the server's")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// A client stops reading at the limit. The test ends although the responses do not.
    #[tokio::test]
    async fn a_reply_has_a_limit() {
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        for (head, body, is_too_large) in [
            ("transfer-encoding: chunked", chunk.repeat(3) + "0\r\n\r\n", false),
            ("transfer-encoding: chunked", chunk.repeat(5), true),
            ("content-length: 16384", "x".repeat(16384), false),
            ("content-length: 1700000000", "x".into(), true),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                // A response before the request would be ignored.
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.expect("a request");
                }
                let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.expect("written");
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
            let http = Http { reply_max: 16 * 1024, ..Http::new(false, None).expect("a client") };
            let to = format!("http://{address}/").parse().expect("an address");
            let answer = http.post(&to, &HeaderMap::new(), Bytes::new(), Duration::from_secs(60)).await;
            assert_eq!(matches!(answer, Err(HttpError::TooLarge(_))), is_too_large, "{head}: {answer:?}");
            assert_eq!(answer.is_err(), is_too_large, "{head}");
            drop(http);
            server.abort();
        }
    }
}
