//! All items but tasks.

use super::{BYTES, ITEMS};
use crate::{
    item_types::for_each_type,
    target::{self, Target},
};
use fencepost::{
    Error, Result,
    admin::import::{CursorItem, Import, Imported},
};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// How much the current call has already.
#[derive(Default)]
struct Filled {
    items: usize,
    bytes: usize,
}

impl Filled {
    /// Counts the item; false if it belongs into the next call. A call has at least one item, however large.
    fn add(&mut self, item: &impl Serialize) -> bool {
        let size = serde_json::to_string(item).map_or(0, |text| text.len());
        self.items += 1;
        self.bytes += size;
        self.items == 1 || (self.items <= ITEMS && self.bytes <= BYTES)
    }
}

/// One call, and for each of its items the index that the item had in the whole list.
#[derive(Debug, Default)]
struct Call {
    import: Import,
    from: HashMap<&'static str, Vec<usize>>,
}

/// Sends all items. The posts of a channel keep their order. Cursors go in the same transaction as their channel's posts:
/// otherwise a poll in between would deliver posts that were read long ago. `locate` adds to the refusal of one item where
/// it stands in its source; the item is the nth of a list.
pub async fn send(
    target: &dyn Target,
    all: &Import,
    locate: &dyn Fn(Error, &'static str, usize) -> Error,
) -> Result<Vec<Imported>> {
    let calls = split(all);
    let (count, mut replies) = (calls.len(), Vec::new());
    for (n, call) in calls.into_iter().enumerate() {
        target.progress(&format!("importing agents and conversations: part {} of {count}", n + 1));
        let Call { import, from } = call;
        let reply = target::call(target, import).await.map_err(|error| {
            let error = match refused_item(&error, &from) {
                Some((list, item)) => locate(error, list, item),
                None => error,
            };
            match n > 0 && !all.dry_run {
                true => error.hint("the items before it were imported; import again to go on"),
                false => error,
            }
        })?;
        replies.push(reply);
    }
    Ok(replies)
}

/// Which item a refusal is about: `posts[7].body`, or `routes[7]`.
fn refused_item(error: &Error, from: &HashMap<&'static str, Vec<usize>>) -> Option<(&'static str, usize)> {
    let (list, rest) = error.field("field")?.as_str()?.split_once('[')?;
    let (list, items) = from.get_key_value(list)?;
    let (index, _) = rest.split_once(']')?;
    Some((list, *items.get(index.parse::<usize>().ok()?)?))
}

fn split(all: &Import) -> Vec<Call> {
    let empty = || Call {
        import: Import { source: all.source.clone(), dry_run: all.dry_run, ..Import::default() },
        ..Call::default()
    };
    let (mut calls, mut call, mut filled) = (Vec::new(), empty(), Filled::default());
    // The first call raises the floor of the fences, before anything can be claimed.
    call.import.floor = all.floor;
    macro_rules! put {
        ($list:ident, "cursor") => {};
        ($list:ident, $kind:literal) => {
            for (i, item) in all.$list.iter().enumerate() {
                if !filled.add(item) {
                    calls.push(std::mem::replace(&mut call, empty()));
                    filled = Filled::default();
                    filled.add(item);
                }
                call.import.$list.push(item.clone());
                call.from.entry(stringify!($list)).or_default().push(i);
            }
        };
    }
    for_each_type!(put);
    put!(messages, "inbox message");
    calls.push(call);
    let mut without_posts: HashSet<&str> = all.cursors.iter().map(|cursor| cursor.channel.as_str()).collect();
    for call in &mut calls {
        let of: HashSet<String> = call.import.posts.iter().map(|post| post.channel.clone()).collect();
        without_posts.retain(|channel| !of.contains(*channel));
        call.add_cursors(&all.cursors, |channel| of.contains(channel));
        // In a dry run no earlier call has made the channel or the mailbox.
        if all.dry_run {
            let given = &call.import.channels;
            let missing = |name: &String| given.iter().all(|channel| channel.name != *name);
            let more = all.channels.iter().filter(|c| of.contains(&c.name) && missing(&c.name));
            let more: Vec<_> = more.cloned().collect();
            call.import.channels.extend(more);
            let of: HashSet<&str> = call.import.mail.iter().map(|item| item.mailbox.as_str()).collect();
            let given = &call.import.mailboxes;
            let missing = |name: &str| given.iter().all(|mailbox| mailbox.name != name);
            let more = all.mailboxes.iter().filter(|m| of.contains(m.name.as_str()) && missing(&m.name));
            let more: Vec<_> = more.cloned().collect();
            call.import.mailboxes.extend(more);
        }
    }
    // A channel without posts has nothing to read. By the last call the channel exists.
    if let Some(last) = calls.last_mut() {
        last.add_cursors(&all.cursors, |channel| without_posts.contains(channel));
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
