//! Copies files that git ignores, such as `.env`, from the main work tree to a new one.

use super::Tree;
use fencepost::{Code, Error, Result};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path},
};

impl Tree {
    /// Copies files of the main work tree. A file that does not exist there, or exists here already, is left out. Only ignored files
    /// are copied: another one would be committed with the agent's work.
    pub async fn copy(&self, files: &[String]) -> Result<()> {
        let Some(main) = &self.repository.main else { return Ok(()) };
        for file in files {
            let from = main.join(file);
            stay_inside(file, main)?;
            stay_inside(file, &self.path)?;
            match fs::metadata(&from) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(file, &e)),
                Ok(about) if !about.is_file() => return Err(refused(file, "is not a file")),
                Ok(_) => {}
            }
            let to = self.path.join(file);
            if to.symlink_metadata().is_ok() || self.is_tracked(file).await? {
                continue;
            }
            if self.git.ask(["check-ignore", "--quiet", "--", file]).await?.is_none() {
                return Err(refused(file, "is not ignored, so that it would be committed")
                    .hint("add it to .gitignore, or to .git/info/exclude"));
            }
            copy(&from, &to).map_err(|e| failed(file, &e))?;
        }
        Ok(())
    }

    /// A tracked file that was deleted here stays deleted.
    async fn is_tracked(&self, file: &str) -> Result<bool> {
        Ok(!self.git.text(["--literal-pathspecs", "ls-files", "--", file]).await?.is_empty())
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mode = source.metadata()?.permissions().mode() & 0o777;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut target = File::options().write(true).create_new(true).mode(mode).open(to)?;
    io::copy(&mut source, &mut target).map(drop)
}

/// Refuses a path that leads out of the directory, by its words or by a symbolic link on the way. Both may come with a repository.
fn stay_inside(file: &str, directory: &Path) -> Result<()> {
    let mut path = directory.to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::Normal(name) if !name.eq_ignore_ascii_case(".git") => path.push(name),
            Component::CurDir => continue,
            _ => return Err(refused(file, "is not a path in the repository")),
        }
        if path.is_symlink() {
            return Err(refused(file, "is a symbolic link, or is behind one"));
        }
    }
    if path == directory { Err(refused(file, "is not a path in the repository")) } else { Ok(()) }
}

fn refused(file: &str, why: &str) -> Error {
    Error::new(Code::Invalid, format!("`{file}` cannot be copied to the work tree: it {why}"))
}

fn failed(file: &str, error: &io::Error) -> Error {
    Error::unavailable(format!("`{file}` cannot be copied to the work tree: {error}"))
}

#[cfg(test)]
mod tests {
    use crate::worktree::testing::{Sample, entries, read, ready, task, write};
    use std::{fs, os::unix::fs::PermissionsExt};

    #[tokio::test]
    async fn ignored_files_are_copied_and_nothing_else() {
        let sample = Sample::new();
        sample.write(".env", "SECRET=1");
        fs::set_permissions(sample.main.join(".env"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(sample.main.join("config")).unwrap();
        sample.write("config/.env", "deep");
        let repository = sample.repository().await;
        let tree = ready(repository.create(&task("auth-1@1", &[])).await.unwrap());
        let copy = async |file: &str| {
            tree.copy(&[file.to_owned()]).await.map_err(|e| e.message().to_owned()).err().unwrap_or_default()
        };
        for file in [".env", "./config/.env", "missing"] {
            assert_eq!(copy(file).await, "", "{file}");
        }
        assert_eq!(
            (read(&tree.path, ".env"), read(&tree.path, "config/.env")),
            ("SECRET=1".into(), "deep".into())
        );
        let mode = fs::metadata(tree.path.join(".env")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(tree.status().await.unwrap().clean);

        // Existing and tracked files stay as they are.
        write(&tree.path, ".env", "changed");
        sample.write("a.txt", "changed in main");
        fs::remove_file(tree.path.join("a.txt")).unwrap();
        assert_eq!((copy(".env").await, copy("a.txt").await), (String::new(), String::new()));
        assert_eq!((read(&tree.path, ".env"), tree.path.join("a.txt").exists()), ("changed".into(), false));

        sample.write("secret.txt", "");
        fs::write(sample.beside(".env"), "of another").unwrap();
        std::os::unix::fs::symlink("..", sample.main.join("up")).unwrap();
        std::os::unix::fs::symlink(sample.beside("outside"), tree.path.join("out")).unwrap();
        fs::create_dir_all(sample.main.join("out")).unwrap();
        sample.write("out/.env", "");
        let absolute = sample.beside(".env").display().to_string();
        for (file, why) in [
            ("../.env", "is not a path in the repository"),
            (absolute.as_str(), "is not a path in the repository"),
            ("", "is not a path in the repository"),
            (".git/config", "is not a path in the repository"),
            ("up/.env", "is a symbolic link, or is behind one"),
            ("out/.env", "is a symbolic link, or is behind one"),
            ("config", "is not a file"),
            ("secret.txt", "is not ignored, so that it would be committed"),
        ] {
            let error = copy(file).await;
            assert!(error.ends_with(why), "{file}: {error}");
        }
        assert_eq!(entries(&sample.beside("outside")), Vec::<String>::new());
    }
}
