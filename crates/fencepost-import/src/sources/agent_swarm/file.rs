//! The tables of an agent-swarm database that can be imported, and the names of the others.

use crate::{
    names::time,
    sqlite::{Database, Expected, Row},
};
use fencepost::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Debug, Default)]
pub struct Tables {
    pub agents: Vec<Row>,
    pub tasks: Vec<Row>,
    pub messages: Vec<Row>,
    pub channels: Vec<Row>,
    pub posts: Vec<Row>,
    pub reads: Vec<Row>,
    pub others: Vec<Other>,
}

/// A table that cannot be imported.
#[derive(Debug, Serialize, Deserialize)]
pub struct Other {
    pub table: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<i64>,
    /// The error if its rows could not be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

const SWARM: Expected = Expected {
    name: "an agent-swarm database",
    otherwise: "fence import agent-swarm reads version 1.135 and similar ones; fence import jsonl imports tasks from anywhere",
    wanted: "fence import agent-swarm needs the database of agent-swarm",
};

pub const AGENTS: &str = "agents";
pub const TASKS: &str = "agent_tasks";
pub const MESSAGES: &str = "inbox_messages";
pub const CHANNELS: &str = "channels";
pub const POSTS: &str = "channel_messages";
pub const READS: &str = "channel_read_state";

/// The columns that a table must have.
const NEEDED: [(&str, &[&str]); 6] = [
    (AGENTS, &["id", "name", "isLead"]),
    (TASKS, &["id", "task", "status", "agentId", "createdAt"]),
    (MESSAGES, &["id", "agentId", "content", "status", "createdAt"]),
    (CHANNELS, &["id", "name"]),
    (POSTS, &["id", "channelId", "content", "createdAt"]),
    (READS, &["agentId", "channelId", "lastReadAt"]),
];

pub fn read(path: &Path) -> Result<Tables> {
    let database = Database::open(path, &SWARM)?;
    let names = database.tables()?;
    // An older version, or one without channels, may lack the other tables.
    for table in [AGENTS, TASKS] {
        if !names.iter().any(|name| name == table) {
            return Err(database.mismatch(&format!("it has no table `{table}`")));
        }
    }
    let mut tables = Tables::default();
    for name in &names {
        let Some((table, needed)) = NEEDED.iter().find(|(table, _)| table == name) else {
            tables.others.extend(other(name, database.count(name)));
            continue;
        };
        for &column in *needed {
            if !database.has_column(table, column)? {
                let why = format!("its table `{table}` has no column `{column}`, so its version is unknown");
                return Err(database.mismatch(&why));
            }
        }
        // In the order of the table. To sort by `rowid` would sort by a column of that name, without a limit.
        let sql = format!("select * from {table} not indexed");
        let mut rows = database.rows(&sql, str::to_owned)?;
        // Rows of the same moment stay in the order in which they were written.
        rows.sort_by_key(|row| row.get("createdAt").and_then(time));
        match *table {
            AGENTS => tables.agents = rows,
            TASKS => tables.tasks = rows,
            MESSAGES => tables.messages = rows,
            CHANNELS => tables.channels = rows,
            POSTS => tables.posts = rows,
            _ => tables.reads = rows,
        }
    }
    Ok(tables)
}

/// An empty table is not reported: nothing of it is left out.
fn other(table: &str, count: rusqlite::Result<i64>) -> Option<Other> {
    let (rows, unreadable) = match count {
        Ok(0) => return None,
        Ok(count) => (Some(count), None),
        Err(e) => (None, Some(e.to_string())),
    };
    Some(Other { table: table.into(), rows, unreadable })
}
