//! A fleet, wherever it is. Whatever faces a user calls ops through a [`Connection`] and never knows which way
//! they go. A [`consumer`] is a mailbox as a stream.

mod address;
mod again;
pub mod consumer;
pub mod held;
mod http;
mod remote;

use fencepost::{
    BoxFuture, Code, Error, Fleet, Op, Options, Result,
    op::{self, AnyOp, AnyReply},
};
pub use http::{Http, Reason, Silence};
use remote::Remote;
use std::{path::Path, sync::Arc, time::Duration};

/// A fleet that can be called. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection(Way);

#[derive(Debug, Clone)]
enum Way {
    /// The database, opened in this process.
    Local(Fleet),
    /// A server that has it open.
    Remote(Box<Remote>),
}

impl From<Fleet> for Connection {
    fn from(fleet: Fleet) -> Self {
        Self(Way::Local(fleet))
    }
}

/// Is this the address of a server, and not of a database?
pub fn is_remote(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

impl Connection {
    /// Connects to the fleet at a file path, `sqlite:PATH` or `postgres://…`, making it if it is not there, or to
    /// the one that is served at `http://…` or `https://…`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    /// The same, but a fleet that is not there is not made.
    pub async fn open_existing(url: &str) -> Result<Self> {
        let mut options = Options::default();
        options.create = false;
        Self::open_with(url, options).await
    }

    /// A server is not asked for anything yet: the first call finds out whether it is there.
    async fn open_with(url: &str, options: Options) -> Result<Self> {
        Ok(Self(match is_remote(url) {
            true => Way::Remote(Box::new(Remote::open(url)?)),
            false => Way::Local(Fleet::open_with(url, options).await?),
        }))
    }

    /// Shows this key to a server. A database that is opened here asks for none.
    pub fn with_key(self, key: &str) -> Result<Self> {
        Ok(match self.0 {
            Way::Remote(remote) => Self(Way::Remote(Box::new(remote.with_key(key)?))),
            local => Self(local),
        })
    }

    /// The server that the key is sent to over the network without encryption, if there is one.
    pub fn exposes_its_key(&self) -> Option<String> {
        match &self.0 {
            Way::Remote(remote) => remote.exposes_its_key().map(ToString::to_string),
            Way::Local(_) => None,
        }
    }

    /// An https server must be vouched for by the authorities in this PEM file, and not by those that the system trusts.
    #[must_use]
    pub fn with_authority(self, file: &Path) -> Self {
        match self.0 {
            Way::Remote(remote) => Self(Way::Remote(Box::new(remote.with_authority(file.to_owned())))),
            local => Self(local),
        }
    }

    /// The same, for who only looks: a fleet that is not there is not made, and one that is behind is refused as it is.
    pub async fn inspect(url: &str) -> Result<Self> {
        let mut options = Options::default();
        (options.create, options.migrate) = (false, false);
        // The integrity check reads everything: 1.3 s for 100,000 tasks, and a person is waiting for it.
        options.read_limit = Duration::from_secs(300);
        Self::open_with(url, options).await
    }

    /// The same fleet, called by this agent: events say so.
    #[must_use]
    pub fn as_agent(&self, agent: impl Into<String>) -> Self {
        Self(match &self.0 {
            Way::Local(fleet) => Way::Local(fleet.as_agent(agent)),
            Way::Remote(remote) => Way::Remote(Box::new(remote.as_agent(agent.into()))),
        })
    }

    /// The fleet itself, if its database is opened in this process: for transactions with your own tables.
    pub fn fleet(&self) -> Option<&Fleet> {
        match &self.0 {
            Way::Local(fleet) => Some(fleet),
            Way::Remote(_) => None,
        }
    }

    /// Dropping the call is hanging up: what it would have claimed goes back, wherever the fleet is.
    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        op::typed(self.call_any(op.erase()).await?)
    }

    /// [`Self::call`] with the types erased.
    pub fn call_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<AnyReply>> {
        match &self.0 {
            Way::Local(fleet) => Box::pin(async move {
                let (reply, delivery) = fleet.deliver_any(op).await?;
                delivery.delivered();
                Ok(reply)
            }),
            Way::Remote(remote) => Box::pin(remote.call(op)),
        }
    }

    /// For a caller that has only the op's name and its request as JSON.
    pub fn call_by_name<'c>(
        &'c self,
        name: &'c str,
        request: &'c str,
    ) -> BoxFuture<'c, Result<serde_json::Value>> {
        Box::pin(async move {
            let entry = op::find(name)?;
            match &self.0 {
                Way::Local(fleet) => entry.call(fleet, request).await,
                Way::Remote(remote) => remote.call_by_name(&entry, request).await,
            }
        })
    }

    /// Before a process ends: others that wait for what it did are told.
    pub async fn flush(&self) {
        if let Way::Local(fleet) = &self.0 {
            fleet.flush().await;
        }
    }

    /// Copies a SQLite fleet to a new file, while others use it.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        match &self.0 {
            Way::Local(fleet) => fleet.backup(to).await,
            Way::Remote(_) => {
                Err(Error::new(Code::Invalid, "a fleet is copied where it is, not over the network").hint(
                    "on the server's machine: fence --db FILE backup TO; a fleet on PostgreSQL: pg_dump",
                ))
            }
        }
    }
}

/// The examples of the guide are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod guide {}
