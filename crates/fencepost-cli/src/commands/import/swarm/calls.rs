//! All but the tasks, in as few calls as may be: each is one transaction.

use super::{people::People, talk::Talk};
use crate::{
    commands::import::order::{BYTES, ITEMS},
    context::Context,
    progress::Progress,
};
use fencepost::{
    Result,
    admin::import::{CursorItem, Import, Imported, MessageItem, Taken},
};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// How far the calls are filled.
#[derive(Default)]
struct Room {
    items: usize,
    bytes: usize,
}

impl Room {
    fn takes(&mut self, item: &impl Serialize) -> bool {
        let size = serde_json::to_string(item).map_or(0, |text| text.len());
        self.items += 1;
        self.bytes += size;
        self.items == 1 || (self.items <= ITEMS && self.bytes <= BYTES)
    }
}

/// Sends it all. The posts of a channel keep their order; how far they were read goes with them, in one transaction, or a
/// poll in between would be given what was read long ago.
pub async fn bring(
    context: &Context,
    people: &People,
    talk: &Talk,
    messages: &[MessageItem],
    dry_run: bool,
) -> Result<Brought> {
    let calls = cut(people, talk, messages, dry_run);
    let (count, mut brought) = (calls.len(), Brought::default());
    let mut progress = Progress::new(context.json());
    for (n, call) in calls.into_iter().enumerate() {
        progress.show(|| format!("importing agents and what they said: part {} of {count}", n + 1));
        brought.add(context.call(call).await?);
    }
    Ok(brought)
}

fn cut(people: &People, talk: &Talk, messages: &[MessageItem], dry_run: bool) -> Vec<Import> {
    let empty = || Import { source: "agent-swarm".into(), dry_run, ..Import::default() };
    let (mut calls, mut call, mut room) = (Vec::new(), empty(), Room::default());
    macro_rules! put {
        ($item:expr, $list:ident) => {
            if !room.takes($item) {
                calls.push(std::mem::replace(&mut call, empty()));
                room = Room::default();
                room.takes($item);
            }
            call.$list.push($item.clone());
        };
    }
    for (_, agent) in &people.agents {
        put!(agent, agents);
    }
    for (_, channel) in &talk.channels {
        put!(channel, channels);
    }
    for post in &talk.posts {
        put!(post, posts);
    }
    for message in messages {
        put!(message, messages);
    }
    calls.push(call);
    let mut unsaid: HashSet<&str> = talk.channels.iter().map(|(_, channel)| channel.name.as_str()).collect();
    for call in &mut calls {
        let of: HashSet<String> = call.posts.iter().map(|post| post.channel.clone()).collect();
        unsaid.retain(|channel| !of.contains(*channel));
        call.cursors.extend(cursors(talk, |channel| of.contains(channel)));
        // Who only asks what would happen has made no channel with an earlier call.
        if dry_run {
            let named = talk.channels.iter().map(|(_, channel)| channel);
            let missing = |name: &String| call.channels.iter().all(|channel| channel.name != *name);
            let more: Vec<_> = named.filter(|c| of.contains(&c.name) && missing(&c.name)).cloned().collect();
            call.channels.extend(more);
        }
    }
    // Where nothing was said, nothing can be read: the last call finds the channel.
    if let Some(last) = calls.last_mut() {
        last.cursors.extend(cursors(talk, |channel| unsaid.contains(channel)));
    }
    calls
}

fn cursors(talk: &Talk, of: impl Fn(&str) -> bool) -> Vec<CursorItem> {
    talk.cursors.iter().map(|(_, cursor)| cursor).filter(|cursor| of(&cursor.channel)).cloned().collect()
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
