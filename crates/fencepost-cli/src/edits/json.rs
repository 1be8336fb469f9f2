//! Entries of ours in a JSON file with comments.
//!
//! How a removal knows whether we made a container, without a record: in a container that was there and empty, our first entry is
//! glued to the bracket (`{"a": 1}`); in one that we made, white space follows the bracket (`{ "a": 1 }`, or a line end). A container
//! of ours goes with its last entry, one that was there stays. The same holds for the whole file.

use super::{
    jsonc::{self, Item, Kind, Node},
    newline,
};
use serde_json::{Map, Value};
use std::{fmt::Debug, ops::Range, rc::Rc};

/// Tells texts that we wrote, in any version, from those of others.
pub trait Ours: Debug {
    fn includes(&self, text: &str) -> bool;
}

/// Entries of ours, and how older ones are recognised.
#[derive(Debug, Clone)]
pub struct Json {
    /// Merged into the file: objects by key, the elements of lists are added at the end, scalars are set.
    pub entries: Map<String, Value>,
    /// An element of a list is ours if one of its texts is. Only lists under a key of `entries` are searched.
    pub ours: Rc<dyn Ours>,
    /// Members that are ours whatever their value, such as `["mcpServers", "fence"]`.
    pub named: Vec<Vec<String>>,
}

/// The way from the root to an item: the place in each container.
type Place = Vec<usize>;

/// One change of the text.
enum Edit {
    Replace(Range<usize>, String),
    Remove(Place),
    Insert { into: Place, key: Option<String>, value: Value },
}

impl Json {
    /// The text with our entries, each once and current.
    pub fn apply(&self, text: Option<&str>) -> Result<String, String> {
        let mut text = match (text, jsonc::parse(text.unwrap_or_default())?) {
            (Some(text), Some(_)) => text.to_owned(),
            (text, _) => {
                let value = self.format(&Value::Object(self.entries.clone()), &Style::lines("", "  ", "\n"));
                return Ok(format!(
                    "{}{value}{}",
                    text.unwrap_or_default(),
                    if text.is_none() { "\n" } else { "" }
                ));
            }
        };
        loop {
            // If only stale entries were in a file that we made, it is made anew.
            let Some(root) = jsonc::parse(&text)? else { return self.apply((text != "\n").then_some(&text)) };
            let Some(edit) = self.next_edit(&text, &root)? else { return Ok(text) };
            text = match edit {
                Edit::Replace(span, new) => format!("{}{new}{}", &text[..span.start], &text[span.end..]),
                // Only stale entries, beside ones that are wanted.
                Edit::Remove(place) => without(&text, &root, &place),
                Edit::Insert { into, key, value } => {
                    self.inserted(&text, &root, &into, key.as_deref(), &value)
                }
            };
        }
    }

    /// The text without our entries. `None`: we made the file, and nobody else has put anything into it.
    pub fn remove(&self, text: &str) -> Result<Option<String>, String> {
        let mut text = text.to_owned();
        loop {
            let Some(root) = jsonc::parse(&text)? else { return Ok(Some(text)) };
            // The last one first: whether the first one is glued to its bracket must be seen when it goes.
            let Some(place) = self.ours(&root).into_iter().max() else { return Ok(Some(text)) };
            text = without(&text, &root, &place);
            if text == "\n" && root.span.start == 0 {
                return Ok(None);
            }
        }
    }

    /// All texts under the keys of our entries, such as the commands of hooks.
    pub fn texts(&self, text: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        if let Some(root) = jsonc::parse(text)? {
            let nodes = self.entries.keys().filter_map(|key| root.member(key));
            nodes.for_each(|(_, node)| texts(node, &mut |text| found.push(text.to_owned())));
        }
        Ok(found)
    }

    /// The elements of our lists, and whether each is in the file.
    pub fn elements(&self, text: Option<&str>) -> Result<Vec<(&Value, bool)>, String> {
        let there = jsonc::parse(text.unwrap_or_default())?.map(|root| root.value());
        let mut found = Vec::new();
        elements(&self.entries, there.as_ref(), &mut found);
        Ok(found)
    }

    fn is_named(&self, path: &[String]) -> bool {
        self.named.iter().any(|named| named == path)
    }

    /// All items of ours in the file, whichever version wrote them.
    fn ours(&self, root: &Node) -> Vec<Place> {
        let mut found = Vec::new();
        self.equal(root, &self.entries, &mut Vec::new(), &mut Vec::new(), &mut found);
        for key in self.entries.keys() {
            if let Some((at, node)) = root.member(key) {
                self.marked(node, &mut vec![at], &mut found);
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Items that equal ours, or have a name of ours.
    fn equal(
        &self,
        node: &Node,
        entries: &Map<String, Value>,
        path: &mut Vec<String>,
        place: &mut Place,
        found: &mut Vec<Place>,
    ) {
        for (key, wanted) in entries {
            let Some((at, node)) = node.member(key) else { continue };
            path.push(key.clone());
            place.push(at);
            match wanted {
                _ if self.is_named(path) => found.push(place.clone()),
                Value::Object(wanted) => self.equal(node, wanted, path, place, found),
                Value::Array(wanted) => {
                    let ours = node
                        .items()
                        .iter()
                        .enumerate()
                        .filter(|(_, item)| wanted.contains(&item.node.value()));
                    found.extend(ours.map(|(at, _)| [&place[..], &[at]].concat()));
                }
                wanted if node.value() == *wanted => found.push(place.clone()),
                _ => {}
            }
            path.pop();
            place.pop();
        }
    }

    /// Elements of lists with a text of ours. An element that also has a list with other people's elements in it is theirs, and
    /// only the element inside it is ours.
    fn marked(&self, node: &Node, place: &mut Place, found: &mut Vec<Place>) {
        for (at, item) in node.items().iter().enumerate() {
            place.push(at);
            match item.key.is_none() && self.is_ours_alone(&item.node) {
                true => found.push(place.clone()),
                false => self.marked(&item.node, place, found),
            }
            place.pop();
        }
    }

    fn is_ours_alone(&self, node: &Node) -> bool {
        let mut lists = Vec::new();
        inner_lists(node, &mut lists);
        match lists.is_empty() {
            true => {
                let mut marked = false;
                texts(node, &mut |text| marked |= self.ours.includes(text));
                marked
            }
            false => lists.iter().all(|list| {
                !list.items().is_empty() && list.items().iter().all(|item| self.is_ours_alone(&item.node))
            }),
        }
    }

    fn next_edit(&self, text: &str, root: &Node) -> Result<Option<Edit>, String> {
        // First the lists that have entries of ours, wanted ones or not.
        let mut by_list: Vec<(Place, Vec<usize>)> = Vec::new();
        for place in self.ours(root) {
            let Some((at, list)) = place.split_last() else { continue };
            if matches!(node_at(root, list).kind, Kind::Array(_)) {
                match by_list.last_mut().filter(|(known, _)| known == list) {
                    Some((_, places)) => places.push(*at),
                    None => by_list.push((list.to_vec(), vec![*at])),
                }
            }
        }
        for (list, places) in by_list.iter().rev() {
            let node = node_at(root, list);
            let wanted = wanted_at(root, list, &self.entries);
            let mut missing: Vec<&Value> = wanted.iter().collect();
            let mut stale = Vec::new();
            for at in places {
                let value = node.items()[*at].node.value();
                match missing.iter().position(|wanted| **wanted == value) {
                    Some(same) => drop(missing.remove(same)),
                    // Without a text of ours it only equals one of ours.
                    None if !self.is_ours_alone(&node.items()[*at].node) => {}
                    None => stale.push(*at),
                }
            }
            if let (Some(at), Some(value)) = (stale.first(), missing.first()) {
                let item = &node.items()[*at];
                let style = Style::of_item(text, item);
                return Ok(Some(Edit::Replace(item.node.span.clone(), self.format(value, &style))));
            }
            if let Some(at) = stale.last() {
                return Ok(Some(Edit::Remove([&list[..], &[*at]].concat())));
            }
        }
        self.next_insert(text, root, &self.entries, &mut Vec::new(), &mut Vec::new())
    }

    /// The first entry that is missing in this object, or differs.
    fn next_insert(
        &self,
        text: &str,
        node: &Node,
        entries: &Map<String, Value>,
        path: &mut Vec<String>,
        place: &mut Place,
    ) -> Result<Option<Edit>, String> {
        let name = if path.is_empty() { "the file".into() } else { format!("`{}`", path.join(".")) };
        let wrong = |name: &str, node: &Node, needed: &str| {
            Err(format!("{name} is {}, and {needed} belongs there", node.describe()))
        };
        if !matches!(node.kind, Kind::Object(_)) {
            return wrong(&name, node, "an object");
        }
        for (key, wanted) in entries {
            let Some((at, node)) = node.member(key) else {
                let value = wanted.clone();
                return Ok(Some(Edit::Insert { into: place.clone(), key: Some(key.clone()), value }));
            };
            path.push(key.clone());
            place.push(at);
            let name = format!("`{}`", path.join("."));
            let edit = match wanted {
                wanted if self.is_named(path) => {
                    let item = Style::of_member(text, node);
                    (node.value() != *wanted)
                        .then(|| Edit::Replace(node.span.clone(), self.format(wanted, &item)))
                }
                Value::Object(wanted) => self.next_insert(text, node, wanted, path, place)?,
                Value::Array(wanted) => {
                    let Kind::Array(items) = &node.kind else { return wrong(&name, node, "a list") };
                    let is_missing =
                        |wanted: &&Value| !items.iter().any(|item| item.node.value() == **wanted);
                    let into = place.clone();
                    let missing = wanted.iter().find(is_missing).cloned();
                    missing.map(|value| Edit::Insert { into, key: None, value })
                }
                wanted if node.value() == *wanted => None,
                wanted => {
                    let there = &text[node.span.clone()];
                    return Err(format!(
                        "{name} is {there}, and {wanted} belongs there; it is left as it is"
                    ));
                }
            };
            if edit.is_some() {
                return Ok(edit);
            }
            path.pop();
            place.pop();
        }
        Ok(None)
    }

    fn inserted(&self, text: &str, root: &Node, into: &[usize], key: Option<&str>, value: &Value) -> String {
        let container = node_at(root, into);
        let entry = |style: &Style| match key {
            Some(key) => format!("{}: {}", Value::from(key), self.format(value, style)),
            None => self.format(value, style),
        };
        insert(text, container, &unit(text, root), entry)
    }

    fn format(&self, value: &Value, style: &Style) -> String {
        let (open, close, items): (_, _, Vec<String>) = match value {
            Value::Object(members) if !members.is_empty() => {
                let member = |(key, value): (&String, &Value)| {
                    format!("{}: {}", Value::from(key.as_str()), self.format(value, &style.deeper()))
                };
                ('{', '}', members.iter().map(member).collect())
            }
            Value::Array(items) if !items.is_empty() => {
                ('[', ']', items.iter().map(|item| self.format(item, &style.deeper())).collect())
            }
            scalar => return scalar.to_string(),
        };
        let inner = style.deeper().separator();
        let items = items.join(&format!(",{inner}"));
        format!("{open}{inner}{items}{}{close}", style.separator())
    }
}

/// How an entry is laid out.
pub(super) enum Style {
    Lines { indent: String, unit: String, newline: &'static str },
    Inline,
}

impl Style {
    fn lines(indent: &str, unit: &str, newline: &'static str) -> Self {
        Style::Lines { indent: indent.into(), unit: unit.into(), newline }
    }

    /// The style of an element that is there.
    fn of_item(text: &str, item: &Item) -> Self {
        match starts_its_line(text, item.start) {
            true => Self::of_member(text, &item.node),
            false => Style::Inline,
        }
    }

    /// The style of a value that is there.
    fn of_member(text: &str, node: &Node) -> Self {
        let indent = indent_of_line(text, node.span.start);
        match text[node.span.clone()].contains('\n') {
            true => Self::lines(indent, if indent.contains('\t') { "\t" } else { "  " }, newline(text)),
            false => Style::Inline,
        }
    }

    fn deeper(&self) -> Self {
        match self {
            Style::Lines { indent, unit, newline } => Self::lines(&format!("{indent}{unit}"), unit, newline),
            Style::Inline => Style::Inline,
        }
    }

    fn separator(&self) -> String {
        match self {
            Style::Lines { indent, newline, .. } => format!("{newline}{indent}"),
            Style::Inline => " ".into(),
        }
    }
}

/// Puts an entry at the end of a container. `unit`: one step of the file's indent.
pub(super) fn insert(text: &str, container: &Node, unit: &str, entry: impl Fn(&Style) -> String) -> String {
    let Some(last) = container.items().last() else {
        // Glued to the bracket: the container was there.
        let at = container.span.start + 1;
        let style = match text.trim_end().contains('\n') {
            true => Style::lines(&format!("{}{unit}", indent_of_line(text, at)), unit, newline(text)),
            false => Style::Inline,
        };
        return format!("{}{}{}", &text[..at], entry(&style), &text[at..]);
    };
    let style = match starts_its_line(text, last.start) {
        true => Style::lines(indent_of_line(text, last.start), unit, newline(text)),
        false => Style::Inline,
    };
    let after = last.comma.map_or(last.end(), |comma| comma + 1);
    // Comments on the line of the last entry stay there.
    let at = if matches!(style, Style::Lines { .. }) { after_comments(text, after) } else { after };
    // An entry that ends in a comma is followed by one that does, so that a removal knows which commas are ours.
    let (before, behind) = if last.comma.is_some() { ("", ",") } else { (",", "") };
    let (line, entry) = (style.separator(), entry(&style));
    format!("{}{before}{}{line}{entry}{behind}{}", &text[..after], &text[after..at], &text[at..])
}

fn node_at<'a>(root: &'a Node, place: &[usize]) -> &'a Node {
    place.iter().fold(root, |node, at| &node.items()[*at].node)
}

/// The elements of ours that belong into the list at this place.
fn wanted_at(root: &Node, place: &[usize], entries: &Map<String, Value>) -> Vec<Value> {
    let (mut node, mut wanted) = (root, Value::Object(entries.clone()));
    for at in place {
        let item = &node.items()[*at];
        wanted = item.key.as_ref().and_then(|key| wanted.get(key).cloned()).unwrap_or_default();
        node = &item.node;
    }
    wanted.as_array().cloned().unwrap_or_default()
}

fn elements<'a>(entries: &'a Map<String, Value>, there: Option<&Value>, found: &mut Vec<(&'a Value, bool)>) {
    for (key, wanted) in entries {
        let there = there.and_then(|there| there.get(key));
        match wanted {
            Value::Object(wanted) => elements(wanted, there, found),
            Value::Array(wanted) => {
                let there = there.and_then(Value::as_array);
                let is_there = |wanted: &Value| there.is_some_and(|there| there.contains(wanted));
                found.extend(wanted.iter().map(|wanted| (wanted, is_there(wanted))));
            }
            _ => {}
        }
    }
}

fn texts(node: &Node, each: &mut impl FnMut(&str)) {
    if let Kind::Scalar(Value::String(text)) = &node.kind {
        each(text);
    }
    node.items().iter().for_each(|item| texts(&item.node, each));
}

/// The outermost lists in this value.
fn inner_lists<'a>(node: &'a Node, found: &mut Vec<&'a Node>) {
    match &node.kind {
        Kind::Array(_) => found.push(node),
        _ => node.items().iter().for_each(|item| inner_lists(&item.node, found)),
    }
}

/// Did we make this container, and is one entry left in it?
pub(super) fn is_made_for_one(text: &str, container: &Node) -> bool {
    let [item] = container.items() else { return false };
    let inside = container.span.start + 1..container.span.end - 1;
    let (before, after) = (&text[inside.start..item.start], &text[item.end()..inside.end]);
    let empty = |text: &str| text.chars().all(|c| jsonc::is_space(c) || c == ',');
    !before.is_empty() && before.chars().all(jsonc::is_space) && empty(after)
}

/// The text without this item, and without the containers that we made for it.
pub(super) fn without(text: &str, root: &Node, place: &[usize]) -> String {
    let Some((at, parents)) = place.split_last() else {
        return format!("{}{}", &text[..root.span.start], &text[root.span.end..]);
    };
    let container = node_at(root, parents);
    let items = container.items();
    let item = &items[*at];
    if is_made_for_one(text, container) {
        return without(text, root, parents);
    }
    let space = text[..item.start].trim_end_matches(jsonc::is_space).len();
    // The comma after it, else the one of the entry before it, which is ours.
    let comma = item.comma.or_else(|| items[at.checked_sub(1)?].comma);
    // A line comment before it must not swallow the rest of its line.
    let end = item.comma.map_or(item.end(), |comma| comma + 1);
    let keeps_line = ends_in_line_comment(text, container, space) && !text[end..].starts_with(['\n', '\r']);
    let entry = if keeps_line { item.start } else { space }..item.end();
    let comma = comma.map_or(entry.clone(), |comma| comma..comma + 1);
    let (first, second) = if comma.start < entry.start { (comma, entry) } else { (entry, comma) };
    let between = text.get(first.end..second.start).unwrap_or_default();
    format!("{}{between}{}", &text[..first.start], &text[second.end..])
}

/// Does a line comment of this container end here?
fn ends_in_line_comment(text: &str, container: &Node, end: usize) -> bool {
    // From the end of the entry before it there is only white space, a comma and comments.
    let before = container.items().iter().map(Item::end).filter(|at| *at <= end).max();
    let mut at = before.unwrap_or(container.span.start + 1);
    while at < end {
        match jsonc::comment_end(text, at) {
            Some(comment) if comment == end => return !text[at..].starts_with("/*"),
            Some(comment) => at = comment,
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    false
}

/// The end of the comments that follow on this line.
fn after_comments(text: &str, from: usize) -> usize {
    let (mut at, mut end) = (from, from);
    loop {
        let rest = &text[at..];
        at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
        match jsonc::comment_end(text, at) {
            Some(comment) if !text[at..comment].contains(['\n', '\r']) => (at, end) = (comment, comment),
            _ => return end,
        }
    }
}

fn starts_its_line(text: &str, at: usize) -> bool {
    let line = line_start(text, at);
    line > 0 && text[line..at].chars().all(jsonc::is_space)
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |at| at + 1)
}

fn indent_of_line(text: &str, at: usize) -> &str {
    let line = &text[line_start(text, at)..at];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// One step of the file's indent.
fn unit(text: &str, root: &Node) -> String {
    let first = root.items().iter().find(|item| starts_its_line(text, item.start));
    let indent = first.map_or("", |item| indent_of_line(text, item.start));
    if indent.is_empty() { "  ".into() } else { indent.to_owned() }
}

#[cfg(test)]
mod tests;
