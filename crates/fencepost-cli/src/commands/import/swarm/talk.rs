//! Channels, what was said in them and how far everybody has read; and what is in the inboxes.

use super::{
    cells::{Cells, Told},
    file::{CHANNELS, MESSAGES, POSTS, READS},
    people::People,
};
use crate::commands::import::{
    file::Row,
    fit::shorten,
    words::{Names, plain, slug},
};
use fencepost::admin::import::{ChannelItem, ContentItem, CursorItem, Dealt, MessageItem, PostItem};
use serde_json::Value;
use std::collections::HashMap;

/// The rows' ids stand with what they became.
#[derive(Debug, Default)]
pub struct Talk {
    pub channels: Vec<(String, ChannelItem)>,
    pub posts: Vec<PostItem>,
    pub cursors: Vec<(String, CursorItem)>,
    names: HashMap<String, String>,
}

/// As long as a post, or a message, may be.
const TEXT: usize = 256 * 1024;
const NO_TEXT: &str = "(no text)";

impl Talk {
    pub fn of(
        channels: Vec<Row>,
        posts: Vec<Row>,
        reads: Vec<Row>,
        people: &People,
        told: &mut Told,
    ) -> Self {
        let mut talk = Self::default();
        talk.channels(channels, people, told);
        talk.posts(posts, people, told);
        talk.cursors(reads, people, told);
        talk
    }

    fn channels(&mut self, rows: Vec<Row>, people: &People, told: &mut Told) {
        let mut names = Names::of(rows.iter().filter_map(|row| row.get("name")));
        for row in rows {
            let id = plain(row.get("id"));
            let mut cells = Cells::new(CHANNELS, id.clone(), row, told);
            cells.row.shift_remove("id");
            let called = cells.take("name").unwrap_or_default();
            let name = names.take(&called, "channel");
            if name != called {
                cells.changed(format!("channel `{called}` is {name}"));
            }
            match cells.take("type").as_deref() {
                None | Some("public") => {}
                Some(kind) => cells.left(format!("was of type `{kind}`; here every agent can read it")),
            }
            let item = ChannelItem {
                name: name.clone(),
                description: cells.take("description"),
                creator: people.take(&mut cells, "createdBy", "nobody is named as its creator"),
                members: people.list(&mut cells, "participants"),
                created_at: cells.time("createdAt"),
            };
            cells.nothing_else();
            self.names.insert(id.clone(), name);
            self.channels.push((id, item));
        }
    }

    fn posts(&mut self, rows: Vec<Row>, people: &People, told: &mut Told) {
        let mut channel_of: HashMap<String, String> = HashMap::new();
        let all: HashMap<String, String> =
            rows.iter().map(|row| (plain(row.get("id")), plain(row.get("channelId")))).collect();
        for row in rows {
            let id = plain(row.get("id"));
            let mut cells = Cells::new(POSTS, id.clone(), row, told);
            cells.row.shift_remove("id");
            let channel = cells.take("channelId").unwrap_or_default();
            let Some(name) = self.names.get(&channel) else {
                cells.out(format!("its channel `{channel}` is not there"));
                continue;
            };
            let mut post = PostItem {
                id: id.clone(),
                channel: name.clone(),
                body: text(&mut cells, "content"),
                author: people.take(&mut cells, "agentId", "nobody is named as its author"),
                mentions: people.list(&mut cells, "mentions"),
                reply_to: cells.take("replyToId"),
                at: cells.time("createdAt"),
            };
            if post.author.as_ref().is_some_and(|author| post.mentions.contains(author)) {
                cells.left("mentions its own author, who is not triggered by it");
            }
            post.mentions.retain(|agent| Some(agent) != post.author.as_ref());
            // What it answers must have come before it, in the same channel.
            if let Some(reply) = post.reply_to.take_if(|reply| channel_of.get(reply) != Some(name)) {
                let where_to = all.get(&reply).map(|channel| self.names.get(channel));
                cells.left(match where_to {
                    None => format!("answers `{reply}`, which is not there"),
                    Some(other) if other == Some(name) => {
                        format!("answers `{reply}`, which was posted later")
                    }
                    Some(other) => {
                        let other = other.map(|name| format!(" {name}")).unwrap_or_default();
                        format!("answers `{reply}`, of another channel{other}; here it answers nothing")
                    }
                });
            }
            channel_of.insert(id, name.clone());
            cells.nothing_else();
            self.posts.push(post);
        }
    }

    fn cursors(&mut self, rows: Vec<Row>, people: &People, told: &mut Told) {
        for row in rows {
            let ids = (plain(row.get("agentId")), plain(row.get("channelId")));
            let id = format!("{}/{}", ids.0, ids.1);
            let mut cells = Cells::new(READS, id.clone(), row, told);
            ["agentId", "channelId"].iter().for_each(|column| drop(cells.row.shift_remove(*column)));
            let (Some(agent), Some(channel)) = (people.name(&ids.0), self.names.get(&ids.1)) else {
                cells.out("its agent or its channel is not there");
                continue;
            };
            let Some(read_until) = cells.time("lastReadAt") else {
                cells.out("it does not say until when was read");
                continue;
            };
            if cells.take("processing_since").is_some() {
                cells.changed(format!("{agent} was at its mentions in {channel}: they are unread"));
            }
            cells.nothing_else();
            self.cursors
                .push((id, CursorItem { agent, channel: channel.clone(), read_until, read_to: None }));
        }
    }
}

/// Takes a text out of the row that must not be empty or endless.
fn text(cells: &mut Cells<'_>, column: &str) -> String {
    let Some(mut text) = cells.take(column) else {
        cells.left(format!("{column} is empty; it says {NO_TEXT}"));
        return NO_TEXT.into();
    };
    if text.len() > TEXT {
        shorten(&mut text, TEXT);
        cells.left(format!("its {column} is longer than {TEXT} bytes; the rest was cut off"));
    }
    text
}

/// Messages of the inboxes. `task` says what the task of a row is called here.
pub fn messages(
    rows: Vec<Row>,
    people: &People,
    task: impl Fn(&str) -> Option<String>,
    told: &mut Told,
) -> Vec<MessageItem> {
    let mut messages = Vec::new();
    for row in rows {
        let id = plain(row.get("id"));
        let mut cells = Cells::new(MESSAGES, id.clone(), row, told);
        cells.row.shift_remove("id");
        let Some(agent) = people.take(&mut cells, "agentId", "there is no inbox for it") else {
            cells.out("it is for nobody");
            continue;
        };
        let mut message =
            MessageItem { id, agent, created_at: cells.time("createdAt"), ..Default::default() };
        let (response, delegated) = (cells.take("responseText"), cells.take("delegatedToTaskId"));
        message.content.text = text(&mut cells, "content");
        let status = cells.take("status").unwrap_or("unread".into());
        message.status = match status.as_str() {
            "unread" => Dealt::Unread,
            "processing" => {
                cells.changed("was being processed: it is unread");
                Dealt::Unread
            }
            "read" => Dealt::Read,
            "responded" => Dealt::Responded,
            "delegated" => Dealt::Delegated,
            _ => {
                cells.left(format!("status `{status}` is not known; it is unread"));
                Dealt::Unread
            }
        };
        match message.status {
            // When somebody last looked at it is told here by the log.
            Dealt::Unread => cells.useless(&["lastUpdatedAt"]),
            _ => message.finished_at = cells.time("lastUpdatedAt"),
        }
        if let Some(response) = response {
            match message.status {
                Dealt::Responded => message.response = Some(response),
                _ => cells.left(format!("its responseText is left out, because it is {status}")),
            }
        }
        if let Some(row) = delegated {
            message.task = task(&row).filter(|_| message.status == Dealt::Delegated);
            if message.task.is_none() {
                cells.left(format!("its task `{row}` is left out"));
            }
        }
        message.content = content(&mut cells, message.content.text);
        messages.push(message);
    }
    messages
}

fn content(cells: &mut Cells<'_>, text: String) -> ContentItem {
    const LONG: usize = 1024;
    let source = cells.take("source").unwrap_or_else(|| "slack".into());
    let name = Some(slug(&source, 128)).filter(|name| !name.is_empty()).unwrap_or("other".into());
    if name != source {
        cells.left(format!("source `{source}` is now {name}"));
    }
    let mut short = |column: &str| {
        let mut text = cells.take(column)?;
        if text.len() > LONG {
            shorten(&mut text, LONG);
            cells.left(format!("its {column} is longer than {LONG} bytes; the rest was cut off"));
        }
        Some(text)
    };
    let (channel, thread) = (short("slackChannelId"), short("slackThreadTs"));
    let (sender, matched) = (short("slackUserId"), short("matchedText"));
    // What else the row says is kept with it.
    let rest = std::mem::take(&mut cells.row);
    let data = (!rest.is_empty()).then_some(Value::Object(rest));
    ContentItem { text, source: name, channel, thread, sender, matched, data }
}
