//! Agents. In agent-swarm they have an id and a name; in a fleet they are their name.

use super::{
    file::AGENTS,
    row::{Remarks, TableRow},
};
use crate::{
    names::{Names, plain, slug},
    sqlite::Row,
};
use fencepost::{admin::import::AgentItem, agent::Role};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub struct Agents {
    /// Their names, by their ids in agent-swarm.
    names: HashMap<String, String>,
    leads: HashSet<String>,
    /// The agents, with their ids in agent-swarm.
    pub items: Vec<(String, AgentItem)>,
}

/// Columns that a fleet derives from an agent's polls and runs.
const FROM_POLLS: &[&str] = &["status", "emptyPollCount", "lastActivityAt", "lastUpdatedAt"];

impl Agents {
    pub fn of(rows: Vec<Row>, remarks: &mut Remarks) -> Self {
        let (mut agents, mut names) =
            (Self::default(), Names::of(rows.iter().filter_map(|row| row.get("name"))));
        for row in rows {
            let id = plain(row.get("id"));
            let mut row = TableRow::new(AGENTS, id.clone(), row, remarks);
            row.columns.shift_remove("id");
            if id.is_empty() {
                row.skip("it has no id");
                continue;
            }
            let original = row.take("name").unwrap_or_default();
            let name = names.take(&original, "agent");
            if name != original {
                row.changed(format!("agent `{original}` is {name}"));
            }
            let item = agent(&mut row, &name);
            if item.role == Role::Lead {
                agents.leads.insert(name.clone());
            }
            row.drop_columns(FROM_POLLS);
            row.finish();
            agents.names.insert(id.clone(), name);
            agents.items.push((id, item));
        }
        agents
    }

    /// The name of the agent with this id.
    pub fn name(&self, id: &str) -> Option<String> {
        self.names.get(id).cloned()
    }

    pub fn is_lead(&self, name: &str) -> bool {
        self.leads.contains(name)
    }

    /// Takes an agent's id out of the row and returns its name. `otherwise` says in the report what happens if no agent has
    /// the id.
    pub fn take(&self, row: &mut TableRow<'_>, column: &str, otherwise: &str) -> Option<String> {
        let id = row.take(column)?;
        let name = self.name(&id);
        if name.is_none() {
            row.left(format!("{column} `{id}` is not an agent of the file; {otherwise}"));
        }
        name
    }

    /// Takes a list of agents' ids out of the row and returns their names.
    pub fn list(&self, row: &mut TableRow<'_>, column: &str) -> Vec<String> {
        let mut names = Vec::new();
        for id in row.list(column) {
            match self.name(&id) {
                Some(name) if names.contains(&name) => {}
                Some(name) => names.push(name),
                None => row.left(format!("{column} names `{id}`, which is not an agent of the file")),
            }
        }
        names
    }
}

fn agent(row: &mut TableRow<'_>, name: &str) -> AgentItem {
    let is_lead = row.take("isLead").is_some_and(|lead| lead != "0");
    let max = row.take("maxTasks");
    let max_concurrent =
        max.as_deref().and_then(|max| max.parse().ok()).filter(|max| (1..=1000).contains(max));
    if let (Some(max), None) = (&max, max_concurrent) {
        row.left(format!("maxTasks {max} is not a valid limit; the agent has none"));
    }
    AgentItem {
        name: name.into(),
        role: if is_lead { Role::Lead } else { Role::Worker },
        capabilities: names(row, "capabilities"),
        max_concurrent,
        joined_at: row.time("createdAt"),
        ..AgentItem::default()
    }
}

/// Takes a list of words out of the row and makes names of them.
pub fn names(row: &mut TableRow<'_>, column: &str) -> Vec<String> {
    const MOST: usize = 32;
    let mut names: Vec<String> = Vec::new();
    for word in row.list(column) {
        let name = slug(&word, 128);
        if name != word {
            row.left(match name.as_str() {
                "" => format!("{column}: `{word}` is not a valid name; it is left out"),
                _ => format!("{column}: `{word}` is now {name}"),
            });
        }
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > MOST {
        row.left(format!("has more than {MOST} {column}; the first were kept"));
        names.truncate(MOST);
    }
    names
}
