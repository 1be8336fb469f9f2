use crate::{
    context::Context,
    environment::data_home,
    keeper,
    location::{Location, Reason, permissions, repository},
    names::digest,
    output::{terminal::state, text::shell_quoted},
};
use clap::Args;
use fencepost::{
    Clock, Code, Error, Millis, Result, Time,
    admin::{self, about::Facts},
};
use fencepost_client::Connection;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Look for what is wrong with the fleet, and say what to do about it
///
/// Checks the database and the promises against what is stored, the schema, the durability, the clocks, where the fleet is and who you
/// are, who else can read its files, whether there is a copy where git clean does not reach, and what keepers have left behind (which it clears away). Exits 1 if there is a problem; a warning is none.
///
/// Examples:
///   fence doctor
///   fence doctor --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Doctor {}

/// What was looked at, and what was found.
#[derive(Debug, Serialize, Deserialize)]
struct Finding {
    name: String,
    level: Level,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    Warning,
    Problem,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// Clocks that are closer than this are called equal.
const APART: Millis = Millis::seconds(3);
/// Enough to see what is wrong.
const VIOLATIONS: usize = 10;

impl Doctor {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut findings = Vec::new();
        let place = context.location();
        match &place {
            Err(e) => findings.push(problem("fleet", e)),
            Ok(place) => {
                findings.push(fleet(place));
                findings.extend(database(context, place).await);
                findings.extend(keepers(place));
            }
        }
        findings.push(ok("run", format!("{}: {}", context.run(), context.identity().reason.describe())));
        findings.extend(work_tree());
        findings.extend(place.ok().as_ref().and_then(copy));
        context.print(&findings, |findings| {
            findings.iter().map(|finding| line(finding, context)).collect::<Vec<_>>().join("\n")
        })?;
        let sick = findings.iter().any(|finding| finding.level == Level::Problem);
        Ok(ExitCode::from(u8::from(sick)))
    }
}

fn line(finding: &Finding, context: &Context) -> String {
    let terminal = &context.terminal;
    let level = finding.level.as_str();
    let painted = terminal.paint(state(level), &format!("{level:<7}"));
    // Beside the columns of the level and the name, or below them where that leaves too little room.
    let indent = if terminal.width().is_some_and(|width| width < 72) { 4 } else { 21 };
    let message = terminal.wrap(&finding.message, 21, indent);
    let hint = finding.hint.as_ref().map_or(String::new(), |hint| {
        format!("\n{:indent$}hint: {}", "", terminal.wrap(hint, indent + 6, indent))
    });
    format!("{painted}  {:<10}  {message}{hint}", finding.name)
}

fn ok(name: &'static str, message: String) -> Finding {
    Finding { name: name.into(), level: Level::Ok, message, hint: None }
}

fn warning(name: &'static str, message: String, hint: &str) -> Finding {
    Finding { name: name.into(), level: Level::Warning, message, hint: Some(hint.into()) }
}

fn problem(name: &'static str, error: &Error) -> Finding {
    let hint = error.hint_text().map(str::to_owned);
    // What this key may not see may be well.
    let level = if error.code() == Code::Forbidden { Level::Warning } else { Level::Problem };
    Finding { name: name.into(), level, message: error.message().into(), hint }
}

fn fleet(place: &Location) -> Finding {
    ok("fleet", format!("{}: {}", place.shown(), place.reason.describe()))
}

/// What can only be said with the database open.
async fn database(context: &Context, place: &Location) -> Vec<Finding> {
    let fleet = match context.inspect().await {
        Ok(fleet) => fleet,
        Err(e) => return vec![behind(&e).unwrap_or_else(|| problem("database", &e))],
    };
    let before = Clock::System.read();
    let facts = match fleet.call(admin::About {}).await {
        Ok(facts) => facts,
        Err(e) => return vec![problem("database", &e)],
    };
    let after = Clock::System.read();
    let mut findings = vec![
        ok("database", format!("{} {}", facts.database.kind, facts.database.version)),
        ok("schema", format!("version {}, the newest that this fence knows", facts.database.schema_version)),
        durability(&facts),
        clock(&facts, before, after),
    ];
    findings.extend(integrity(&fleet).await);
    findings.extend(files(place));
    findings
}

/// A schema that is behind is nothing to worry about, and no doctor changes what he looks at.
fn behind(error: &Error) -> Option<Finding> {
    error.field("schema_version")?;
    Some(Finding { level: Level::Warning, ..problem("schema", error) })
}

fn durability(facts: &Facts) -> Finding {
    let settings = &facts.database.durability;
    let say = |only: &dyn Fn(bool) -> bool| {
        let said = settings.iter().filter(|setting| only(setting.durable));
        said.map(|setting| format!("{}={}", setting.name, setting.value)).collect::<Vec<_>>().join(", ")
    };
    match settings.iter().all(|setting| setting.durable) {
        true => ok("durability", format!("what was acknowledged survives a power cut ({})", say(&|_| true))),
        false => warning(
            "durability",
            format!("a power cut can undo what was acknowledged: {}", say(&|durable| !durable)),
            "set it as the database's documentation says for durable commits, or accept it knowingly",
        ),
    }
}

/// This machine's clock was read before and after; what lies between cannot be told apart.
fn clock(facts: &Facts, before: Time, after: Time) -> Finding {
    let (apart, side) = match facts.now {
        fleet if fleet > after => (fleet.since(after), "ahead of"),
        fleet => (before.since(fleet).max(Millis(0)), "behind"),
    };
    if apart <= APART {
        return ok("clock", "the fleet's clock and this machine's agree".into());
    }
    let hint = match facts.ahead_ms > APART {
        true => {
            "a clock was set back, or was too far ahead once; so that no dead holder lives longer, the fleet goes on from there. Set the clock right, stop the agents, then: fence call admin/set_clock"
        }
        false => "leases end by the fleet's clock; set both by the same time servers",
    };
    let apart = Millis::seconds(apart.0 / 1000);
    warning("clock", format!("the fleet's clock is {apart} {side} this machine's"), hint)
}

async fn integrity(fleet: &Connection) -> Vec<Finding> {
    let report = match fleet.call(admin::Check {}).await {
        Ok(report) => report,
        Err(e) if e.code() == Code::Forbidden => {
            return vec![ok("integrity", "not checked: that needs an admin's key".into())];
        }
        Err(e) => return vec![problem("integrity", &e)],
    };
    if report.ok {
        return vec![ok("integrity", format!("all {} promises hold", report.checked))];
    }
    let damage = report.damage.iter().map(|found| format!("the database is damaged: {found}"));
    let broken = report
        .violations
        .iter()
        .map(|violation| format!("`{}`: not true that {}", violation.resource, violation.promise));
    let found = damage.chain(broken).take(VIOLATIONS);
    let mut broken: Vec<_> = found
        .map(|message| Finding { name: "integrity".into(), level: Level::Problem, message, hint: None })
        .collect();
    if let Some(last) = broken.last_mut() {
        last.hint = Some(
            "stop the agents, keep a copy (fence backup FILE), and restore a backup from before; fence call admin/check lists them all"
                .into(),
        );
    }
    broken
}

/// Those that live, and what the others left behind, which is cleared away.
fn keepers(place: &Location) -> Vec<Finding> {
    let keepers = keeper::all(place);
    let (alive, gone): (Vec<_>, Vec<_>) = keepers.found.into_iter().partition(|keeper| keeper.alive);
    let mut findings: Vec<_> = gone
        .iter()
        .map(|keeper| {
            let message = format!("the keeper of run {} (process {}) was killed", keeper.run, keeper.pid);
            match keeper.remove() {
                Ok(()) => warning(
                    "keepers",
                    format!("{message}; the file that it left was removed"),
                    "fence claim ID --resume --keep starts another, if the run is still alive",
                ),
                Err(e) => {
                    let hint = format!("remove {}", keeper.path().display());
                    warning("keepers", format!("{message}, and its file cannot be removed: {e}"), &hint)
                }
            }
        })
        .collect();
    findings.extend(keepers.left_alone.iter().map(|(path, e)| {
        let message = format!("{} is where keepers' files are, and is left alone: {e}", path.display());
        warning(
            "keepers",
            message,
            "only your own regular files in a directory that only you can write are used: remove it",
        )
    }));
    if alive.is_empty() && findings.is_empty() {
        findings.push(ok("keepers", "none".into()));
    }
    let living = |keeper: &keeper::Keeper| format!("process {} keeps run {}", keeper.pid, keeper.run);
    findings.extend(alive.iter().map(|keeper| ok("keepers", living(keeper))));
    findings
}

/// Only if there is something to say.
fn files(place: &Location) -> Option<Finding> {
    let exposed = permissions::exposed(place)?;
    let message = format!("others can read or write what is the fleet's: {}", exposed.names.join(", "));
    Some(warning("files", message, &exposed.fix))
}

/// A fleet in a work tree goes with whatever git cleans away: is there a copy elsewhere?
fn copy(place: &Location) -> Option<Finding> {
    let Reason::Repository(root) = &place.reason else { return None };
    if !root.join(".git").exists() || !place.file()?.exists() {
        return None;
    }
    let (directory, prefix) = copies(root)?;
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // They are named by their time.
    let newest = names.filter(|name| name.starts_with(&prefix) && name.ends_with(".db")).max();
    let at = Clock::System.read().to_string().replace(':', "");
    let next = shell_quoted(&directory.join(format!("{prefix}{at}.db")));
    let message = match newest {
        Some(newest) => format!("the newest is {}", directory.join(newest).display()),
        None => "git clean -fdx would delete this fleet, and no copy is elsewhere".into(),
    };
    Some(Finding { hint: Some(format!("fence backup {next}")), ..ok("copy", message) })
}

/// Where copies of a repository's fleet are kept, and how their names begin.
fn copies(root: &Path) -> Option<(PathBuf, String)> {
    let name = root.file_name().map_or("root".into(), |name| name.to_string_lossy());
    let path = digest(&root.display().to_string());
    Some((data_home()?.join("backups"), format!("{name}-{path}-")))
}

/// Only if there is something to say.
fn work_tree() -> Option<Finding> {
    let here = std::env::current_dir().ok()?;
    if let Some(link) = repository::broken_link(&here) {
        return Some(warning(
            "work tree",
            format!("{} leads to a git directory that is not there", link.display()),
            "this work tree does not share its repository's fleet: mount the repository too, or name the fleet with FENCE_DB",
        ));
    }
    let stray = repository::unused_database(&here)?;
    Some(warning(
        "work tree",
        format!("{} is a database that nobody looks at: all work trees share one", stray.display()),
        "fence list --db FILE shows what is in it; remove it when nothing is missing",
    ))
}
