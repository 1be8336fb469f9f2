//! Texts cut to the engine's limits.

use crate::report::Omission;
use fencepost::task::import::Item;
use serde_json::Value;

/// Changes an item until the engine accepts it, and reports each change. Returns false if that is impossible. `column` gives
/// the name that a field has in the source.
pub fn fit(item: &mut Item, column: &dyn Fn(&str) -> &str, left: &mut Vec<Omission>) -> bool {
    let task = item.id.clone();
    // Each round repairs one field.
    for _ in 0..20 {
        let Err(error) = item.check() else { return true };
        let field = error.field("field").and_then(Value::as_str).unwrap_or_default().to_owned();
        let max = error.field("max").and_then(Value::as_u64).map(|max| max as usize);
        let what = match (field.as_str(), max) {
            ("title", None) => {
                item.title = format!("(no title: {})", item.id);
                format!("has no title; it is called {}", item.title)
            }
            ("title", Some(max)) => {
                item.notes.push(format!("its whole title: {}", item.title).into());
                shorten(&mut item.title, max);
                format!("its title is longer than {max} bytes; the whole is in a note")
            }
            ("origin", Some(_)) => {
                item.origin = None;
                "its other columns are too long to keep".into()
            }
            ("after", None) => {
                let count = item.after.len();
                item.after.truncate(1000);
                format!("waits for {count} tasks; the first 1000 were kept")
            }
            ("tags", None) => {
                item.tags.truncate(32);
                format!("has more than 32 {}; the first were kept", column("tags"))
            }
            (name, Some(max)) => {
                let texts: Vec<&mut String> = match name {
                    "body" => item.body.iter_mut().collect(),
                    "done_when" => item.done_when.iter_mut().collect(),
                    "parked" => item.parked.iter_mut().collect(),
                    "owner" => item.owner.iter_mut().collect(),
                    "output" => item.output.iter_mut().collect(),
                    "notes" => item.notes.iter_mut().map(|line| line.text_mut()).collect(),
                    "progress" => item.progress.iter_mut().map(|line| line.text_mut()).collect(),
                    "failure_reason" => item.failure_reason.iter_mut().collect(),
                    "rejection_reason" => item.rejection_reason.iter_mut().collect(),
                    _ => Vec::new(),
                };
                texts.into_iter().for_each(|text| shorten(text, max));
                format!("its {} is longer than {max} bytes; the rest was cut off", column(name))
            }
            _ => {
                left.push(Omission { task, what: format!("is left out: {}", error.message()) });
                return false;
            }
        };
        left.push(Omission { task: task.clone(), what });
    }
    left.push(Omission { task, what: "is left out: it does not fit".into() });
    false
}

/// Cuts a text to so many bytes. A cut text ends in `…`.
pub fn shorten(text: &mut String, max: usize) {
    while text.len() > max {
        let end = text.floor_char_boundary(max.saturating_sub('…'.len_utf8()));
        text.truncate(end);
        text.push('…');
    }
}
