//! Fields of a provider's JSON, in a size that an inbox can store.

use serde_json::{Map, Value, json};

/// Both providers allow less for one text of a person.
const TEXT_MAX: usize = 64 * 1024;
/// For names and addresses.
const NAME_MAX: usize = 512;
/// Together with the longest text, all of it escaped, it fits into a message.
const DATA_MAX: usize = 512 * 1024;

/// The first of these fields that exists, as a name: its text, or the `id` of its object.
pub fn name(of: &Value, pointers: &[&str]) -> Option<String> {
    pointers.iter().find_map(|pointer| {
        let found = of.pointer(pointer)?;
        let found = found.as_str().or_else(|| found.get("id")?.as_str())?;
        clip(found, NAME_MAX)
    })
}

/// The first of these fields that has a text.
pub fn text(of: &Value, pointers: &[&str]) -> Option<String> {
    pointers.iter().find_map(|pointer| clip(of.pointer(pointer)?.as_str()?, TEXT_MAX))
}

/// Shortened, and without the NUL characters that PostgreSQL's text cannot store. `None` if nothing is left.
pub fn clip(text: &str, most: usize) -> Option<String> {
    let mut text = text[..text.floor_char_boundary(most)].replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(most));
    (!text.trim().is_empty()).then_some(text)
}

/// As many fields as fit. The largest are left out first, and listed in `omitted`.
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

/// The object without these fields.
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
    fn fields_that_are_too_large_are_left_out_and_listed() {
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
    fn texts_are_clipped_between_characters() {
        assert_eq!(clip("müll", 2).as_deref(), Some("m"));
        assert_eq!(clip("a\0b", 9).as_deref(), Some("a\u{fffd}b"));
        assert_eq!(clip(" \n", 9), None);
        let of = json!({ "user": { "id": "U1" }, "empty": "", "text": "hi" });
        assert_eq!(name(&of, &["/nobody", "/user"]).as_deref(), Some("U1"));
        assert_eq!(text(&of, &["/empty", "/text"]).as_deref(), Some("hi"));
    }
}
