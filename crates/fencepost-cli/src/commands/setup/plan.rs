//! The files of a recipe: as they are, and as they should be.

use super::{
    files::{self, Change},
    hook_line,
    own_hook::{Installation, OwnHook},
    recipe::{Content, Options, Part, Recipe, Scope, Variables},
    switches,
};
use crate::{
    commands::prime,
    context::Context,
    edits::Ours,
    environment::variable,
    output::text::{line, shell_quoted},
};
use fencepost::{Code, Error, Result, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

/// The state of a file, or of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing of ours is there.
    Missing,
    /// Something is there that this version would write differently, or a part is missing.
    Stale,
    /// Everything is there, but the client ignores it: the file is not plain JSON, or a setting turns hooks off.
    Ignored,
    /// Its hooks are those of another installation, which are left alone.
    Other,
    Current,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Missing => "missing",
            State::Stale => "stale",
            State::Ignored => "ignored",
            State::Other => "other",
            State::Current => "current",
        }
    }
}

/// A hook in a client's settings that some `fence setup` wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledHook {
    pub client: String,
    pub event: String,
    /// The command line, as the client gives it to a shell.
    pub command: String,
    pub file: String,
    /// The program that it calls.
    pub program: String,
    /// Is it a hook of this installation?
    pub ours: bool,
}

/// A hook that blocks commands, as this version writes it.
#[derive(Debug)]
pub struct Guard {
    pub client: String,
    pub command: String,
    pub file: String,
    /// Is exactly this hook in the file?
    pub is_there: bool,
}

/// A file of a recipe, as it was found.
#[derive(Debug)]
pub struct FileState {
    pub path: PathBuf,
    pub state: State,
    /// A reason for the state, or a warning.
    pub why: Option<String>,
}

/// A recipe in a project, or for the user.
pub struct Site<'a> {
    pub recipe: &'a Recipe,
    pub scope: Scope,
    /// The directory that all files are below.
    pub base: PathBuf,
    ours: Rc<dyn Ours>,
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
        let ours = Rc::new(Installation::here(scope, &base));
        Ok(Self { recipe, scope, base, ours, context })
    }

    /// The changes that install the recipe with these options, and warnings about files.
    pub fn install(&self, options: &Options) -> Result<(Vec<Change>, Vec<Error>)> {
        let (mut changes, mut warnings) = (Vec::new(), Vec::new());
        for target in self.targets(options)? {
            let after = target.installed()?;
            target.check_undo(after.as_deref())?;
            let why = self.finding(&target, after.as_deref())?.map(|(_, why)| why);
            warnings.extend(why.map(|why| target.warning(&why)));
            changes.push(self.change(&target, after));
        }
        Ok((changes, warnings))
    }

    /// The changes that take the recipe out, and warnings about files.
    pub fn remove(&self) -> Result<(Vec<Change>, Vec<Error>)> {
        let (mut changes, mut warnings) = (Vec::new(), Vec::new());
        for target in self.targets(&Options::default())? {
            let left = target.others()?.map(|others| target.warning(&others.describe()));
            warnings.extend(left);
            changes.push(self.change(&target, target.removed(target.text.clone())?));
        }
        Ok((changes, warnings))
    }

    /// The state of each file.
    pub fn states(&self, options: &Options) -> Result<Vec<FileState>> {
        let mut states = Vec::new();
        for target in self.targets(options)? {
            let is_wanted = target.parts.iter().any(|part| part.wanted);
            let is_there = target.removed(target.text.clone())? != target.text;
            let is_current = target.installed()? == target.text;
            let finding = self.finding(&target, target.text.as_deref())?;
            let (state, why) = match finding {
                _ if is_current && !is_wanted => continue,
                _ if !is_current && !is_there => (State::Missing, None),
                Some((state, why)) if is_current || state == State::Ignored => (state, Some(why)),
                _ if is_current => (State::Current, None),
                _ => (State::Stale, None),
            };
            states.push(FileState { path: target.path, state, why });
        }
        Ok(states)
    }

    /// The state of a file with hooks of ours or of others, and the reason, if there is more to say than that it is current or stale.
    fn finding(&self, target: &Target, text: Option<&str>) -> Result<Option<(State, String)>> {
        if target.is_ignored(text) {
            let why = "it is not plain JSON, and the client ignores such a file with all its hooks: take out the comments, trailing \
                       commas and the byte order mark";
            return Ok(Some((State::Ignored, why.into())));
        }
        let off = || switches::reason(self.recipe.switches(), |file| self.settings(file));
        if let Some(why) = target.has_hooks().then(off).flatten() {
            return Ok(Some((State::Ignored, why)));
        }
        if let Some(others) = target.others()? {
            let (state, why) = match others.alone {
                true => (
                    State::Other,
                    "No others are added, because each event would be answered twice. To replace them, take them out of the file",
                ),
                false => (State::Current, "Each event is answered twice: take out those that nobody needs"),
            };
            return Ok(Some((state, format!("{}. {why}", others.describe()))));
        }
        Ok(None)
    }

    /// A settings file of the client, wherever the recipe is installed: relative paths are of the project.
    fn settings(&self, file: &str) -> Option<PathBuf> {
        self.path_in(&project().ok()?, file).ok()
    }

    /// The options that the recipe was installed with, as its hooks and lines tell.
    pub fn options(&self) -> Result<Options> {
        let hooks: Vec<_> = self.hooks()?.iter().filter_map(|hook| OwnHook::parse(&hook.command)).collect();
        let has = |flag: &str| hooks.iter().any(|hook| hook.has(flag));
        let mut options = Options { mcp: has("--mcp"), strict: has("--strict"), board: None };
        for target in self.targets(&options)? {
            let is_block = target.parts.iter().any(|part| matches!(part.content, Content::Block(_)));
            let ours = target
                .text
                .as_deref()
                .filter(|_| is_block)
                .and_then(|text| text.split("<!-- fence: begin").nth(1));
            let board = ours.and_then(|ours| ours.split_once("`fence prime --board ")?.1.split('`').next());
            // The file may have come with a clone, and the name goes into command lines.
            let board = board.filter(|board| is_board(board));
            options.board = options.board.or(board.map(str::to_owned));
        }
        Ok(options)
    }

    /// The hooks that are installed, whichever version and installation wrote them.
    pub fn hooks(&self) -> Result<Vec<InstalledHook>> {
        let hooks = self.targets(&Options::default())?.into_iter().map(|target| target.hooks());
        Ok(hooks.collect::<Result<Vec<_>>>()?.concat())
    }

    /// The hooks before tools that this version installs with these options.
    pub fn guards(&self, options: &Options) -> Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for target in self.targets(options)? {
            for part in target.parts.iter().filter(|part| part.wanted) {
                let Content::Json(json) = &part.content else { continue };
                let elements = json.elements(target.text.as_deref()).map_err(|e| target.problem(&e))?;
                for (element, is_there) in elements {
                    let hooks = hooks_in(element).into_iter();
                    guards.extend(hooks.filter(|(_, hook)| hook.event == "pre-tool-use").map(
                        |(command, hook)| Guard {
                            client: hook.client,
                            command,
                            file: target.path.display().to_string(),
                            is_there,
                        },
                    ));
                }
            }
        }
        Ok(guards)
    }

    fn change(&self, target: &Target, after: Option<String>) -> Change {
        Change { path: target.path.clone(), base: self.base.clone(), before: target.text.clone(), after }
    }

    /// The files with their parts. A file that several parts name is there once.
    fn targets(&self, options: &Options) -> Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::new();
        for part in self.recipe.parts(self.scope, options, &self.variables(options), &self.ours)? {
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
        self.path_in(&self.base, file)
    }

    fn path_in(&self, base: &Path, file: &str) -> Result<PathBuf> {
        for (directory, variable_name) in self.recipe.directories() {
            if let (Some(moved), Some(rest)) = (variable(variable_name), file.strip_prefix(directory)) {
                // ~/.claude.json is in the directory that replaces ~/.claude.
                let beside = || file.rsplit('/').next().unwrap_or(file);
                return Ok(PathBuf::from(moved).join(rest.strip_prefix('/').unwrap_or_else(beside)));
            }
        }
        Ok(match file.strip_prefix("~/") {
            Some(rest) => home()?.join(rest),
            None => base.join(file),
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

/// Hooks of other installations.
struct Others {
    programs: Vec<String>,
    /// They guard commands, and the file has no hook of ours.
    alone: bool,
}

impl Others {
    fn describe(&self) -> String {
        let programs: Vec<_> = self.programs.iter().map(|program| format!("`{program}`")).collect();
        format!("it has hooks of another installation, {}, which are left as they are", programs.join(", "))
    }
}

impl Target {
    fn warning(&self, why: &str) -> Error {
        Error::new(Code::Invalid, format!("`{}`: {why}", self.path.display()))
    }

    /// Every hook in the file that some `fence setup` wrote.
    fn hooks(&self) -> Result<Vec<InstalledHook>> {
        let mut hooks = Vec::new();
        for part in &self.parts {
            let (Content::Json(json), Some(text)) = (&part.content, &self.text) else { continue };
            let texts = json.texts(text).map_err(|e| self.problem(&e))?;
            hooks.extend(texts.into_iter().filter_map(|command| {
                let hook = OwnHook::parse(&command)?;
                Some(InstalledHook {
                    client: hook.client,
                    event: hook.event,
                    program: hook.program,
                    file: self.path.display().to_string(),
                    ours: json.ours.includes(&command),
                    command,
                })
            }));
        }
        Ok(hooks)
    }

    fn others(&self) -> Result<Option<Others>> {
        let (ours, others): (Vec<_>, Vec<_>) = self.hooks()?.into_iter().partition(|hook| hook.ours);
        let guard = others.iter().any(|hook| hook.event == "pre-tool-use");
        let mut programs: Vec<_> = others.into_iter().map(|hook| hook.program).collect();
        programs.sort();
        programs.dedup();
        Ok((!programs.is_empty()).then_some(Others { programs, alone: guard && ours.is_empty() }))
    }

    fn has_hooks(&self) -> bool {
        self.parts.iter().any(|part| part.wanted && has_hooks(part))
    }

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
        // Beside the hooks of another installation ours would answer each event a second time.
        let is_taken = self.others()?.is_some_and(|others| others.alone);
        for part in self.parts.iter().filter(|part| part.wanted && !(is_taken && has_hooks(part))) {
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

/// Does the part install hooks?
fn has_hooks(part: &Part) -> bool {
    let Content::Json(json) = &part.content else { return false };
    json.entries.values().any(|value| !hooks_in(value).is_empty())
}

/// The command lines of our hooks in this value.
fn hooks_in(value: &Value) -> Vec<(String, OwnHook)> {
    match value {
        Value::String(line) => OwnHook::parse(line).map(|hook| (line.clone(), hook)).into_iter().collect(),
        Value::Array(items) => items.iter().flat_map(hooks_in).collect(),
        Value::Object(members) => members.values().flat_map(hooks_in).collect(),
        _ => Vec::new(),
    }
}

/// Is it the name of a board, and so one word for every shell?
pub fn is_board(name: &str) -> bool {
    format!("{name}-1").parse::<TaskId>().is_ok()
}

/// The top of the work tree around us, else this directory.
fn project() -> Result<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|e| Error::unavailable(format!("this directory cannot be read: {e}")))?;
    Ok(here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(&here).to_owned())
}

pub fn home() -> Result<PathBuf> {
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
