//! The git repository around us, and the directory that all its work trees share.

use super::FILE;
use crate::trust::small_text;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file that the fleet of this repository has, or would have.
pub fn of_repository(here: &Path) -> Option<PathBuf> {
    main_work_tree(here).map(|root| root.join(FILE))
}

/// A `.git` file above us whose git directory does not exist: the repository was moved, or is not mounted here.
pub fn broken_link(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists())?;
    main_work_tree(here).is_none().then(|| top.join(".git"))
}

/// A database in a linked work tree. Nobody uses it, because all work trees share the one of the main work tree.
pub fn unused_database(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists())?;
    let unused = top.join(FILE);
    (main_work_tree(here)? != top && unused.exists()).then_some(unused)
}

/// The directory that is the same for all work trees of the repository around `here`: the main work tree, or else the git
/// directory.
pub fn main_work_tree(here: &Path) -> Option<PathBuf> {
    let top = here.ancestors().find(|dir| dir.join(".git").exists() || is_git_directory(dir))?;
    if top.join(".git").is_dir() || is_git_directory(top) {
        return Some(top.to_owned());
    }
    let common = common_directory(top)?;
    if common.file_name().is_some_and(|name| name == ".git") {
        return common.parent().map(Path::to_owned);
    }
    // A submodule's git directory names its work tree. Otherwise the repository is bare, or its git directory is apart from
    // its work tree, and only the git directory is the same from everywhere.
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

/// The work tree that a directory is in, and the file in which its repository lists ignored files without committing the list.
/// This reads git's files and does not call git: git would run commands that the repository's configuration names.
pub fn exclude_list(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let top = directory.ancestors().find(|dir| dir.join(".git").exists() || is_git_directory(dir))?;
    let common = common_directory(top).filter(|common| common.join("HEAD").is_file())?;
    Some((top.to_owned(), common.join("info/exclude")))
}

/// Is this the directory of a bare repository? (A work tree's git directory is found by the `.git` beside it.)
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
    fn all_work_trees_of_a_repository_share_one_directory() {
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

        assert_eq!(unused_database(&root.join("linked/deep")), None);
        for path in ["main/.fence", "linked/.fence"] {
            fs::create_dir(root.join(path)).unwrap();
            fs::write(root.join(path).join("fence.db"), "").unwrap();
        }
        assert_eq!(unused_database(&root.join("linked/deep")), Some(root.join("linked/.fence/fence.db")));
        assert_eq!(unused_database(&root.join("main/deep")), None);
    }
}
