//! The context of a command: the fleet, the run and the agent that it acts for, and a way to print.

mod claims;
mod printing;
mod sessions;
mod waiting;

use crate::{
    environment::variable,
    identity::{self, Identity, Reason},
    location::{self, Location, NamedUrl},
    names::unique,
    output::Terminal,
    session,
    settings::{File, Setting, Source},
};
pub use claims::resource;
use fencepost::{
    Clock, Code, Error, Op, Result,
    op::{self, AnyOp, AnyReply},
};
use fencepost_client::Connection;
use serde_json::Value;
use std::{cell::OnceCell, path::PathBuf, process::Command, sync::Arc};
use tokio::sync::OnceCell as AsyncOnceCell;
pub use waiting::{GIVE_BACK, unless};

/// The variable with the key for the server.
pub const KEY: &str = "FENCE_KEY";

/// The part of the command line that is the same for every command.
#[derive(Debug)]
pub struct Invocation {
    pub run: Option<String>,
    pub request: Option<String>,
    pub json: bool,
    /// Settings, which may also come from variables or from `fence.toml`.
    pub settings: Vec<Setting>,
    pub file: File,
    /// The flags that the command has.
    pub flags: Vec<String>,
    /// Makes the definition of all commands.
    pub command_line: fn() -> clap::Command,
}

pub struct Context {
    invocation: Invocation,
    request: String,
    identity: OnceCell<Identity>,
    connection: AsyncOnceCell<Connection>,
    pub terminal: Terminal,
}

impl Context {
    pub fn new(invocation: Invocation) -> Self {
        Self {
            request: invocation.request.clone().unwrap_or_else(|| unique("")),
            invocation,
            identity: OnceCell::new(),
            connection: AsyncOnceCell::new(),
            terminal: Terminal::of_stdout(Clock::System.read()),
        }
    }

    /// The request id of this command. Repeating the command with the same id returns the first reply.
    pub fn request(&self) -> Option<String> {
        Some(self.request.clone())
    }

    /// The run that acts, and why it is that one.
    pub fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| identity::identify(self.invocation.run.clone(), variable(identity::RUN)))
    }

    /// The run that `--run` names. Commands with a run of their own ignore the session's run.
    pub fn named_run(&self) -> Option<String> {
        self.invocation.run.clone()
    }

    /// Did somebody name the run, so that other sessions may share it?
    pub fn is_run_named(&self) -> bool {
        // Without a name nobody has to look at the ancestors: a hook before an edit takes 3.3 ms instead of 4.0.
        let has_name = self.invocation.run.is_some() || variable(identity::RUN).is_some();
        has_name && matches!(self.identity().reason, Reason::Flag | Reason::Variable)
    }

    /// The run that claims: the one that was named, or this session's.
    pub fn run(&self) -> String {
        self.identity().run.clone()
    }

    pub fn agent(&self) -> Option<String> {
        self.setting("agent")?.value.clone()
    }

    /// The key for the server.
    pub fn key(&self) -> Option<String> {
        self.setting("key")?.value.clone()
    }

    /// The file with the certificate authority of an https server, if it is not one that the system trusts.
    pub fn authority(&self) -> Option<PathBuf> {
        let file = PathBuf::from(self.setting("ca")?.value.clone()?);
        Some(std::path::absolute(&file).unwrap_or(file))
    }

    fn setting(&self, key: &str) -> Option<&Setting> {
        self.invocation.settings.iter().find(|setting| setting.key == key)
    }

    /// The value of a flag of this command line.
    pub fn flag(&self, key: &str) -> Option<String> {
        let setting = self.setting(key).filter(|setting| matches!(setting.source, Source::Flag(_)))?;
        setting.value.clone()
    }

    /// The settings of every command, and the file that some of them come from.
    pub fn settings(&self) -> (&[Setting], &File) {
        (&self.invocation.settings, &self.invocation.file)
    }

    /// The agent, for a command that only an agent can use.
    pub fn required_agent(&self) -> Result<String> {
        self.agent().ok_or_else(|| {
            Error::new(Code::Invalid, "this command acts for an agent, and no agent is named")
                .hint("name it with --agent or FENCE_AGENT")
        })
    }

    pub fn json(&self) -> bool {
        self.invocation.json
    }

    /// The definition of all commands.
    pub fn command_line(&self) -> clap::Command {
        (self.invocation.command_line)()
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        op::typed(self.call_any(op.erase()).await?)
    }

    pub async fn call_any(&self, op: Arc<dyn AnyOp>) -> Result<AnyReply> {
        let call = self.connection().await?.call_any(op.clone());
        self.recorded(op.name(), call, |reply| session::of_call(op.as_ref(), reply)).await
    }

    pub async fn call_by_name(&self, name: &str, request: &str) -> Result<Value> {
        let call = self.connection().await?.call_by_name(name, request);
        self.recorded(name, call, |reply| session::texts(request, reply)).await
    }

    /// Where the fleet is, or where `init` would create it.
    pub fn location(&self) -> Result<Location> {
        location::find(self.named("url"), self.named("db"), &here())
    }

    /// The location of the database, for commands that create or serve one. They ignore a server that no flag names.
    pub fn database(&self) -> Result<Location> {
        let flag = self.named("url").filter(|_| self.flag("url").is_some());
        location::find(flag, self.named("db"), &here())
    }

    fn named(&self, key: &str) -> NamedUrl {
        let setting = self.setting(key)?;
        Some((setting.value.clone()?, setting.source.clone()))
    }

    /// Gives a process that we start the fleet and the key of this command.
    pub fn pass_on(&self, command: &mut Command) -> Result<()> {
        let location = self.location()?;
        let (ours, other) = location.variables();
        command.env(ours, location.absolute_url()).env_remove(other);
        if let Some(key) = self.key() {
            command.env(KEY, key);
        }
        if let Some(authority) = self.authority() {
            command.env("FENCE_CA", authority);
        }
        Ok(())
    }

    /// The existing fleet. Only `init` creates a fleet, so that a typing error does not.
    pub async fn connection(&self) -> Result<&Connection> {
        self.connection.get_or_try_init(|| self.open(self.agent())).await
    }

    /// A new connection to the existing fleet, for this agent.
    pub async fn open(&self, agent: Option<String>) -> Result<Connection> {
        let location = self.location()?;
        let connection = Connection::open_existing(&location.url).await.map_err(|e| missing(e, &location))?;
        self.authorize(connection, agent)
    }

    /// A connection to the existing fleet at this address.
    pub async fn open_at(&self, url: &str) -> Result<Connection> {
        self.authorize(Connection::open_existing(url).await?, self.agent())
    }

    /// The same for an address that a session's record names. It gets this fleet's key only if it is the same one.
    pub async fn open_elsewhere(&self, url: &str) -> Result<Connection> {
        match self.location()?.absolute_url() == url {
            true => self.open_at(url).await,
            false => Connection::open_existing(url).await,
        }
    }

    /// A connection that neither creates the fleet nor migrates its schema.
    pub async fn inspect(&self) -> Result<Connection> {
        let location = self.location()?;
        let connection = Connection::inspect(&location.url).await.map_err(|e| missing(e, &location))?;
        self.authorize(connection, self.agent())
    }

    /// A connection to the fleet, which is created if it does not exist.
    pub async fn create(&self, location: &Location) -> Result<Connection> {
        self.authorize(Connection::open(&location.url).await?, self.agent())
    }

    /// Adds the key, the certificate authority and the agent to a connection.
    fn authorize(&self, mut connection: Connection, agent: Option<String>) -> Result<Connection> {
        if let Some(key) = self.key() {
            connection = connection.with_key(&key)?;
            if let Some(server) = connection.exposes_its_key() {
                let message = format!("the key is sent to {server} without encryption: use https://");
                self.warn(&Error::new(Code::Invalid, message));
            }
        }
        if let Some(authority) = self.authority() {
            connection = connection.with_authority(&authority);
        }
        if let Some(run) = self.causing_run() {
            connection = connection.in_run(&run);
        }
        Ok(match agent {
            Some(agent) => connection.as_agent(agent),
            None => connection,
        })
    }

    /// The run that causes what this command makes: the one that was named, or an agent's session. A terminal is a person's.
    fn causing_run(&self) -> Option<String> {
        // Most commands of people need not look at their ancestors for it.
        let is_set = |name: &&str| variable(name).is_some();
        if self.invocation.run.is_none()
            && !identity::variables().iter().any(is_set)
            && !identity::recorded::any()
        {
            return None;
        }
        let identity = self.identity();
        (self.is_run_named() || identity.reason.is_agent()).then(|| identity.run.clone())
    }

    /// Notifies waiters in other processes of what this one did. It must happen before the process ends.
    pub async fn flush(&self) {
        if let Some(connection) = self.connection.get() {
            connection.flush().await;
        }
    }
}

fn missing(error: Error, location: &Location) -> Error {
    match error.code() {
        Code::NotFound => Error::new(error.code(), format!("there is no fleet at {}", location.shown()))
            .hint("fence init creates it; --db or FENCE_DB names another"),
        _ => error,
    }
}

/// The current directory; empty if it was removed, which matters only if something is looked for in it.
fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}
