//! What every command has: the fleet, who is acting, and how to print.

use crate::{
    place::{self, Place},
    screen::Screen,
    whose::{self, Identity},
};
use fencepost::{Clock, Code, Error, Millis, Op, Result, WAIT_MAX, claim};
use fencepost_client::Connection;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    cell::OnceCell,
    io::{IsTerminal, Write},
    process::ExitCode,
};
use tokio::sync::OnceCell as AsyncOnceCell;

/// What was said on the command line or by variables, for every command alike.
#[derive(Debug, Default)]
pub struct Said {
    pub db: Option<String>,
    pub run: Option<String>,
    pub agent: Option<String>,
    pub request: Option<String>,
    pub json: bool,
}

/// How often a person who watches is shown how far it is.
const WATCHED: Millis = Millis::seconds(1);

pub struct Context {
    said: Said,
    request: String,
    who: OnceCell<Identity>,
    connection: AsyncOnceCell<Connection>,
    pub screen: Screen,
}

impl Context {
    pub fn new(said: Said) -> Self {
        Self {
            request: said.request.clone().unwrap_or_else(|| unique("")),
            said,
            who: OnceCell::new(),
            connection: AsyncOnceCell::new(),
            screen: Screen::of_stdout(Clock::System.read()),
        }
    }

    /// The id under which what this command makes or takes can be asked for again.
    pub fn request(&self) -> Option<String> {
        Some(self.request.clone())
    }

    /// The run that acts, and why it is that one.
    pub fn who(&self) -> &Identity {
        self.who.get_or_init(|| whose::identify(self.said.run.clone(), variable(whose::RUN)))
    }

    /// The run that claims: the one that was named, or this session's.
    pub fn run(&self) -> String {
        self.who().run.clone()
    }

    pub fn agent(&self) -> Option<String> {
        self.said.agent.clone()
    }

    /// The agent, for a verb that is an agent's alone.
    pub fn the_agent(&self) -> Result<String> {
        self.agent().ok_or_else(|| {
            Error::new(Code::Invalid, "this is for an agent to say, and no agent is named")
                .hint("--agent NAME or FENCE_AGENT says who you are")
        })
    }

    pub fn json(&self) -> bool {
        self.said.json
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        self.connection().await?.call(op).await
    }

    /// Asks until the answer is no "not yet", or the time is over; for ever if there is no limit.
    pub async fn call_waiting<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
    ) -> Result<O::Reply> {
        self.call_in_steps(WAIT_MAX, limit, op, |_| ()).await
    }

    /// The same, and shows a person what the answer is meanwhile.
    pub async fn call_watched<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        show: impl FnMut(&Result<O::Reply>),
    ) -> Result<O::Reply> {
        let step = if std::io::stderr().is_terminal() { WATCHED } else { WAIT_MAX };
        self.call_in_steps(step, limit, op, show).await
    }

    async fn call_in_steps<O: Op>(
        &self,
        step: Millis,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        mut show: impl FnMut(&Result<O::Reply>),
    ) -> Result<O::Reply> {
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        loop {
            let wait = left.min(step);
            let answer = self.call(op(Some(wait))).await;
            left = Millis(left.0 - wait.0);
            if left.0 <= 0 || !O::not_yet(&answer) {
                return answer;
            }
            show(&answer);
        }
    }

    /// Where the fleet is, or would be made.
    pub fn place(&self) -> Result<Place> {
        let here = std::env::current_dir()
            .map_err(|e| Error::unavailable(format!("the current directory cannot be read: {e}")))?;
        place::find(self.said.db.clone(), variable("FENCE_DB"), &here).ok_or_else(|| {
            Error::new(
                Code::NotFound,
                "there is no git repository here and no home directory to keep a fleet in",
            )
            .hint("--db or FENCE_DB names a fleet")
        })
    }

    /// The fleet that is there. Only `init` makes a new one, so that a typing error does not.
    pub async fn connection(&self) -> Result<&Connection> {
        self.connection
            .get_or_try_init(|| async {
                let place = self.place()?;
                if place.file().is_some_and(|file| !file.exists()) {
                    return Err(Error::new(
                        Code::NotFound,
                        format!("there is no fleet at {}", place.shown()),
                    )
                    .hint("fence init makes it; --db or FENCE_DB names another"));
                }
                self.connect(&place).await
            })
            .await
    }

    /// Before the process ends: others that wait for what it did are told.
    pub async fn flush(&self) {
        if let Some(connection) = self.connection.get() {
            connection.flush().await;
        }
    }

    pub async fn connect(&self, place: &Place) -> Result<Connection> {
        let connection = Connection::open(&place.url).await?;
        Ok(match &self.said.agent {
            Some(agent) => connection.as_agent(agent),
            None => connection,
        })
    }

    /// The claim to act under: the one that was named, else `FENCE_CLAIM`, else the only one that this run has.
    pub async fn token(&self, given: Option<String>) -> Result<String> {
        if let Some(token) = given.or_else(|| variable("FENCE_CLAIM")) {
            return Ok(token);
        }
        let run = self.run();
        let claims = self.call(claim::List { run: Some(run.clone()), limit: None }).await?.claims;
        match claims.as_slice() {
            [claim] => Ok(claim.token.clone()),
            [] => Err(Error::new(Code::NotFound, format!("run `{run}` holds nothing"))
                .hint("fence claim takes something; fence whoami says which run this is")),
            several => {
                let tokens: Vec<_> = several.iter().map(|claim| claim.token.as_str()).collect();
                Err(Error::new(Code::Invalid, format!("run `{run}` holds {} claims", tokens.len()))
                    .with("tokens", &tokens)
                    .hint(format!("say which: {}", tokens.join(", "))))
            }
        }
    }

    /// The claim on a task, if this run has it.
    pub async fn own_token(&self, task: &str) -> Result<Option<String>> {
        let claims = self.call(claim::List { run: Some(self.run()), limit: None }).await?.claims;
        let resource = format!("task/{task}");
        Ok(claims.into_iter().find(|claim| claim.resource == resource).map(|claim| claim.token))
    }

    /// Prints a reply: as JSON if that was asked for, else as text.
    pub fn print<T: Serialize>(&self, reply: &T, text: impl FnOnce(&T) -> String) -> Result<ExitCode> {
        let text =
            if self.json() { serde_json::to_string(reply).map_err(Error::internal)? } else { text(reply) };
        // A reader that has seen enough (`| head`) is no error.
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
        Ok(ExitCode::SUCCESS)
    }

    /// Something went wrong beside what was asked for, which was done.
    pub fn warn(&self, error: &Error) {
        let _ = match self.json() {
            true => writeln!(std::io::stderr(), "{}", serde_json::json!({ "warning": error })),
            false => writeln!(std::io::stderr(), "warning: {}", error.message()),
        };
    }

    pub fn fail(&self, error: &Error) -> ExitCode {
        let mut text =
            if self.json() { error.to_json().to_string() } else { format!("error: {}", error.message()) };
        if let (false, Some(hint)) = (self.json(), error.hint_text()) {
            text.push_str(&format!("\nhint: {hint}"));
        }
        if !self.json() && error.code() == Code::OutcomeUnknown {
            text.push_str(&format!(
                "\nhint: the same command with --request {} does it at most once",
                self.request
            ));
        }
        let _ = writeln!(std::io::stderr(), "{text}");
        ExitCode::from(error.code().exit_code())
    }
}

/// A name that nobody else has: `lock-5f…`.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{:032x}", fastrand::u128(..))
}

/// A short name for a text, the same for the same text: `5f0c9a3e`.
pub fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A variable that is set to something.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
