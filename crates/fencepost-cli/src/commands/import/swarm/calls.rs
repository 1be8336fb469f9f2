//! Agents and their conversation, and what became of each row.

use super::{people::People, talk::Talk};
use crate::{commands::import::fleet, context::Context};
use fencepost::{
    Result,
    admin::import::{Import, Imported, MessageItem, Taken},
};
use std::collections::{HashMap, HashSet};

pub async fn bring(
    context: &Context,
    people: &People,
    talk: &Talk,
    messages: &[MessageItem],
    dry_run: bool,
) -> Result<Brought> {
    let all = Import {
        source: "agent-swarm".into(),
        agents: people.agents.iter().map(|(_, agent)| agent.clone()).collect(),
        channels: talk.channels.iter().map(|(_, channel)| channel.clone()).collect(),
        posts: talk.posts.clone(),
        cursors: talk.cursors.iter().map(|(_, cursor)| cursor.clone()).collect(),
        messages: messages.to_vec(),
        dry_run,
        ..Import::default()
    };
    let mut brought = Brought::default();
    for reply in fleet::send(context, &all, |error, _, _| error).await? {
        brought.add(reply);
    }
    Ok(brought)
}

/// What became of each thing, by its name or id.
#[derive(Debug, Default)]
pub struct Brought {
    pub agents: HashMap<String, Fate>,
    pub channels: HashMap<String, Fate>,
    pub posts: HashMap<String, Fate>,
    pub cursors: HashMap<String, Fate>,
    pub messages: HashMap<String, Fate>,
}

#[derive(Debug)]
pub enum Fate {
    New,
    There(Vec<String>),
}

impl Brought {
    fn add(&mut self, reply: Imported) {
        for (sum, taken) in [
            (&mut self.agents, reply.agents),
            (&mut self.channels, reply.channels),
            (&mut self.posts, reply.posts),
            (&mut self.cursors, reply.cursors),
            (&mut self.messages, reply.messages),
        ] {
            let Taken { imported, existing } = taken;
            // What an earlier call brought is there for the next.
            for there in existing {
                sum.entry(there.id).or_insert(Fate::There(there.differs));
            }
            sum.extend(imported.into_iter().map(|id| (id, Fate::New)));
        }
    }

    /// The rows that are new, and those that were there. `rows` are their ids, with what they are called here.
    pub fn rows<'r>(
        fates: &HashMap<String, Fate>,
        rows: impl Iterator<Item = (&'r String, &'r String)>,
    ) -> (HashSet<String>, Vec<(String, Vec<String>)>) {
        let (mut new, mut there) = (HashSet::new(), Vec::new());
        for (row, name) in rows {
            match fates.get(name) {
                Some(Fate::New) => drop(new.insert(row.clone())),
                Some(Fate::There(differs)) => there.push((row.clone(), differs.clone())),
                None => {}
            }
        }
        (new, there)
    }
}
