//! A repository for the tests: `main/` with one commit, and trees in their default place.

use super::{Attempt, Created, Plan, Repository, Tree, git::prepare};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

pub struct Sample {
    pub main: PathBuf,
    _directory: TempDir,
}

impl Sample {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let main = fs::canonicalize(directory.path()).unwrap().join("main");
        fs::create_dir(&main).unwrap();
        git(&main, "init -q -b main");
        git(&main, "config user.name Kim");
        git(&main, "config user.email kim@example.com");
        let sample = Self { main, _directory: directory };
        sample.write("a.txt", "one\n");
        sample.write(".gitignore", ".env\n");
        git(&sample.main, "add .");
        git(&sample.main, "commit -q -m one");
        sample
    }

    /// Beside the repository.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.main.with_file_name(name)
    }

    pub fn write(&self, file: &str, text: &str) {
        write(&self.main, file, text);
    }

    pub fn hook(&self, name: &str, script: &str) {
        program(&self.main.join(".git/hooks").join(name), script);
    }

    pub async fn repository(&self) -> Repository {
        Repository::find(&self.main, None).await.unwrap()
    }

    /// The branches of the repository, and its work trees besides the main one. Fails if the directory of trees has anything else.
    pub fn state(&self) -> (Vec<String>, Vec<String>) {
        let branches = lines(&git(&self.main, "for-each-ref --format=%(refname:short) refs/heads"));
        let listed = lines(&git(&self.main, "worktree list --porcelain"));
        let trees = self.main.join(".fence/trees");
        let mut names: Vec<String> = listed
            .iter()
            .filter_map(|line| line.strip_prefix("worktree "))
            .filter_map(|path| Path::new(path).strip_prefix(&trees).ok())
            .map(|name| name.display().to_string())
            .collect();
        names.sort();
        assert_eq!(entries(&trees), names, "directories and git's list agree");
        (branches, names)
    }
}

/// The names in a directory, without those of the locks for merges, which stay.
pub fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| !(name.starts_with("merge-") && name.ends_with(".busy")));
    names.sort();
    names
}

pub fn write(directory: &Path, file: &str, text: &str) {
    fs::write(directory.join(file), text).unwrap();
}

pub fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap_or_default()
}

/// Another process writes it: one that a test starts meanwhile would inherit the open file, and an open program cannot be run.
pub fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(script).status();
    assert!(written.expect("sh").success());
}

/// Runs git, with words that have no spaces.
pub fn git(directory: &Path, words: &str) -> String {
    let mut command = Command::new("git");
    command.current_dir(directory).args(words.split(' '));
    prepare(&mut command);
    let output = command.output().expect("git");
    assert!(output.status.success(), "git {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// A plan for a task such as `auth-3@2`.
pub fn task(token: &str, after: &[&str]) -> Plan {
    let (id, fence) = token.split_once('@').unwrap();
    Plan {
        task: Some(Attempt { id: id.into(), fence: fence.parse().unwrap() }),
        after: after.iter().map(|branch| (*branch).to_owned()).collect(),
        base: "main".into(),
        reuse: None,
    }
}

#[track_caller]
pub fn ready(created: Created) -> Tree {
    match created {
        Created::Ready(tree) => *tree,
        conflict => panic!("{conflict:?}"),
    }
}

/// A finished task: its branch with one commit, which writes one file.
pub async fn finished(repository: &Repository, plan: &Plan, file: &str, text: &str) -> String {
    let tree = ready(repository.create(plan).await.unwrap());
    write(&tree.path, file, text);
    tree.commit_all("work", "codex-1").await.unwrap().expect("a commit");
    let branch = tree.branch.clone().unwrap();
    assert_eq!(tree.finish(false).await.unwrap(), super::Finished::Removed);
    branch
}
