//! `claim --keep`: a small process that renews a run for as long as the terminal or agent that claims lives.
//!
//! When its owner is gone it renews no more. If nothing of that session is at work any more, it ends the run, and what
//! that held is anyone's at once; if something is, because it was started with `nohup`, the lease runs out, as it does
//! if anybody is heard under the run meanwhile: an agent's session may have been resumed. A run that was given a name is
//! never ended: other terminals, on other machines too, may act for it.
//!
//! A fleet has at most one keeper for a run. It has a file that it keeps locked while it lives, in which it says who
//! it is and for whom it keeps; the kernel lets go of the lock, so a keeper that was killed is known to be gone.

mod post;
mod serve;
mod watch;

use crate::{
    context::{Context, digest, variable},
    place::{Footing, Place},
    process::{self, Process},
    whose,
};
use fencepost::{Code, Error, Millis, Result, claim::Claim};
pub use post::Keeper;
use post::Post;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What a keeper is told when it starts, on its standard input: an address may hold a password, which is nothing for
/// a command line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    url: String,
    key: Option<String>,
    authority: Option<PathBuf>,
    run: String,
    footing: Option<Footing>,
    post: PathBuf,
    owner: Owner,
    /// The run was named by somebody, and is not this session's alone.
    named: bool,
    /// How long the run is good for if it cannot be renewed.
    lease: Millis,
}

/// For whom it keeps: a process, by its id and when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub pid: i32,
    pub started: u64,
}

impl Owner {
    fn is_alive(&self) -> bool {
        Process { pid: self.pid, started: self.started, ..Process::default() }.is_alive()
    }
}

/// How often to start over when keepers come and go at this very moment.
const TRIES: usize = 20;

/// For whom a run would be kept. Asked before anything is claimed.
pub fn owner(context: &Context) -> Result<Owner> {
    // A command that is its own session, as a job of cron can be, is over when it is done.
    let owner = context.who().owner.as_ref().filter(|owner| Some(owner.pid) != Process::own_id());
    let owner = owner.ok_or_else(|| {
        Error::new(Code::Invalid, "there is no terminal and no agent to keep the run for")
            .hint("claim without --keep, and run fence renew before the lease is over")
    })?;
    Ok(Owner { pid: owner.pid, started: owner.started })
}

/// Sees to it that the run of this claim has a keeper, and gives its process id.
pub fn keep(context: &Context, owner: Owner, claim: &Claim) -> Result<i32> {
    let place = context.place()?;
    let directory = directory(&place).map_err(|e| unwritable(&place, &e))?;
    make(&directory).map_err(|e| unwritable(&place, &e))?;
    let order = Order {
        url: place.absolute_url(),
        key: context.key(),
        authority: context.authority(),
        run: claim.run.clone(),
        footing: place.footing(),
        post: directory.join(post::file_name(&claim.run)),
        owner,
        named: matches!(context.who().why, whose::Why::Flag | whose::Why::Variable),
        lease: claim.expires_at.since(claim.claimed_at),
    };
    for _ in 0..TRIES {
        // Whoever is quicker, there is one in the end: a keeper that finds another there leaves at once.
        let found = post::join(&order.post, &order.owner).map_err(|e| unwritable(&place, &e))?;
        if let Some(pid) = found.map_or_else(|| start(&order), |pid| Ok(Some(pid)))? {
            return Ok(pid);
        }
    }
    Err(Error::unavailable("keepers of this run come and go")
        .hint("fence claim ID --resume --keep tries again"))
}

/// Tells the keepers of this fleet to look at what their runs hold: something was given back.
pub fn nudge(context: &Context) {
    let keepers = context.place().ok().and_then(|place| fs::read_dir(directory(&place).ok()?).ok());
    for entry in keepers.into_iter().flatten().flatten() {
        // A keeper watches its file; to set the permissions that it has is the least that can happen to one.
        let same = entry.metadata().map(|file| file.permissions());
        let _ = same.and_then(|same| fs::set_permissions(entry.path(), same));
    }
}

/// The keepers of a fleet: those that live, and those of which only the file is left.
pub fn all(place: &Place) -> Vec<Keeper> {
    let Some(entries) = directory(place).ok().and_then(|directory| fs::read_dir(directory).ok()) else {
        return Vec::new();
    };
    let mut keepers: Vec<_> = entries.flatten().filter_map(|entry| Keeper::read(&entry.path())).collect();
    keepers.sort_by(|a, b| a.run.cmp(&b.run));
    keepers
}

/// What a keeper process does: it takes its post, says so, and keeps the run until there is no more reason to.
pub async fn serve(order: Order, ready: impl FnOnce()) {
    // If the post is taken, whoever started us finds that out.
    if let Ok(Some(post)) = Post::take(&order.post, std::slice::from_ref(&order.owner)) {
        ready();
        serve::Service::new(order).run(post).await;
    }
}

/// Starts a process of its own: another session, no terminal, no pipe, no directory of ours. `None` if another keeper
/// was there first.
fn start(order: &Order) -> Result<Option<i32>> {
    let failed = |e| Error::unavailable(format!("the keeper cannot be started: {e}"));
    let mut command = Command::new(process::own_program());
    // It acts for nobody: who looks for what a session left behind must not find keepers.
    for variable in whose::variables() {
        command.env_remove(variable);
    }
    let mut child = command
        .arg("keep")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let order = serde_json::to_vec(order).map_err(Error::internal)?;
    child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&order)).map_err(failed)?;
    let mut said = String::new();
    child.stdout.take().map_or(Ok(0), |out| BufReader::new(out).read_line(&mut said)).map_err(failed)?;
    Ok((said == READY).then(|| i32::try_from(child.id()).unwrap_or(0)))
}

/// What a keeper says when it has its post.
pub const READY: &str = "ready\n";

/// Beside the file that is the fleet; for one elsewhere, in the directory for what lives as long as this login.
fn directory(place: &Place) -> std::io::Result<PathBuf> {
    if let Some(file) = place.file() {
        let file = std::path::absolute(file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        return Ok(file.with_file_name(format!("{name}-keepers")));
    }
    let login = variable("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("fence"));
    let login = login.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("fence-{}", rustix::process::getuid().as_raw()))
    });
    Ok(login.join(format!("keepers-{}", digest(&place.url))))
}

/// A directory that is ours alone: a stranger who made it first could have us keep, or not keep, what he likes.
fn make(directory: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let owner = fs::symlink_metadata(directory)?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(std::io::Error::other(format!("`{}` belongs to another user", directory.display())))
}

fn unwritable(place: &Place, e: &std::io::Error) -> Error {
    Error::unavailable(format!("the keepers of {} cannot be found or made: {e}", place.shown())).hint(
        "a fleet needs to write in the directory it lives in; one that is elsewhere, in XDG_RUNTIME_DIR",
    )
}
