//! Whether something that came with a project, or from another user, is used. Its author could lead a command elsewhere,
//! and the user's key with it, so it is used only after `fence trust`.
//!
//! Every file that is read from a project is read by [`read`]. A fleet that was found and not named is checked by [`fleet`].
//!
//! A decision is a file of its own in the user's state directory, so that two processes never overwrite each other's. It
//! holds a seal, which is a file's digest or a directory's owner, and the path. Another seal is another decision.

use crate::context::unique;
use fencepost::{Code, Error, Result};
use rustix::{fs::OFlags, process::geteuid};
use sha2::{Digest, Sha256};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// The longest file that is read from a project. Settings are a few hundred bytes.
const SIZE_MAX: u64 = 1 << 20;

/// A file of a project.
pub enum Project {
    /// What it says. It is what the user trusted, byte by byte.
    Trusted(String),
    Untrusted(Untrusted),
}

/// Something that is there and not used.
#[derive(Debug, Clone)]
pub struct Untrusted {
    pub path: PathBuf,
    /// It was trusted before it changed.
    pub changed: bool,
}

impl Untrusted {
    pub fn warning(&self) -> Error {
        let path = crate::screen::line(&self.path.display().to_string());
        let why = if self.changed { "changed since it was trusted" } else { "is not trusted" };
        let message = format!("{path} {why}, so it is not read: `fence trust` shows it and trusts it");
        Error::new(Code::Invalid, message).with("path", &path)
    }
}

/// The door for every file that a project brings along: what it says, if the user trusts it as it is.
pub fn read(path: &Path) -> Result<Project> {
    read_by(&Decisions::of_user(), path)
}

fn read_by(decisions: &Decisions, path: &Path) -> Result<Project> {
    let path = located(path);
    let untrusted = |changed| Ok(Project::Untrusted(Untrusted { path: path.clone(), changed }));
    let Some(seal) = decisions.seal(&path) else { return untrusted(false) };
    let text = text(&path)?;
    if seal == Seal::of_text(&text) { Ok(Project::Trusted(text)) } else { untrusted(true) }
}

/// What a file says, for the user to decide on.
pub fn text(path: &Path) -> Result<String> {
    small_text(path)
        .map_err(|e| Error::new(Code::Invalid, format!("{}: it cannot be read: {e}", path.display())))
}

/// The text of a file that a project brought along: no pipe that nobody writes to, and no device without an end.
pub fn small_text(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(SIZE_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > SIZE_MAX {
        true => Err(io::Error::other(format!("it is longer than {SIZE_MAX} bytes"))),
        false => Ok(text),
    }
}

/// A fleet that was found and not named: it is the user's own, or trusted.
pub fn fleet(file: &Path) -> Result<()> {
    let Some((path, seal)) = foreign(file) else { return Ok(()) };
    if Decisions::of_user().seal(&path).is_some_and(|trusted| trusted == seal) {
        return Ok(());
    }
    let shown = crate::screen::line(&path.display().to_string());
    Err(Error::new(Code::Invalid, format!("the fleet in {shown} belongs to {seal}, and is not trusted"))
        .with("path", &shown)
        .hint("fence trust uses it all the same; --db or FENCE_DB names another"))
}

/// The directory of a fleet and its owners, if not all of it is the user's own.
pub fn foreign(file: &Path) -> Option<(PathBuf, Seal)> {
    // Root needs no fleet to do harm. Root by `sudo` looks after the user's own, as git has it.
    let me = geteuid();
    let sudo = std::env::var("SUDO_UID").ok().filter(|_| me.is_root()).and_then(|uid| uid.parse().ok());
    foreign_to(&[Some(0), Some(me.as_raw()), sudo], file)
}

fn foreign_to(own: &[Option<u32>], file: &Path) -> Option<(PathBuf, Seal)> {
    let directory = file.parent()?;
    let owners = [directory, file].into_iter().filter_map(|path| Some(fs::metadata(path).ok()?.uid()));
    let mut others: Vec<_> = owners.filter(|uid| !own.contains(&Some(*uid))).collect();
    others.sort_unstable();
    others.dedup();
    let others: Vec<_> = others.iter().map(u32::to_string).collect();
    (!others.is_empty()).then(|| (located(directory), Seal(format!("user {}", others.join(" and ")))))
}

/// The same for one place, by whatever way it is reached. The last part is not resolved: a link in a project is not
/// the file that it leads to, because the paths in it would then be meant from elsewhere.
pub fn located(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let located =
        path.parent().and_then(|parent| Some(fs::canonicalize(parent).ok()?.join(path.file_name()?)));
    located.unwrap_or(path)
}

/// What is trusted at a path: a file by its content, a directory by its owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal(String);

impl Seal {
    pub fn of_text(text: &str) -> Self {
        Self(format!("sha256 {}", hex(text.as_bytes())))
    }
}

impl std::fmt::Display for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the user trusts.
pub struct Decisions {
    /// `None` without a home.
    directory: Option<PathBuf>,
}

impl Decisions {
    pub fn of_user() -> Self {
        Self { directory: crate::place::state_home().map(|state| state.join("fence/trusted")) }
    }

    fn file(&self, path: &Path) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(hex(path.as_os_str().as_bytes())))
    }

    fn seal(&self, path: &Path) -> Option<Seal> {
        let (trusted, seal) = decision(&self.file(path)?)?;
        (trusted == path).then_some(seal)
    }

    pub fn trust(&self, path: &Path, seal: &Seal) -> Result<()> {
        let Some(file) = self.file(path) else {
            return Err(Error::new(Code::NotFound, "there is no home directory to remember it in")
                .hint("HOME or XDG_STATE_HOME names one"));
        };
        let failed = |e| Error::unavailable(format!("it cannot be remembered in `{}`: {e}", file.display()));
        let directory = file.parent().unwrap_or(&file);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // Whole or not at all, whoever reads meanwhile.
        let draft = directory.join(unique("draft-"));
        let content = [seal.0.as_bytes(), b"\n", path.as_os_str().as_bytes()].concat();
        let write = || {
            let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            written.write_all(&content)?;
            fs::rename(&draft, &file)
        };
        write().map_err(|e| {
            let _ = fs::remove_file(&draft);
            failed(e)
        })
    }

    /// Says whether it was trusted.
    pub fn revoke(&self, path: &Path) -> Result<bool> {
        let Some(file) = self.file(path) else { return Ok(false) };
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::unavailable(format!("`{}` cannot be removed: {e}", file.display()))),
        }
    }

    /// All that is trusted, in order.
    pub fn all(&self) -> Vec<(PathBuf, Seal)> {
        let files = self.directory.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let decisions = files.into_iter().flatten().filter_map(|file| decision(&file.ok()?.path()));
        let mut all: Vec<_> = decisions.collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// What one file says. Only the user decides for the user: a file that another wrote, or could have, says nothing.
fn decision(file: &Path) -> Option<(PathBuf, Seal)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
        return None;
    }
    let mut content = Vec::new();
    file.take(SIZE_MAX).read_to_end(&mut content).ok()?;
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let path = content.split_off(end + 1);
    let seal = String::from_utf8(content).ok()?.trim_end().to_owned();
    Some((OsString::from_vec(path).into(), Seal(seal)))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What became of something since it was trusted.
pub fn state(path: &Path, seal: &Seal) -> &'static str {
    let Ok(about) = fs::metadata(path) else { return "gone" };
    let unchanged = match about.is_dir() {
        // One that became the user's own is used anyway.
        true => foreign(&path.join(crate::place::DATABASE)).is_none_or(|(_, now)| now == *seal),
        false => text(path).is_ok_and(|text| Seal::of_text(&text) == *seal),
    };
    if unchanged { "trusted" } else { "changed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn is_trusted(decisions: &Decisions, path: &Path) -> bool {
        matches!(read_by(decisions, path).expect("a file"), Project::Trusted(_))
    }

    #[test]
    fn a_file_is_trusted_at_its_path_with_its_content_and_by_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let decisions = Decisions { directory: Some(dir.path().join("state/trusted")) };
        let file = dir.path().join("fence.toml");
        let trust = |text: &str| {
            fs::write(&file, text).unwrap();
            decisions.trust(&located(&file), &Seal::of_text(text)).unwrap();
        };
        fs::write(&file, "a").unwrap();
        assert!(!is_trusted(&decisions, &file), "nobody was asked");
        trust("a");
        assert!(is_trusted(&decisions, &file));
        assert!(is_trusted(&decisions, &dir.path().join("state/../fence.toml")), "by another way");
        fs::write(&file, "b").unwrap();
        assert!(!is_trusted(&decisions, &file), "it changed");
        trust("b");
        assert!(is_trusted(&decisions, &file));

        // The same content elsewhere, and a link to the trusted file, whose paths would be meant from elsewhere.
        fs::create_dir(dir.path().join("hostile")).unwrap();
        let other = dir.path().join("hostile/fence.toml");
        fs::write(&other, "b").unwrap();
        assert!(!is_trusted(&decisions, &other), "another file");
        fs::remove_file(&other).unwrap();
        std::os::unix::fs::symlink(&file, &other).unwrap();
        assert!(!is_trusted(&decisions, &other), "a link");

        // Nobody else decides: not by writing into a decision, by moving one or by linking to one.
        let decision = decisions.file(&located(&file)).unwrap();
        assert_eq!(fs::metadata(&decision).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(decision.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        for mode in [0o660, 0o606] {
            fs::set_permissions(&decision, fs::Permissions::from_mode(mode)).unwrap();
            assert!(!is_trusted(&decisions, &file), "others can write it");
        }
        fs::set_permissions(&decision, fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&other).unwrap();
        fs::write(&other, "b").unwrap();
        let moved = decisions.file(&located(&other)).unwrap();
        fs::copy(&decision, &moved).unwrap();
        assert!(!is_trusted(&decisions, &other), "the decision was on another file");
        let away = dir.path().join("away");
        fs::rename(&decision, &away).unwrap();
        std::os::unix::fs::symlink(&away, &decision).unwrap();
        assert!(!is_trusted(&decisions, &file), "a link to a decision");
    }

    #[test]
    fn a_fleet_of_another_user_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".fence/fence.db");
        assert_eq!(foreign_to(&[], &file), None, "there is none");
        fs::create_dir(dir.path().join(".fence")).unwrap();
        let me = geteuid().as_raw();
        let (path, seal) = foreign_to(&[Some(me + 1), None], &file).expect("another's");
        assert!(path.ends_with(".fence") && seal.to_string() == format!("user {me}"), "{path:?} {seal}");
        assert_eq!(foreign_to(&[Some(0), Some(me)], &file), None);
        assert_eq!(foreign(&file), None);
    }
}
