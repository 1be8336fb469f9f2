//! Links between documents, and from the code into them.

use super::page::{Page, ROOT, markdown_in};
use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

/// The text without its blocks and without code in a line.
fn prose(text: &str) -> String {
    let outside = text.split("\n```").step_by(2);
    outside.flat_map(|part| part.split('`').step_by(2)).collect()
}

/// `[words](target)` of a document.
fn targets(page: &Page) -> Vec<String> {
    // A link's words may be code, so that only blocks are left out here.
    let outside: String = page.text.split("\n```").step_by(2).collect();
    let after = outside.split("](").skip(1);
    after.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// As GitHub makes the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let outside: String = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    let headings = outside.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// `docs/../README.md` is `README.md`.
fn resolved(from: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in Path::new(from).parent().expect("a folder").join(target).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{from}: {target} leaves the repository"),
            part => path.push(part),
        }
    }
    path
}

/// Says what is wrong with a link.
fn broken(from: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { PathBuf::from(from) } else { resolved(from, file) };
    let full = Path::new(ROOT).join(&path);
    if !full.exists() {
        return Some(format!("{from}: {target}: there is no {}", path.display()));
    }
    let anchor = anchor?;
    let text = std::fs::read_to_string(&full).expect("a text");
    (!anchors(&text).contains(anchor)).then(|| format!("{from}: {target}: there is no such heading"))
}

#[test]
fn every_link_leads_somewhere() {
    let mut pages = Page::all();
    pages.extend(["ARCHITECTURE.md", "CHANGELOG.md"].map(Page::read));
    let mut seen = 0;
    let mut problems = Vec::new();
    for page in &pages {
        for target in targets(page).into_iter().filter(|target| !target.starts_with("https://")) {
            seen += 1;
            problems.extend(broken(&page.path, &target));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(seen > 60, "only {seen} links were found");
    assert!(broken("README.md", "docs/nothing.md").is_some());
    assert!(broken("README.md", "docs/errors.md#nothing").is_some());
}

/// Hints and messages name documents, too.
#[test]
fn every_document_that_the_code_names_is_there() {
    let mut left: Vec<PathBuf> = vec![Path::new(ROOT).join("crates")];
    let mut seen = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let is_ours =
                |path: &PathBuf| path.file_name().is_none_or(|name| name != "tests" && name != "target");
            let entries =
                std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path());
            left.extend(entries.filter(is_ours));
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for rest in text.split("docs/").skip(1) {
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || "-_/.#".contains(c)))
                .unwrap_or(rest.len());
            let named = rest[..end].trim_end_matches('.');
            if named.ends_with(".md") || named.contains(".md#") {
                seen += 1;
                assert_eq!(
                    broken("README.md", &format!("docs/{}", named.trim_end_matches('#'))),
                    None,
                    "{}",
                    path.display()
                );
            }
        }
    }
    assert!(seen > 1, "only {seen} names were found");
}

#[test]
fn every_page_is_listed() {
    for (folder, index) in [("docs", "docs/README.md"), ("docs/decisions", "docs/decisions/README.md")] {
        let listed: BTreeSet<PathBuf> =
            targets(&Page::read(index)).iter().map(|target| resolved(index, target)).collect();
        for page in markdown_in(folder).into_iter().filter(|page| page != index) {
            assert!(listed.contains(Path::new(&page)), "{index} does not list {page}");
        }
    }
}

#[test]
fn the_readme_is_short() {
    let lines = Page::read("README.md").text.lines().count();
    assert!(lines <= 200, "the README has {lines} lines");
}

/// A crash between an effect and the completion repeats the effect, so no document may claim more.
#[test]
fn no_document_promises_that_an_effect_happens_once() {
    for page in Page::all() {
        let prose = prose(&page.text).to_lowercase().replace("-once", " once");
        for (at, _) in prose.match_indices("exactly once") {
            let before = prose[..at].trim_end();
            assert!(
                before.ends_with("is not"),
                "{}: …{}",
                page.path,
                &before[before.len().saturating_sub(80)..]
            );
        }
    }
}
