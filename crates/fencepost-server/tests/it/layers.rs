//! Imports go down only: a module imports from modules that stand above it in the list of `src/lib.rs`. Other crates
//! include this file, too.

use std::{fs, path::Path};

#[test]
fn imports_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(src.join("lib.rs")).expect("lib.rs");
    let layers: Vec<&str> = root.lines().filter_map(module).collect();
    assert!(layers.len() > 1, "lib.rs lists the layers: {layers:?}");
    let mut wrong = Vec::new();
    for file in files(&src) {
        let path = file.strip_prefix(&src).expect("a file of src").with_extension("");
        let names: Vec<_> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        if names != ["lib"] && names != ["main"] {
            let source = fs::read_to_string(&file).expect("a source file");
            wrong.extend(against_the_order(&layers, &names[0], names.len(), &source));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_import_against_the_order_is_found() {
    let layers = ["low", "middle", "high"];
    let wrong = |source: &str| against_the_order(&layers, "middle", 1, source);
    for fine in [
        "use crate::low::Thing;",
        "use crate::{low::{self, high::Thing}, middle::Own};",
        "let x = crate::low::call();",
        "//! use crate::high;",
        "use super::low; mod tests { use super::*; }",
    ] {
        assert!(wrong(fine).is_empty(), "{fine}: {:?}", wrong(fine));
    }
    for (source, found) in [
        ("use crate::high::Thing;", "middle imports high"),
        ("use crate::{\n    low::{self, Thing},\n    high,\n};", "middle imports high"),
        ("let x = crate::high::call(crate::low::X);", "middle imports high"),
        ("use super::{low, high};", "middle imports high"),
        ("use crate::Thing;", "middle imports Thing, which is no layer"),
    ] {
        assert_eq!(wrong(source), [found], "{source}");
    }
}

/// `mod name;` or `pub mod name;`
fn module(line: &str) -> Option<&str> {
    line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let all = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
}

/// The imports of one file of `module` that are wrong. `depth` is how many `super` lead to the crate's root.
fn against_the_order(layers: &[&str], module: &str, depth: usize, source: &str) -> Vec<String> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let place = |name: &str| layers.iter().position(|layer| *layer == name);
    let supers = "super::".repeat(depth);
    let by_super = imports(&code, &supers).into_iter().filter(|name| place(name).is_some());
    let all = imports(&code, "crate::").into_iter().chain(by_super);
    all.filter_map(|name| match place(&name) {
        None => Some(format!("{module} imports {name}, which is no layer")),
        Some(at) if place(module).is_none_or(|own| at > own) => Some(format!("{module} imports {name}")),
        Some(_) => None,
    })
    .collect()
}

/// The first names of all paths that begin with `root`, inline and in groups.
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
