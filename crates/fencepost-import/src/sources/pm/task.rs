//! A row of the task table, translated.

use super::priority::Priorities;
use crate::{
    names::{plain, slug, time},
    report::Omission,
    sqlite::{BYTES, Row},
};
use fencepost::{
    Time,
    task::import::{Item, State},
};
use serde_json::Value;
use std::collections::HashSet;

/// A row from which the columns are taken one by one. The rest becomes the item's `origin`.
pub struct Task<'l> {
    pub id: String,
    pub row: Row,
    pub left: &'l mut Vec<Omission>,
}

impl Task<'_> {
    fn left(&mut self, what: String) {
        self.left.push(Omission { task: self.id.clone(), what });
    }

    /// Takes a text out of the row; `None` if it is empty.
    fn take(&mut self, column: &str) -> Option<String> {
        let value = self.row.shift_remove(column)?;
        Some(plain(Some(&value))).filter(|text| !text.trim().is_empty())
    }

    /// Takes a time out of the row. A value that is no time stays in the row.
    fn time(&mut self, column: &str) -> Option<Time> {
        let value = self.row.get(column)?;
        let at = time(value);
        match at {
            Some(_) => drop(self.row.shift_remove(column)),
            None => {
                self.left(format!("{column} `{}` is not a time; it is kept in `origin`", plain(Some(value))))
            }
        }
        at
    }

    pub fn item(&mut self, priorities: &Priorities) -> Item {
        let bytes: Vec<String> =
            self.row.iter().filter(|(_, value)| *value == BYTES).map(|(name, _)| name.clone()).collect();
        for column in bytes {
            self.row.shift_remove(&column);
            self.left(format!("{column} holds bytes, not text; it is left out"));
        }
        if self.row.get("horizon").is_some_and(|horizon| horizon == "active") {
            self.row.shift_remove("horizon");
        }
        let mut item = Item {
            id: self.id.clone(),
            title: self.take("title").unwrap_or_default(),
            body: self.take("description"),
            done_when: self.take("done_when"),
            kind: self.kind(),
            tags: self.tags(),
            priority: Some(self.priority(priorities)),
            owner: self.take("owner"),
            source: Some("pm".into()),
            created_at: self.time("created_at"),
            ..Item::default()
        };
        self.state(&mut item);
        item.origin = Some(Value::Object(std::mem::take(&mut self.row)));
        item
    }

    fn state(&mut self, item: &mut Item) {
        let status = self.take("status").unwrap_or("pending".into());
        match status.trim().to_lowercase().as_str() {
            "pending" => {}
            "red" => {
                let by =
                    item.owner.as_ref().map(|owner| format!(", in the hands of {owner}")).unwrap_or_default();
                item.progress.push(format!("its tests were red when it was imported{by}").into());
            }
            "green" => {
                item.status = State::Completed;
                item.finished_at = self.time("completed_at").or_else(|| time(self.row.get("updated_at")?));
                item.output = self.row.get("commit_hash").map(|hash| format!("commit {}", plain(Some(hash))));
            }
            "blocked" => {
                let reason = self.take("blocked_reason");
                item.parked = Some(reason.unwrap_or("blocked, and no reason was given".into()));
            }
            _ => {
                item.parked = Some(format!("its status was `{status}`"));
                self.left(format!("status `{status}` is unknown; the task is parked"));
            }
        }
    }

    fn kind(&mut self) -> Option<String> {
        let kind = self.take("type")?;
        let name = slug(&kind, 128);
        if name != kind {
            self.left(match name.as_str() {
                "" => format!("type `{kind}` is not a valid name; it is left out"),
                _ => format!("type `{kind}` is now {name}"),
            });
        }
        Some(name).filter(|name| !name.is_empty())
    }

    /// The skills, by which a worker may choose, and the horizon.
    fn tags(&mut self) -> Vec<String> {
        let skills = plain(self.row.get("skills"));
        let words = skills.split([',', ';', '\n', '[', ']', '"']).map(|word| slug(word, 128));
        let mut tags: Vec<String> = words.chain(self.horizon()).filter(|tag| !tag.is_empty()).collect();
        let mut seen = HashSet::new();
        tags.retain(|tag| seen.insert(tag.clone()));
        tags
    }

    fn horizon(&self) -> Option<String> {
        Some(plain(self.row.get("horizon")))
            .filter(|horizon| !horizon.is_empty() && horizon != "active")
            .map(|horizon| slug(&horizon, 128))
    }

    fn priority(&mut self, priorities: &Priorities) -> i64 {
        let (priority, is_unique) = priorities.priority(&self.row);
        let shown = plain(self.row.get("priority"));
        if self.row.get("priority").is_some_and(|number| number.as_f64().is_none()) {
            self.left(format!("priority `{shown}` is not a number; it is kept in `origin`"));
        }
        if !is_unique {
            let number = if shown.is_empty() { "no priority".into() } else { format!("priority {shown}") };
            self.left(format!(
                "{number} is now {priority}, like other tasks of its sprint: there are too many to tell apart"
            ));
        }
        priority
    }
}
