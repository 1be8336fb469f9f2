//! Agents: there they are ids with a name, here they are names.

use super::{
    cells::{Cells, Told},
    file::AGENTS,
};
use crate::commands::import::{
    file::Row,
    words::{Names, plain, slug},
};
use fencepost::{admin::import::AgentItem, agent::Role};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub struct People {
    /// By their ids there.
    names: HashMap<String, String>,
    leads: HashSet<String>,
    /// With the ids there.
    pub agents: Vec<(String, AgentItem)>,
}

/// What they say is told here by an agent's polls and runs.
const BY_POLLS: &[&str] = &["status", "emptyPollCount", "lastActivityAt", "lastUpdatedAt"];

impl People {
    pub fn of(rows: Vec<Row>, told: &mut Told) -> Self {
        let (mut people, mut names) =
            (Self::default(), Names::of(rows.iter().filter_map(|row| row.get("name"))));
        for row in rows {
            let id = plain(row.get("id"));
            let mut cells = Cells::new(AGENTS, id.clone(), row, told);
            cells.row.shift_remove("id");
            if id.is_empty() {
                cells.out("it has no id");
                continue;
            }
            let called = cells.take("name").unwrap_or_default();
            let name = names.take(&called, "agent");
            if name != called {
                cells.changed(format!("agent `{called}` is {name}"));
            }
            let item = agent(&mut cells, &name);
            if item.role == Role::Lead {
                people.leads.insert(name.clone());
            }
            cells.useless(BY_POLLS);
            cells.nothing_else();
            people.names.insert(id.clone(), name);
            people.agents.push((id, item));
        }
        people
    }

    /// Who it is, or that nobody is.
    pub fn name(&self, id: &str) -> Option<String> {
        self.names.get(id).cloned()
    }

    pub fn is_lead(&self, name: &str) -> bool {
        self.leads.contains(name)
    }

    /// Takes an agent's id out of the row. `what` is what becomes of it without one.
    pub fn take(&self, cells: &mut Cells<'_>, column: &str, otherwise: &str) -> Option<String> {
        let id = cells.take(column)?;
        let name = self.name(&id);
        if name.is_none() {
            cells.left(format!("{column} `{id}` is no agent of the file; {otherwise}"));
        }
        name
    }

    /// Takes a list of agents' ids out of the row.
    pub fn list(&self, cells: &mut Cells<'_>, column: &str) -> Vec<String> {
        let mut names = Vec::new();
        for id in cells.list(column) {
            match self.name(&id) {
                Some(name) if names.contains(&name) => {}
                Some(name) => names.push(name),
                None => cells.left(format!("{column} names `{id}`, which is no agent of the file")),
            }
        }
        names
    }
}

fn agent(cells: &mut Cells<'_>, name: &str) -> AgentItem {
    let is_lead = cells.take("isLead").is_some_and(|lead| lead != "0");
    let max = cells.take("maxTasks");
    let max_concurrent =
        max.as_deref().and_then(|max| max.parse().ok()).filter(|max| (1..=1000).contains(max));
    if let (Some(max), None) = (&max, max_concurrent) {
        cells.left(format!("maxTasks {max} is no limit here; there is none"));
    }
    AgentItem {
        name: name.into(),
        role: if is_lead { Role::Lead } else { Role::Worker },
        capabilities: names(cells, "capabilities"),
        max_concurrent,
        joined_at: cells.time("createdAt"),
        ..AgentItem::default()
    }
}

/// Takes a list of words out of the row, as names.
pub fn names(cells: &mut Cells<'_>, column: &str) -> Vec<String> {
    const MOST: usize = 32;
    let mut names: Vec<String> = Vec::new();
    for word in cells.list(column) {
        let name = slug(&word, 128);
        if name != word {
            cells.left(match name.as_str() {
                "" => format!("{column}: `{word}` is no name; it is left out"),
                _ => format!("{column}: `{word}` is now {name}"),
            });
        }
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > MOST {
        cells.left(format!("has more than {MOST} {column}; the first were kept"));
        names.truncate(MOST);
    }
    names
}
