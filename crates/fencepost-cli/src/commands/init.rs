use crate::context::Context;
use clap::Args;
use fencepost::{Error, Result, admin};
use fencepost_client::Connection;
use serde::Serialize;
use std::{
    fs::OpenOptions,
    io::Write,
    path::Path,
    process::{Command, ExitCode},
};

/// Make a fleet
///
/// In the main work tree of this git repository, so that all its work trees share it; outside of one, in your
/// data directory; or where --db or FENCE_DB says. Doing it again changes nothing. With --url or FENCE_URL it sees
/// whether that server answers.
///
/// Examples:
///   fence init
///   FENCE_DB=postgres://user@host/database fence init
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Init {}

#[derive(Debug, Serialize)]
struct Made {
    db: String,
    /// It was there already.
    existing: bool,
    why: String,
}

impl Init {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let place = context.place()?;
        let existing = Connection::open_existing(&place.url).await.is_ok();
        if let Some(directory) = place.file().and_then(Path::parent) {
            make(directory)?;
        }
        let connection = context.make(&place).await?;
        if place.is_remote() {
            // Whoever serves it has made it. That it answers is all there is to see to.
            connection.call(admin::About {}).await?;
        }
        if let Some(file) = place.file() {
            keep_out_of_git(file);
        }
        let made = Made { db: place.shown(), existing, why: place.why.describe() };
        context.print(&made, |made| {
            let is = if made.existing && !place.is_remote() { "was already" } else { "is" };
            format!("the fleet {is} at {}: {}", made.db, made.why)
        })
    }
}

/// A directory that is ours ignores itself, so that the database stays out of git.
fn make(directory: &Path) -> Result<()> {
    let failed = |e| Error::unavailable(format!("cannot make the directory `{}`: {e}", directory.display()));
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    let ours = !directory.exists() || directory.file_name().is_some_and(|name| name == ".fence");
    std::fs::create_dir_all(directory).map_err(failed)?;
    let ignore = directory.join(".gitignore");
    if ours && !ignore.exists() {
        std::fs::write(ignore, "*\n").map_err(failed)?;
    }
    Ok(())
}

/// A database that somebody put into a work tree by its name is left out by the repository's own list, which is not
/// committed. Where there is no git, there is nothing to keep it out of.
fn keep_out_of_git(file: &Path) {
    let (Some(directory), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str()))
    else {
        return;
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(directory).args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Not in a work tree, or ignored already.
    let Some(prefix) = git(&["rev-parse", "--show-prefix"]) else { return };
    if git(&["check-ignore", "-q", name]).is_some() {
        return;
    }
    let Some(exclude) = git(&["rev-parse", "--path-format=absolute", "--git-path", "info/exclude"]) else {
        return;
    };
    let _ = OpenOptions::new()
        .append(true)
        .create(true)
        .open(exclude)
        .and_then(|mut list| writeln!(list, "/{prefix}{name}*"));
}
