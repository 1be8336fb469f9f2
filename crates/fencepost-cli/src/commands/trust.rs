use super::{check_person, r#loop::LOOP_FILE};
use crate::{
    context::Context,
    environment::DATABASE,
    location::repository,
    output::{
        table::{Cell, Table},
        text::{line, quoted},
    },
    settings::{self, FILE},
    trust::{self, Decisions, Fingerprint},
};
use clap::Args;
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Trust the fence.toml or the loop.toml of a project
///
/// A fence.toml decides which server commands call, and your key goes with them. So the file of a project is not read until you
/// trust it. This command shows its settings, and trusts the file as it is now; after a change you have to trust it again. Without a
/// PATH it takes the nearest file in this directory or above it. The file that FENCE_CONFIG names, and fence/fence.toml in your
/// configuration directory, need no trust.
///
/// A loop.toml has the commands that `fence loop run` starts. It is named: fence trust loop.toml
///
/// A fleet in a repository (.fence) that belongs to another user is not used until you trust it, either.
///
/// For a person, in a terminal: an agent's session is refused.
///
/// Examples:
///   fence trust
///   fence trust ~/work/api
///   fence trust --list
///   fence trust --revoke
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Trust {
    /// A project's directory, or its fence.toml, loop.toml or .fence  [default: the nearest fence.toml and .fence]
    path: Option<PathBuf>,
    /// List trusted files and fleets, and whether they have changed
    #[arg(long, conflicts_with_all = ["path", "revoke"])]
    list: bool,
    /// Stop trusting it
    #[arg(long)]
    revoke: bool,
}

/// A file or a fleet that is trusted now.
#[derive(Debug, Serialize, Deserialize)]
struct Trusted {
    path: String,
    /// The fingerprint: the digest of a file, or the owner of a fleet.
    seal: String,
    /// The settings of the file, without secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    settings: Vec<Setting>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Setting {
    key: String,
    value: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    path: String,
    /// `trusted`, `changed` (and so not used) or `gone`.
    state: String,
    seal: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Revoked {
    path: String,
}

impl Trust {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let decisions = Decisions::of_user();
        if self.list {
            return list(&decisions, context);
        }
        let here = std::env::current_dir().unwrap_or_default();
        if self.revoke {
            return revoke(&decisions, self.path.as_deref(), &here, context);
        }
        // A trusted file sets the guarded list, and the server that gets the key.
        check_person("trusts a file")?;
        let mut trusted = Vec::new();
        for (path, found) in found(self.path.as_deref(), &here)? {
            trusted.push(found.trust(&decisions, path, &context.command_line())?);
        }
        context.print(&trusted, |trusted| trusted.iter().map(shown).collect::<Vec<_>>().join("\n"))
    }
}

/// A file or a fleet to decide on.
enum Found {
    Settings,
    /// The commands of a loop.
    Commands,
    Fleet(Fingerprint),
}

impl Found {
    fn trust(self, decisions: &Decisions, path: PathBuf, command_line: &clap::Command) -> Result<Trusted> {
        let (fingerprint, settings) = match self {
            Found::Fleet(owner) => (owner, Vec::new()),
            Found::Commands => {
                let text = trust::text(&path)?;
                (Fingerprint::of_text(&text), settings::listed(&path, &text)?)
            }
            Found::Settings => {
                let text = trust::text(&path)?;
                (Fingerprint::of_text(&text), settings::File::shown(path.clone(), &text, command_line)?)
            }
        };
        decisions.trust(&path, &fingerprint)?;
        let settings = settings.into_iter().map(|(key, value)| Setting { key, value }).collect();
        Ok(Trusted { path: path.display().to_string(), seal: fingerprint.to_string(), settings })
    }
}

/// The named file or directory, or the nearest file above us and the fleet of this repository.
fn found(path: Option<&Path>, here: &Path) -> Result<Vec<(PathBuf, Found)>> {
    if let Some(path) = path.filter(|path| is_loop(path)) {
        return Ok(vec![(trust::normalized(path), Found::Commands)]);
    }
    let (file, fleet) = match path {
        Some(path) => within(path),
        None => (settings::near(here).next(), repository::of_repository(here)),
    };
    let file = file.filter(|file| file.is_file()).map(|file| (trust::normalized(&file), Found::Settings));
    let fleet =
        fleet.and_then(|fleet| trust::other_owner(&fleet)).map(|(path, owner)| (path, Found::Fleet(owner)));
    let found: Vec<_> = file.into_iter().chain(fleet).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let searched = path.map_or("in this directory or above it".into(), |path| {
        format!("at {}", line(&path.display().to_string()))
    });
    Err(Error::new(Code::NotFound, format!("there is no {FILE} {searched}, and no fleet of another user"))
        .hint("nothing needs trust here: your own settings and your own fleet are used as they are"))
}

/// Is this the config of a loop?
fn is_loop(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == LOOP_FILE)
}

/// The file and the fleet that a path names.
fn within(path: &Path) -> (Option<PathBuf>, Option<PathBuf>) {
    let last = trust::normalized(path).file_name().unwrap_or_default().to_owned();
    if last == FILE || last == LOOP_FILE {
        (Some(path.to_owned()), None)
    } else if last == ".fence" {
        (None, Some(path.join(DATABASE)))
    } else {
        (Some(path.join(FILE)), Some(path.join(".fence").join(DATABASE)))
    }
}

fn shown(trusted: &Trusted) -> String {
    let path = line(&trusted.path);
    if trusted.seal.starts_with("user ") {
        return format!("{path} is trusted: a fleet of {}", trusted.seal);
    }
    let settings = trusted.settings.iter().map(|Setting { key, value }| format!("{key} = {}", line(value)));
    let settings = quoted(&settings.collect::<Vec<_>>().join("\n"));
    let settings = if settings.is_empty() { quoted("(it sets nothing)") } else { settings };
    format!("{path} is trusted as it is now:\n{settings}")
}

fn list(decisions: &Decisions, context: &Context) -> Result<ExitCode> {
    let listed = decisions.all().into_iter().map(|(path, fingerprint)| Listed {
        path: path.display().to_string(),
        state: trust::state(&path, &fingerprint).to_owned(),
        seal: fingerprint.to_string(),
    });
    let all: Vec<_> = listed.collect();
    context.print(&all, |all| {
        if all.is_empty() {
            return "nothing is trusted".into();
        }
        let mut table = Table::new(&["PATH", "STATE"]);
        all.iter().for_each(|one| table.row(vec![one.path.as_str().into(), Cell::state(&one.state)]));
        table.render(&context.terminal)
    })
}

/// Revokes trust, also in a file that no longer exists.
fn revoke(decisions: &Decisions, path: Option<&Path>, here: &Path, context: &Context) -> Result<ExitCode> {
    let (files, fleet) = match path {
        Some(path) => {
            let (file, fleet) = within(path);
            (Vec::from_iter(file), fleet)
        }
        None => (here.ancestors().map(|dir| dir.join(FILE)).collect(), repository::of_repository(here)),
    };
    let mut revoked = Vec::new();
    for file in files.iter().map(|file| trust::normalized(file)) {
        if decisions.revoke(&file)? {
            revoked.push(file);
            // Without a path, only the nearest file.
            break;
        }
    }
    if let Some(fleet) = fleet.as_deref().and_then(Path::parent).map(trust::normalized)
        && decisions.revoke(&fleet)?
    {
        revoked.push(fleet);
    }
    if revoked.is_empty() {
        return Err(Error::new(Code::NotFound, "nothing is trusted there")
            .hint("fence trust --list lists what you trust"));
    }
    let all: Vec<_> = revoked.iter().map(|path| Revoked { path: path.display().to_string() }).collect();
    context.print(&all, |all| {
        let lines = all.iter().map(|one| format!("{} is no longer trusted", line(&one.path)));
        lines.collect::<Vec<_>>().join("\n")
    })
}
