//! What is in a provider's JSON, as an inbox can hold it.

use serde_json::{Map, Value, json};

/// Both providers allow less for what a person can write at once.
const TEXT_MAX: usize = 64 * 1024;
/// Of names and addresses.
const NAME_MAX: usize = 512;
/// With a text of the greatest length, each of its letters escaped, it fits into a message.
const DATA_MAX: usize = 512 * 1024;

/// The first of these that is there, as a name: itself, or the `id` of what it is.
pub fn name(of: &Value, pointers: &[&str]) -> Option<String> {
    pointers.iter().find_map(|pointer| {
        let found = of.pointer(pointer)?;
        let found = found.as_str().or_else(|| found.get("id")?.as_str())?;
        clip(found, NAME_MAX)
    })
}

/// The first of these that has something to say.
pub fn text(of: &Value, pointers: &[&str]) -> Option<String> {
    pointers.iter().find_map(|pointer| clip(of.pointer(pointer)?.as_str()?, TEXT_MAX))
}

/// Not too long, and without what PostgreSQL's text cannot hold.
pub fn clip(text: &str, most: usize) -> Option<String> {
    let mut text = text[..text.floor_char_boundary(most)].replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(most));
    (!text.trim().is_empty()).then_some(text)
}

/// As much of it as fits. The largest parts are left out first, and named.
pub fn fitting(data: Value) -> Value {
    let Value::Object(mut parts) = data else { return data };
    let mut sizes: Vec<(usize, String)> =
        parts.iter().map(|(name, part)| (part.to_string().len() + name.len() + 4, name.clone())).collect();
    sizes.sort_unstable();
    let mut size: usize = sizes.iter().map(|(size, _)| size).sum();
    let mut omitted: Vec<String> = Vec::new();
    while size > DATA_MAX
        && let Some((part, name)) = sizes.pop()
    {
        parts.remove(&name);
        size -= part;
        omitted.extend(clip(&name, NAME_MAX));
    }
    if !omitted.is_empty() {
        parts.insert("omitted".into(), json!(omitted));
    }
    Value::Object(parts)
}

/// Without these fields of it.
pub fn without(data: Value, names: &[&str]) -> Value {
    match data {
        Value::Object(parts) => Value::Object(
            parts.into_iter().filter(|(name, _)| !names.contains(&name.as_str())).collect::<Map<_, _>>(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_left_out_by_name() {
        let small = json!({ "a": 1, "b": "x" });
        assert_eq!(fitting(small.clone()), small);
        let large = json!({ "a": 1, "commits": "x".repeat(DATA_MAX), "b": "y".repeat(1000) });
        let fit = fitting(large);
        assert_eq!((fit["a"].clone(), fit["omitted"].clone()), (json!(1), json!(["commits"])));
        assert!(fit.to_string().len() < DATA_MAX && fit["b"].is_string());
        let many: Map<String, Value> = (0..40_000).map(|n| (format!("{n:020}"), json!(n))).collect();
        assert!(fitting(Value::Object(many)).to_string().len() < 2 * DATA_MAX);
    }

    #[test]
    fn texts_are_clipped_between_letters() {
        assert_eq!(clip("müll", 2).as_deref(), Some("m"));
        assert_eq!(clip("a\0b", 9).as_deref(), Some("a\u{fffd}b"));
        assert_eq!(clip(" \n", 9), None);
        let of = json!({ "user": { "id": "U1" }, "empty": "", "text": "hi" });
        assert_eq!(name(&of, &["/nobody", "/user"]).as_deref(), Some("U1"));
        assert_eq!(text(&of, &["/empty", "/text"]).as_deref(), Some("hi"));
    }
}
