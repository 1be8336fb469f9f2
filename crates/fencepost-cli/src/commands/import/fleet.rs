//! All but the tasks, in as few calls as may be: each is one transaction.

use super::order::{BYTES, ITEMS};
use crate::{context::Context, exported::kinds, progress::Progress};
use fencepost::{
    Error, Result,
    admin::import::{CursorItem, Import, Imported},
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

/// One call, and for each item of it which one of its list it was before they were cut.
#[derive(Debug, Default)]
struct Call {
    import: Import,
    from: HashMap<&'static str, Vec<usize>>,
}

/// Sends it all. The posts of a channel keep their order; how far they were read goes with them, in one transaction, or a
/// poll in between would be given what was read long ago. `blame` says what a refusal of one item means: the nth of a list.
pub async fn send(
    context: &Context,
    all: &Import,
    blame: impl Fn(Error, &'static str, usize) -> Error,
) -> Result<Vec<Imported>> {
    let calls = cut(all);
    let (count, mut replies) = (calls.len(), Vec::new());
    let mut progress = Progress::new(context.json());
    for (n, call) in calls.into_iter().enumerate() {
        progress.show(|| format!("importing agents and what they said: part {} of {count}", n + 1));
        let Call { import, from } = call;
        let reply = context.call(import).await.map_err(|error| {
            let error = match refused(&error, &from) {
                Some((list, item)) => blame(error, list, item),
                None => error,
            };
            match n > 0 && !all.dry_run {
                true => error.hint("what stands before it was imported, and importing again goes on"),
                false => error,
            }
        })?;
        replies.push(reply);
    }
    Ok(replies)
}

/// Which item a refusal is about: `posts[7].body`, or `routes[7]`.
fn refused(error: &Error, from: &HashMap<&'static str, Vec<usize>>) -> Option<(&'static str, usize)> {
    let (list, rest) = error.field("field")?.as_str()?.split_once('[')?;
    let (list, items) = from.get_key_value(list)?;
    let (index, _) = rest.split_once(']')?;
    Some((list, *items.get(index.parse::<usize>().ok()?)?))
}

fn cut(all: &Import) -> Vec<Call> {
    let empty = || Call {
        import: Import { source: all.source.clone(), dry_run: all.dry_run, ..Import::default() },
        ..Call::default()
    };
    let (mut calls, mut call, mut room) = (Vec::new(), empty(), Room::default());
    // The floor is raised before anything can be claimed.
    call.import.floor = all.floor;
    macro_rules! put {
        ($list:ident, "cursor") => {};
        ($list:ident, $kind:literal) => {
            for (i, item) in all.$list.iter().enumerate() {
                if !room.takes(item) {
                    calls.push(std::mem::replace(&mut call, empty()));
                    room = Room::default();
                    room.takes(item);
                }
                call.import.$list.push(item.clone());
                call.from.entry(stringify!($list)).or_default().push(i);
            }
        };
    }
    kinds!(put);
    put!(messages, "inbox message");
    calls.push(call);
    let mut unsaid: HashSet<&str> = all.cursors.iter().map(|cursor| cursor.channel.as_str()).collect();
    for call in &mut calls {
        let of: HashSet<String> = call.import.posts.iter().map(|post| post.channel.clone()).collect();
        unsaid.retain(|channel| !of.contains(*channel));
        call.add_cursors(&all.cursors, |channel| of.contains(channel));
        // In a dry run no earlier call has made the channel.
        if all.dry_run {
            let given = &call.import.channels;
            let missing = |name: &String| given.iter().all(|channel| channel.name != *name);
            let more = all.channels.iter().filter(|c| of.contains(&c.name) && missing(&c.name));
            let more: Vec<_> = more.cloned().collect();
            call.import.channels.extend(more);
            // Nor a mailbox.
            let of: HashSet<&str> = call.import.mail.iter().map(|item| item.mailbox.as_str()).collect();
            let given = &call.import.mailboxes;
            let missing = |name: &str| given.iter().all(|mailbox| mailbox.name != name);
            let more = all.mailboxes.iter().filter(|m| of.contains(m.name.as_str()) && missing(&m.name));
            let more: Vec<_> = more.cloned().collect();
            call.import.mailboxes.extend(more);
        }
    }
    // Where nothing was said, nothing can be read: the last call finds the channel.
    if let Some(last) = calls.last_mut() {
        last.add_cursors(&all.cursors, |channel| unsaid.contains(channel));
    }
    calls
}

impl Call {
    fn add_cursors(&mut self, all: &[CursorItem], of: impl Fn(&str) -> bool) {
        for (i, cursor) in all.iter().enumerate().filter(|(_, cursor)| of(&cursor.channel)) {
            self.import.cursors.push(cursor.clone());
            self.from.entry("cursors").or_default().push(i);
        }
    }
}
