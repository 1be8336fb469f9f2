//! A fleet, wherever it is. Whatever faces a user calls ops through a [`Connection`] and never knows which way
//! they go.

use fencepost::{Fleet, Op, Options, Result, op};
use std::path::Path;

/// A fleet that can be called. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection(Way);

#[derive(Debug, Clone)]
enum Way {
    /// The database, opened in this process.
    Local(Fleet),
}

impl Connection {
    /// Connects to the fleet at a file path, `sqlite:PATH` or `postgres://…`, making it if it is not there.
    pub async fn open(url: &str) -> Result<Self> {
        Ok(Self(Way::Local(Fleet::open(url).await?)))
    }

    /// The same, but a fleet that is not there is not made.
    pub async fn open_existing(url: &str) -> Result<Self> {
        let mut options = Options::default();
        options.create = false;
        Ok(Self(Way::Local(Fleet::open_with(url, options).await?)))
    }

    /// The same, for who only looks: a fleet that is not there is not made, and one that is behind is refused as it is.
    pub async fn inspect(url: &str) -> Result<Self> {
        let mut options = Options::default();
        (options.create, options.migrate) = (false, false);
        // The integrity check reads everything (1.3 s for 100,000 tasks), and a person is waiting for it.
        options.read_limit = std::time::Duration::from_secs(300);
        Ok(Self(Way::Local(Fleet::open_with(url, options).await?)))
    }

    /// The same fleet, called by this agent: events say so.
    #[must_use]
    pub fn as_agent(&self, agent: impl Into<String>) -> Self {
        match &self.0 {
            Way::Local(fleet) => Self(Way::Local(fleet.as_agent(agent))),
        }
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        match &self.0 {
            Way::Local(fleet) => fleet.call(op).await,
        }
    }

    /// For a caller that has only the op's name and its request as JSON.
    pub async fn call_by_name(&self, name: &str, request: &str) -> Result<serde_json::Value> {
        let entry = op::find(name)?;
        match &self.0 {
            Way::Local(fleet) => entry.call(fleet, request).await,
        }
    }

    /// Copies a SQLite fleet to a new file, while others use it.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        match &self.0 {
            Way::Local(fleet) => fleet.backup(to).await,
        }
    }
}
