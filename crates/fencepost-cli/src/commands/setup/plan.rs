//! The files of a recipe: as they are, and as they should be.

use super::{
    files::{self, Change},
    hook_line,
    recipe::{Content, Options, Part, Recipe, Scope, Variables},
};
use crate::{
    commands::prime,
    context::Context,
    environment::variable,
    output::text::{line, shell_quoted},
};
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The state of a file, or of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing of ours is there.
    Missing,
    /// Something is there that this version would write differently, or a part is missing.
    Stale,
    /// Everything is there, but the client ignores the file: it is not plain JSON.
    Ignored,
    Current,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Missing => "missing",
            State::Stale => "stale",
            State::Ignored => "ignored",
            State::Current => "current",
        }
    }
}

/// A hook of ours in a client's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledHook {
    pub client: String,
    pub event: String,
    /// The command line, as the client gives it to a shell.
    pub command: String,
    pub file: String,
}

impl InstalledHook {
    fn of(command: &str, file: &Path) -> Option<Self> {
        let words: Vec<&str> = command.rsplit_once(" hook ")?.1.split_whitespace().collect();
        let client = words.iter().position(|word| *word == "--client").and_then(|at| words.get(at + 1))?;
        Some(Self {
            client: (*client).to_owned(),
            event: (*words.first()?).to_owned(),
            command: command.to_owned(),
            file: file.display().to_string(),
        })
    }
}

/// A recipe in a project, or for the user.
pub struct Site<'a> {
    pub recipe: &'a Recipe,
    pub scope: Scope,
    /// The directory that all files are below.
    pub base: PathBuf,
    context: &'a Context,
}

/// A file with its parts, in the order of the recipe.
struct Target {
    path: PathBuf,
    text: Option<String>,
    parts: Vec<Part>,
}

impl<'a> Site<'a> {
    pub fn of(recipe: &'a Recipe, scope: Scope, context: &'a Context) -> Result<Self> {
        let base = match scope {
            Scope::Project => project()?,
            Scope::User => home()?,
        };
        Ok(Self { recipe, scope, base, context })
    }

    /// The changes that install the recipe with these options, and the files that the client will ignore.
    pub fn install(&self, options: &Options) -> Result<(Vec<Change>, Vec<PathBuf>)> {
        let targets = self.targets(options)?;
        let (mut changes, mut ignored) = (Vec::new(), Vec::new());
        for target in &targets {
            let after = target.installed()?;
            target.check_undo(after.as_deref())?;
            if target.is_ignored(after.as_deref()) {
                ignored.push(target.path.clone());
            }
            changes.push(self.change(target, after));
        }
        Ok((changes, ignored))
    }

    /// The changes that take the recipe out.
    pub fn remove(&self) -> Result<Vec<Change>> {
        let targets = self.targets(&Options::default())?;
        targets.iter().map(|target| Ok(self.change(target, target.removed(target.text.clone())?))).collect()
    }

    /// The state of each file.
    pub fn states(&self, options: &Options) -> Result<Vec<(PathBuf, State)>> {
        let mut states = Vec::new();
        for target in self.targets(options)? {
            let is_wanted = target.parts.iter().any(|part| part.wanted);
            let is_there = target.removed(target.text.clone())? != target.text;
            let state = match target.installed()? == target.text {
                true if is_wanted && target.is_ignored(target.text.as_deref()) => State::Ignored,
                true if is_wanted => State::Current,
                true => continue,
                false if is_there => State::Stale,
                false => State::Missing,
            };
            states.push((target.path, state));
        }
        Ok(states)
    }

    /// The options that the recipe was installed with, as its hooks and lines tell.
    pub fn options(&self) -> Result<Options> {
        let has = |flag: &str, hooks: &[InstalledHook]| {
            hooks.iter().any(|hook| hook.command.split_whitespace().any(|word| word == flag))
        };
        let hooks = self.hooks()?;
        let mut options = Options { mcp: has("--mcp", &hooks), strict: has("--strict", &hooks), board: None };
        for target in self.targets(&options)? {
            let is_block = target.parts.iter().any(|part| matches!(part.content, Content::Block(_)));
            let ours = target
                .text
                .as_deref()
                .filter(|_| is_block)
                .and_then(|text| text.split("<!-- fence: begin").nth(1));
            let board = ours.and_then(|ours| ours.split_once("`fence prime --board ")?.1.split('`').next());
            options.board = options.board.or(board.map(str::to_owned));
        }
        Ok(options)
    }

    /// The hooks that are installed, whichever version wrote them.
    pub fn hooks(&self) -> Result<Vec<InstalledHook>> {
        let mut hooks = Vec::new();
        for target in self.targets(&Options::default())? {
            let Some(text) = &target.text else { continue };
            for part in &target.parts {
                let Content::Json(json) = &part.content else { continue };
                let marked = json.marked_texts(text).map_err(|e| target.problem(&e))?;
                hooks.extend(marked.iter().filter_map(|command| InstalledHook::of(command, &target.path)));
            }
        }
        Ok(hooks)
    }

    fn change(&self, target: &Target, after: Option<String>) -> Change {
        Change { path: target.path.clone(), base: self.base.clone(), before: target.text.clone(), after }
    }

    /// The files with their parts. A file that several parts name is there once.
    fn targets(&self, options: &Options) -> Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::new();
        for part in self.recipe.parts(self.scope, options, &self.variables(options))? {
            let path = self.path(&part.file)?;
            let path = files::target(&self.base, &path, self.scope == Scope::User)?;
            match targets.iter_mut().find(|target| target.path == path) {
                Some(target) => target.parts.push(part),
                None => targets.push(Target { text: files::read(&path)?, path, parts: vec![part] }),
            }
        }
        Ok(targets)
    }

    fn path(&self, file: &str) -> Result<PathBuf> {
        for (directory, variable_name) in self.recipe.directories() {
            if let (Some(moved), Some(rest)) = (variable(variable_name), file.strip_prefix(directory)) {
                // ~/.claude.json is in the directory that replaces ~/.claude.
                let beside = || file.rsplit('/').next().unwrap_or(file);
                return Ok(PathBuf::from(moved).join(rest.strip_prefix('/').unwrap_or_else(beside)));
            }
        }
        Ok(match file.strip_prefix("~/") {
            Some(rest) => home()?.join(rest),
            None => self.base.join(file),
        })
    }

    fn variables(&self, options: &Options) -> Variables {
        let program = program(self.scope);
        let quoted = shell_quoted(Path::new(&program));
        let fleet = self.context.location().ok().filter(|location| location.file().is_some());
        let fleet = fleet.map(|location| PathBuf::from(location.absolute_url()));
        let fleet = fleet.as_deref().and_then(Path::parent).map(|directory| directory.to_owned());
        let outside =
            fleet.as_ref().filter(|fleet| self.scope == Scope::User || !fleet.starts_with(&self.base));
        let text = |path: &PathBuf| path.display().to_string();
        let mcp = if self.recipe.has_mcp(options) { " --mcp" } else { "" };
        let strict = if options.strict { " --strict" } else { "" };
        let board = options.board.as_deref();
        let here = match self.scope {
            Scope::Project => "in this repository",
            Scope::User => "in a repository in which `fence status` finds a fleet",
        };
        vec![
            ("guard", Some(hook_line::guard(&quoted, options.strict))),
            ("quiet", Some(hook_line::quiet(&quoted))),
            ("flags", Some(format!("{mcp}{strict}"))),
            ("fence", Some(quoted)),
            ("program", Some(program)),
            ("skill", Some(prime::skill(board, &self.context.command_line()))),
            ("on_board", Some(board.map_or(String::new(), |board| format!(" --board {}", line(board))))),
            ("here", Some(here.to_owned())),
            ("fleet_directory", fleet.as_ref().map(text)),
            ("outside_directory", outside.map(text)),
        ]
    }
}

impl Target {
    fn problem(&self, why: &str) -> Error {
        Error::new(Code::Invalid, format!("`{}`: {why}", self.path.display()))
            .hint("nothing was written; repair the file, and run the command again")
    }

    /// Will the client ignore the file, with our entries in it?
    fn is_ignored(&self, text: Option<&str>) -> bool {
        let is_plain = |text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        self.parts.iter().any(|part| part.wanted && part.must_be_plain) && !text.is_none_or(is_plain)
    }

    /// The text with the wanted parts, and without the others.
    fn installed(&self) -> Result<Option<String>> {
        let mut text = self.text.clone();
        for part in self.parts.iter().rev().filter(|part| !part.wanted) {
            text = self.without(part, text)?;
        }
        for part in self.parts.iter().filter(|part| part.wanted) {
            text = Some(part.content.apply(text.as_deref()).map_err(|e| self.problem(&e))?);
        }
        Ok(text)
    }

    fn removed(&self, mut text: Option<String>) -> Result<Option<String>> {
        for part in self.parts.iter().rev() {
            text = self.without(part, text)?;
        }
        Ok(text)
    }

    fn without(&self, part: &Part, text: Option<String>) -> Result<Option<String>> {
        match text {
            Some(text) => part.content.remove(&text).map_err(|e| self.problem(&e)),
            None => Ok(None),
        }
    }

    /// A first installation must be undone exactly. The edits are tested for it; here the promise is kept for this file.
    fn check_undo(&self, after: Option<&str>) -> Result<()> {
        let is_first = self.removed(self.text.clone())? == self.text;
        match is_first && self.removed(after.map(str::to_owned))? != self.text {
            true => Err(self.problem("the change could not be undone exactly, so it is not made")),
            false => Ok(()),
        }
    }
}

/// The top of the work tree around us, else this directory.
fn project() -> Result<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|e| Error::unavailable(format!("this directory cannot be read: {e}")))?;
    Ok(here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(&here).to_owned())
}

fn home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    home.ok_or_else(|| Error::new(Code::Invalid, "HOME is not set, and --user needs it"))
}

/// How a client finds this program. In the files of a project it is the name, if PATH leads to this program: others have it in
/// another place, and the file must not change with each of them. Otherwise it is the path.
fn program(scope: Scope) -> String {
    let ours = std::env::current_exe().unwrap_or_else(|_| "fence".into());
    let same = |file: &Path| file.canonicalize().is_ok_and(|file| Some(file) == ours.canonicalize().ok());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).map(|dir| dir.join("fence")).find(|file| file.is_file());
    match scope == Scope::Project && first.is_some_and(|first| same(&first)) {
        true => "fence".into(),
        false => ours.display().to_string(),
    }
}
