mod clients;

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
    storm::{self, show::Shown},
};
use fencepost_client::Connection;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Check the fleet for problems, and say what to do about them
///
/// It checks the database, the promises against the stored data, the schema, the durability, the clocks, the location of the fleet,
/// your run, the permissions of the files, whether a backup exists that git clean does not delete, files that dead keepers left
/// behind (which it removes), the hooks of Claude Code and Codex, and the wake-ups: alarms, an open breaker, servers whose environment
/// differs. It runs no hook from a settings file: it compares it with its own, and runs that one. Exits 1 if there is a problem, and 0
/// if there are only warnings.
///
/// Examples:
///   fence doctor
///   fence doctor --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Doctor {}

/// One check and its result.
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

/// Clocks that differ by less count as equal.
const CLOCK_TOLERANCE: Millis = Millis::seconds(3);
/// How many violations are shown.
const VIOLATIONS: usize = 10;

impl Doctor {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut findings = Vec::new();
        let location = context.location();
        match &location {
            Err(e) => findings.push(problem("fleet", e)),
            Ok(location) => {
                findings.push(fleet(location));
                findings.extend(database(context, location).await);
                findings.extend(keepers(location));
            }
        }
        findings.push(ok("run", format!("{}: {}", context.run(), context.identity().reason.describe())));
        findings.extend(clients::findings(context).await);
        findings.extend(work_tree());
        findings.extend(location.ok().as_ref().and_then(copy));
        context.print(&findings, |findings| {
            findings.iter().map(|finding| line(finding, context)).collect::<Vec<_>>().join("\n")
        })?;
        let has_problem = findings.iter().any(|finding| finding.level == Level::Problem);
        Ok(ExitCode::from(u8::from(has_problem)))
    }
}

fn line(finding: &Finding, context: &Context) -> String {
    let terminal = &context.terminal;
    let level = finding.level.as_str();
    let painted = terminal.paint(state(level), &format!("{level:<7}"));
    // Beside level and name, or below them on a narrow terminal.
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
    // A check that this key may not do is no problem.
    let level = if error.code() == Code::Forbidden { Level::Warning } else { Level::Problem };
    Finding { name: name.into(), level, message: error.message().into(), hint }
}

fn fleet(location: &Location) -> Finding {
    ok("fleet", format!("{}: {}", location.shown(), location.reason.describe()))
}

/// Checks that need the database.
async fn database(context: &Context, location: &Location) -> Vec<Finding> {
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
        ok("database", format!("{} {}, fleet {}", facts.database.kind, facts.database.version, facts.fleet)),
        ok("schema", format!("version {}, the newest that this fence knows", facts.database.schema_version)),
        durability(&facts),
        clock(&facts, before, after),
    ];
    findings.extend(integrity(&fleet).await);
    findings.extend(wakeups(&fleet).await);
    findings.extend(files(location));
    findings
}

/// An old schema is only a warning: the next command migrates it, and `doctor` changes nothing.
fn behind(error: &Error) -> Option<Finding> {
    error.field("schema_version")?;
    Some(Finding { level: Level::Warning, ..problem("schema", error) })
}

fn durability(facts: &Facts) -> Finding {
    let settings = &facts.database.durability;
    let say = |only: &dyn Fn(bool) -> bool| {
        let shown = settings.iter().filter(|setting| only(setting.durable));
        shown.map(|setting| format!("{}={}", setting.name, setting.value)).collect::<Vec<_>>().join(", ")
    };
    match settings.iter().all(|setting| setting.durable) {
        true => ok("durability", format!("acknowledged changes survive a power cut ({})", say(&|_| true))),
        false => warning(
            "durability",
            format!("a power cut can undo acknowledged changes: {}", say(&|durable| !durable)),
            "set it for durable commits, as the documentation of the database says, or accept the risk",
        ),
    }
}

/// Compares the clocks. This machine's clock was read before and after the call, and a difference in between cannot be seen.
fn clock(facts: &Facts, before: Time, after: Time) -> Finding {
    let (apart, side) = match facts.now {
        fleet if fleet > after => (fleet.since(after), "ahead of"),
        fleet => (before.since(fleet).max(Millis(0)), "behind"),
    };
    if apart <= CLOCK_TOLERANCE {
        return ok("clock", "the fleet's clock and this machine's agree".into());
    }
    let hint = match facts.ahead_ms > CLOCK_TOLERANCE {
        true => {
            "a clock was too far ahead once, or was set back. The fleet's clock never goes back, so that no dead holder lives longer. Correct the clock, stop the agents, then: fence call admin/set_clock"
        }
        false => "leases end by the fleet's clock; use the same time servers for both",
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
        .map(|violation| format!("`{}` breaks a promise: {}", violation.resource, violation.promise));
    let found = damage.chain(broken).take(VIOLATIONS);
    let mut broken: Vec<_> = found
        .map(|message| Finding { name: "integrity".into(), level: Level::Problem, message, hint: None })
        .collect();
    if let Some(last) = broken.last_mut() {
        last.hint = Some(
            "stop the agents, keep a copy (fence backup FILE), and restore an older backup; fence call admin/check lists all violations"
                .into(),
        );
    }
    broken
}

/// Problems with wake-ups, if there are any.
async fn wakeups(fleet: &Connection) -> Vec<Finding> {
    let shown: Shown = match fleet.call(storm::Show { limit: Some(1) }).await {
        Ok(shown) => shown,
        Err(e) => return vec![problem("wake-ups", &e)],
    };
    let alarms = shown.alarms.iter().map(|alarm| {
        let hint = match alarm.alarm.as_str() {
            "ignored_work" => "fence agent list shows the agents; do their workers run, and do they poll?",
            _ => "fence storm cause ID shows the chain; fence storm set changes the limits",
        };
        warning("alarm", format!("since {}: {}", alarm.at, alarm.message), hint)
    });
    let breaker = shown.breaker.open.then(|| {
        let until = match shown.breaker.open_until {
            Some(until) => format!("until {until}, or longer if the backlog does not fall"),
            None => "until somebody closes it".into(),
        };
        warning(
            "breaker",
            format!("it is open {until}: no new wake-ups; {} are pending or running", shown.pending_jobs),
            "fence storm shows the pairs that wait; fence storm breaker close closes it",
        )
    });
    let servers = shown.servers.iter().map(|differs| {
        let (server, variable) = (&differs.server, &differs.variable);
        let message =
            format!("server {server} has {variable}={}, the fleet {}", differs.value, differs.fleet);
        warning(
            "wake-ups",
            message,
            "give all servers the same environment, or none: the last start sets the fleet's value",
        )
    });
    alarms.chain(breaker).chain(servers).collect()
}

/// Living keepers, and the files of dead ones, which are removed.
fn keepers(location: &Location) -> Vec<Finding> {
    let keepers = keeper::all(location);
    let (alive, gone): (Vec<_>, Vec<_>) = keepers.found.into_iter().partition(|keeper| keeper.alive);
    let mut findings: Vec<_> = gone
        .iter()
        .map(|keeper| {
            let message = format!("the keeper of run {} (process {}) was killed", keeper.run, keeper.pid);
            match keeper.remove() {
                Ok(()) => warning(
                    "keepers",
                    format!("{message}; its file was removed"),
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
        let message = format!("{} is not a keeper's file, and is not touched: {e}", path.display());
        warning(
            "keepers",
            message,
            "keepers' files are regular files of yours, in a directory that only you can write: remove it",
        )
    }));
    if alive.is_empty() && findings.is_empty() {
        findings.push(ok("keepers", "none".into()));
    }
    let living = |keeper: &keeper::Keeper| format!("process {} keeps run {}", keeper.pid, keeper.run);
    findings.extend(alive.iter().map(|keeper| ok("keepers", living(keeper))));
    findings
}

/// Files that others can read or write, if there are any.
fn files(location: &Location) -> Option<Finding> {
    let exposed = permissions::exposed(location)?;
    let message = format!("other users can read or write the fleet's files: {}", exposed.names.join(", "));
    Some(warning("files", message, &exposed.fix))
}

/// Is there a copy of a fleet that is in a work tree? `git clean -fdx` would delete the fleet.
fn copy(location: &Location) -> Option<Finding> {
    let Reason::Repository(root) = &location.reason else { return None };
    if !root.join(".git").exists() || !location.file()?.exists() {
        return None;
    }
    let (directory, prefix) = copies(root)?;
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // The names of copies contain their time.
    let newest = names.filter(|name| name.starts_with(&prefix) && name.ends_with(".db")).max();
    let at = Clock::System.read().to_string().replace(':', "");
    let next = shell_quoted(&directory.join(format!("{prefix}{at}.db")));
    let message = match newest {
        Some(newest) => format!("the newest backup is {}", directory.join(newest).display()),
        None => "git clean -fdx would delete this fleet, and there is no backup elsewhere".into(),
    };
    Some(Finding { hint: Some(format!("fence backup {next}")), ..ok("copy", message) })
}

/// The directory for backups of this repository's fleet, and the beginning of their names.
fn copies(root: &Path) -> Option<(PathBuf, String)> {
    let name = root.file_name().map_or("root".into(), |name| name.to_string_lossy());
    let path = digest(&root.display().to_string());
    Some((data_home()?.join("backups"), format!("{name}-{path}-")))
}

/// A problem with this work tree, if there is one.
fn work_tree() -> Option<Finding> {
    let here = std::env::current_dir().ok()?;
    if let Some(link) = repository::broken_link(&here) {
        return Some(warning(
            "work tree",
            format!("{} names a git directory that does not exist", link.display()),
            "this work tree does not share its repository's fleet: mount the repository too, or name the fleet with FENCE_DB",
        ));
    }
    let unused = repository::unused_database(&here)?;
    Some(warning(
        "work tree",
        format!("{} is a database that no command uses: all work trees share one", unused.display()),
        "fence list --db FILE shows its tasks; remove it when you need none of them",
    ))
}
