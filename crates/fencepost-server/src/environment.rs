//! The settings of the scheduler in a server's environment. At its start they become the fleet's, and while it runs the fleet
//! knows them, so that people can see which servers disagree.

use crate::app::App;
use fencepost::{Result, storm};
use tokio::time::sleep;

/// A server whose environment the fleet knows.
#[derive(Debug)]
pub struct Environment {
    /// `HOST:PORT`.
    server: String,
}

impl Environment {
    /// Sets the fleet's settings. `None` if the environment has none.
    pub async fn start(app: &App, port: u16) -> Result<Option<Self>> {
        if app.settings.environment.is_empty() {
            return Ok(None);
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let this = Self { server: format!("{host}:{port}") };
        let changed = app.fleet.call(storm::Environment { start: true, ..this.request(app) }).await?.changed;
        for setting in changed {
            let (variable, value) = (setting.variable(), app.settings.environment[&setting]);
            tracing::info!(target: "fence::storm", variable, value, "the fleet's setting was changed");
        }
        Ok(Some(this))
    }

    /// Renews it until the server stops, and then removes it.
    pub async fn keep(self, app: App) {
        loop {
            // Real time: the pause is far shorter than the time after which the fleet forgets a server.
            let stops = tokio::select! {
                () = sleep(app.settings.environment_every) => false,
                () = app.stopping() => true,
            };
            let request = storm::Environment { stop: stops, ..self.request(&app) };
            if let Err(error) = app.fleet.call(request).await {
                tracing::warn!(job = "environment", code = error.code().as_str(), "{}", error.message());
            }
            if stops {
                return;
            }
        }
    }

    fn request(&self, app: &App) -> storm::Environment {
        storm::Environment {
            server: self.server.clone(),
            values: app.settings.environment.clone(),
            ..storm::Environment::default()
        }
    }
}
