//! Imports go down only: a module uses those before it in a list, and none after.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Panics if a file under `src` uses a top module that stands after its own in `layers`, or one that is not listed. Only
/// the names in `root` may be used from the crate's root, and `lib.rs` and `main.rs` may use everything.
#[track_caller]
pub fn check(src: &Path, layers: &[&str], root: &[&str]) {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for file in rust_files(src) {
        let path = file.strip_prefix(src).expect("a file of src").display().to_string();
        let module = path.split(['/', '.']).next().expect("a module").to_owned();
        if ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        let own = layers.iter().position(|layer| *layer == module);
        let own = own.unwrap_or_else(|| panic!("`{module}` is in no layer: add it to the list"));
        seen.push(own);
        for used in crate_paths(&fs::read_to_string(&file).expect("a source file")) {
            match layers.iter().position(|layer| *layer == used) {
                Some(layer) if layer <= own => {}
                None if root.contains(&used.as_str()) => {}
                _ => wrong.push(format!("{path} uses crate::{used}")),
            }
        }
    }
    assert!((0..layers.len()).all(|layer| seen.contains(&layer)), "a layer has no file");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The first word of each path that begins with `crate::`, in groups too; comments left out.
fn crate_paths(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // A macro that is exported names what it needs by the crate's root.
        if code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => paths.extend(first_words(group)),
            None => paths.push(word(rest)),
        }
    }
    paths
}

fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first word of each item of a group, up to its closing brace.
fn first_words(group: &str) -> Vec<String> {
    let (mut depth, mut words, mut fresh) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && depth == 0 && !c.is_whitespace() => {
                words.push(word(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_that_goes_up_is_found() {
        let text = "use crate::{db::{Tx, Row}, ops::task, params};\n// crate::comment\nfn f() { crate::lease::run::x($crate::Value) }";
        assert_eq!(crate_paths(text), ["db", "ops", "params", "lease"]);
        assert_eq!(crate_paths("use crate::error::Result;\npub(crate) use crate::Json;"), ["error", "Json"]);
    }
}
