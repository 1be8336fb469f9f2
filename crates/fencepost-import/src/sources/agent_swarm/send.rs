//! Sends everything but the tasks, and sorts the replies by row.

use super::{agents::Agents, conversation::Conversation};
use crate::{Target, batch};
use fencepost::{
    Result,
    admin::import::{Import, Imported, MessageItem, Taken},
};
use std::collections::{HashMap, HashSet};

pub async fn send(
    target: &dyn Target,
    agents: &Agents,
    conversation: &Conversation,
    messages: &[MessageItem],
    dry_run: bool,
) -> Result<Sent> {
    let all = Import {
        source: "agent-swarm".into(),
        agents: agents.items.iter().map(|(_, agent)| agent.clone()).collect(),
        channels: conversation.channels.iter().map(|(_, channel)| channel.clone()).collect(),
        posts: conversation.posts.clone(),
        cursors: conversation.cursors.iter().map(|(_, cursor)| cursor.clone()).collect(),
        messages: messages.to_vec(),
        dry_run,
        ..Import::default()
    };
    let mut sent = Sent::default();
    for reply in batch::others::send(target, &all, &|error, _, _| error).await? {
        sent.add(reply);
    }
    Ok(sent)
}

/// The result for each item, by its name or id.
#[derive(Debug, Default)]
pub struct Sent {
    pub agents: HashMap<String, Outcome>,
    pub channels: HashMap<String, Outcome>,
    pub posts: HashMap<String, Outcome>,
    pub cursors: HashMap<String, Outcome>,
    pub messages: HashMap<String, Outcome>,
}

#[derive(Debug)]
pub enum Outcome {
    Imported,
    /// The fleet had it already, with these differences.
    Existing(Vec<String>),
}

impl Sent {
    fn add(&mut self, reply: Imported) {
        for (sum, taken) in [
            (&mut self.agents, reply.agents),
            (&mut self.channels, reply.channels),
            (&mut self.posts, reply.posts),
            (&mut self.cursors, reply.cursors),
            (&mut self.messages, reply.messages),
        ] {
            let Taken { imported, existing } = taken;
            // An item that an earlier call imported exists for the next one.
            for item in existing {
                sum.entry(item.id).or_insert(Outcome::Existing(item.differs));
            }
            sum.extend(imported.into_iter().map(|id| (id, Outcome::Imported)));
        }
    }

    /// The ids of the rows that are new, and of those that existed, with their differences. `rows` has the id of each row and
    /// the name of its item.
    pub fn rows<'r>(
        outcomes: &HashMap<String, Outcome>,
        rows: impl Iterator<Item = (&'r String, &'r String)>,
    ) -> (HashSet<String>, Vec<(String, Vec<String>)>) {
        let (mut new, mut existing) = (HashSet::new(), Vec::new());
        for (row, name) in rows {
            match outcomes.get(name) {
                Some(Outcome::Imported) => drop(new.insert(row.clone())),
                Some(Outcome::Existing(differs)) => existing.push((row.clone(), differs.clone())),
                None => {}
            }
        }
        (new, existing)
    }
}
