use super::{
    super::check_person,
    hook_script,
    place::{self, Found, Place},
    repository::{ASK, REQUIRE, Repository},
};
use crate::{context::Context, location::Location, settings::without_password};
use clap::Args;
use fencepost::{Code, Error, Result, admin};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, process::ExitCode};

/// Set the hooks in this git repository, or take them away
///
/// All work trees of the repository share the hooks. A hook that is there is called first, and its failure counts. If core.hooksPath names
/// a directory elsewhere, its files are not touched: the repository gets a directory of its own that calls them. A person's
/// commits and pushes without FENCE_CLAIM are not checked. Repeating the command changes nothing.
///
/// --ask and --require are for a repository that receives pushes, and stay until --remove (as fence.ask and fence.require in git's settings).
///
/// Examples:
///   fence git install
///   fence git install --require main --require 'release/*'
///   fence git install --ask --url https://fence.example.com
///   fence git install --remove
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Install {
    /// Take the hooks away and put back the ones that were there; accepted fences are kept. Refused in an agent's session
    #[arg(long, conflicts_with_all = ["ask", "require"])]
    remove: bool,
    /// When a push arrives, also ask this fleet: refuse claims that are over or of another fleet, and all if it cannot be reached
    #[arg(long)]
    ask: bool,
    /// A branch that takes only commits with a trailer; * stands for any text
    #[arg(long, value_name = "BRANCH", value_parser = branch)]
    require: Vec<String>,
}

/// The reply.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    directory: String,
    hooks: Vec<Done>,
    /// The directory of hooks that ours calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
    requires: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Done {
    name: String,
    done: Change,
    /// The hook that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Installed,
    Updated,
    Unchanged,
    Removed,
    Restored,
}

impl Change {
    fn describe(self) -> &'static str {
        match self {
            Change::Installed => "installed",
            Change::Updated => "updated",
            Change::Unchanged => "unchanged",
            Change::Removed => "removed",
            Change::Restored => "restored",
        }
    }
}

/// A name or pattern of branches, as git allows names.
fn branch(text: &str) -> Result<String, String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "~^:?[\\".contains(c);
    match text.is_empty() || text.starts_with('-') || text.contains(bad) {
        true => Err("not the name of a branch, such as main or release/*".into()),
        false => Ok(text.to_owned()),
    }
}

impl Install {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if self.remove {
            check_person("removes the git fence")?;
        }
        let repository = Repository::here().await?;
        let place = Place::of(&repository).await?;
        let report = match self.remove {
            true => remove(&repository, &place).await?,
            false => self.install(context, &repository, &place).await?,
        };
        context.print(&report, text)
    }

    async fn install(self, context: &Context, repository: &Repository, place: &Place) -> Result<Report> {
        // Everything is looked at before anything is changed.
        let fleet = if self.ask { Some(fleet_to_ask(context).await?) } else { None };
        let program = std::env::current_exe()
            .map_err(|e| Error::unavailable(format!("the path of fence cannot be read: {e}")))?;
        let (directory, wanted) = (&place.directory, place.hooks(repository).await?);
        let mut states = Vec::new();
        for (name, _) in &wanted {
            states.push(installable(directory, name, place.before.is_some())?);
        }
        let mut hooks = Vec::new();
        for ((name, kind), found) in wanted.into_iter().zip(states) {
            let text = hook_script::text(name, kind, &program, place.before.as_deref());
            let done = match found {
                Found::Ours if fs::read(directory.join(name)).is_ok_and(|now| now == text.as_bytes()) => {
                    Change::Unchanged
                }
                Found::Ours => Change::Updated,
                _ => Change::Installed,
            };
            if found == Found::Others {
                place::keep(directory, name)?;
            }
            if done != Change::Unchanged {
                place::write(directory, name, &text)?;
            }
            let before = place::kept(directory, name).map(|path| path.display().to_string());
            hooks.push(Done { name: name.into(), done, before });
        }
        place.activate(repository).await?;
        if let Some(fleet) = fleet {
            repository.set(ASK, &fleet).await?;
        }
        let known = repository.settings(REQUIRE).await?;
        for branch in self.require.iter().filter(|branch| !known.contains(branch)) {
            repository.add(REQUIRE, branch).await?;
        }
        Ok(Report {
            directory: directory.display().to_string(),
            hooks,
            calls: place.before.clone(),
            asks: repository.setting(ASK).await?.map(|fleet| without_password(&fleet)),
            requires: repository.settings(REQUIRE).await?,
        })
    }
}

/// Can this hook be written? `replaces`: our directory stands for another one, and only hooks of ours belong in it.
fn installable(directory: &Path, name: &str, replaces: bool) -> Result<Found> {
    let found = place::found(directory, name)?;
    let path = directory.join(name);
    match found {
        Found::Changed => Err(changed(&path)),
        Found::Others if replaces => Err(Error::new(
            Code::Invalid,
            format!(
                "`{}` is not a hook of fence, and nothing calls the one that it replaced",
                path.display()
            ),
        )
        .hint("move it to the directory of your hooks, then install again")),
        Found::Others => match place::kept(directory, name) {
            Some(kept) => Err(Error::new(
                Code::Invalid,
                format!(
                    "`{}` was replaced since the installation, and `{}` is still kept",
                    path.display(),
                    kept.display()
                ),
            )
            .hint("make one hook of the two, remove the other, then install again")),
            None => Ok(found),
        },
        Found::Nothing | Found::Ours => Ok(found),
    }
}

fn changed(path: &Path) -> Error {
    Error::new(
        Code::Invalid,
        format!("`{}` was changed since fence wrote it, and is not touched", path.display()),
    )
    .hint("move your part of it to another hook, and remove the file; then run the command again")
}

/// The address that `pre-receive` will ask. The fleet must answer now, so that a typing error does not stop all pushes later.
async fn fleet_to_ask(context: &Context) -> Result<String> {
    context.call(admin::About {}).await?;
    let location: Location = context.location()?;
    if location.shown() != location.url {
        return Err(Error::new(
            Code::Invalid,
            "the address of the fleet has a password, and git's settings are no place for it",
        )
        .hint("use a server (--url) with a reader's key in FENCE_KEY, or a PostgreSQL password file"));
    }
    Ok(location.absolute_url())
}

async fn remove(repository: &Repository, place: &Place) -> Result<Report> {
    let mut found = Vec::new();
    for directory in place::directories(repository, place) {
        for name in place::names() {
            let path = directory.join(name);
            match (place::found(&directory, name)?, place::kept(&directory, name)) {
                (Found::Changed, _) => return Err(changed(&path)),
                (Found::Others, Some(kept)) => {
                    return Err(Error::new(
                        Code::Invalid,
                        format!(
                            "`{}` was replaced since the installation, and is not touched",
                            path.display()
                        ),
                    )
                    .hint(format!(
                        "the hook from before the installation is {}: decide which one stays",
                        kept.display()
                    )));
                }
                (Found::Nothing, None) | (Found::Others, None) => {}
                (now, kept) => found.push((directory.clone(), name, now, kept.is_some())),
            }
        }
    }
    place::deactivate(repository).await?;
    let mut hooks = Vec::new();
    for (directory, name, now, kept) in found {
        if now == Found::Ours {
            place::remove(&directory, name)?;
        }
        if kept {
            place::restore(&directory, name)?;
        }
        let before = kept.then(|| directory.join(name).display().to_string());
        hooks.push(Done {
            name: name.into(),
            done: if kept { Change::Restored } else { Change::Removed },
            before,
        });
    }
    // It stays if somebody put a file of theirs there.
    let _ = fs::remove_dir(place::directory_of_ours(repository));
    repository.unset(ASK).await?;
    repository.unset(REQUIRE).await?;
    Ok(Report {
        directory: place.directory.display().to_string(),
        hooks,
        calls: None,
        asks: None,
        requires: Vec::new(),
    })
}

fn text(report: &Report) -> String {
    let mut lines = vec![match report.hooks.is_empty() {
        true => format!("no hooks of fence are in {}", report.directory),
        false => format!("hooks in {}", report.directory),
    }];
    for hook in &report.hooks {
        let before = match (&hook.before, hook.done) {
            (Some(_), Change::Restored) => "  as it was before".to_owned(),
            (Some(before), _) => format!("  calls {before} first"),
            (None, _) => String::new(),
        };
        let done = hook.done.describe();
        lines.push(format!("  {done:<9}  {}{before}", hook.name).trim_end().to_owned());
    }
    if let Some(calls) = &report.calls {
        lines.push(format!(
            "core.hooksPath was {calls}; every hook here calls the one of the same name there first"
        ));
    }
    if let Some(fleet) = &report.asks {
        lines.push(format!("pushes to this repository also ask the fleet {fleet}"));
    }
    if !report.requires.is_empty() {
        let branches = report.requires.join(", ");
        lines.push(format!("only commits with a Fence: trailer are accepted on {branches}"));
    }
    lines.join("\n")
}
