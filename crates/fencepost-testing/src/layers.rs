//! Imports go down only: a module uses the modules before it in a list, and none after.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// May the unit tests at the end of a file use every module?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitTests {
    Layered,
    Free,
}

/// Panics if a file under `src` uses a top module that stands after its own in `layers`, or one that is not listed.
/// `root` lists what may be used from the crate's root. `lib.rs` and `main.rs` may use everything.
#[track_caller]
pub fn check(src: &Path, layers: &[&str], root: &[&str], unit_tests: UnitTests) {
    assert!(layers.len() > 1, "the layers are listed: {layers:?}");
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for file in rust_files(src) {
        let path = file.strip_prefix(src).expect("a file of src").with_extension("");
        let names: Vec<_> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        if names == ["lib"] || names == ["main"] {
            continue;
        }
        let mut source = fs::read_to_string(&file).expect("a source file");
        if unit_tests == UnitTests::Free {
            source = without_unit_tests(&source).to_owned();
        }
        wrong.extend(
            violations(layers, root, &names, &source)
                .into_iter()
                .map(|what| format!("{}: {what}", path.display())),
        );
        seen.push(names[0].clone());
    }
    let empty: Vec<_> = layers.iter().filter(|layer| !seen.iter().any(|name| name == *layer)).collect();
    assert!(empty.is_empty(), "layers without a file: {empty:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The modules that `lib.rs` declares, in its order.
pub fn declared(src: &Path) -> Vec<String> {
    let root = fs::read_to_string(src.join("lib.rs")).expect("lib.rs");
    let name = |line: &str| {
        Some(line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    root.lines().filter_map(name).collect()
}

fn without_unit_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let all = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
}

/// The forbidden uses in one file. `path` is the path of its module; as many `super` as it is long lead to the crate's root.
fn violations(layers: &[&str], root: &[&str], path: &[String], source: &str) -> Vec<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = code.collect::<Vec<_>>().join("\n");
    let place = |name: &str| layers.iter().position(|layer| *layer == name);
    let Some(own) = place(&path[0]) else { return vec!["is in no layer: add it to the list".into()] };
    // A deeper module of the file, such as its tests, may write `super` as often: only layers count.
    let by_super =
        imports(&code, &"super::".repeat(path.len())).into_iter().filter(|name| place(name).is_some());
    let all = imports(&code, "crate::").into_iter().chain(by_super);
    let wrong = all.filter(|name| match place(name) {
        None => !root.contains(&name.as_str()),
        Some(layer) => layer > own,
    });
    wrong.map(|name| format!("uses {name}")).collect()
}

/// The first name of each path that begins with `root`, inline and in groups.
fn imports(code: &str, root: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let first = |path: &str| path.trim_start().chars().take_while(|c| is_name(*c)).collect::<String>();
    let mut names = Vec::new();
    for (at, _) in code.match_indices(root) {
        if code[..at].ends_with(|c| is_name(c) || c == ':') {
            continue;
        }
        let path = &code[at + root.len()..];
        let Some(group) = path.strip_prefix('{') else {
            names.push(first(path));
            continue;
        };
        let (mut depth, mut start) = (0_u32, 0);
        for (end, c) in group.char_indices() {
            match c {
                ',' | '}' if depth == 0 => {
                    names.push(first(&group[start..end]));
                    start = end + 1;
                    if c == '}' {
                        break;
                    }
                }
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [&str; 3] = ["low", "middle", "high"];

    #[test]
    fn an_import_that_goes_down_is_accepted() {
        for source in [
            "use crate::low::Thing;",
            "use crate::{low::{self, high::Thing}, middle::Own};",
            "use crate::{\n    params,\n    low,\n};",
            "pub(crate) use crate::low::X;\nlet x = $crate::middle::path;",
            "let x = crate::low::call();",
            "//! use crate::high;",
            "let x = 1; // crate::high is above.",
            "use super::low; mod tests { use super::*; }",
        ] {
            assert_eq!(
                violations(&LAYERS, &["params"], &["middle".into()], source),
                Vec::<String>::new(),
                "{source}"
            );
        }
    }

    #[test]
    fn an_import_that_goes_up_is_found() {
        for (source, found) in [
            ("use crate::high::Thing;", "uses high"),
            ("use crate::{\n    low::{self, Thing},\n    high,\n};", "uses high"),
            ("let x = crate::high::call(crate::low::X);", "uses high"),
            ("use super::{low, high};", "uses high"),
            ("let x = $crate::high::path;", "uses high"),
            ("use crate::Thing;", "uses Thing"),
        ] {
            assert_eq!(violations(&LAYERS, &["params"], &["middle".into()], source), [found], "{source}");
        }
        let inner = ["middle".to_owned(), "inner".to_owned()];
        assert_eq!(
            violations(&LAYERS, &[], &inner, "use super::super::high;\nuse super::low;"),
            ["uses high"]
        );
        assert_eq!(violations(&LAYERS, &[], &["new".into()], ""), ["is in no layer: add it to the list"]);
        let tested = "use crate::high;\n#[cfg(test)]\nmod tests {\n    use crate::new;\n}\n";
        let middle = ["middle".to_owned()];
        assert_eq!(violations(&LAYERS, &[], &middle, tested), ["uses high", "uses new"]);
        assert_eq!(violations(&LAYERS, &[], &middle, without_unit_tests(tested)), ["uses high"]);
    }
}
