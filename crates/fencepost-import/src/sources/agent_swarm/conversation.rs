//! Channels, their posts and cursors, and the messages of the inboxes.

use super::{
    agents::Agents,
    file::{CHANNELS, MESSAGES, POSTS, READS},
    row::{Remarks, TableRow},
};
use crate::{
    fit::shorten,
    names::{Names, plain, slug},
    sqlite::Row,
};
use fencepost::admin::import::{ChannelItem, ContentItem, CursorItem, Dealt, MessageItem, PostItem};
use serde_json::Value;
use std::collections::HashMap;

/// The items, with the ids of their rows where the items have none.
#[derive(Debug, Default)]
pub struct Conversation {
    pub channels: Vec<(String, ChannelItem)>,
    pub posts: Vec<PostItem>,
    pub cursors: Vec<(String, CursorItem)>,
    names: HashMap<String, String>,
}

/// The longest post or message that the engine accepts.
const TEXT: usize = 256 * 1024;
const NO_TEXT: &str = "(no text)";

impl Conversation {
    pub fn of(
        channels: Vec<Row>,
        posts: Vec<Row>,
        reads: Vec<Row>,
        agents: &Agents,
        remarks: &mut Remarks,
    ) -> Self {
        let mut conversation = Self::default();
        conversation.channels(channels, agents, remarks);
        conversation.posts(posts, agents, remarks);
        conversation.cursors(reads, agents, remarks);
        conversation
    }

    fn channels(&mut self, rows: Vec<Row>, agents: &Agents, remarks: &mut Remarks) {
        let mut names = Names::of(rows.iter().filter_map(|row| row.get("name")));
        for row in rows {
            let id = plain(row.get("id"));
            let mut row = TableRow::new(CHANNELS, id.clone(), row, remarks);
            row.columns.shift_remove("id");
            let original = row.take("name").unwrap_or_default();
            let name = names.take(&original, "channel");
            if name != original {
                row.changed(format!("channel `{original}` is {name}"));
            }
            match row.take("type").as_deref() {
                None | Some("public") => {}
                Some(kind) => row.left(format!("was of type `{kind}`; in the fleet every agent can read it")),
            }
            let item = ChannelItem {
                name: name.clone(),
                description: row.take("description"),
                creator: agents.take(&mut row, "createdBy", "nobody is named as its creator"),
                members: agents.list(&mut row, "participants"),
                created_at: row.time("createdAt"),
            };
            row.finish();
            self.names.insert(id.clone(), name);
            self.channels.push((id, item));
        }
    }

    fn posts(&mut self, rows: Vec<Row>, agents: &Agents, remarks: &mut Remarks) {
        let mut channel_of: HashMap<String, String> = HashMap::new();
        let all: HashMap<String, String> =
            rows.iter().map(|row| (plain(row.get("id")), plain(row.get("channelId")))).collect();
        for row in rows {
            let id = plain(row.get("id"));
            let mut row = TableRow::new(POSTS, id.clone(), row, remarks);
            row.columns.shift_remove("id");
            let channel = row.take("channelId").unwrap_or_default();
            let Some(name) = self.names.get(&channel) else {
                row.skip(format!("its channel `{channel}` does not exist"));
                continue;
            };
            let mut post = PostItem {
                id: id.clone(),
                channel: name.clone(),
                body: text(&mut row, "content"),
                author: agents.take(&mut row, "agentId", "nobody is named as its author"),
                mentions: agents.list(&mut row, "mentions"),
                reply_to: row.take("replyToId"),
                at: row.time("createdAt"),
            };
            if post.author.as_ref().is_some_and(|author| post.mentions.contains(author)) {
                row.left("mentions its own author, who gets no trigger");
            }
            post.mentions.retain(|agent| Some(agent) != post.author.as_ref());
            // A post can only answer an earlier one of the same channel.
            if let Some(reply) = post.reply_to.take_if(|reply| channel_of.get(reply) != Some(name)) {
                let where_to = all.get(&reply).map(|channel| self.names.get(channel));
                row.left(match where_to {
                    None => format!("answers `{reply}`, which does not exist"),
                    Some(other) if other == Some(name) => {
                        format!("answers `{reply}`, which was posted later")
                    }
                    Some(other) => {
                        let other = other.map(|name| format!(" {name}")).unwrap_or_default();
                        format!("answers `{reply}`, of another channel{other}; the reference is dropped")
                    }
                });
            }
            channel_of.insert(id, name.clone());
            row.finish();
            self.posts.push(post);
        }
    }

    fn cursors(&mut self, rows: Vec<Row>, agents: &Agents, remarks: &mut Remarks) {
        for row in rows {
            let ids = (plain(row.get("agentId")), plain(row.get("channelId")));
            let id = format!("{}/{}", ids.0, ids.1);
            let mut row = TableRow::new(READS, id.clone(), row, remarks);
            ["agentId", "channelId"].iter().for_each(|column| drop(row.columns.shift_remove(*column)));
            let (Some(agent), Some(channel)) = (agents.name(&ids.0), self.names.get(&ids.1)) else {
                row.skip("its agent or its channel does not exist");
                continue;
            };
            let Some(read_until) = row.time("lastReadAt") else {
                row.skip("it has no time of the last read");
                continue;
            };
            if row.take("processing_since").is_some() {
                row.changed(format!("{agent} was reading its mentions in {channel}: they are unread"));
            }
            row.finish();
            self.cursors
                .push((id, CursorItem { agent, channel: channel.clone(), read_until, read_to: None }));
        }
    }
}

/// Takes a text out of the row and makes it fit: not empty, and not too long.
fn text(row: &mut TableRow<'_>, column: &str) -> String {
    let Some(mut text) = row.take(column) else {
        row.left(format!("{column} is empty; it becomes {NO_TEXT}"));
        return NO_TEXT.into();
    };
    if text.len() > TEXT {
        shorten(&mut text, TEXT);
        row.left(format!("its {column} is longer than {TEXT} bytes; the rest was cut off"));
    }
    text
}

/// The messages of the inboxes. `task` gives the id that the task of a row has in the fleet.
pub fn messages(
    rows: Vec<Row>,
    agents: &Agents,
    task: impl Fn(&str) -> Option<String>,
    remarks: &mut Remarks,
) -> Vec<MessageItem> {
    let mut messages = Vec::new();
    for row in rows {
        let id = plain(row.get("id"));
        let mut row = TableRow::new(MESSAGES, id.clone(), row, remarks);
        row.columns.shift_remove("id");
        let Some(agent) = agents.take(&mut row, "agentId", "there is no inbox for it") else {
            row.skip("its agent is unknown");
            continue;
        };
        let mut message = MessageItem { id, agent, created_at: row.time("createdAt"), ..Default::default() };
        let (response, delegated) = (row.take("responseText"), row.take("delegatedToTaskId"));
        message.content.text = text(&mut row, "content");
        let status = row.take("status").unwrap_or("unread".into());
        message.status = match status.as_str() {
            "unread" => Dealt::Unread,
            "processing" => {
                row.changed("was being processed: it is unread");
                Dealt::Unread
            }
            "read" => Dealt::Read,
            "responded" => Dealt::Responded,
            "delegated" => Dealt::Delegated,
            _ => {
                row.left(format!("status `{status}` is unknown; the message is unread"));
                Dealt::Unread
            }
        };
        match message.status {
            // The log records when somebody last looked at it.
            Dealt::Unread => row.drop_columns(&["lastUpdatedAt"]),
            _ => message.finished_at = row.time("lastUpdatedAt"),
        }
        if let Some(response) = response {
            match message.status {
                Dealt::Responded => message.response = Some(response),
                _ => row.left(format!("its responseText is left out, because it is {status}")),
            }
        }
        if let Some(task_id) = delegated {
            message.task = task(&task_id).filter(|_| message.status == Dealt::Delegated);
            if message.task.is_none() {
                row.left(format!("its task `{task_id}` is left out"));
            }
        }
        message.content = content(&mut row, message.content.text);
        messages.push(message);
    }
    messages
}

fn content(row: &mut TableRow<'_>, text: String) -> ContentItem {
    const LONG: usize = 1024;
    let source = row.take("source").unwrap_or_else(|| "slack".into());
    let name = Some(slug(&source, 128)).filter(|name| !name.is_empty()).unwrap_or("other".into());
    if name != source {
        row.left(format!("source `{source}` is now {name}"));
    }
    let mut short = |column: &str| {
        let mut text = row.take(column)?;
        if text.len() > LONG {
            shorten(&mut text, LONG);
            row.left(format!("its {column} is longer than {LONG} bytes; the rest was cut off"));
        }
        Some(text)
    };
    let (channel, thread) = (short("slackChannelId"), short("slackThreadTs"));
    let (sender, matched) = (short("slackUserId"), short("matchedText"));
    // The columns that are left stay with the message as its data.
    let rest = std::mem::take(&mut row.columns);
    let data = (!rest.is_empty()).then_some(Value::Object(rest));
    ContentItem { text, source: name, channel, thread, sender, matched, data }
}
