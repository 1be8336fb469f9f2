//! One type for a fleet, wherever it is.

use crate::remote::Remote;
use fencepost::{
    BoxFuture, Code, Error, Fleet, Op, Options, Result,
    op::{self, AnyOp, AnyReply},
};
use std::{path::Path, sync::Arc, time::Duration};

/// A fleet that ops are called on. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection(Backend);

#[derive(Debug, Clone)]
enum Backend {
    /// A database that this process opened.
    Local(Fleet),
    /// A server that opened the database.
    Remote(Box<Remote>),
}

impl From<Fleet> for Connection {
    fn from(fleet: Fleet) -> Self {
        Self(Backend::Local(fleet))
    }
}

/// Whether this is the address of a server rather than of a database.
pub fn is_remote(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

impl Connection {
    /// Opens the fleet at a file path, `sqlite:PATH` or `postgres://…` and creates it if it does not exist, or connects
    /// to the server at `http://…` or `https://…`. Several servers of one fleet are separated by commas.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    /// Like [`Self::open`], but an error if the fleet does not exist.
    pub async fn open_existing(url: &str) -> Result<Self> {
        let mut options = Options::default();
        options.create = false;
        Self::open_with(url, options).await
    }

    /// Sends nothing to a server: the first call shows whether it answers.
    async fn open_with(url: &str, options: Options) -> Result<Self> {
        Ok(Self(match is_remote(url) {
            true => Backend::Remote(Box::new(Remote::open(url)?)),
            false => Backend::Local(Fleet::open_with(url, options).await?),
        }))
    }

    /// Sends this key to the server. A database that this process opened needs no key.
    pub fn with_key(self, key: &str) -> Result<Self> {
        Ok(match self.0 {
            Backend::Remote(remote) => Self(Backend::Remote(Box::new(remote.with_key(key)?))),
            local => Self(local),
        })
    }

    /// The server that receives the key over the network without encryption, if there is one.
    pub fn exposes_its_key(&self) -> Option<String> {
        match &self.0 {
            Backend::Remote(remote) => remote.exposes_its_key().map(ToString::to_string),
            Backend::Local(_) => None,
        }
    }

    /// Trusts the certificate authorities in this PEM file for https servers, instead of those that the system trusts.
    #[must_use]
    pub fn with_authority(self, file: &Path) -> Self {
        match self.0 {
            Backend::Remote(remote) => {
                Self(Backend::Remote(Box::new(remote.with_authority(file.to_owned()))))
            }
            local => Self(local),
        }
    }

    /// Opens a fleet for inspection: an error if it does not exist or needs a migration, and reads may take long.
    pub async fn inspect(url: &str) -> Result<Self> {
        let mut options = Options::default();
        (options.create, options.migrate) = (false, false);
        // The integrity check reads everything: 1.3 s for 100,000 tasks, and a person is waiting for it.
        options.read_limit = Duration::from_secs(300);
        Self::open_with(url, options).await
    }

    /// The same fleet, with this agent as the caller. Events name it.
    #[must_use]
    pub fn as_agent(&self, agent: impl Into<String>) -> Self {
        Self(match &self.0 {
            Backend::Local(fleet) => Backend::Local(fleet.as_agent(agent)),
            Backend::Remote(remote) => Backend::Remote(Box::new(remote.as_agent(agent.into()))),
        })
    }

    /// The same fleet, called from within this run: posts, messages and tasks of these calls record it as their cause, if the run
    /// is the caller's own.
    #[must_use]
    pub fn in_run(&self, run: &str) -> Self {
        Self(match &self.0 {
            Backend::Local(fleet) => Backend::Local(fleet.in_run(run)),
            Backend::Remote(remote) => Backend::Remote(Box::new(remote.in_run(run))),
        })
    }

    /// The same fleet, where a call that gets no answer is an error at once, also one that waits: for a caller that shows the
    /// outage, and tries again itself.
    #[must_use]
    pub fn without_retries(&self) -> Self {
        Self(match &self.0 {
            Backend::Local(fleet) => Backend::Local(fleet.clone()),
            Backend::Remote(remote) => Backend::Remote(Box::new(remote.without_retries())),
        })
    }

    /// The fleet itself, if this process opened its database: for transactions with your own tables.
    pub fn fleet(&self) -> Option<&Fleet> {
        match &self.0 {
            Backend::Local(fleet) => Some(fleet),
            Backend::Remote(_) => None,
        }
    }

    /// Calls an op. Dropping the call gives back what it claims, wherever the fleet is.
    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        op::typed(self.call_any(op.erase()).await?)
    }

    /// [`Self::call`] with the types erased.
    pub fn call_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<AnyReply>> {
        match &self.0 {
            Backend::Local(fleet) => Box::pin(async move {
                let (reply, delivery) = fleet.deliver_any(op).await?;
                delivery.delivered();
                Ok(reply)
            }),
            Backend::Remote(remote) => Box::pin(remote.call(op)),
        }
    }

    /// Calls an op by its name, with its request as JSON.
    pub fn call_by_name<'c>(
        &'c self,
        name: &'c str,
        request: &'c str,
    ) -> BoxFuture<'c, Result<serde_json::Value>> {
        Box::pin(async move {
            let entry = op::find(name)?;
            match &self.0 {
                Backend::Local(fleet) => entry.call(fleet, request).await,
                Backend::Remote(remote) => remote.call_by_name(&entry, request).await,
            }
        })
    }

    /// Notifies other processes that wait for this one's changes. Call it before the process ends.
    pub async fn flush(&self) {
        if let Backend::Local(fleet) = &self.0 {
            fleet.flush().await;
        }
    }

    /// Copies a SQLite fleet to a new file while others use it.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        match &self.0 {
            Backend::Local(fleet) => fleet.backup(to).await,
            Backend::Remote(_) => {
                Err(Error::new(Code::Invalid, "a fleet is copied where it is, not over the network").hint(
                    "on the server's machine: fence --db FILE backup TO; a fleet on PostgreSQL: pg_dump",
                ))
            }
        }
    }
}
