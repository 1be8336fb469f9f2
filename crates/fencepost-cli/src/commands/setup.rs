use super::check_person;
use crate::{
    context::Context,
    output::table::{Cell, Table},
};
use clap::Args;
use fencepost::{Code, Error, Result};
pub use own_hook::OwnHook;
use plan::Site;
pub use plan::{Guard, InstalledHook, State};
pub use recipe::Scope;
use recipe::{Options, Recipe};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

mod diff;
mod files;
mod hook_line;
mod own_hook;
pub mod plan;
pub mod recipe;
mod switches;

/// Set up Claude Code, Codex or another client for this repository
///
/// It writes what the client needs into the client's own settings: hooks, a skill or the MCP server, and lines in CLAUDE.md or AGENTS.md.
/// Everything else in these files stays as it is, byte for byte. It shows the changes before it makes them; repeating the command
/// changes nothing, and --remove undoes it. Recipes of your own are files in the directory fence/recipes of your settings.
///
/// The hooks guard commands with effects outside, such as git push: they pass only while the session holds its claim. If fence is missing
/// or fails, such commands are blocked. Hooks that another installation of fence wrote into a shared file stay as they are.
///
/// Examples:
///   fence setup claude
///   fence setup codex --user
///   fence setup claude --mcp --dry-run
///   fence setup --check
///   fence setup claude --remove
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Setup {
    /// The recipe: claude, codex, agents-md or one of your own
    #[arg(required_unless_present_any = ["list", "check"])]
    recipe: Option<String>,
    /// Write files of this repository, which can be committed (the default)
    #[arg(long, conflicts_with = "user")]
    project: bool,
    /// Write your own files, for all repositories
    #[arg(long)]
    user: bool,
    /// Set up the MCP server instead of the skill (Codex always gets it)
    #[arg(long)]
    mcp: bool,
    /// Also block sessions that never claimed, and guard git commit
    #[arg(long)]
    strict: bool,
    /// The board that agents work on  [default: all boards]
    #[arg(long)]
    board: Option<String>,
    /// Show the changes, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Take everything out again; refused in an agent's session
    #[arg(long)]
    remove: bool,
    /// List the recipes, and where they are installed
    #[arg(long, conflicts_with_all = ["recipe", "check", "remove", "dry_run", "mcp", "strict", "board"])]
    list: bool,
    /// Tell whether each file is missing, stale, ignored by the client, of another installation (other), or current; exit 0 only if all
    /// are current
    #[arg(long, conflicts_with_all = ["remove", "dry_run"])]
    check: bool,
}

/// The reply.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    recipe: String,
    scope: String,
    /// Whether the files were written.
    written: bool,
    files: Vec<Changed>,
    advice: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Changed {
    path: String,
    change: Kind,
    /// A unified diff.
    diff: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Created,
    Changed,
    Deleted,
}

/// A file of a recipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Checked {
    pub recipe: String,
    pub scope: String,
    pub path: String,
    pub state: State,
    /// A reason for the state, or a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    recipe: String,
    about: String,
    /// The user's own file, if it is not built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The state in each place; nothing if the recipe has no files there.
    project: Option<State>,
    user: Option<State>,
    hooks: Vec<InstalledHook>,
}

impl Setup {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.check_board()?;
        if self.list {
            return list(context);
        }
        if self.check {
            return self.check(context);
        }
        if self.remove && !self.dry_run {
            check_person("removes the guard")?;
        }
        let recipe = Recipe::load(self.recipe.as_deref().unwrap_or_default())?;
        let scope = if self.user { Scope::User } else { Scope::Project };
        let site = Site::of(&recipe, scope, context)?;
        let options = Options { mcp: self.mcp, strict: self.strict, board: self.board.clone() };
        let lock = files::lock(&site.base)?;
        let (changes, warnings) = if self.remove { site.remove()? } else { site.install(&options)? };
        let changes: Vec<_> = changes.into_iter().filter(|change| change.before != change.after).collect();
        let advice = match self.remove || changes.is_empty() {
            true => Vec::new(),
            false => self.no_fleet(context).into_iter().chain(recipe.advice(scope, &options)).collect(),
        };
        let report = Report {
            recipe: recipe.name.clone(),
            scope: scope.as_str().into(),
            written: !self.dry_run && !changes.is_empty(),
            files: changes.iter().map(|change| changed(change, scope)).collect(),
            advice,
        };
        if !context.json() && !report.files.is_empty() {
            context.print(&report, |report| {
                report.files.iter().flat_map(|file| &file.diff).cloned().collect::<Vec<_>>().join("\n")
            })?;
        }
        if report.written {
            files::write(&changes)?;
        }
        drop(lock);
        let done = context.print(&report, summary)?;
        for warning in warnings {
            context.warn(&warning);
        }
        Ok(done)
    }

    /// The name goes into the command lines of hooks.
    fn check_board(&self) -> Result<()> {
        match self.board.as_deref().filter(|board| !plan::is_board(board)) {
            Some(board) => Err(Error::new(Code::Invalid, format!("`{board}` is not the name of a board"))),
            None => Ok(()),
        }
    }

    /// Without a fleet the hooks have nothing to say.
    fn no_fleet(&self, context: &Context) -> Option<String> {
        let location = context.location().ok()?;
        let is_missing = !self.user && location.file().is_some_and(|file| !file.exists());
        is_missing.then(|| "there is no fleet here yet: `fence init` creates it".into())
    }

    /// Without a recipe's name, recipes of which nothing is installed do not count, unless there is no other.
    fn check(&self, context: &Context) -> Result<ExitCode> {
        let names = self.recipe.clone().map_or_else(Recipe::names, |name| vec![name]);
        let given = Options { mcp: self.mcp, strict: self.strict, board: self.board.clone() };
        let mut checked: Vec<Installed> = Vec::new();
        for name in &names {
            let recipe = Recipe::load(name)?;
            let mut places = Vec::new();
            for scope in self.scopes() {
                places.extend(found(&recipe, scope, context, &given)?);
            }
            // The places where something is, else the first.
            let is_missing = places.iter().all(|place| place.state == State::Missing);
            match is_missing {
                true => places.truncate(1),
                false => places.retain(|place| place.state != State::Missing),
            }
            checked.extend(places);
        }
        let counts = |place: &Installed| self.recipe.is_some() || place.state != State::Missing;
        let is_current = checked.iter().any(counts)
            && checked.iter().filter(|place| counts(place)).all(|place| place.state == State::Current);
        let checked: Vec<_> = checked.into_iter().flat_map(|place| place.files).collect();
        context.print(&checked, |checked| {
            let mut table = Table::new(&["RECIPE", "STATE", "FILE"]);
            for (at, one) in checked.iter().enumerate() {
                table.row(vec![
                    one.recipe.as_str().into(),
                    Cell::state(one.state.as_str()),
                    one.path.as_str().into(),
                ]);
                one.why.iter().for_each(|why| table.note(at, why));
            }
            table.render(&context.terminal)
        })?;
        Ok(ExitCode::from(u8::from(!is_current)))
    }

    fn scopes(&self) -> Vec<Scope> {
        match (self.project, self.user) {
            (true, _) => vec![Scope::Project],
            (_, true) => vec![Scope::User],
            _ => vec![Scope::Project, Scope::User],
        }
    }
}

/// A recipe in one place, as it was found there.
#[derive(Debug)]
pub struct Installed {
    pub recipe: String,
    pub scope: Scope,
    pub state: State,
    pub files: Vec<Checked>,
    pub hooks: Vec<InstalledHook>,
    /// The hooks that block commands, as they should be.
    pub guards: Vec<Guard>,
}

/// Every recipe in every place, also for `fence doctor`.
pub fn installed(context: &Context) -> Result<Vec<Installed>> {
    let mut all = Vec::new();
    for name in Recipe::names() {
        let recipe = Recipe::load(&name)?;
        for scope in [Scope::Project, Scope::User] {
            all.extend(found(&recipe, scope, context, &Options::default())?);
        }
    }
    Ok(all)
}

/// A recipe in one place, by the options that it was installed with and the given ones. `None`: it has no files there.
fn found(recipe: &Recipe, scope: Scope, context: &Context, given: &Options) -> Result<Option<Installed>> {
    if !recipe.has_files(scope) {
        return Ok(None);
    }
    let site = Site::of(recipe, scope, context)?;
    let mut options = site.options()?;
    options.mcp |= given.mcp;
    options.strict |= given.strict;
    options.board = given.board.clone().or(options.board);
    let files = site.states(&options)?.into_iter().map(|file| Checked {
        recipe: recipe.name.clone(),
        scope: scope.as_str().into(),
        path: file.path.display().to_string(),
        state: file.state,
        why: file.why,
    });
    let files: Vec<_> = files.collect();
    let state = match files.iter().all(|file| file.state == State::Missing) {
        true => State::Missing,
        false if files.iter().all(|file| file.state == State::Current) => State::Current,
        false => {
            let is_any = |state: &State| files.iter().any(|file| file.state == *state);
            [State::Ignored, State::Other].into_iter().find(is_any).unwrap_or(State::Stale)
        }
    };
    let (hooks, guards) = (site.hooks()?, site.guards(&options)?);
    Ok(Some(Installed { recipe: recipe.name.clone(), scope, state, files, hooks, guards }))
}

fn list(context: &Context) -> Result<ExitCode> {
    let mut found = installed(context)?;
    let mut listed = Vec::new();
    for name in Recipe::names() {
        let recipe = Recipe::load(&name)?;
        let places: Vec<_> = found.extract_if(.., |place| place.recipe == name).collect();
        let state = |scope| places.iter().find(|place| place.scope == scope).map(|place| place.state);
        listed.push(Listed {
            project: state(Scope::Project),
            user: state(Scope::User),
            file: recipe.file.as_deref().map(|file| file.display().to_string()),
            about: recipe.about.clone(),
            recipe: name,
            hooks: places.into_iter().flat_map(|place| place.hooks).collect(),
        });
    }
    context.print(&listed, |listed| {
        let mut table = Table::new(&["RECIPE", "PROJECT", "USER", "ABOUT"]).headed();
        let state = |state: Option<State>| state.map_or("-".into(), |state| Cell::state(state.as_str()));
        for one in listed {
            let about = one.file.as_ref().map_or(one.about.clone(), |file| format!("{} ({file})", one.about));
            table.row(vec![one.recipe.as_str().into(), state(one.project), state(one.user), about.into()]);
        }
        table.render(&context.terminal)
    })
}

fn changed(change: &files::Change, scope: Scope) -> Changed {
    let path = change.path.display().to_string();
    let kind = match (&change.before, &change.after) {
        (None, _) => Kind::Created,
        (_, None) => Kind::Deleted,
        _ => Kind::Changed,
    };
    // The user's own files may have secrets beside ours.
    let context = if scope == Scope::User { 0 } else { 3 };
    let name = |missing: bool| if missing { "/dev/null" } else { path.as_str() };
    let mut lines =
        vec![format!("--- {}", name(kind == Kind::Created)), format!("+++ {}", name(kind == Kind::Deleted))];
    lines.extend(diff::lines(change.before.as_deref(), change.after.as_deref(), context));
    Changed { path, change: kind, diff: lines }
}

fn summary(report: &Report) -> String {
    if report.files.is_empty() {
        return "nothing to change".into();
    }
    let mut lines = Vec::new();
    for file in &report.files {
        let done = match (report.written, file.change) {
            (true, Kind::Created) => "created",
            (true, Kind::Changed) => "changed",
            (true, Kind::Deleted) => "deleted",
            (false, Kind::Created) => "would create",
            (false, Kind::Changed) => "would change",
            (false, Kind::Deleted) => "would delete",
        };
        lines.push(format!("{done}  {}", file.path));
    }
    if !report.advice.is_empty() {
        lines.push("Left for you:".into());
        lines.extend(report.advice.iter().map(|advice| format!("- {advice}")));
    }
    lines.join("\n")
}
