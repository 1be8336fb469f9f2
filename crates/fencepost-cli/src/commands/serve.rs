mod limits;
mod logs;
mod traces;

use crate::{
    context::{Context, variable},
    foreign, out,
};
use clap::Args;
use fencepost::{Code, Error, Fleet, Options, Result};
use fencepost_server::{App, Secret, Server, Settings, TlsFiles};
use limits::{History, Limits};
use logs::Logs;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use traces::Traces;

/// Put the fleet on the network
///
/// Every command works against it by setting FENCE_URL. It says where it listens once it does, and serves until it is
/// sent SIGTERM or SIGINT: then it finishes what was begun, for --stop-time at most. A second one ends it at once. What it logs goes to
/// standard error: text on a terminal, else JSON; FENCE_LOG says how much (`info` unless said). Traces go where
/// OTEL_EXPORTER_OTLP_ENDPOINT says, if it does.
///
/// Examples:
///   fence serve
///   fence serve --listen 0.0.0.0:7373 --name fleet.example.com --tls-cert cert.pem --tls-key key.pem
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "server")]
pub struct Serve {
    /// The address to listen on, its port, or both; port 0 takes any that is free
    #[arg(long, value_name = "ADDR", env = "FENCE_LISTEN", default_value = "127.0.0.1:7373", value_parser = address)]
    listen: SocketAddr,
    /// A name by which clients call this server, beside its address and localhost; may be given several times
    #[arg(long = "name", value_name = "HOST", env = "FENCE_NAMES", value_delimiter = ',')]
    names: Vec<String>,
    /// The certificate to present, a PEM file with those that vouch for it; SIGHUP reads it again
    #[arg(long, value_name = "FILE", env = "FENCE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", env = "FENCE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long what is finished is kept, at least 7d; `ever` keeps all of it
    #[arg(long, value_name = "AGE", env = "FENCE_HISTORY", hide_env_values = true, default_value_t = History::default())]
    history: History,
    /// What Slack signs its events with, which it sends to /hooks/slack; several while it is changed. (What is said here
    /// others on this machine can see: a variable or fence.toml is better)
    #[arg(long, value_name = "SECRET", env = "FENCE_SLACK_SECRET", hide_env_values = true)]
    slack_secret: Vec<String>,
    /// What GitHub signs its webhooks with, which it sends to /hooks/github
    #[arg(long, value_name = "SECRET", env = "FENCE_GITHUB_SECRET", hide_env_values = true)]
    github_secret: Vec<String>,
    #[command(flatten)]
    limits: Limits,
}

impl Serve {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let place = context.database()?;
        if place.is_remote() {
            return Err(Error::new(
                Code::Invalid,
                format!("the fleet at {} is served already", place.shown()),
            )
            .hint("--db names the database to serve"));
        }
        if place.file().is_some_and(|file| !file.exists()) {
            return Err(Error::new(Code::NotFound, format!("there is no fleet at {}", place.shown()))
                .hint("fence init makes it; --db or FENCE_DB names another"));
        }
        let (url, shown, json) = (place.url.clone(), place.shown(), context.json());
        let logs = Logs::begin();
        let files = more_files();
        // Many calls at once need more threads than the one that a short command has.
        let serving = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().map_err(Error::internal)?;
            runtime.block_on(serve(url, shown, self.settings(files), json))
        });
        let served = serving.await.map_err(Error::internal);
        logs.end();
        served??;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(self, files: Option<u64>) -> Settings {
        let mut settings = Settings::new(self.listen);
        settings.names = self.names;
        settings.tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| TlsFiles { cert, key });
        settings.history = self.history.span();
        settings.slack_secret = self.slack_secret.into_iter().filter_map(Secret::new).collect();
        settings.github_secret = self.github_secret.into_iter().filter_map(Secret::new).collect();
        self.limits.set(&mut settings);
        settings.connections = fitting(settings.connections, files);
        settings
    }
}

/// `127.0.0.1:7373`, or as much of it as differs.
fn address(text: &str) -> Result<SocketAddr, String> {
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PORT: u16 = 7373;
    let ip = |host: &str| match host {
        "localhost" => Some(HERE),
        host => host.parse().ok(),
    };
    let parted = || {
        text.rsplit_once(':').and_then(|(host, port)| Some(SocketAddr::new(ip(host)?, port.parse().ok()?)))
    };
    let found = text.parse().ok().or_else(|| text.parse().ok().map(|port| SocketAddr::new(HERE, port)));
    found.or_else(|| ip(text).map(|ip| SocketAddr::new(ip, PORT))).or_else(parted).ok_or_else(|| {
        "not an address of this machine: such as 7373, 127.0.0.1:7373, or 0.0.0.0:7373 for every network"
            .to_owned()
    })
}

async fn serve(url: String, shown: String, mut settings: Settings, json: bool) -> Result<()> {
    let unheard = |e| Error::internal(format!("signals cannot be heard: {e}"));
    let term = signal(SignalKind::terminate()).map_err(unheard)?;
    let int = signal(SignalKind::interrupt()).map_err(unheard)?;
    let mut options = Options::default();
    options.create = false;
    let fleet = Fleet::open_with(&url, options).await?;
    let traces = Traces::begin();
    settings.tracer = traces.as_ref().map(Traces::tracer);
    let server = Server::bind(App::new(fleet, settings)).await?;
    let at = server.url();
    if !server.address().ip().is_loopback() && at.starts_with("http:") {
        tracing::warn!(
            "{at} can be reached from other machines, and nothing is encrypted, keys neither: use --tls-cert and \
             --tls-key, or listen on 127.0.0.1 behind a proxy that encrypts"
        );
    }
    let shown = foreign::shown(&shown);
    // Whoever started it may not read that.
    let _ = match json {
        true => out::say_json(&serde_json::json!({ "url": at }).to_string()),
        false if out::width().is_some() => {
            // With both set, a command would refuse to choose.
            let unset = variable("FENCE_DB").map_or("", |_| "unset FENCE_DB; ");
            out::say(&format!("serving {shown} at {at}\nuse it:  {unset}export FENCE_URL={at}"))
        }
        false => out::say(&format!("serving {shown} at {at}")),
    };
    let mut hangup = signal(SignalKind::hangup()).map_err(unheard)?;
    let renew = server.certificate_reloader();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match renew() {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(e) => tracing::error!("the certificate stays as it was: {}", e.message()),
            }
        }
    });
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(heed(term, int, stop));
    let served = server
        .run(async {
            let _ = stopped.await;
        })
        .await;
    if let Some(traces) = traces {
        traces.end().await;
    }
    served
}

/// The first signal asks us to finish, the second to end at once.
async fn heed(mut term: Signal, mut int: Signal, stop: oneshot::Sender<()>) {
    let mut next = async || {
        tokio::select! {
            _ = term.recv() => 15,
            _ = int.recv() => 2,
        }
    };
    next().await;
    tracing::info!("finishing what was begun; another signal ends it at once");
    let _ = stop.send(());
    let signal = next().await;
    std::process::exit(128 + signal);
}

/// Each connection is a file, and a thousand who wait are more than a process may have open unless it asks. Gives how
/// many it may have, unless there is no limit.
fn more_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current
}

/// Files that are no connections of clients: the database's (three for each of its connections on SQLite), and our own.
const OTHER_FILES: u64 = 128;

/// As many connections as there can be files for: without one left, the database could not be opened either.
fn fitting(wanted: usize, files: Option<u64>) -> usize {
    let Some(files) = files else { return wanted };
    let left = if files >= 2 * OTHER_FILES { files - OTHER_FILES } else { (files / 4).max(1) };
    let most = usize::try_from(left).unwrap_or(wanted).min(wanted);
    if most < wanted {
        tracing::warn!(
            "{most} may be connected, and not {wanted}: the process may have only {files} files open"
        );
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_what_is_usual() {
        for (text, at) in [
            ("7373", "127.0.0.1:7373"),
            ("0", "127.0.0.1:0"),
            ("localhost", "127.0.0.1:7373"),
            ("localhost:80", "127.0.0.1:80"),
            ("0.0.0.0", "0.0.0.0:7373"),
            ("10.0.0.7:81", "10.0.0.7:81"),
            ("::1", "[::1]:7373"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text).map(|at| at.to_string()), Ok(at.to_owned()), "{text}");
        }
        for text in ["", ":7373", "fence.example.com:7373", "99999", "1.2.3.4:99999", "http://127.0.0.1:7373"]
        {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
