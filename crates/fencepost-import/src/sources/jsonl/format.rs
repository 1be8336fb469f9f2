//! The file that `fence export` writes and `fence import jsonl` reads: one JSON object per line, with its `type`. The first
//! line is the header, and the last line proves that nothing is missing. The lines in between are items of `task/import` and
//! `admin/import`.

use crate::{
    item_types::for_each_type,
    json_lines::{self, Lines},
    limits::LIMITS,
};
use fencepost::{
    Code, Error, Result, Time,
    admin::{export::Page, import},
    op,
    task::import::Item,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

/// Raise it when older readers would misunderstand a file.
const VERSION: u64 = 1;
const HEADER: &str = "fencepost";
const FLEET: &str = "fleet";
const END: &str = "end";

/// Parts of a fleet that an export does not have.
const LEFT_OUT: &[&str] =
    &["keys", "runs", "claims", "locks", "effects", "request ids", "hook deliveries", "events"];

#[derive(Debug, Serialize)]
struct Header<'a> {
    version: u64,
    /// The version of fence that wrote the file.
    fencepost: &'a str,
    exported_at: Time,
    database: &'a str,
    /// The boards that were asked for; empty for the whole fleet.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    boards: &'a [String],
    left_out: &'a [&'a str],
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    floor: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    items: usize,
}

fn line(kind: &str, item: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(item).map_err(Error::internal)?;
    let fields = json.strip_prefix('{').unwrap_or(&json);
    let comma = if fields == "}" { "" } else { "," };
    Ok(format!("{{\"type\":\"{kind}\"{comma}{fields}\n"))
}

pub fn header(exported_at: Time, database: &str, boards: &[String]) -> Result<String> {
    let fencepost = env!("CARGO_PKG_VERSION");
    line(HEADER, &Header { version: VERSION, fencepost, exported_at, database, boards, left_out: LEFT_OUT })
}

pub fn end(items: usize) -> Result<String> {
    line(END, &End { items })
}

/// The page as lines. Adds the number of its items to `counts`, by type. An export of single boards has the floor of the
/// fences, too: old tokens of their tasks must not fit a new claim.
pub fn page(page: &Page, counts: &mut BTreeMap<&'static str, usize>) -> Result<String> {
    let mut text = String::new();
    macro_rules! put {
        ($list:ident, $kind:literal) => {
            for item in &page.$list {
                text.push_str(&line($kind, item)?);
                *counts.entry($kind).or_default() += 1;
            }
        };
    }
    for_each_type!(put);
    put!(tasks, "task");
    if let Some(floor) = page.floor {
        text.push_str(&line(FLEET, &Floor { floor })?);
        *counts.entry(FLEET).or_default() += 1;
    }
    Ok(text)
}

/// The items of a file.
#[derive(Debug, Default)]
pub struct File {
    pub tasks: Lines<Item>,
    /// All items but the tasks. Its `source` is not set yet.
    pub others: import::Import,
    /// The line of each item, by its list in `others`.
    pub numbers: HashMap<&'static str, Vec<usize>>,
    /// `fence export` wrote at least a part of the file.
    pub is_export: bool,
    /// An export that has begun and not ended: its items so far, and the line of its header.
    open: Option<(usize, usize)>,
}

/// Reads the text of the file with this name. A line without a `type` is a task.
pub fn read(name: &str, text: &str) -> Result<File> {
    let mut file = File::default();
    let mut last = 0;
    for line in json_lines::numbered(name, text, LIMITS) {
        let (number, line) = line?;
        last = number;
        file.add(line, last).map_err(|error| json_lines::on_line(error, last))?;
    }
    match file.open {
        None => Ok(file),
        Some((_, header)) => {
            let cut = format!("the export that begins there has no end: it was cut off after line {last}");
            Err(json_lines::on_line(Error::new(Code::Invalid, cut), header).hint("export the fleet again"))
        }
    }
}

impl File {
    fn add(&mut self, text: &str, number: usize) -> Result<()> {
        let Some((kind, fields)) = typed(text) else { return self.task(text, number) };
        macro_rules! take {
            ($list:ident, $kind:literal) => {
                if kind == $kind {
                    self.others.$list.push(op::decode(&fields)?);
                    self.numbers.entry(stringify!($list)).or_default().push(number);
                    return self.count();
                }
            };
        }
        for_each_type!(take);
        match kind.as_str() {
            "task" => self.task(&fields, number),
            FLEET => {
                let Floor { floor } = op::decode(&fields)?;
                self.others.floor = self.others.floor.max(Some(floor));
                self.count()
            }
            HEADER => self.begin(&fields, number),
            END => self.end(op::decode(&fields)?),
            _ => Err(Error::new(Code::Invalid, format!("`{kind}` is a type that this fence does not know"))
                .with("field", "type")
                .hint("a newer fence may have written it; a line without a type is a task")),
        }
    }

    fn task(&mut self, json: &str, number: usize) -> Result<()> {
        self.tasks.items.push(op::decode(json)?);
        self.tasks.numbers.push(number);
        self.count()
    }

    fn count(&mut self) -> Result<()> {
        if let Some((items, _)) = &mut self.open {
            *items += 1;
        }
        Ok(())
    }

    fn begin(&mut self, fields: &str, number: usize) -> Result<()> {
        #[derive(Deserialize)]
        struct Begin {
            version: u64,
        }
        let Begin { version } = op::decode(fields)?;
        if version > VERSION {
            let newer =
                format!("the file has format {version}, and this fence reads formats up to {VERSION}");
            return Err(Error::new(Code::Invalid, newer).with("field", "version").hint("use a newer fence"));
        }
        if self.open.is_some() {
            return Err(Error::new(Code::Invalid, "the export before this line has no end: it was cut off"));
        }
        (self.open, self.is_export) = (Some((0, number)), true);
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<()> {
        match self.open.take() {
            Some((items, _)) if items == end.items => Ok(()),
            Some((items, _)) => {
                let message = format!("the export has {items} items, but {} were written", end.items);
                Err(Error::new(Code::Invalid, message)
                    .hint("lines are missing or were added: export the fleet again"))
            }
            None => Err(Error::new(Code::Invalid, "an export ends here without a beginning")),
        }
    }
}

/// The type of a line, and its other fields.
fn typed(line: &str) -> Option<(String, String)> {
    let mut fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    let Value::String(kind) = fields.remove("type")? else { return None };
    Some((kind, Value::Object(fields).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<File> {
        super::read("fleet.jsonl", text)
    }

    #[test]
    fn errors_name_the_line() {
        let header = r#"{"type":"fencepost","version":1,"anything":"else"}"#;
        for (text, says) in [
            (
                format!("{header}\n{{\"type\":\"agent\",\"name\":\"bob\"}}"),
                "line 1: the export that begins there has no end",
            ),
            (
                format!("{header}\n\n{{\"type\":\"end\",\"items\":1}}"),
                "line 3: the export has 0 items, but 1 were written",
            ),
            (format!("{header}\n{header}"), "line 2: the export before this line has no end"),
            (r#"{"type":"end","items":0}"#.into(), "line 1: an export ends here without a beginning"),
            (
                r#"{"type":"fencepost","version":2}"#.into(),
                "line 1: the file has format 2, and this fence reads formats up to 1",
            ),
            (
                "{\"id\":\"a-1\",\"title\":\"x\"}\n{\"type\":\"wish\"}".into(),
                "line 2: `wish` is a type that this fence does not know",
            ),
            (r#"{"type":"agent","nmae":"bob"}"#.into(), "line 1: `nmae`: unknown field"),
            (r#"{"type":7}"#.into(), "line 1: `type`: unknown field"),
        ] {
            let error = read(&text).expect_err(says);
            assert!(error.message().starts_with(says), "{error}");
            assert_eq!(error.field("line").unwrap(), says.as_bytes()[5] - b'0');
        }
        let file =
            read("{\"id\":\"a-1\",\"title\":\"x\"}\n\n{\"type\":\"agent\",\"name\":\"bob\"}\n").unwrap();
        assert_eq!((file.tasks.numbers, &file.numbers["agents"], file.is_export), (vec![1], &vec![3], false));
    }

    #[test]
    fn texts_are_read_back_unchanged() {
        let odd = "\u{1b}[2J\u{202e}\n\"\\\u{1F600}";
        let page = Page {
            agents: vec![import::AgentItem { name: odd.into(), ..Default::default() }],
            ..Default::default()
        };
        let mut counts = BTreeMap::new();
        let text = super::page(&page, &mut counts).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert_eq!(read(&text).unwrap().others.agents, page.agents);
    }
}
