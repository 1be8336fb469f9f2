mod limits;
mod logs;
mod traces;

use crate::{
    context::Context,
    environment::{text_variable, variable},
    output::{streams, untrusted},
};
use clap::Args;
use fencepost::{Code, Error, Fleet, Options, Result, storm::Setting};
use fencepost_server::{App, Secret, Server, Settings, TlsFiles};
use limits::{History, Limits};
use logs::Logs;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use traces::Traces;

/// Serve the fleet over HTTP
///
/// All commands work through the server if FENCE_URL is set. The server prints its address once it listens. On SIGTERM or SIGINT it
/// finishes open requests, for at most --stop-time, and exits; a second signal ends it at once. Its log goes to standard error, as
/// text on a terminal and else as JSON. FENCE_LOG sets the level (default: info). Traces go to OTEL_EXPORTER_OTLP_ENDPOINT, if that
/// is set. AUTO_UNREAD_ENABLED, AUTO_UNREAD_WINDOW_MS and the like set the fleet's limits on wake-ups when the server starts.
///
/// Examples:
///   fence serve
///   fence serve --listen 0.0.0.0:7373 --name fleet.example.com --tls-cert cert.pem --tls-key key.pem
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "server")]
pub struct Serve {
    /// The address to listen on, its port, or both; port 0 picks a free one
    #[arg(long, value_name = "ADDR", env = "FENCE_LISTEN", default_value = "127.0.0.1:7373", value_parser = address)]
    listen: SocketAddr,
    /// A name of this server besides its address and localhost; may be given several times
    #[arg(long = "name", value_name = "HOST", env = "FENCE_NAMES", value_delimiter = ',')]
    names: Vec<String>,
    /// The certificate with its chain, a PEM file; SIGHUP reads it again
    #[arg(long, value_name = "FILE", env = "FENCE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", env = "FENCE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long finished items and events are kept, at least 7d; `ever` keeps everything
    #[arg(long, value_name = "AGE", env = "FENCE_HISTORY", hide_env_values = true, default_value_t = History::default())]
    history: History,
    /// The secret with which Slack signs its events for /hooks/slack; several while you change it. (Other users of this machine
    /// can see flags: use the variable or fence.toml)
    #[arg(long, value_name = "SECRET", env = "FENCE_SLACK_SECRET", hide_env_values = true)]
    slack_secret: Vec<String>,
    /// The secret with which GitHub signs its webhooks for /hooks/github
    #[arg(long, value_name = "SECRET", env = "FENCE_GITHUB_SECRET", hide_env_values = true)]
    github_secret: Vec<String>,
    #[command(flatten)]
    limits: Limits,
}

impl Serve {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let location = context.database()?;
        if location.is_remote() {
            return Err(Error::new(
                Code::Invalid,
                format!("the fleet at {} is served already", location.shown()),
            )
            .hint("--db names the database to serve"));
        }
        if location.file().is_some_and(|file| !file.exists()) {
            return Err(Error::new(Code::NotFound, format!("there is no fleet at {}", location.shown()))
                .hint("fence init creates it; --db or FENCE_DB names another"));
        }
        let environment = environment(text_variable)?;
        let (url, shown, json) = (location.url.clone(), location.shown(), context.json());
        let logs = Logs::begin();
        let files = raise_file_limit();
        // A server needs more threads than the one of a short command.
        let serving = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().map_err(Error::internal)?;
            runtime.block_on(serve(url, shown, self.settings(files, environment), json))
        });
        let served = serving.await.map_err(Error::internal);
        logs.end();
        served??;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(self, files: Option<u64>, environment: BTreeMap<Setting, i64>) -> Settings {
        let mut settings = Settings::new(self.listen);
        settings.names = self.names;
        settings.tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| TlsFiles { cert, key });
        settings.history = self.history.span();
        settings.slack_secret = self.slack_secret.into_iter().filter_map(Secret::new).collect();
        settings.github_secret = self.github_secret.into_iter().filter_map(Secret::new).collect();
        self.limits.set(&mut settings);
        settings.environment = environment;
        settings.connections = limited(settings.connections, files);
        settings
    }
}

/// The settings of the scheduler that the environment has.
fn environment(variable: impl Fn(&str) -> Result<Option<String>>) -> Result<BTreeMap<Setting, i64>> {
    let mut values = BTreeMap::new();
    for setting in Setting::ALL {
        let name = setting.variable();
        let Some(text) = variable(name)? else { continue };
        let value = setting.parse(&text).map_err(|e| {
            Error::new(Code::Invalid, format!("{name}: {}", e.message()))
                .with("variable", name)
                .hint(format!("correct it, or unset {name}: the fleet then keeps its value"))
        })?;
        values.insert(setting, value);
    }
    Ok(values)
}

/// `127.0.0.1:7373`, or only the host or the port.
fn address(text: &str) -> Result<SocketAddr, String> {
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PORT: u16 = 7373;
    let ip = |host: &str| match host {
        "localhost" => Some(HERE),
        host => host.parse().ok(),
    };
    let split = || {
        text.rsplit_once(':').and_then(|(host, port)| Some(SocketAddr::new(ip(host)?, port.parse().ok()?)))
    };
    let found = text.parse().ok().or_else(|| text.parse().ok().map(|port| SocketAddr::new(HERE, port)));
    found.or_else(|| ip(text).map(|ip| SocketAddr::new(ip, PORT))).or_else(split).ok_or_else(|| {
        "not an address such as 7373, 127.0.0.1:7373, or 0.0.0.0:7373 for every network".to_owned()
    })
}

async fn serve(url: String, shown: String, mut settings: Settings, json: bool) -> Result<()> {
    let failed = |e| Error::internal(format!("signals cannot be handled: {e}"));
    let term = signal(SignalKind::terminate()).map_err(failed)?;
    let int = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut options = Options::default();
    options.create = false;
    let fleet = Fleet::open_with(&url, options).await?;
    let traces = Traces::begin();
    settings.tracer = traces.as_ref().map(Traces::tracer);
    let server = Server::bind(App::new(fleet, settings)).await?;
    let at = server.url();
    if !server.address().ip().is_loopback() && at.starts_with("http:") {
        tracing::warn!(
            "other machines can reach {at}, and nothing is encrypted, not even keys: use --tls-cert and --tls-key, or listen \
             on 127.0.0.1 behind a proxy that encrypts"
        );
    }
    let shown = untrusted::shown(&shown);
    // A failure is ignored: the process that started the server need not read its output.
    let _ = match json {
        true => streams::print_json(&serde_json::json!({ "url": at }).to_string()),
        false if streams::width().is_some() => {
            // Commands refuse to choose between FENCE_DB and FENCE_URL.
            let unset = variable("FENCE_DB").map_or("", |_| "unset FENCE_DB; ");
            streams::print(&format!("serving {shown} at {at}\nuse it:  {unset}export FENCE_URL={at}"))
        }
        false => streams::print(&format!("serving {shown} at {at}")),
    };
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
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
    tokio::spawn(handle_signals(term, int, stop));
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

/// Stops the server at the first signal, and exits at the second.
async fn handle_signals(mut term: Signal, mut int: Signal, stop: oneshot::Sender<()>) {
    let mut next = async || {
        tokio::select! {
            _ = term.recv() => 15,
            _ = int.recv() => 2,
        }
    };
    next().await;
    tracing::info!("finishing open requests; another signal ends the server at once");
    let _ = stop.send(());
    let signal = next().await;
    std::process::exit(128 + signal);
}

/// Raises the limit of open files: each connection is a file, and a thousand waiters are more than the usual limit. Returns the new
/// limit, if there is one.
fn raise_file_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current
}

/// Open files other than connections of clients: those of the database (three for each of its connections on SQLite), and our own.
const OTHER_FILES: u64 = 128;

/// Limits the connections to the open files that the process may have. Otherwise the database could not open its files.
fn limited(wanted: usize, files: Option<u64>) -> usize {
    let Some(files) = files else { return wanted };
    let left = if files >= 2 * OTHER_FILES { files - OTHER_FILES } else { (files / 4).max(1) };
    let most = usize::try_from(left).unwrap_or(wanted).min(wanted);
    if most < wanted {
        tracing::warn!(
            "at most {most} connections instead of {wanted}: the process may have only {files} open files"
        );
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_variable_is_named() {
        let read = |name: &'static str, text: &'static str| {
            environment(move |variable| Ok((variable == name).then(|| text.to_owned())))
        };
        assert_eq!(read("AUTO_UNREAD_ENABLED", "off").unwrap(), BTreeMap::from([(Setting::Enabled, 0)]));
        assert_eq!(read("HOME", "off").unwrap(), BTreeMap::new());
        let refused = |name, text| read(name, text).unwrap_err().message().to_owned();
        assert_eq!(
            refused("AUTO_UNREAD_WINDOW_MS", "5m"),
            "AUTO_UNREAD_WINDOW_MS: `window_ms` is `5m`, not a number"
        );
        assert_eq!(
            refused("TRIGGERING_LEASE_TIMEOUT_MS", "0"),
            "TRIGGERING_LEASE_TIMEOUT_MS: `start_lease_ms` is 0; it must be between 1000 and 2592000000"
        );
    }

    #[test]
    fn host_and_port_have_defaults() {
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
