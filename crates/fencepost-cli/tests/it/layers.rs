//! Imports go down only: the crate page lists the layers, and no module imports from one below it in that list.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The names in the list on the crate page: lines such as ``//! - `output`: …``.
fn layers(crate_page: &str) -> Vec<&str> {
    crate_page.lines().filter_map(|line| Some(line.strip_prefix("//! - `")?.split_once('`')?.0)).collect()
}

/// Every import that goes against the order of the layers, which stand from the bottom up, as `file: module`. A module that
/// is not in the list is reported, too.
fn violations(src: &Path, layers: &[&str]) -> Vec<String> {
    let rank = |module: &str| layers.iter().position(|layer| *layer == module);
    let mut found = Vec::new();
    for file in rust_files(src) {
        let path = file.strip_prefix(src).expect("a file below src");
        let top = path.iter().next().expect("a name").to_string_lossy();
        let top = top.trim_end_matches(".rs");
        // The root of the crate declares the modules, and imports from all of them.
        if matches!(top, "lib" | "main") {
            continue;
        }
        let Some(own) = rank(top) else {
            found.push(format!("{}: `{top}` is not in the list of layers", path.display()));
            continue;
        };
        for module in imports(&fs::read_to_string(&file).expect("its text")) {
            if module != top && rank(&module).is_none_or(|imported| imported > own) {
                found.push(format!("{}: {module}", path.display()));
            }
        }
    }
    found
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The top modules that a file names after `crate::`, in `use` lines, in groups and in paths within code. Comments do not count.
/// Unit tests, which stand last in a file, may use the layers above their own.
fn imports(code: &str) -> BTreeSet<String> {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut modules = BTreeSet::new();
    let mut rest = code.as_str();
    while let Some(at) = rest.find("crate::") {
        let is_whole_word = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        rest = &rest[at + "crate::".len()..];
        if is_whole_word {
            modules.extend(first_names(rest));
        }
    }
    modules
}

/// The first name of a path, or of each path of a group: `a` and `b` for `{a::{x, y}, b}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut names, mut starts) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts = true,
            c if starts && !c.is_whitespace() => {
                names.push(name(&group[at..]));
                starts = false;
            }
            _ => {}
        }
    }
    names
}

#[test]
fn layers_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let crate_page = fs::read_to_string(src.join("lib.rs")).expect("the crate page");
    let layers = layers(&crate_page);
    assert!(layers.len() > 10, "{layers:?}");
    assert_eq!(violations(&src, &layers), Vec::<String>::new());
}

#[test]
fn imports_that_go_up_are_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, code: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("its directory");
        fs::write(path, code).expect("a file");
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\nuse crate::c::X;\n");
    write("a.rs", "use crate::{\n    a::own,\n    b::{self, c},\n};\n");
    write("b.rs", "use crate::a;\n// crate::c is above.\nfn f() {\n    crate::c::g(crate::a::h())\n}\n");
    write(
        "b/inner.rs",
        "use super::f;\nuse crate::{a, c};\n#[cfg(test)]\nmod tests {\n    use crate::d;\n}\n",
    );
    write("c.rs", "use crate::{a::x, b::{y, z}};\npub(crate) use x;\nlet path = $crate::b::macro_path;\n");
    write("d.rs", "");
    let found = violations(directory.path(), &["a", "b", "c"]);
    assert_eq!(found, ["a.rs: b", "b/inner.rs: c", "b.rs: c", "d.rs: `d` is not in the list of layers"]);
}
