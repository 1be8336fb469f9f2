use crate::{
    context::Context,
    location::{Location, permissions, repository},
    private_files::make_directory,
    trust,
};
use clap::Args;
use fencepost::{Code, Error, Result, admin};
use fencepost_client::Connection;
use serde::{Deserialize, Serialize};
use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::ExitCode,
};

/// Create a fleet
///
/// It is created in the main work tree of this git repository, so that all work trees share it; outside of a repository, in your
/// data directory; or where --db or FENCE_DB names it. An existing fleet stays as it is. With --url the command only checks that the
/// server answers; it ignores FENCE_URL.
///
/// Only you can read and write the files of a fleet. With --shared your group can, too, as with git init --shared: everybody who can
/// write the database can do anything to the fleet. To choose the group: mkdir .fence; chgrp GROUP .fence; fence init --shared. It
/// also shares an existing fleet. (For each run, fence claim --keep has a file that only you may write. For a shared fleet the file is
/// in XDG_RUNTIME_DIR.)
///
/// Examples:
///   fence init
///   fence init --shared
///   FENCE_DB=postgres://user@host/database fence init
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Init {
    /// Let your group read and write the fleet's files
    #[arg(long)]
    shared: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Created {
    db: String,
    /// The fleet existed before.
    existing: bool,
    why: String,
}

impl Init {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let location = context.database()?;
        let existing = Connection::open_existing(&location.url).await.is_ok();
        if self.shared && location.file().is_none() {
            return Err(Error::new(
                Code::Invalid,
                "--shared is for a fleet in a file, and this one has none",
            )
            .hint("use keys, or the users of PostgreSQL, to decide who may use it"));
        }
        if let Some(file) = location.file() {
            let is_fleets = file.parent().map_or(Ok(false), create_directory)?;
            if self.shared {
                permissions::share(file, is_fleets)?;
            }
        }
        let connection = context.create(&location).await?;
        if location.is_remote() {
            // The server has created the fleet already. Only check that it answers.
            connection.call(admin::About {}).await?;
        }
        if let Some(file) = location.file() {
            // A failure is ignored: then git shows the file.
            let _ = keep_out_of_git(file);
        }
        let created = Created { db: location.shown(), existing, why: location.reason.describe() };
        let code = context.print(&created, |created| {
            let is = if created.existing && !location.is_remote() { "was already" } else { "is" };
            format!("the fleet {is} at {}: {}", created.db, created.why)
        })?;
        if let Some(elsewhere) = elsewhere(&location, context) {
            context.warn(&elsewhere);
        }
        Ok(code)
    }
}

/// Warns if other commands use another fleet: they also look at FENCE_URL.
fn elsewhere(location: &Location, context: &Context) -> Option<Error> {
    let message = match context.location() {
        Ok(other) if other.url == location.url => return None,
        Ok(other) => format!("other commands use {}: {}", other.shown(), other.reason.describe()),
        Err(e) => format!("other commands will be refused: {}", e.message()),
    };
    Some(Error::new(Code::Invalid, message))
}

/// Creates the directory. If it is for the fleet alone, it gets a `.gitignore`, so that the database stays out of git. Returns
/// whether it is.
fn create_directory(directory: &Path) -> Result<bool> {
    let failed =
        |e| Error::unavailable(format!("cannot create the directory `{}`: {e}", directory.display()));
    if directory.as_os_str().is_empty() {
        return Ok(false);
    }
    let is_fleets = !directory.exists() || permissions::is_fleet_directory(directory);
    make_directory(directory).map_err(failed)?;
    if is_fleets {
        // `create_new` does not follow a link that somebody put there.
        let ignore =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(".gitignore"));
        match ignore.and_then(|mut file| file.write_all(b"*\n")) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
    }
    Ok(is_fleets)
}

/// Adds a database that the user named in a work tree to the repository's list of ignored files, which is not committed. Outside
/// of a repository it does nothing.
fn keep_out_of_git(file: &Path) -> Option<()> {
    let file = std::path::absolute(file).ok()?;
    let directory = std::fs::canonicalize(file.parent()?).ok()?;
    let ignored = trust::small_text(&directory.join(".gitignore")).unwrap_or_default();
    if ignored.lines().any(|line| line == "*") {
        return None;
    }
    let (top, list) = repository::exclude_list(&directory)?;
    let path = directory.strip_prefix(&top).ok()?.join(file.file_name()?);
    let path = path.to_str().filter(|path| !path.contains('\n'))?;
    let escaped = path.chars().flat_map(|c| "\\*?[".contains(c).then_some('\\').into_iter().chain([c]));
    let line = format!("/{}*", escaped.collect::<String>());
    // Links are not followed: the line would be added to a file that somebody else chose.
    if list.is_symlink() || list.parent()?.is_symlink() {
        return None;
    }
    std::fs::create_dir_all(list.parent()?).ok()?;
    let listed = if list.exists() { trust::small_text(&list).ok()? } else { String::new() };
    let mut list = OpenOptions::new().append(true).create(true).open(list).ok()?;
    if !listed.lines().any(|listed| listed == line) {
        let start = if listed.is_empty() || listed.ends_with('\n') { "" } else { "\n" };
        writeln!(list, "{start}{line}").ok()?;
    }
    Some(())
}
