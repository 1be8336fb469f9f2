//! Who else can read and write the files of a fleet: nobody, or its group where it is shared.

use crate::place::{Place, Why};
use fencepost::{Code, Error, Result};
use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

const GROUP: u32 = 0o070;
const GROUP_WRITES: u32 = 0o020;
const OTHERS: u32 = 0o007;

/// Makes what is missing of it, for us alone.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// What of a fleet others can read or write.
#[derive(Debug)]
pub struct Loose {
    pub names: Vec<String>,
    /// The command that mends it.
    pub mend: String,
}

/// A fleet is shared if the group can write its database. The directory counts if it has nothing but the fleet in it.
pub fn loose(place: &Place) -> Option<Loose> {
    let file = std::path::absolute(place.file()?).ok()?;
    let about = fs::metadata(&file).ok()?;
    let shared = about.mode() & GROUP_WRITES != 0;
    let (forbidden, whom) = if shared { (OTHERS, "o") } else { (GROUP | OTHERS, "go") };
    let directory = file.parent().filter(|directory| place.why == Why::Home || is_fleets(directory));
    let paths = directory.map(Path::to_owned).into_iter().chain(files(&file));
    let is_loose = |path: PathBuf| {
        let about = fs::symlink_metadata(&path).ok().filter(|about| !about.is_symlink())?;
        let mode = about.mode() & 0o777;
        (mode & forbidden != 0).then(|| format!("{} ({mode:03o})", path.display()))
    };
    let names: Vec<String> = paths.filter_map(is_loose).collect();
    let directory = directory.map_or(String::new(), |directory| format!("{} ", quoted(directory)));
    let mend = format!("chmod {whom}-rwx {directory}{}*", quoted(&file));
    (!names.is_empty()).then_some(Loose { names, mend })
}

/// Lets the group of the directory use the fleet, as `git init --shared` does: what is there already, and what SQLite and the
/// engine make later, because they look at the database's mode.
pub fn share(file: &Path, directory_is_ours: bool) -> Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let failed = |e: io::Error| {
        Error::unavailable(format!("the files of `{}` cannot be shared: {e}", file.display()))
            .hint("only their owner can")
    };
    if directory_is_ours {
        // With the set-group-id bit new files are of the directory's group, whoever makes them.
        fs::set_permissions(directory, Permissions::from_mode(0o2770)).map_err(failed)?;
    }
    let about = fs::metadata(directory).map_err(failed)?;
    if about.mode() & GROUP_WRITES == 0 {
        let directory = quoted(directory);
        return Err(Error::new(
            Code::Invalid,
            format!("the group cannot write in the directory {directory}"),
        )
        .hint(format!("a fleet makes files beside its database: chmod g+rwxs {directory}")));
    }
    if !file.exists() {
        OpenOptions::new().append(true).create_new(true).mode(0o660).open(file).map_err(failed)?;
    }
    let ignore = directory_is_ours.then(|| directory.join(".gitignore"));
    for path in files(file).into_iter().chain(ignore) {
        if fs::symlink_metadata(&path).is_ok_and(|about| about.is_file()) {
            chown(&path, None, Some(about.gid())).map_err(failed)?;
            fs::set_permissions(&path, Permissions::from_mode(0o660)).map_err(failed)?;
        } else if path.to_string_lossy().ends_with("-keepers") {
            // Keepers' files are elsewhere from now on. A directory with a file in it has a living keeper, and stays.
            let _ = fs::remove_dir(path);
        }
    }
    Ok(())
}

/// Was it made for a fleet?
pub fn is_fleets(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == ".fence")
}

/// The database and all that is named after it.
fn files(database: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (database.parent(), database.file_name()) else { return Vec::new() };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let ours =
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()));
    let mut files: Vec<_> = ours.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// For a shell.
pub fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}
