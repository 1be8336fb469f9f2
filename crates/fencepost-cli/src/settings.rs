//! Settings and their sources: flags, then `FENCE_*` variables, then `fence.toml`. A project's `fence.toml` is read only if the
//! user trusts it (`trust.rs`).
//!
//! Every setting is an argument of the command line, and in the file it has the argument's long name. Arguments of all commands
//! stand at the top. Arguments of one command stand in a table with its name, if a variable can give them, too.

use crate::{
    environment::{config_home, text_variable},
    trust::{self, ProjectFile, Untrusted, small_text},
};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, parser::ValueSource};
pub use fencepost::address::without_password;
use fencepost::{Code, Error, Result};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The name of the file, and the variable that names another file.
pub const FILE: &str = "fence.toml";
const VARIABLE: &str = "FENCE_CONFIG";

/// `fence.toml`: values by key, such as `url` or `serve.listen`.
#[derive(Debug, Clone, Default)]
pub struct File {
    path: PathBuf,
    values: BTreeMap<String, Vec<String>>,
    /// Files that are nearer, and were not read.
    pub untrusted: Vec<Untrusted>,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Flag(String),
    Variable(String),
    File(PathBuf),
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Flag(name) => write!(f, "--{name}"),
            Source::Variable(name) => f.write_str(name),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A setting with its value.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its key in the file: `url`, `serve.listen`.
    pub key: String,
    pub value: Option<String>,
    pub source: Source,
}

/// An argument that a variable or the file can set, with its key and its variable.
struct Known<'c> {
    key: String,
    arg: &'c Arg,
    variable: String,
}

/// Arguments of all commands. Their variables are read here and not by clap, which would take them for words of the command
/// line and show them in every usage.
const COMMON: [&str; 5] = ["url", "db", "key", "ca", "agent"];

impl File {
    /// The file that `FENCE_CONFIG` names, else the nearest one at or above this directory that the user trusts, else the
    /// user's own.
    pub fn load(command: &Command) -> Result<Self> {
        if let Some(named) = text_variable(VARIABLE)?.map(PathBuf::from) {
            return Self::read(named, command);
        }
        let own = users_file();
        let mut untrusted = Vec::new();
        for path in near(&std::env::current_dir().unwrap_or_default()) {
            if own.as_ref() == Some(&path) {
                break;
            }
            match trust::read(&path)? {
                ProjectFile::Trusted(text) => {
                    return Ok(Self { untrusted, ..Self::parse(path, &text, command)? });
                }
                ProjectFile::Untrusted(found) => untrusted.push(found),
            }
        }
        let file = own.map_or(Ok(Self::default()), |own| Self::read(own, command))?;
        Ok(Self { untrusted, ..file })
    }

    /// The file, if it has this setting, whether it is in force or not.
    pub fn with(&self, key: &str) -> Option<&Path> {
        self.values.contains_key(key).then_some(&self.path)
    }

    fn read(path: PathBuf, command: &Command) -> Result<Self> {
        let text = small_text(&path).map_err(|e| wrong(&path, format!("it cannot be read: {e}")))?;
        Self::parse(path, &text, command)
    }

    /// The settings of a file, for people.
    pub fn shown(path: PathBuf, text: &str, command: &Command) -> Result<Vec<(String, String)>> {
        let values = Self::parse(path, text, command)?.values;
        Ok(values.iter().map(|(key, values)| (key.clone(), shown(key, &values.join(", ")))).collect())
    }

    fn parse(path: PathBuf, text: &str, command: &Command) -> Result<Self> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = 1 + e.span().map_or(0, |span| text[..span.start].matches('\n').count());
            wrong(&path, format!("line {line}: {}", e.message()))
        })?;
        let known = known(command);
        let mut values = BTreeMap::new();
        for (key, value) in flat(table) {
            let Some(setting) = known.iter().find(|known| known.key == key) else {
                let known: Vec<_> = known.iter().map(|known| known.key.as_str()).collect();
                return Err(wrong(&path, format!("there is no setting `{key}`"))
                    .with("field", &key)
                    .hint(format!("the settings are {}", known.join(", "))));
            };
            let mut text = plain(&value).ok_or_else(|| {
                let kinds = "a text, a number, true or false, or a list of such";
                wrong(&path, format!("`{key}` is not {kinds}")).with("field", &key)
            })?;
            // A path is relative to the directory of the file, wherever the command runs.
            if setting.arg.get_value_hint() == ValueHint::AnyPath {
                text.iter_mut().for_each(|text| *text = beside(&path, text));
            }
            values.insert(key, text);
        }
        Ok(Self { path, values, untrusted: Vec::new() })
    }

    /// The settings of the file for this command, as words of the command line. Settings that a flag or a variable gives are
    /// left out.
    fn words(&self, command: &Command, matches: &ArgMatches) -> Vec<OsString> {
        let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
        let is_unset = |arg: &Arg| {
            let source = matches.value_source(arg.get_id().as_str());
            !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        let known = known(command).into_iter().filter(|known| known.key.starts_with(&format!("{name}.")));
        let from_file = known.filter(|known| is_unset(known.arg));
        from_file
            .flat_map(|known| {
                let long = known.arg.get_long().unwrap_or_default();
                let values = self.values.get(&known.key).into_iter().flatten();
                values.filter_map(move |value| match known.arg.get_action() {
                    ArgAction::SetTrue => (value == "true").then(|| format!("--{long}").into()),
                    _ => Some(format!("--{long}={value}").into()),
                })
            })
            .collect()
    }
}

/// A value for people. Secrets are not shown: somebody may look over the user's shoulder.
pub fn shown(key: &str, value: &str) -> String {
    match key {
        "key" => "…".to_owned(),
        key if key.ends_with("-secret") => "…".to_owned(),
        "db" | "url" => without_password(value),
        _ => value.to_owned(),
    }
}

/// The files in this directory and above it, nearest first.
pub fn near(here: &Path) -> impl Iterator<Item = PathBuf> {
    here.ancestors().map(|dir| dir.join(FILE)).filter(|path| path.is_file())
}

/// The file in the user's configuration directory, if it exists.
fn users_file() -> Option<PathBuf> {
    let own = trust::normalized(&config_home()?.join("fence").join(FILE));
    own.is_file().then_some(own)
}

/// The command line with the settings of the file added, the settings of all commands, and the file.
pub fn read(
    command: &Command,
    words: Vec<OsString>,
    reads_file: bool,
) -> Result<(ArgMatches, Vec<Setting>, File)> {
    let file = match reads_file {
        true => File::load(command)?,
        false => File::default(),
    };
    let matches = parse(command, words, &file)?;
    let common = known(command).into_iter().filter(|known| !known.key.contains('.'));
    let settings = in_force(common, &matches, &file)?;
    Ok((matches, settings, file))
}

fn parse(command: &Command, words: Vec<OsString>, file: &File) -> Result<ArgMatches> {
    let matches = command.clone().get_matches_from(words.clone());
    let more = file.words(command, &matches);
    if more.is_empty() {
        return Ok(matches);
    }
    // Words after `--` are not ours.
    let ours = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let words = words[..ours].iter().cloned().chain(more).chain(words[ours..].iter().cloned());
    command.clone().try_get_matches_from(words).map_err(|e| {
        let message = e.to_string();
        wrong(&file.path, message.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })
}

/// The settings of each command that has its own, as they would be in force.
pub fn by_command(command: &Command, file: &File) -> Result<Vec<Setting>> {
    let mut all = Vec::new();
    for sub in command.get_subcommands() {
        let prefix = format!("{}.", sub.get_name());
        let known = || known(command).into_iter().filter(|known| known.key.starts_with(&prefix));
        if known().next().is_none() {
            continue;
        }
        let words = vec![command.get_name().into(), sub.get_name().into()];
        let before = command.clone().try_get_matches_from(words.clone()).map_err(Error::internal)?;
        let filled = parse(command, words, file)?;
        let (Some((_, before)), Some((_, filled))) = (before.subcommand(), filled.subcommand()) else {
            continue;
        };
        let values = in_force(known(), filled, &File::default())?;
        all.extend(values.into_iter().map(|setting| {
            // To clap, a setting that the file added is a flag.
            let arg = known().find(|known| known.key == setting.key);
            let source = arg.and_then(|known| before.value_source(known.arg.get_id().as_str()));
            match (source, &setting.source) {
                (Some(ValueSource::EnvVariable), _) | (_, Source::Default) => setting,
                _ => Setting { source: Source::File(file.path.clone()), ..setting },
            }
        }));
    }
    Ok(all)
}

fn in_force<'c>(
    known: impl Iterator<Item = Known<'c>>,
    matches: &ArgMatches,
    file: &File,
) -> Result<Vec<Setting>> {
    let setting = |Known { key, arg, variable }: Known<'_>| {
        let id = arg.get_id().as_str();
        let given =
            matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
        let given = Some(given.collect::<Vec<_>>().join(", ")).filter(|value| !value.is_empty());
        let is_flag = matches.value_source(id) == Some(ValueSource::CommandLine);
        let filed = file.values.get(&key).map(|values| values.join(", "));
        let sources = [
            (given.clone().filter(|_| is_flag), Source::Flag(id.to_owned())),
            // An empty variable counts as not set.
            (text_variable(&variable)?, Source::Variable(variable)),
            (filed, Source::File(file.path.clone())),
            (given, Source::Default),
        ];
        let found = sources.into_iter().find(|(value, _)| value.is_some());
        let (value, source) = found.unwrap_or((None, Source::Default));
        Ok(Setting { key, value, source })
    };
    known.map(setting).collect()
}

/// Every argument that a variable or the file can set.
fn known(command: &Command) -> Vec<Known<'_>> {
    let common = COMMON.into_iter().filter_map(|key| {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key))?;
        Some(Known { key: key.into(), arg, variable: format!("FENCE_{}", key.to_uppercase()) })
    });
    let of_one_command = command.get_subcommands().flat_map(|sub| {
        sub.get_arguments().filter_map(|arg| {
            let variable = arg.get_env()?.to_string_lossy().into_owned();
            Some(Known { key: format!("{}.{}", sub.get_name(), arg.get_long()?), arg, variable })
        })
    });
    common.chain(of_one_command).collect()
}

/// `serve.listen` for `listen` in the table `serve`.
/// All values of a file with other settings than ours, for people: `step.implement` and its command.
pub fn listed(path: &Path, text: &str) -> Result<Vec<(String, String)>> {
    fn list(at: &str, table: toml::Table, found: &mut Vec<(String, String)>) {
        for (key, value) in table {
            let key = if at.is_empty() { key } else { format!("{at}.{key}") };
            match value {
                toml::Value::Table(inner) => list(&key, inner, found),
                value => {
                    found.push((key, plain(&value).map_or("(not a text)".into(), |values| values.join(", "))))
                }
            }
        }
    }
    let table = text.parse().map_err(|e: toml::de::Error| wrong(path, e.message()))?;
    let mut found = Vec::new();
    list("", table, &mut found);
    Ok(found)
}

fn flat(table: toml::Table) -> Vec<(String, toml::Value)> {
    let entries = table.into_iter().flat_map(|(key, value)| match value {
        toml::Value::Table(inner) => {
            inner.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)).collect()
        }
        value => vec![(key, value)],
    });
    entries.collect()
}

fn plain(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Some(vec![truth.to_string()]),
        toml::Value::Array(values) => Some(values.iter().map(plain).collect::<Option<Vec<_>>>()?.concat()),
        _ => None,
    }
}

fn beside(path: &Path, file: &str) -> String {
    path.parent().unwrap_or(path).join(file).display().to_string()
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(Code::Invalid, format!("{}: {what}", path.display()))
}
