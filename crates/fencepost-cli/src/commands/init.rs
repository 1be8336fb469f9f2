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

/// Make a fleet
///
/// In the main work tree of this git repository, so that all its work trees share it; outside of one, in your
/// data directory; or where --db or FENCE_DB says. Doing it again changes nothing. With --url it sees whether that
/// server answers; FENCE_URL does not count here.
///
/// Nobody but you can read or write the files of a fleet. With --shared your group can, too, as with git init --shared: those who can
/// write the database can do anything to the fleet. To choose the group: mkdir .fence; chgrp GROUP .fence; fence init --shared. A fleet
/// that exists is changed by it. (fence claim --keep has a file for each run it keeps; for a shared fleet it is in XDG_RUNTIME_DIR,
/// because only you may write it.)
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
struct Made {
    db: String,
    /// It was there already.
    existing: bool,
    why: String,
}

impl Init {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let place = context.database()?;
        let existing = Connection::open_existing(&place.url).await.is_ok();
        if self.shared && place.file().is_none() {
            return Err(Error::new(Code::Invalid, "--shared is about files, and this fleet is none")
                .hint("keys, or the users of PostgreSQL, say who may use it"));
        }
        if let Some(file) = place.file() {
            let is_ours = file.parent().map_or(Ok(false), make)?;
            if self.shared {
                permissions::share(file, is_ours)?;
            }
        }
        let connection = context.create(&place).await?;
        if place.is_remote() {
            // Whoever serves it has made it. That it answers is all there is to see to.
            connection.call(admin::About {}).await?;
        }
        if let Some(file) = place.file() {
            // If that cannot be, git shows it.
            let _ = keep_out_of_git(file);
        }
        let made = Made { db: place.shown(), existing, why: place.reason.describe() };
        let code = context.print(&made, |made| {
            let is = if made.existing && !place.is_remote() { "was already" } else { "is" };
            format!("the fleet {is} at {}: {}", made.db, made.why)
        })?;
        if let Some(elsewhere) = elsewhere(&place, context) {
            context.warn(&elsewhere);
        }
        Ok(code)
    }
}

/// Other commands also look at the name of a server.
fn elsewhere(place: &Location, context: &Context) -> Option<Error> {
    let message = match context.location() {
        Ok(other) if other.url == place.url => return None,
        Ok(other) => format!("other commands use {}: {}", other.shown(), other.reason.describe()),
        Err(e) => format!("other commands will be refused: {}", e.message()),
    };
    Some(Error::new(Code::Invalid, message))
}

/// A directory that is ours ignores itself, so that the database stays out of git. Says whether it is ours.
fn make(directory: &Path) -> Result<bool> {
    let failed = |e| Error::unavailable(format!("cannot make the directory `{}`: {e}", directory.display()));
    if directory.as_os_str().is_empty() {
        return Ok(false);
    }
    let ours = !directory.exists() || permissions::is_fleet_directory(directory);
    make_directory(directory).map_err(failed)?;
    if ours {
        // Not through a link that somebody put there.
        let ignore =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(".gitignore"));
        match ignore.and_then(|mut file| file.write_all(b"*\n")) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
    }
    Ok(ours)
}

/// A database that somebody put into a work tree by its name is left out by the repository's own list, which is not
/// committed. Where there is no git, there is nothing to keep it out of.
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
    // Not through links: the line would be part of a file that somebody chose.
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
