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

/// Let the fence.toml of a project count
///
/// A fence.toml says where commands go, and your key goes with them. One that came with a project is therefore not read
/// until you trust it. This shows what it says and trusts it as it is now: once it changes, it is not read until you trust
/// it again. Without a PATH it is about the nearest one in this directory or above it. The file that FENCE_CONFIG names, and
/// fence/fence.toml in your configuration directory, need no trust.
///
/// A fleet in a repository (.fence) that belongs to another user is not used, either, until you trust it.
///
/// Examples:
///   fence trust
///   fence trust ~/work/api
///   fence trust --list
///   fence trust --revoke
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Trust {
    /// A project's directory, or its fence.toml or .fence  [default: what is found from here]
    path: Option<PathBuf>,
    /// List what you trust, and whether it has changed since
    #[arg(long, conflicts_with_all = ["path", "revoke"])]
    list: bool,
    /// Trust it no longer
    #[arg(long)]
    revoke: bool,
}

/// Something that is trusted now.
#[derive(Debug, Serialize, Deserialize)]
struct Trusted {
    path: String,
    /// By what it is known again: a file by its digest, a fleet by its owner.
    seal: String,
    /// What the file says; secrets are left out.
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
    /// `trusted`, `changed` (so it is not used) or `gone`.
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
        let mut trusted = Vec::new();
        for (path, found) in found(self.path.as_deref(), &here)? {
            trusted.push(found.trust(&decisions, path, &context.command_line())?);
        }
        context.print(&trusted, |trusted| trusted.iter().map(shown).collect::<Vec<_>>().join("\n"))
    }
}

/// What there is to decide on.
enum Found {
    Settings,
    Fleet(Fingerprint),
}

impl Found {
    fn trust(self, decisions: &Decisions, path: PathBuf, command_line: &clap::Command) -> Result<Trusted> {
        let (seal, settings) = match self {
            Found::Fleet(seal) => (seal, Vec::new()),
            Found::Settings => {
                let text = trust::text(&path)?;
                (Fingerprint::of_text(&text), settings::File::shown(path.clone(), &text, command_line)?)
            }
        };
        decisions.trust(&path, &seal)?;
        let settings = settings.into_iter().map(|(key, value)| Setting { key, value }).collect();
        Ok(Trusted { path: path.display().to_string(), seal: seal.to_string(), settings })
    }
}

/// A named file or directory, or the nearest file above us and the fleet of this repository.
fn found(path: Option<&Path>, here: &Path) -> Result<Vec<(PathBuf, Found)>> {
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
    let place = path.map_or("in this directory or above it".into(), |path| {
        format!("at {}", line(&path.display().to_string()))
    });
    Err(Error::new(Code::NotFound, format!("there is no {FILE} {place}, and no fleet of another user")).hint(
        "nothing needs trust here: settings of your own, and a fleet of your own, are used as they are",
    ))
}

/// The file and the fleet that a path names.
fn within(path: &Path) -> (Option<PathBuf>, Option<PathBuf>) {
    let last = trust::normalized(path).file_name().unwrap_or_default().to_owned();
    if last == FILE {
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
    let listed = decisions.all().into_iter().map(|(path, seal)| Listed {
        path: path.display().to_string(),
        state: trust::state(&path, &seal).to_owned(),
        seal: seal.to_string(),
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

/// Also what is gone: its path is enough.
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
            // Without a path it is about the nearest.
            break;
        }
    }
    if let Some(fleet) = fleet.as_deref().and_then(Path::parent).map(trust::normalized)
        && decisions.revoke(&fleet)?
    {
        revoked.push(fleet);
    }
    if revoked.is_empty() {
        return Err(
            Error::new(Code::NotFound, "nothing is trusted there").hint("fence trust --list lists what is")
        );
    }
    let all: Vec<_> = revoked.iter().map(|path| Revoked { path: path.display().to_string() }).collect();
    context.print(&all, |all| {
        let lines = all.iter().map(|one| format!("{} is trusted no longer", line(&one.path)));
        lines.collect::<Vec<_>>().join("\n")
    })
}
