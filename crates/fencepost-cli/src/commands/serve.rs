use crate::context::Context;
use clap::Args;
use fencepost::{Code, Error, Fleet, Options, Result};
use fencepost_server::{App, Server, Settings};
use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    process::ExitCode,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Put the fleet on the network
///
/// Every command works against it by setting FENCE_URL. It says where it listens once it does, and serves until it is
/// sent SIGTERM or SIGINT: then it finishes what was begun. A second one ends it at once.
///
/// Examples:
///   fence serve
///   fence serve --listen 127.0.0.1:0
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Serve {
    /// The address to listen on; port 0 takes any that is free
    #[arg(long, value_name = "ADDR", env = "FENCE_LISTEN", default_value = "127.0.0.1:7373")]
    listen: SocketAddr,
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
        // Many calls at once need more threads than the one that a short command has.
        let serving = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().map_err(Error::internal)?;
            runtime.block_on(serve(url, shown, Settings::new(self.listen), json))
        });
        serving.await.map_err(Error::internal)??;
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(url: String, shown: String, settings: Settings, json: bool) -> Result<()> {
    let unheard = |e| Error::internal(format!("signals cannot be heard: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(unheard)?;
    let mut int = signal(SignalKind::interrupt()).map_err(unheard)?;
    let mut options = Options::default();
    options.create = false;
    let fleet = Fleet::open_with(&url, options).await?;
    let server = Server::bind(App::new(fleet, settings)).await?;
    let at = format!("http://{}", server.address());
    let line = match json {
        true => serde_json::json!({ "url": at }).to_string(),
        false if std::io::stdout().is_terminal() => {
            format!("serving {shown} at {at}\nuse it:  export FENCE_URL={at}")
        }
        false => format!("serving {shown} at {at}"),
    };
    let _ = writeln!(std::io::stdout(), "{line}");
    server.run(told_to_stop(&mut term, &mut int)).await
}

async fn told_to_stop(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
