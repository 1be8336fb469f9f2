//! Files of a project, and fleets of other users. Their author could send a command, and the user's key with it, to another
//! server, so they are used only after `fence trust`.
//!
//! Commands read every file of a project with [`read`], and check every fleet that nobody named with [`fleet`].
//!
//! Each decision is a file of its own in the user's state directory, so that two processes never overwrite each other's. It
//! holds a fingerprint, which is a file's digest or a directory's owner, and the path.

use crate::{
    environment::{DATABASE, state_home},
    names::unique,
    output::text::line,
};
use fencepost::{Code, Error, Result, files};
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

/// The longest file of a project that is read. Settings have a few hundred bytes.
const SIZE_MAX: u64 = 1 << 20;

/// A file of a project.
pub enum ProjectFile {
    /// Its text, byte by byte as the user trusted it.
    Trusted(String),
    Untrusted(Untrusted),
}

/// A file that exists and is not used.
#[derive(Debug, Clone)]
pub struct Untrusted {
    pub path: PathBuf,
    /// It was trusted, and changed after that.
    pub changed: bool,
}

impl Untrusted {
    pub fn warning(&self) -> Error {
        let path = line(&self.path.display().to_string());
        let why = if self.changed { "changed since it was trusted" } else { "is not trusted" };
        let message = format!("{path} {why}, so it is not read: `fence trust` shows it and trusts it");
        Error::new(Code::Invalid, message).with("path", &path)
    }
}

/// Reads a file of a project, if the user trusts it as it is now. All files of a project are read through this function.
pub fn read(path: &Path) -> Result<ProjectFile> {
    read_by(&Decisions::of_user(), path)
}

fn read_by(decisions: &Decisions, path: &Path) -> Result<ProjectFile> {
    let path = normalized(path);
    let untrusted = |changed| Ok(ProjectFile::Untrusted(Untrusted { path: path.clone(), changed }));
    let Some(fingerprint) = decisions.fingerprint(&path) else { return untrusted(false) };
    let text = text(&path)?;
    if fingerprint == Fingerprint::of_text(&text) { Ok(ProjectFile::Trusted(text)) } else { untrusted(true) }
}

/// The text of a file, for the user to decide on.
pub fn text(path: &Path) -> Result<String> {
    small_text(path)
        .map_err(|e| Error::new(Code::Invalid, format!("{}: it cannot be read: {e}", path.display())))
}

/// The text of a small regular file. A project could contain a pipe that nobody writes to, or a device without an end.
pub fn small_text(path: &Path) -> io::Result<String> {
    files::text(path, SIZE_MAX)
}

/// Fails if a fleet that nobody named belongs to another user and is not trusted.
pub fn fleet(file: &Path) -> Result<()> {
    let Some((path, owner)) = other_owner(file) else { return Ok(()) };
    if Decisions::of_user().fingerprint(&path).is_some_and(|trusted| trusted == owner) {
        return Ok(());
    }
    let shown = line(&path.display().to_string());
    Err(Error::new(Code::Invalid, format!("the fleet in {shown} belongs to {owner}, and is not trusted"))
        .with("path", &shown)
        .hint("fence trust allows it; --db or FENCE_DB names another"))
}

/// The directory of a fleet and its owners, if any part of it belongs to another user.
pub fn other_owner(file: &Path) -> Option<(PathBuf, Fingerprint)> {
    // Root needs no fleet to do harm. Under `sudo` the fleets of the calling user count as own, as repositories do for git.
    let me = geteuid();
    let sudo = std::env::var("SUDO_UID").ok().filter(|_| me.is_root()).and_then(|uid| uid.parse().ok());
    owner_other_than(&[Some(0), Some(me.as_raw()), sudo], file)
}

fn owner_other_than(own: &[Option<u32>], file: &Path) -> Option<(PathBuf, Fingerprint)> {
    let directory = file.parent()?;
    let owners = [directory, file].into_iter().filter_map(|path| Some(fs::metadata(path).ok()?.uid()));
    let mut others: Vec<_> = owners.filter(|uid| !own.contains(&Some(*uid))).collect();
    others.sort_unstable();
    others.dedup();
    let others: Vec<_> = others.iter().map(u32::to_string).collect();
    (!others.is_empty())
        .then(|| (normalized(directory), Fingerprint(format!("user {}", others.join(" and ")))))
}

/// One path for one file, however it is reached. The last part is not resolved: a link in a project is another file than its
/// target, because relative paths in the text start from the link's directory.
pub fn normalized(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let normalized =
        path.parent().and_then(|parent| Some(fs::canonicalize(parent).ok()?.join(path.file_name()?)));
    normalized.unwrap_or(path)
}

/// Identifies what the user trusts at a path: a file by its content, a directory by its owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint(String);

impl Fingerprint {
    pub fn of_text(text: &str) -> Self {
        Self(format!("sha256 {}", hex(text.as_bytes())))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that the user trusts.
pub struct Decisions {
    /// `None` if the user has no home.
    directory: Option<PathBuf>,
}

impl Decisions {
    pub fn of_user() -> Self {
        Self { directory: state_home().map(|state| state.join("fence/trusted")) }
    }

    fn file(&self, path: &Path) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(hex(path.as_os_str().as_bytes())))
    }

    fn fingerprint(&self, path: &Path) -> Option<Fingerprint> {
        let (trusted, fingerprint) = decision(&self.file(path)?)?;
        (trusted == path).then_some(fingerprint)
    }

    pub fn trust(&self, path: &Path, fingerprint: &Fingerprint) -> Result<()> {
        let Some(file) = self.file(path) else {
            return Err(Error::new(Code::NotFound, "there is no home directory to store the decision in")
                .hint("HOME or XDG_STATE_HOME names one"));
        };
        let failed =
            |e| Error::unavailable(format!("the decision cannot be stored in `{}`: {e}", file.display()));
        let directory = file.parent().unwrap_or(&file);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // A process that reads meanwhile sees the whole decision or none.
        let draft = directory.join(unique("draft-"));
        let content = [fingerprint.0.as_bytes(), b"\n", path.as_os_str().as_bytes()].concat();
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

    /// Returns whether the path was trusted.
    pub fn revoke(&self, path: &Path) -> Result<bool> {
        let Some(file) = self.file(path) else { return Ok(false) };
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::unavailable(format!("`{}` cannot be removed: {e}", file.display()))),
        }
    }

    /// All decisions, sorted by path.
    pub fn all(&self) -> Vec<(PathBuf, Fingerprint)> {
        let files = self.directory.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let decisions = files.into_iter().flatten().filter_map(|file| decision(&file.ok()?.path()));
        let mut all: Vec<_> = decisions.collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// The decision in one file. A file that another user wrote, or could have written, is ignored.
fn decision(file: &Path) -> Option<(PathBuf, Fingerprint)> {
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
    let fingerprint = String::from_utf8(content).ok()?.trim_end().to_owned();
    Some((OsString::from_vec(path).into(), Fingerprint(fingerprint)))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The state of a path since it was trusted: `trusted`, `changed` or `gone`.
pub fn state(path: &Path, fingerprint: &Fingerprint) -> &'static str {
    let Ok(about) = fs::metadata(path) else { return "gone" };
    let unchanged = match about.is_dir() {
        // A fleet that belongs to the user by now needs no trust.
        true => other_owner(&path.join(DATABASE)).is_none_or(|(_, now)| now == *fingerprint),
        false => text(path).is_ok_and(|text| Fingerprint::of_text(&text) == *fingerprint),
    };
    if unchanged { "trusted" } else { "changed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn is_trusted(decisions: &Decisions, path: &Path) -> bool {
        matches!(read_by(decisions, path).expect("a file"), ProjectFile::Trusted(_))
    }

    #[test]
    fn a_file_is_trusted_at_its_path_with_its_content_and_by_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let decisions = Decisions { directory: Some(dir.path().join("state/trusted")) };
        let file = dir.path().join("fence.toml");
        let trust = |text: &str| {
            fs::write(&file, text).unwrap();
            decisions.trust(&normalized(&file), &Fingerprint::of_text(text)).unwrap();
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

        // The same content elsewhere, and a link to the trusted file, from which relative paths would start.
        fs::create_dir(dir.path().join("hostile")).unwrap();
        let other = dir.path().join("hostile/fence.toml");
        fs::write(&other, "b").unwrap();
        assert!(!is_trusted(&decisions, &other), "another file");
        fs::remove_file(&other).unwrap();
        std::os::unix::fs::symlink(&file, &other).unwrap();
        assert!(!is_trusted(&decisions, &other), "a link");

        // Nobody else can decide: not by writing to a decision, by moving one or by linking to one.
        let decision = decisions.file(&normalized(&file)).unwrap();
        assert_eq!(fs::metadata(&decision).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(decision.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        for mode in [0o660, 0o606] {
            fs::set_permissions(&decision, fs::Permissions::from_mode(mode)).unwrap();
            assert!(!is_trusted(&decisions, &file), "others can write it");
        }
        fs::set_permissions(&decision, fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&other).unwrap();
        fs::write(&other, "b").unwrap();
        let moved = decisions.file(&normalized(&other)).unwrap();
        fs::copy(&decision, &moved).unwrap();
        assert!(!is_trusted(&decisions, &other), "the decision was on another file");
        let away = dir.path().join("away");
        fs::rename(&decision, &away).unwrap();
        std::os::unix::fs::symlink(&away, &decision).unwrap();
        assert!(!is_trusted(&decisions, &file), "a link to a decision");
    }

    #[test]
    fn a_fleet_of_another_user_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".fence/fence.db");
        assert_eq!(owner_other_than(&[], &file), None, "there is none");
        fs::create_dir(dir.path().join(".fence")).unwrap();
        let me = geteuid().as_raw();
        let (path, owner) = owner_other_than(&[Some(me + 1), None], &file).expect("another's");
        assert!(path.ends_with(".fence") && owner.to_string() == format!("user {me}"), "{path:?} {owner}");
        assert_eq!(owner_other_than(&[Some(0), Some(me)], &file), None);
        assert_eq!(other_owner(&file), None);
    }
}
