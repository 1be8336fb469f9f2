//! Where the fleet lives: what was said, else in the main work tree of this git repository, so that all its work
//! trees share one fleet, else in the user's data directory.

use crate::{settings::Source, trust::small_text};
use fencepost::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The file within a directory that holds a fleet, and within `.fence`.
const FILE: &str = ".fence/fence.db";
pub const DATABASE: &str = "fence.db";

/// Where the fleet is, and why there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// A file path, `sqlite:PATH` or `postgres://…`, or the `http://…` of a server.
    pub url: String,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Said(Source),
    /// The git repository whose main work tree, or git directory if it has none, is this.
    Repository(PathBuf),
    /// No repository here.
    Home,
}

impl Why {
    pub fn describe(&self) -> String {
        match self {
            Why::Said(source) => format!("{source} says so"),
            Why::Repository(_) => "every work tree of this git repository shares it".into(),
            Why::Home => "there is no git repository here, so it is the user's own".into(),
        }
    }
}

impl Place {
    /// The file, if the fleet is one.
    pub fn file(&self) -> Option<&Path> {
        let path = self.url.strip_prefix("sqlite://").or_else(|| self.url.strip_prefix("sqlite:"));
        let path = path.unwrap_or(&self.url);
        (!path.contains("://")).then(|| Path::new(path))
    }

    /// Does a server have it?
    pub fn is_remote(&self) -> bool {
        fencepost_client::is_remote(&self.url)
    }

    /// The variable by which a process that we start finds the same fleet, and the one that would lead it elsewhere.
    pub fn variables(&self) -> (&'static str, &'static str) {
        if self.is_remote() { ("FENCE_URL", "FENCE_DB") } else { ("FENCE_DB", "FENCE_URL") }
    }

    /// The same from every directory, for processes that we start.
    pub fn absolute_url(&self) -> String {
        let absolute = self.file().and_then(|file| std::path::absolute(file).ok());
        absolute.map_or_else(|| self.url.clone(), |file| file.display().to_string())
    }

    /// The file as it is now, if the fleet is one.
    pub fn footing(&self) -> Option<Footing> {
        self.file().map(|_| Footing::of(self.absolute_url().into()))
    }

    pub fn shown(&self) -> String {
        shown(&self.url)
    }
}

/// The file that is a fleet, as it was when whoever relies on it began. One that was put in its place is another fleet,
/// and one that lost its name is none, though who has it open can read and write it as before: others look elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footing {
    path: PathBuf,
    /// `None` if there was no file yet: then nothing that is there later is the one.
    file: Option<(u64, u64)>,
}

impl Footing {
    fn of(path: PathBuf) -> Self {
        Self { file: identity(&path), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it still the same file that has the name?
    pub fn holds(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file
    }
}

/// What tells a file from another that is put in its place: device and inode.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// For people: a password in the address is nobody's business.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (rest, options) = rest.split_once('?').map_or((rest, None), |(rest, all)| (rest, Some(all)));
    let rest = match rest.rsplit_once('@').and_then(|(login, host)| Some((login.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{user}:…@{host}"),
        None => rest.to_owned(),
    };
    let option = |option| if str::starts_with(option, "password=") { "password=…" } else { option };
    let options = options.map(|all| all.split('&').map(option).collect::<Vec<_>>().join("&"));
    format!("{scheme}://{rest}{}", options.map_or(String::new(), |all| format!("?{all}")))
}

/// An address that somebody named, and who.
pub type Named = Option<(String, Source)>;

/// What was said: a flag goes before a variable, and that before a file. Two that were said in the same way are refused:
/// whichever were taken, somebody meant the other.
pub fn find(url: Named, db: Named, here: &Path) -> Result<Place> {
    if let Some((url, source)) = url.as_ref().filter(|(url, _)| !fencepost_client::is_remote(url)) {
        return Err(Error::new(Code::Invalid, format!("`{url}` ({source}) is not the address of a server"))
            .hint("it is like https://fence.example.com; --db or FENCE_DB names a database"));
    }
    let rank = |source: &Source| match source {
        Source::Flag(_) => 0,
        Source::Variable(_) => 1,
        Source::File(_) | Source::Default => 2,
    };
    if let (Some((url, by)), Some((db, other))) = (&url, &db)
        && rank(by) == rank(other)
    {
        let (url, db) = (shown(url), shown(db));
        let message =
            format!("two fleets are named: the server {url} ({by}), and the database {db} ({other})");
        return Err(Error::new(Code::Invalid, message)
            .with("url", url)
            .with("db", db)
            .hint("unset one of the two; --url or --db decides for one command"));
    }
    let said = url.into_iter().chain(db).min_by_key(|(_, source)| rank(source));
    let said = said.map(|(url, source)| Place { url: from_file(url, &source), why: Why::Said(source) });
    if let Some(said) = said {
        return Ok(said);
    }
    let (file, why) = match (main_work_tree(here), home()) {
        (Some(root), _) => {
            let file = unlinked(root.join(FILE))?;
            crate::trust::fleet(&file)?;
            (file, Why::Repository(root))
        }
        (None, Some(home)) => (home.join(DATABASE), Why::Home),
        (None, None) => {
            return Err(Error::new(
                Code::NotFound,
                "there is no git repository here and no home directory to keep a fleet in",
            )
            .hint("--db or FENCE_DB names a fleet"));
        }
    };
    // An address is text. Another path that looks the same would be another place.
    match file.to_str() {
        Some(url) => Ok(Place { url: url.into(), why }),
        None => Err(Error::new(Code::Invalid, format!("the path `{}` is not UTF-8", file.display()))
            .hint("--db or FENCE_DB names a fleet elsewhere")),
    }
}

/// A link can be part of a repository that was cloned, and lead to any file of ours.
fn unlinked(file: PathBuf) -> Result<PathBuf> {
    let hint = "it may have come with the repository; if it is yours, name the file with --db or FENCE_DB";
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

/// What a file says of files is said of those beside it.
fn from_file(url: String, source: &Source) -> String {
    let place = Place { url, why: Why::Home };
    match (source, place.file(), source_directory(source)) {
        (Source::File(_), Some(file), Some(directory)) => directory.join(file).display().to_string(),
        _ => place.url,
    }
}

fn source_directory(source: &Source) -> Option<&Path> {
    match source {
        Source::File(path) => path.parent(),
        _ => None,
    }
}

/// Where the user's own settings are.
pub fn config_home() -> Option<PathBuf> {
    set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))
}

/// Where the user's decisions are.
pub fn state_home() -> Option<PathBuf> {
    set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))
}

/// The fleet of the repository around us, whether it is there or not.
pub fn of_repository(here: &Path) -> Option<PathBuf> {
    main_work_tree(here).map(|root| root.join(FILE))
}

/// A `.git` above us that leads nowhere: the work tree of a repository that is elsewhere, or not mounted here.
pub fn broken_link(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists())?;
    main_work_tree(here).is_none().then(|| top.join(".git"))
}

/// A database in a linked work tree that nobody looks at: left by a copy, or by an older habit.
pub fn stray(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists())?;
    let stray = top.join(FILE);
    (main_work_tree(here)? != top && stray.exists()).then_some(stray)
}

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The user's own directory for what fence keeps.
pub fn home() -> Option<PathBuf> {
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    Some(data.join("fence"))
}

/// The directory that all work trees of the repository around `here` agree on.
fn main_work_tree(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists() || is_git_directory(dir))?;
    if top.join(".git").is_dir() || is_git_directory(top) {
        return Some(top.to_owned());
    }
    let common = common_directory(top)?;
    if common.file_name().is_some_and(|name| name == ".git") {
        return common.parent().map(Path::to_owned);
    }
    // A submodule's git directory says where its work tree is. Otherwise the repository is bare, or kept apart
    // from its work tree, and only the git directory is the same from everywhere.
    let config = small_text(&common.join("config")).unwrap_or_default();
    let work_tree = config.lines().find_map(|line| {
        line.trim()
            .strip_prefix("worktree")?
            .trim_start()
            .strip_prefix('=')
            .map(|path| path.trim().to_owned())
    });
    work_tree.and_then(|path| fs::canonicalize(common.join(path)).ok()).or(Some(common))
}

/// The git directory that all work trees of a repository share.
fn common_directory(top: &Path) -> Option<PathBuf> {
    let dot_git = top.join(".git");
    if dot_git.is_dir() {
        return Some(dot_git);
    }
    // A linked work tree, a submodule, or a repository whose git directory is elsewhere.
    let link = small_text(&dot_git).ok()?;
    let own = fs::canonicalize(top.join(link.trim().strip_prefix("gitdir:")?.trim())).ok()?;
    match small_text(&own.join("commondir")) {
        Ok(common) => fs::canonicalize(own.join(common.trim())).ok(),
        Err(_) => Some(own),
    }
}

/// The work tree that a directory is in, and the file that lists what its repository leaves out without saying so to others.
/// Files are read for it, and git is not asked: it runs commands that a repository's configuration names.
pub fn exclude_list(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let top = directory.ancestors().find(|dir| dir.join(".git").exists() || is_git_directory(dir))?;
    let common = common_directory(top).filter(|common| common.join("HEAD").is_file())?;
    Some((top.to_owned(), common.join("info/exclude")))
}

/// A bare repository, as its hooks see it. (The git directory of a work tree is found by the `.git` beside it.)
fn is_git_directory(dir: &Path) -> bool {
    dir.file_name().is_none_or(|name| name != ".git")
        && dir.join("HEAD").is_file()
        && dir.join("objects").is_dir()
        && dir.join("refs").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn git(dir: &Path, words: &str) {
        let output = Command::new("git")
            .current_dir(dir)
            .args(["-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always"])
            .args(words.split(' '))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .expect("git");
        assert!(output.status.success(), "git {words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn every_work_tree_of_a_repository_agrees() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let at = |path: &str| {
            main_work_tree(&root.join(path)).map(|path| path.strip_prefix(&root).unwrap().to_owned())
        };
        fs::create_dir_all(root.join("main/deep")).unwrap();
        git(&root.join("main"), "init -q");
        git(&root.join("main"), "commit -q --allow-empty -m one");
        git(&root.join("main"), "worktree add -q ../linked");
        fs::create_dir(root.join("linked/deep")).unwrap();
        for path in ["main", "main/deep", "linked", "linked/deep"] {
            assert_eq!(at(path), Some("main".into()), "{path}");
        }
        git(&root, "clone -q --bare main bare.git");
        git(&root.join("bare.git"), "worktree add -q ../from-bare");
        assert_eq!(at("from-bare"), Some("bare.git".into()));
        assert_eq!(at("bare.git/hooks"), Some("bare.git".into()));
        assert_eq!(at("main/.git/hooks"), Some("main".into()));
        git(&root, "init -q --separate-git-dir apart.git work");
        git(&root.join("work"), "commit -q --allow-empty -m one");
        git(&root.join("work"), "worktree add -q ../from-apart");
        assert_eq!(at("work"), Some("apart.git".into()));
        assert_eq!(at("from-apart"), Some("apart.git".into()));
        git(&root.join("main"), "submodule add -q ../work sub");
        git(&root.join("main/sub"), "worktree add -q ../../from-sub");
        assert_eq!(at("main/sub"), Some("main/sub".into()));
        assert_eq!(at("from-sub"), Some("main/sub".into()));
        assert_eq!(main_work_tree(&root), None);
        fs::create_dir(root.join("moved")).unwrap();
        fs::write(root.join("moved/.git"), "gitdir: /nowhere/worktrees/moved\n").unwrap();
        assert_eq!(broken_link(&root.join("moved")), Some(root.join("moved/.git")));
        assert_eq!(broken_link(&root.join("linked")), None);
        assert_eq!(broken_link(&root), None);

        assert_eq!(stray(&root.join("linked/deep")), None);
        for path in ["main/.fence", "linked/.fence"] {
            fs::create_dir(root.join(path)).unwrap();
            fs::write(root.join(path).join("fence.db"), "").unwrap();
        }
        assert_eq!(stray(&root.join("linked/deep")), Some(root.join("linked/.fence/fence.db")));
        assert_eq!(stray(&root.join("main/deep")), None);
    }

    #[test]
    fn links_that_a_repository_may_have_brought_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join("repo/.git")).unwrap();
        fs::create_dir(root.join("mine")).unwrap();
        let here = root.join("repo");
        let found = || find(None, None, &here).map(|place| place.url);
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
            (main_work_tree(&here), broken_link(&here)),
            (None, Some(here.join(".git"))),
            "nobody waits"
        );
    }

    #[test]
    fn another_file_under_the_name_is_another_fleet() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fence.db");
        let place = Place { url: file.display().to_string(), why: Why::Home };
        let none = place.footing().unwrap();
        fs::write(&file, "one").unwrap();
        assert!(!none.holds(), "there was none");
        let footing = place.footing().unwrap();
        assert!(footing.holds());
        // Still there under another name, so that its inode cannot be the next one's.
        fs::rename(&file, dir.path().join("old")).unwrap();
        assert!(!footing.holds(), "it lost its name");
        fs::write(&file, "one").unwrap();
        assert!(!footing.holds(), "it is another");
        assert_eq!(Place { url: "postgres://h/db".into(), why: Why::Home }.footing(), None);
    }

    #[test]
    fn what_was_said_goes_first_and_passwords_are_not_shown() {
        let here = Path::new("/");
        let flag = |url: &str, name: &str| Some((url.to_owned(), Source::Flag(name.into())));
        let variable = |url: &str, name: &str| Some((url.to_owned(), Source::Variable(name.into())));
        let file = |url: &str| Some((url.to_owned(), Source::File("/etc/fence.toml".into())));
        let at = |url: Named, db: Named| find(url, db, here).expect("a place");
        let (server, database) = ("http://host", "postgres://kim:secret@host/db?x=1");
        assert_eq!(at(variable(server, "FENCE_URL"), flag("a", "db")).url, "a");
        assert_eq!(at(flag(server, "url"), variable("b", "FENCE_DB")).url, server);
        assert_eq!(at(file(server), variable("b", "FENCE_DB")).why.describe(), "FENCE_DB says so");
        assert_eq!(at(variable(server, "FENCE_URL"), file("b")).why.describe(), "FENCE_URL says so");
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
        assert_eq!(at(None, flag("sqlite:x.db", "db")).file(), Some(Path::new("x.db")));
        assert_eq!(at(flag(server, "url"), None).variables(), ("FENCE_URL", "FENCE_DB"));
    }
}
