//! The permissions of a fleet's files: they are its owner's, or its group's if the fleet is shared.

use super::{Location, Reason};
use crate::output::text::shell_quoted;
use fencepost::{Code, Error, Result};
use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

const GROUP: u32 = 0o070;
const GROUP_WRITES: u32 = 0o020;
const OTHERS: u32 = 0o007;

/// Files of a fleet that other users can read or write.
#[derive(Debug)]
pub struct Exposed {
    pub names: Vec<String>,
    /// The command that corrects their permissions.
    pub fix: String,
}

/// The files of a fleet that are open to more users than they should be. A fleet is shared if the group can write its
/// database. The directory is checked if it holds nothing but the fleet.
pub fn exposed(location: &Location) -> Option<Exposed> {
    let file = std::path::absolute(location.file()?).ok()?;
    let about = fs::metadata(&file).ok()?;
    let shared = about.mode() & GROUP_WRITES != 0;
    let (forbidden, classes) = if shared { (OTHERS, "o") } else { (GROUP | OTHERS, "go") };
    let directory =
        file.parent().filter(|directory| location.reason == Reason::Home || is_fleet_directory(directory));
    let paths = directory.map(Path::to_owned).into_iter().chain(files(&file));
    let exposed = |path: PathBuf| {
        let about = fs::symlink_metadata(&path).ok().filter(|about| !about.is_symlink())?;
        let mode = about.mode() & 0o777;
        (mode & forbidden != 0).then(|| format!("{} ({mode:03o})", path.display()))
    };
    let names: Vec<String> = paths.filter_map(exposed).collect();
    let directory = directory.map_or(String::new(), |directory| format!("{} ", shell_quoted(directory)));
    let fix = format!("chmod {classes}-rwx {directory}{}*", shell_quoted(&file));
    (!names.is_empty()).then_some(Exposed { names, fix })
}

/// Lets the group of the directory use the fleet, as `git init --shared` does. Files that SQLite and the engine create later
/// get the mode of the database, so they are shared, too.
pub fn share(file: &Path, directory_is_fleets: bool) -> Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let failed = |e: io::Error| {
        Error::unavailable(format!("the files of `{}` cannot be shared: {e}", file.display()))
            .hint("only their owner can")
    };
    if directory_is_fleets {
        // The set-group-id bit gives new files the directory's group, whoever creates them.
        fs::set_permissions(directory, Permissions::from_mode(0o2770)).map_err(failed)?;
    }
    let about = fs::metadata(directory).map_err(failed)?;
    if about.mode() & GROUP_WRITES == 0 {
        let directory = shell_quoted(directory);
        return Err(Error::new(
            Code::Invalid,
            format!("the group cannot write in the directory {directory}"),
        )
        .hint(format!("a fleet makes files beside its database: chmod g+rwxs {directory}")));
    }
    if !file.exists() {
        OpenOptions::new().append(true).create_new(true).mode(0o660).open(file).map_err(failed)?;
    }
    let ignore = directory_is_fleets.then(|| directory.join(".gitignore"));
    for path in files(file).into_iter().chain(ignore) {
        if fs::symlink_metadata(&path).is_ok_and(|about| about.is_file()) {
            chown(&path, None, Some(about.gid())).map_err(failed)?;
            fs::set_permissions(&path, Permissions::from_mode(0o660)).map_err(failed)?;
        } else if path.to_string_lossy().ends_with("-keepers") {
            // New keepers put their files elsewhere. A directory that is not empty has a living keeper, and stays.
            let _ = fs::remove_dir(path);
        }
    }
    Ok(())
}

/// Is this a directory that `fence init` makes for a fleet?
pub fn is_fleet_directory(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == ".fence")
}

/// The database, and the files whose names begin with its name.
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
