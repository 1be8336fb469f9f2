//! Where the fleet is: at the address that the user named, else in the main work tree of this git repository, so that all its
//! work trees share one fleet, else in the user's data directory.

pub mod permissions;
pub mod repository;

use crate::{
    environment::{DATABASE, data_home},
    settings::{Source, without_password},
    trust,
};
use fencepost::{Code, Error, Result, address};
use repository::main_work_tree;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The database of a repository's fleet.
const FILE: &str = ".fence/fence.db";

/// Where the fleet is, and why there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// A file path, `sqlite:PATH`, `postgres://…`, or the `http://…` of a server.
    pub url: String,
    pub reason: Reason,
}

/// Why the fleet is at its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A flag, a variable or a file names it.
    Named(Source),
    /// The git repository with this main work tree, or with this git directory if it has no work tree.
    Repository(PathBuf),
    /// There is no repository here.
    Home,
}

impl Reason {
    pub fn describe(&self) -> String {
        match self {
            Reason::Named(source) => format!("{source} names it"),
            Reason::Repository(_) => "every work tree of this git repository shares it".into(),
            Reason::Home => "there is no git repository here, so it is in your data directory".into(),
        }
    }
}

impl Location {
    /// The database file, if the fleet has one.
    pub fn file(&self) -> Option<&Path> {
        let path = self.url.strip_prefix("sqlite://").or_else(|| self.url.strip_prefix("sqlite:"));
        let path = path.unwrap_or(&self.url);
        (!path.contains("://")).then(|| Path::new(path))
    }

    /// Is there a fleet? One that somebody named counts, also if it cannot be reached.
    pub fn is_there(&self) -> bool {
        matches!(self.reason, Reason::Named(_))
            || self.file().is_none_or(|file| file.try_exists().unwrap_or(true))
    }

    /// Is the fleet behind a server?
    pub fn is_remote(&self) -> bool {
        fencepost_client::is_remote(&self.url)
    }

    /// The variable that names the same fleet to a process that we start, and the one that could name another.
    pub fn variables(&self) -> (&'static str, &'static str) {
        if self.is_remote() { ("FENCE_URL", "FENCE_DB") } else { ("FENCE_DB", "FENCE_URL") }
    }

    /// The address in a form that works from every directory, for processes that we start.
    pub fn absolute_url(&self) -> String {
        let absolute = self.file().and_then(|file| {
            // One fleet has one address, also if a link or `..` leads to it.
            let directory = file.parent().and_then(|directory| directory.canonicalize().ok());
            let canonical = directory.zip(file.file_name()).map(|(directory, name)| directory.join(name));
            canonical.or_else(|| std::path::absolute(file).ok())
        });
        absolute.map_or_else(|| self.url.clone(), |file| file.display().to_string())
    }

    /// The database file as it is now, if the fleet has one.
    pub fn database_file(&self) -> Option<DatabaseFile> {
        self.file().map(|_| DatabaseFile::of(self.absolute_url().into()))
    }

    /// The address for people, without a password.
    pub fn shown(&self) -> String {
        without_password(&self.url)
    }
}

/// The database file that a process opened. A file that replaced it is another fleet. A file that lost its name is no fleet
/// any more: the process can still read and write it, but nobody else finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseFile {
    path: PathBuf,
    /// Device and inode; `None` if there was no file yet, and then no later file is the same.
    file: Option<(u64, u64)>,
}

impl DatabaseFile {
    fn of(path: PathBuf) -> Self {
        Self { file: device_and_inode(&path), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does the same file still have the name?
    pub fn is_in_place(&self) -> bool {
        self.file.is_some() && device_and_inode(&self.path) == self.file
    }
}

/// Tells a file from another one that replaces it.
pub fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// An address, and where it was named.
pub type NamedUrl = Option<(String, Source)>;

/// Finds the fleet. A flag comes before a variable, and a variable before a file. A server and a database that are named in
/// the same way are refused: either choice could be the wrong one.
pub fn find(url: NamedUrl, db: NamedUrl, here: &Path) -> Result<Location> {
    if let Some((url, source)) = url.as_ref().filter(|(url, _)| !fencepost_client::is_remote(url)) {
        let message = format!("`{}` ({source}) is not the address of a server", without_password(url));
        return Err(Error::new(Code::Invalid, message)
            .hint("an address is like https://fence.example.com; --db or FENCE_DB names a database"));
    }
    let rank = |source: &Source| match source {
        Source::Flag(_) => 0,
        Source::Variable(_) => 1,
        Source::File(_) | Source::Default => 2,
    };
    if let (Some((url, by)), Some((db, other))) = (&url, &db)
        && rank(by) == rank(other)
    {
        let (url, db) = (without_password(url), without_password(db));
        let message =
            format!("two fleets are named: the server {url} ({by}), and the database {db} ({other})");
        return Err(Error::new(Code::Invalid, message)
            .with("url", url)
            .with("db", db)
            .hint("unset one of the two; --url or --db decides for one command"));
    }
    if let Some((url, source)) = url.into_iter().chain(db).min_by_key(|(_, source)| rank(source)) {
        return Ok(Location { url: relative_to_source(url, &source)?, reason: Reason::Named(source) });
    }
    let (file, reason) = match (main_work_tree(here), data_home()) {
        (Some(root), _) => {
            let file = unlinked(root.join(FILE))?;
            trust::fleet(&file)?;
            (file, Reason::Repository(root))
        }
        (None, Some(home)) => (home.join(DATABASE), Reason::Home),
        (None, None) => {
            return Err(Error::new(
                Code::NotFound,
                "there is no git repository here and no home directory to keep a fleet in",
            )
            .hint("--db or FENCE_DB names a fleet"));
        }
    };
    // An address is text. A lossy conversion could name another file.
    match file.to_str() {
        Some(url) => Ok(Location { url: url.into(), reason }),
        None => Err(Error::new(Code::Invalid, format!("the path `{}` is not UTF-8", file.display()))
            .hint("--db or FENCE_DB names a fleet elsewhere")),
    }
}

/// A cloned repository can contain a link that leads to any file of the user.
fn unlinked(file: PathBuf) -> Result<PathBuf> {
    let hint =
        "the link may have come with the repository; if it is yours, name the file with --db or FENCE_DB";
    file.ancestors().take(2).try_for_each(refuse_link).map_err(|e| e.hint(hint))?;
    Ok(file)
}

pub fn refuse_link(path: &Path) -> Result<()> {
    if !path.is_symlink() {
        return Ok(());
    }
    let message = format!("`{}` is a symbolic link, which is not followed", path.display());
    Err(Error::new(Code::Invalid, message))
}

/// A path in a settings file is relative to the directory of that file.
fn relative_to_source(url: String, source: &Source) -> Result<String> {
    let location = Location { url, reason: Reason::Home };
    let directory = match source {
        Source::File(path) => path.parent(),
        _ => None,
    };
    // Before its name is shown, or becomes the name of a directory.
    location.file().and_then(Path::to_str).map_or(Ok(()), address::check_path)?;
    Ok(match (location.file(), directory) {
        (Some(file), Some(directory)) => directory.join(file).display().to_string(),
        _ => location.url,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_links_in_a_repository_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join("repo/.git")).unwrap();
        fs::create_dir(root.join("mine")).unwrap();
        let here = root.join("repo");
        let found = || find(None, None, &here).map(|location| location.url);
        let file = here.join(FILE).display().to_string();
        assert_eq!(found().unwrap(), file);
        std::os::unix::fs::symlink("../mine", here.join(".fence")).unwrap();
        let refused = found().unwrap_err();
        assert!(
            refused.message().ends_with(".fence` is a symbolic link, which is not followed"),
            "{refused}"
        );
        fs::remove_file(here.join(".fence")).unwrap();
        fs::create_dir(here.join(".fence")).unwrap();
        for target in ["../../mine/fence.db", "nowhere"] {
            std::os::unix::fs::symlink(target, here.join(FILE)).unwrap();
            assert_eq!(found().unwrap_err().code(), Code::Invalid, "{target}");
            fs::remove_file(here.join(FILE)).unwrap();
        }
        assert_eq!(found().unwrap(), file);

        fs::remove_dir(here.join(".git")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, here.join(".git"), rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(
            (main_work_tree(&here), repository::broken_link(&here)),
            (None, Some(here.join(".git"))),
            "a pipe does not block"
        );
    }

    #[test]
    fn another_file_under_the_same_name_is_another_fleet() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fence.db");
        let location = Location { url: file.display().to_string(), reason: Reason::Home };
        let none = location.database_file().unwrap();
        fs::write(&file, "one").unwrap();
        assert!(!none.is_in_place(), "there was none");
        let first = location.database_file().unwrap();
        assert!(first.is_in_place());
        // Still there under another name, so that its inode cannot be the next one's.
        fs::rename(&file, dir.path().join("old")).unwrap();
        assert!(!first.is_in_place(), "it lost its name");
        fs::write(&file, "one").unwrap();
        assert!(!first.is_in_place(), "it is another");
        let postgres = Location { url: "postgres://h/db".into(), reason: Reason::Home };
        assert_eq!(postgres.database_file(), None);
    }

    #[test]
    fn a_named_fleet_comes_first_and_passwords_are_not_shown() {
        let here = Path::new("/");
        let flag = |url: &str, name: &str| Some((url.to_owned(), Source::Flag(name.into())));
        let variable = |url: &str, name: &str| Some((url.to_owned(), Source::Variable(name.into())));
        let file = |url: &str| Some((url.to_owned(), Source::File("/etc/fence.toml".into())));
        let at = |url: NamedUrl, db: NamedUrl| find(url, db, here).expect("a location");
        let (server, database) = ("http://host", "postgres://kim:secret@host/db?x=1");
        assert_eq!(at(variable(server, "FENCE_URL"), flag("a", "db")).url, "a");
        assert_eq!(at(flag(server, "url"), variable("b", "FENCE_DB")).url, server);
        assert_eq!(at(file(server), variable("b", "FENCE_DB")).reason.describe(), "FENCE_DB names it");
        assert_eq!(at(variable(server, "FENCE_URL"), file("b")).reason.describe(), "FENCE_URL names it");
        for (url, db) in
            [(variable(server, "FENCE_URL"), variable(database, "FENCE_DB")), (file(server), file(database))]
        {
            let both = [&url, &db].map(|named| named.as_ref().expect("named").1.to_string());
            let error = find(url, db, here).expect_err("which?");
            assert_eq!(error.code(), Code::Invalid);
            assert!(both.iter().all(|source| error.message().contains(source)), "{error}");
            assert!(!error.to_json().to_string().contains("secret"), "{error:?}");
        }
        assert_eq!(at(None, file("b/fence.db")).url, "/etc/b/fence.db");
        assert_eq!(at(None, file(database)).url, database);
        assert_eq!(find(flag("a.db", "url"), None, here).expect_err("no server").code(), Code::Invalid);

        let postgres = at(None, variable(database, "FENCE_DB"));
        assert_eq!(postgres.shown(), "postgres://kim:…@host/db?x=1");
        assert_eq!((postgres.file(), postgres.is_remote()), (None, false));
        let shown = at(None, flag("postgres://h/db?user=kim&password=x@y&sslmode=disable", "db")).shown();
        assert_eq!(shown, "postgres://h/db?user=kim&password=…&sslmode=disable");
        let refused =
            |url: NamedUrl, db: NamedUrl| find(url, db, here).expect_err("no URL").to_json().to_string();
        for pairs in ["host=h user=kim password=secret", "sqlite:password = 'secret'", "x password='secret"] {
            assert!(!refused(None, variable(pairs, "FENCE_DB")).contains("secret"), "{pairs}");
            assert!(!refused(variable(pairs, "FENCE_URL"), None).contains("secret"), "{pairs}");
            assert!(!refused(None, file(pairs)).contains("secret"), "{pairs}");
        }
        assert!(!refused(variable(database, "FENCE_URL"), None).contains("secret"));
        assert_eq!(at(None, flag("sqlite:x.db", "db")).file(), Some(Path::new("x.db")));
        assert_eq!(at(flag(server, "url"), None).variables(), ("FENCE_URL", "FENCE_DB"));
    }
}
