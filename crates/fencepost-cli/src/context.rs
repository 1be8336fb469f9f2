//! What every command has: the fleet, who is acting, and how to print.

use fencepost::{Code, Error, Fleet, Op, Result};
use serde::Serialize;
use std::{io::Write, path::PathBuf, process::ExitCode};

pub struct Context {
    db: Option<String>,
    run: Option<String>,
    pub agent: Option<String>,
    request: String,
    json: bool,
}

/// Where a fleet lives when nobody says.
pub const PLACE: &str = ".fence/fence.db";

impl Context {
    pub fn new(
        db: Option<String>,
        run: Option<String>,
        agent: Option<String>,
        request: Option<String>,
        json: bool,
    ) -> Self {
        let request = request.unwrap_or_else(|| format!("{:032x}", fastrand::u128(..)));
        Self { db, run, agent, request, json }
    }

    /// The id under which what this command makes or takes can be asked for again.
    pub fn request(&self) -> Option<String> {
        Some(self.request.clone())
    }

    /// The run that claims: the one that was named, or this terminal's.
    pub fn run(&self) -> String {
        self.run.clone().unwrap_or_else(crate::session::name)
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        self.fleet().await?.call(op).await
    }

    /// The fleet that is there. Only `init` makes a new one, so that a typing error does not.
    pub async fn fleet(&self) -> Result<Fleet> {
        let url = match &self.db {
            Some(url) => url.clone(),
            None => found().ok_or_else(|| {
                Error::new(Code::NotFound, "there is no fleet here")
                    .hint("fence init makes one in this directory; --db or FENCE_DB names another")
            })?,
        };
        self.open(&url).await
    }

    /// The fleet that `init` is to make.
    pub fn place(&self) -> String {
        self.db.clone().unwrap_or_else(|| PLACE.into())
    }

    pub async fn open(&self, url: &str) -> Result<Fleet> {
        let fleet = Fleet::open(url).await?;
        Ok(match &self.agent {
            Some(agent) => fleet.as_agent(agent),
            None => fleet,
        })
    }

    /// Prints a reply: as JSON if that was asked for, else as text.
    pub fn print<T: Serialize>(&self, reply: &T, text: impl FnOnce(&T) -> String) -> Result<ExitCode> {
        let text =
            if self.json { serde_json::to_string(reply).map_err(Error::internal)? } else { text(reply) };
        // A reader that has seen enough (`| head`) is no error.
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
        Ok(ExitCode::SUCCESS)
    }

    pub fn fail(&self, error: &Error) -> ExitCode {
        let mut text =
            if self.json { error.to_json().to_string() } else { format!("error: {}", error.message()) };
        if let (false, Some(hint)) = (self.json, error.hint_text()) {
            text.push_str(&format!("\nhint: {hint}"));
        }
        if !self.json && error.code() == Code::OutcomeUnknown {
            text.push_str(&format!(
                "\nhint: the same command with --request {} does it at most once",
                self.request
            ));
        }
        let _ = writeln!(std::io::stderr(), "{text}");
        ExitCode::from(error.code().exit_code())
    }
}

/// The nearest fleet, from here upwards.
fn found() -> Option<String> {
    let here = std::env::current_dir().ok()?;
    let candidates: Vec<PathBuf> = here.ancestors().map(|dir| dir.join(PLACE)).collect();
    candidates.into_iter().find(|path| path.is_file()).map(|path| path.display().to_string())
}
