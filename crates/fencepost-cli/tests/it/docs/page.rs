//! A document and its fenced blocks. The info string of a block says how it is checked.

use std::path::{Path, PathBuf};

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Blocks that a test of their own runs: the word that marks them, their page, and how many there are.
const SCENARIOS: &[(&str, &str, usize)] = &[
    ("install", "README.md", 1),
    ("lead", "docs/agents.md", 6),
    ("move", "docs/importing.md", 1),
    ("postgres", "docs/operations.md", 1),
    ("share", "docs/server.md", 3),
    ("certificate", "docs/server.md", 1),
    ("storm", "docs/storms.md", 2),
    ("slack", "docs/webhooks.md", 3),
    ("crew", "docs/workers.md", 4),
];

/// Its examples are doctests of `fencepost-client`.
const RUST_PAGE: &str = "docs/library.md";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Commands and their output, run in the page's fleet.
    Console,
    /// The same, where the fleet is a file.
    ConsoleOnSqlite,
    /// A script that succeeds in the page's fleet.
    Script,
    /// Run by a test of its own.
    Scenario(String),
    /// Needs something that a test does not have: only its syntax is checked.
    ParsedScript,
    ParsedToml,
    ParsedUnit,
    /// A `fence.toml`.
    Settings,
    /// A doctest.
    Rust,
    /// A drawing or a text that is no command.
    Text,
}

#[derive(Debug, Clone)]
pub struct Block {
    pub kind: Kind,
    pub text: String,
    /// Where it begins, for messages: `docs/tasks.md:12`.
    pub at: String,
}

/// A document, by its path from the root of the repository.
#[derive(Debug)]
pub struct Page {
    pub path: String,
    pub text: String,
}

impl Page {
    pub fn read(path: &str) -> Self {
        let text =
            std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        Self { path: path.into(), text }
    }

    /// Every document that has commands.
    pub fn all() -> Vec<Self> {
        let mut paths: Vec<String> =
            ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into();
        paths.extend(markdown_in("docs"));
        paths.extend(markdown_in("docs/decisions"));
        paths.iter().map(|path| Self::read(path)).collect()
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut inside = false;
        for (number, line) in self.text.lines().enumerate() {
            let at = format!("{}:{}", self.path, number + 1);
            assert!(
                !line.trim_start().starts_with("```") || line.starts_with("```"),
                "{at}: a block is not indented"
            );
            match line.strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(info) => {
                    inside = true;
                    blocks.push(Block { kind: self.kind(info, &at), text: String::new(), at });
                }
                None if inside => blocks.last_mut().expect("a block").text.extend([line, "\n"]),
                None => {}
            }
        }
        assert!(!inside, "{}: a block has no end", self.path);
        blocks
    }

    fn kind(&self, info: &str, at: &str) -> Kind {
        match info.split(' ').collect::<Vec<_>>()[..] {
            ["console"] => Kind::Console,
            ["console", "sqlite"] => Kind::ConsoleOnSqlite,
            ["sh"] => Kind::Script,
            ["sh", "parsed"] => Kind::ParsedScript,
            ["toml", "parsed"] => Kind::ParsedToml,
            ["ini", "parsed"] => Kind::ParsedUnit,
            ["sh" | "text", name] if SCENARIOS.iter().any(|(known, ..)| *known == name) => {
                Kind::Scenario(name.into())
            }
            ["toml"] => Kind::Settings,
            ["rust"] if self.path == RUST_PAGE => Kind::Rust,
            ["text"] => Kind::Text,
            _ => panic!("{at}: nobody checks a block of the kind `{info}`"),
        }
    }
}

/// The pages of a folder, by their paths from the root.
pub fn markdown_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.map(|entry| PathBuf::from(entry.expect("an entry").file_name()));
    let names = names.filter(|name| name.extension().is_some_and(|ext| ext == "md"));
    let mut paths: Vec<String> = names.map(|name| format!("{folder}/{}", name.display())).collect();
    paths.sort();
    paths
}

/// The blocks that a test of this name runs, in order.
pub fn scenario(name: &str) -> Vec<String> {
    let (_, path, count) = SCENARIOS.iter().find(|(known, ..)| *known == name).expect("a scenario");
    let blocks = Page::read(path).blocks().into_iter();
    let blocks: Vec<String> =
        blocks.filter(|block| block.kind == Kind::Scenario(name.into())).map(|block| block.text).collect();
    assert_eq!(blocks.len(), *count, "{path}: blocks of the scenario `{name}`");
    blocks
}

/// A scenario's blocks are on the page where its test looks for them.
#[test]
fn every_scenario_is_on_its_page() {
    for page in Page::all() {
        for block in page.blocks() {
            if let Kind::Scenario(name) = block.kind {
                let known = SCENARIOS.iter().any(|(known, path, _)| *known == name && *path == page.path);
                assert!(known, "{}: the scenario `{name}` is another page's", block.at);
            }
        }
    }
    for (name, ..) in SCENARIOS {
        scenario(name);
    }
}

#[test]
#[should_panic(expected = "nobody checks a block of the kind `bash`")]
fn a_block_of_an_unknown_kind_is_refused() {
    Page { path: "docs/new.md".into(), text: "```bash\nfence list\n```\n".into() }.blocks();
}

#[test]
#[should_panic(expected = "nobody checks a block of the kind ``")]
fn a_block_without_a_kind_is_refused() {
    Page { path: "docs/new.md".into(), text: "```\nfence list\n```\n".into() }.blocks();
}
