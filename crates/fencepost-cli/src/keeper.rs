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
    own::{self, Directory, Missing},
    place::{Footing, Place},
    process::{self, Process},
    whose,
};
use fencepost::{Code, Error, Millis, Result, claim::Claim};
pub use post::Keeper;
use post::Post;
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    rc::Rc,
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
    directory: PathBuf,
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
    let directory = make(&place).map_err(|e| unwritable(&place, &e))?;
    let order = Order {
        url: place.absolute_url(),
        key: context.key(),
        authority: context.authority(),
        run: claim.run.clone(),
        footing: place.footing(),
        directory: directory.path().to_owned(),
        owner,
        named: matches!(context.who().why, whose::Why::Flag | whose::Why::Variable),
        lease: claim.expires_at.since(claim.claimed_at),
    };
    for _ in 0..TRIES {
        // Whoever is quicker, there is one in the end: a keeper that finds another there leaves at once.
        let found = post::join(&directory, &post::file_name(&order.run), &order.owner)
            .map_err(|e| unwritable(&place, &e))?;
        if let Some(pid) = found.map_or_else(|| start(&order), |pid| Ok(Some(pid)))? {
            return Ok(pid);
        }
    }
    Err(Error::unavailable("keepers of this run come and go")
        .hint("fence claim ID --resume --keep tries again"))
}

/// Tells the keepers of this fleet to look at what their runs hold: something was given back.
pub fn nudge(context: &Context) {
    let places = context.place().map_or_else(|_| Vec::new(), |place| directories(&place));
    for directory in places.iter().filter_map(|path| Directory::open(path).ok()) {
        for name in directory.names().unwrap_or_default() {
            // A keeper watches its file.
            let _ = directory.file(&name, Missing::Refuse).and_then(|file| own::touch(&file));
        }
    }
}

/// The keepers of a fleet.
#[derive(Debug, Default)]
pub struct Keepers {
    /// Those that live, and those of which only the file is left.
    pub found: Vec<Keeper>,
    /// What is where keepers' files are, and is left alone: why.
    pub left_alone: Vec<(PathBuf, io::Error)>,
}

pub fn all(place: &Place) -> Keepers {
    let mut keepers = Keepers::default();
    for path in directories(place) {
        let listed =
            Directory::open(&path).and_then(|directory| Ok((directory.names()?, Rc::new(directory))));
        match listed {
            Ok((names, directory)) => {
                for name in names {
                    match Keeper::read(&directory, &name) {
                        Ok(keeper) => keepers.found.push(keeper),
                        // It went this very moment.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => keepers.left_alone.push((path.join(name), e)),
                    }
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => keepers.left_alone.push((path, e)),
        }
    }
    keepers.found.sort_by(|a, b| a.run.cmp(&b.run));
    keepers
}

/// What a keeper process does: it takes its post, says so, and keeps the run until there is no more reason to.
pub async fn serve(order: Order, ready: impl FnOnce()) {
    let Ok(directory) = Directory::open(&order.directory).map(Rc::new) else { return };
    // If the post is taken, whoever started us finds that out.
    let name = post::file_name(&order.run);
    if let Ok(Some(post)) = Post::take(&directory, &name, std::slice::from_ref(&order.owner)) {
        ready();
        serve::Service::new(order, directory).run(post).await;
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

/// Where keepers' files can be: beside the file that is the fleet; if others can write there (a shared fleet) or the fleet is
/// elsewhere, in the directory for what lives as long as this login; if there is none, in the temporary one.
fn directories(place: &Place) -> Vec<PathBuf> {
    let file = place.file().and_then(|file| std::path::absolute(file).ok());
    let beside = file.map(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.with_file_name(format!("{name}-keepers"))
    });
    let login = variable("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("fence"));
    let temporary = std::env::temp_dir().join(format!("fence-{}", rustix::process::geteuid().as_raw()));
    let name = format!("keepers-{}", digest(&place.absolute_url()));
    let ours = login.into_iter().chain([temporary]).map(|directory| directory.join(&name));
    beside.into_iter().chain(ours).collect()
}

/// The first of them that is ours alone, or can be made so.
fn make(place: &Place) -> io::Result<Directory> {
    let mut refused = io::Error::other("there is no directory for them");
    for path in directories(place) {
        match Directory::make(&path) {
            Ok(directory) => return Ok(directory),
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

fn unwritable(place: &Place, e: &io::Error) -> Error {
    Error::unavailable(format!("the keepers of {} cannot be found or made: {e}", place.shown())).hint(
        "they need a directory that only you can write, as can only you or root its parents: beside the fleet's file, or XDG_RUNTIME_DIR",
    )
}
