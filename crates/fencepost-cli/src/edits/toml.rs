//! Entries of ours in a TOML file: whole tables, and elements of lists.
//!
//! The crate `toml` tells where the values are in the text, and the edits are ours: `toml_edit` would print the file anew, with line
//! ends of its own. How a removal knows what we made: a list as in JSON (see `json.rs`), a table by the comment on its header.

use super::{
    append, cut,
    json::{Style, insert, is_made_for_one, without},
    jsonc::{Item, Kind, Node, comment_end, is_space},
    line_number, newline, whole_lines,
};
use serde_json::Value as Json;
use std::ops::Range;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

/// Entries of ours.
#[derive(Debug, Clone, Default)]
pub struct Toml {
    /// Tables that are ours by their name, with our keys. Keys of others in them are kept until the table goes.
    pub tables: Vec<(Vec<String>, Table)>,
    /// Lists of others, with our elements.
    pub lists: Vec<(Vec<String>, Vec<String>)>,
}

/// On the header of a table that we made for a list.
const MADE: &str = "# added by fence setup";

type Path = [String];

impl Toml {
    /// The text with our entries, each once and current.
    pub fn apply(&self, text: Option<&str>) -> Result<String, String> {
        if text.is_some_and(|text| text.ends_with('\r')) {
            return Err("it ends in half a line end".into());
        }
        parse(text.unwrap_or_default())?;
        let mut now = text.map(str::to_owned);
        for (path, table) in &self.tables {
            now = Some(checked(with_table(now.as_deref(), path, table)?, path)?);
        }
        for (path, elements) in &self.lists {
            for element in elements {
                now = Some(checked(with_element(now.as_deref(), path, element)?, path)?);
            }
        }
        Ok(now.unwrap_or_default())
    }

    /// The text without our entries. `None`: we made the file.
    pub fn remove(&self, text: &str) -> Result<Option<String>, String> {
        let mut now = Some(text.to_owned());
        for (path, elements) in self.lists.iter().rev() {
            for element in elements.iter().rev() {
                let Some(text) = now else { return Ok(None) };
                now = without_element(text, path, element)?;
            }
        }
        for (path, _) in self.tables.iter().rev() {
            let Some(text) = now else { return Ok(None) };
            now = without_table(text, path)?;
        }
        Ok(now)
    }
}

fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, String> {
    DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line_number(text, span.start.min(text.len())));
        format!("it is not TOML: line {line}: {}", e.message().trim_end().replace('\n', ", "))
    })
}

/// Some forms of a table cannot be added to elsewhere in the file.
fn checked(text: String, path: &Path) -> Result<String, String> {
    match parse(&text) {
        Ok(_) => Ok(text),
        Err(_) => {
            Err(format!("`{}` cannot be added to the form in which its table is written", path.join(".")))
        }
    }
}

fn at<'a>(root: &'a DeTable<'_>, path: &Path) -> Option<(Range<usize>, &'a Spanned<DeValue<'a>>)> {
    let (last, parents) = path.split_last()?;
    let mut table = root;
    for name in parents {
        table = match table.get(name.as_str())?.get_ref() {
            DeValue::Table(inner) => inner,
            _ => return None,
        };
    }
    let (key, value) = table.get_key_value(last.as_str())?;
    Some((key.span(), value))
}

/// A header and the lines up to its last value.
struct Section {
    path: Vec<String>,
    header: Range<usize>,
    /// From the header to the end of the line with the last value.
    lines: Range<usize>,
}

/// The headers of the file, in their order. Header-like lines inside multi-line strings are skipped.
fn sections(text: &str, root: &DeTable<'_>) -> Vec<Section> {
    let mut values = Vec::new();
    leaves(root, &mut values);
    let mut sections: Vec<Section> = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let header = start..start + line.len();
        start = header.end;
        let is_inside = values.iter().any(|value| value.contains(&header.start));
        let path =
            line.trim_start_matches(['\u{feff}', ' ', '\t']).starts_with('[').then(|| header_path(line));
        match path.flatten().filter(|_| !is_inside) {
            Some(path) => sections.push(Section { path, lines: header.clone(), header }),
            None => {
                let has_value = values.iter().any(|value| header.contains(&(value.end - 1)));
                if let Some(section) = sections.last_mut().filter(|_| has_value) {
                    section.lines.end = header.end;
                }
            }
        }
    }
    sections
}

/// The path in a line that is a header.
fn header_path(line: &str) -> Option<Vec<String>> {
    let mut value = Value::Table(line.trim_start_matches('\u{feff}').parse().ok()?);
    let mut path = Vec::new();
    loop {
        value = match value {
            Value::Array(mut items) => items.pop()?,
            Value::Table(table) => match table.into_iter().next() {
                Some((key, inner)) => {
                    path.push(key);
                    inner
                }
                None => return Some(path),
            },
            _ => return None,
        };
    }
}

/// The places of all values that are not tables with a header.
fn leaves(table: &DeTable<'_>, found: &mut Vec<Range<usize>>) {
    for value in table.values() {
        leaves_of(value, found);
    }
}

fn leaves_of(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => leaves(table, found),
        DeValue::Array(items) => {
            // An array of tables has no brackets of its own; its values are in its tables.
            if !items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) {
                found.push(value.span());
            }
            items.iter().for_each(|item| leaves_of(item, found));
        }
        _ => found.push(value.span()),
    }
}

fn with_table(text: Option<&str>, path: &Path, table: &Table) -> Result<String, String> {
    let Some(text) = text else { return Ok(append(None, &table_lines(path, table, "\n"), "\n")) };
    let document = parse(text)?;
    let root = document.get_ref();
    let name = path.join(".");
    let Some((_, found)) = at(root, path) else {
        return Ok(append(Some(text), &table_lines(path, table, newline(text)), newline(text)));
    };
    let DeValue::Table(there) = found.get_ref() else { return Err(format!("`{name}` is not a table")) };
    for (key, wanted) in table {
        let literal = literal(wanted);
        let Some((_, value)) = there.get_key_value(key.as_str()) else {
            let header = sections(text, root).into_iter().find(|section| section.path == path);
            let header = header.ok_or_else(|| no_header(&name))?.header;
            let line = format!("{} = {literal}", key_text(key));
            return with_table(Some(&with_line(text, header.end, &line)), path, table);
        };
        let now: Option<Value> =
            format!("x = {}", &text[value.span()]).parse().ok().and_then(|mut t: Table| t.remove("x"));
        if now.as_ref() != Some(wanted) {
            let text = format!("{}{literal}{}", &text[..value.span().start], &text[value.span().end..]);
            return with_table(Some(&text), path, table);
        }
    }
    Ok(text.to_owned())
}

fn no_header(name: &str) -> String {
    format!("`{name}` has no header `[{name}]`, and is left as it is")
}

/// Puts a line after the header that ends here.
fn with_line(text: &str, at: usize, line: &str) -> String {
    let (before, after, newline) = (&text[..at], &text[at..], newline(text));
    match before.ends_with('\n') {
        true => format!("{before}{line}{newline}{after}"),
        false => format!("{before}{newline}{line}{after}"),
    }
}

/// Takes out the lines of a value that [`with_line`] put there.
fn without_line(text: &str, value: Range<usize>) -> String {
    let lines = whole_lines(text, value);
    let before = match text[lines.clone()].ends_with('\n') {
        true => &text[..lines.start],
        false => text[..lines.start].strip_suffix(newline(text)).unwrap_or(&text[..lines.start]),
    };
    format!("{before}{}", &text[lines.end..])
}

fn without_table(mut text: String, path: &Path) -> Result<Option<String>, String> {
    loop {
        let document = parse(&text)?;
        let Some((_, found)) = at(document.get_ref(), path) else { return Ok(Some(text)) };
        // A name of ours for something else is not ours.
        if !matches!(found.get_ref(), DeValue::Table(_)) {
            return Ok(Some(text));
        }
        let last =
            sections(&text, document.get_ref()).into_iter().rfind(|section| section.path.starts_with(path));
        let section = last.ok_or_else(|| no_header(&path.join(".")))?;
        match cut(&text, section.lines) {
            Some(rest) => text = rest,
            None => return Ok(None),
        }
    }
}

fn with_element(text: Option<&str>, path: &Path, element: &str) -> Result<String, String> {
    let (key, table) = path.split_last().ok_or("a list has no name")?;
    let literal = literal(&Value::String(element.to_owned()));
    let line = format!("{} = [ {literal} ]", key_text(key));
    let document = text.map(parse).transpose()?;
    let root = document.as_ref().map(Spanned::get_ref);
    if let (Some(text), Some((_, list))) = (text, root.and_then(|root| at(root, path))) {
        let list = list_node(text, list).ok_or_else(|| format!("`{}` is not a list", path.join(".")))?;
        return Ok(match position(&list, element) {
            Some(_) => text.to_owned(),
            None => insert(text, &list, "  ", |_: &Style| literal.clone()),
        });
    }
    let name = table.join(".");
    match (text, root.and_then(|root| at(root, table))) {
        (Some(text), Some(_)) => {
            let mut sections = root.map(|root| sections(text, root)).unwrap_or_default().into_iter();
            let section = sections.find(|section| section.path == table).ok_or_else(|| no_header(&name))?;
            Ok(with_line(text, section.header.end, &line))
        }
        (text, _) => {
            let newline = newline(text.unwrap_or_default());
            let header: Vec<_> = table.iter().map(|name| key_text(name)).collect();
            Ok(append(text, &format!("[{}] {MADE}{newline}{line}", header.join(".")), newline))
        }
    }
}

fn without_element(text: String, path: &Path, element: &str) -> Result<Option<String>, String> {
    let document = parse(&text)?;
    let root = document.get_ref();
    let Some((key, list)) = at(root, path) else { return Ok(Some(text)) };
    let Some(list) = list_node(&text, list) else { return Ok(Some(text)) };
    let Some(place) = position(&list, element) else { return Ok(Some(text)) };
    if !is_made_for_one(&text, &list) {
        return Ok(Some(without(&text, &list, &[place])));
    }
    let sections = sections(&text, root);
    let section = sections.iter().find(|section| section.path == path[..path.len() - 1]);
    let lines = key.start..list.span.end;
    if let Some(section) = section.filter(|section| text[section.header.clone()].trim_end().ends_with(MADE)) {
        // Alone under a header that we made.
        if whole_lines(&text, lines.clone()) == (section.header.end..section.lines.end) {
            return Ok(cut(&text, section.lines.clone()));
        }
    }
    Ok(Some(without_line(&text, lines)))
}

/// A list with the places of its elements and commas, in the form that the edits of JSON take.
fn list_node(text: &str, list: &Spanned<DeValue<'_>>) -> Option<Node> {
    let DeValue::Array(elements) = list.get_ref() else { return None };
    let items = elements.iter().map(|element| {
        let span = element.span();
        let value = match element.get_ref() {
            DeValue::String(text) => Json::from(text.as_ref()),
            _ => Json::Null,
        };
        let comma = comma_after(text, span.end);
        Item { key: None, start: span.start, node: Node { span, kind: Kind::Scalar(value) }, comma }
    });
    let items = items.collect();
    // Tables with `[[…]]` headers have no brackets around them.
    let span = list.span();
    (text[span.clone()].starts_with('[') && text[span.clone()].ends_with(']'))
        .then_some(Node { span, kind: Kind::Array(items) })
}

fn comma_after(text: &str, mut at: usize) -> Option<usize> {
    loop {
        let rest = &text[at..];
        at += rest.len() - rest.trim_start_matches(is_space).len();
        match comment_end(text, at) {
            Some(end) => at = end,
            None => return text[at..].starts_with(',').then_some(at),
        }
    }
}

fn position(list: &Node, element: &str) -> Option<usize> {
    list.items().iter().position(|item| item.node.value() == element)
}

fn table_lines(path: &Path, table: &Table, newline: &str) -> String {
    let header: Vec<_> = path.iter().map(|name| key_text(name)).collect();
    let keys = table.iter().map(|(key, value)| format!("{} = {}", key_text(key), literal(value)));
    [format!("[{}]", header.join("."))].into_iter().chain(keys).collect::<Vec<_>>().join(newline)
}

fn key_text(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !key.is_empty() && key.chars().all(bare) {
        true => key.to_owned(),
        false => literal(&Value::String(key.to_owned())),
    }
}

/// A value as TOML. The escapes of a JSON text are escapes of TOML, too.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => Json::from(text.as_str()).to_string().replace('\u{7f}', "\\u007f"),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let members = table.iter().map(|(key, value)| format!("{} = {}", key_text(key), literal(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(yes) => yes.to_string(),
        Value::Datetime(time) => time.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    fn ours() -> Toml {
        let server = "command = \"fence\"\nargs = [\"mcp\"]\n".parse().expect("TOML");
        Toml {
            tables: vec![(path("mcp_servers.fence"), server)],
            lists: vec![(path("sandbox.roots"), vec!["/r".into()])],
        }
    }

    const SERVER: &str = "[mcp_servers.fence]\nargs = [\"mcp\"]\ncommand = \"fence\"";
    const ROOTS: &str = "[sandbox] # added by fence setup\nroots = [ \"/r\" ]";

    #[test]
    fn tables_and_elements_go_in_and_out() {
        for (before, after) in [
            (None, format!("{SERVER}\n\n{ROOTS}\n")),
            (Some(""), format!("{SERVER}\n{ROOTS}")),
            (Some("a = 1 # one\n"), format!("a = 1 # one\n\n{SERVER}\n\n{ROOTS}\n")),
            (Some("a = 1"), format!("a = 1\n{SERVER}\n{ROOTS}")),
            (Some("a = 1\r\n"), format!("a = 1\n\n{SERVER}\n\n{ROOTS}\n").replace('\n', "\r\n")),
            (Some("[sandbox]\n[b]\n"), format!("[sandbox]\nroots = [ \"/r\" ]\n[b]\n\n{SERVER}\n")),
            (Some("[sandbox]"), format!("[sandbox]\nroots = [ \"/r\" ]\n{SERVER}")),
            (Some("[sandbox]\nroots = []\n"), format!("[sandbox]\nroots = [\"/r\"]\n\n{SERVER}\n")),
            (Some("sandbox.roots = [\"a\"]\n"), format!("sandbox.roots = [\"a\", \"/r\"]\n\n{SERVER}\n")),
            (Some("sandbox = { roots = [ ] }\n"), format!("sandbox = {{ roots = [\"/r\" ] }}\n\n{SERVER}\n")),
            (
                Some("[sandbox]\nroots = [ # r\n    \"a\", # a\n]\n"),
                format!("[sandbox]\nroots = [ # r\n    \"a\", # a\n    \"/r\",\n]\n\n{SERVER}\n"),
            ),
            (
                Some("[sandbox]\nroots = [\n\t\"a\" # a, [\n]\n"),
                format!("[sandbox]\nroots = [\n\t\"a\", # a, [\n\t\"/r\"\n]\n\n{SERVER}\n"),
            ),
            (
                Some("text = '''\n[mcp_servers.fence]\n[sandbox]\n'''\n"),
                format!("text = '''\n[mcp_servers.fence]\n[sandbox]\n'''\n\n{SERVER}\n\n{ROOTS}\n"),
            ),
        ] {
            let applied = ours().apply(before);
            assert_eq!(applied.as_deref(), Ok(after.as_str()), "{before:?}");
            assert_eq!(ours().apply(Some(&after)), applied, "twice");
            assert_eq!(ours().remove(&after), Ok(before.map(str::to_owned)), "{after:?}");
        }
    }

    #[test]
    fn others_edit_between() {
        let with = ours().apply(Some("a = 1\n")).expect("applied");
        for (others, left) in [
            (format!("{with}\n[x]\ny = 1\n"), "a = 1\n\n[x]\ny = 1\n"),
            (
                with.replace("\"/r\" ]", "\"/r\", \"/x\" ]"),
                "a = 1\n\n[sandbox] # added by fence setup\nroots = [ \"/x\" ]\n",
            ),
            (
                with.replace("roots", "net = true\nroots"),
                "a = 1\n\n[sandbox] # added by fence setup\nnet = true\n",
            ),
            (
                with.replace(
                    "\n\n[sandbox]",
                    "\n# ours\n[mcp_servers.fence.tools.x]\nmode = \"a\"\n\n[sandbox]",
                ),
                "a = 1\n# ours\n",
            ),
        ] {
            assert_eq!(ours().remove(&others), Ok(Some(left.into())), "{others}");
            assert!(ours().apply(Some(&others)).is_ok_and(|again| again == others), "{others}");
        }
        let stale = with.replace("[\"mcp\"]", "[\"old\"]").replace("command = \"fence\"\n", "x = 1\n");
        let current = "[mcp_servers.fence]\ncommand = \"fence\"\nargs = [\"mcp\"]\nx = 1\n";
        assert_eq!(ours().apply(Some(&stale)), Ok(format!("a = 1\n\n{current}\n{ROOTS}\n")));
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused() {
        for (text, problem) in [
            ("a = \n", "it is not TOML: line 1: "),
            ("a = 1\na = 2\n", "it is not TOML: line 2: duplicate key"),
            ("[sandbox]\nroots = 1\n", "`sandbox.roots` is not a list"),
            ("[mcp_servers]\nfence = 1\n", "`mcp_servers.fence` is not a table"),
            ("[mcp_servers]\nfence = { a = 1 }\n", "`mcp_servers.fence` has no header"),
            ("mcp_servers = { x = 1 }\n", "`mcp_servers.fence` cannot be added"),
            ("sandbox.net = true\n", "`sandbox` has no header"),
        ] {
            let refused = ours().apply(Some(text)).expect_err(text);
            assert!(refused.starts_with(problem), "{text}: {refused}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_removal_restores_every_byte(
            parts in prop::collection::vec(prop::sample::select(vec![
                "", "# c\n", "\r\n", "[x]\n", "[x.y]", "k = \"\"\"\n[sandbox]\n\"\"\"\n", "[[t]]\n", "n = [1, [2]]\r\n",
                "[sandbox]\n", "[sandbox] # s", "roots = []\n", "roots = [ # c\n \"a\" , # [\n]\n", "roots = [\"a\",\"b\",]", "[mcp_servers.x]\n",
            ]), 0..7),
        ) {
            let text = parts.concat();
            prop_assume!(parse(&text).is_ok());
            if let Ok(with) = ours().apply(Some(&text)) {
                prop_assert_eq!(ours().apply(Some(&with)).expect("twice"), with.clone());
                prop_assert_eq!(ours().remove(&with), Ok(Some(text)));
            }
        }
    }
}
