//! `claim --keep`: a small process that renews a run while its owner, a terminal or an agent, lives.
//!
//! When the owner is gone, the keeper stops renewing. If no process of the owner's session is left, the keeper ends the run, and
//! others can claim its items at once. If a process is left (it was started with `nohup`), or if somebody renews the run (an
//! agent's session was resumed), the keeper leaves the run alone, and its lease expires by itself. A keeper never ends a run that
//! a user named: other terminals, also on other machines, may act for it.
//!
//! A run has at most one keeper on a machine. The keeper locks a file while it lives, and writes its own process and its owners
//! into the file. The kernel releases the lock of a keeper that is killed, so everybody sees that it is gone.

mod file;
mod renewing;
mod sleep;

use crate::{
    context::Context,
    environment::{sandbox, variable},
    identity::{
        self,
        process::{self, Process},
    },
    location::{DatabaseFile, Location},
    names::digest,
    private_files::{self, Directory, Missing},
};
use fencepost::{Code, Error, Millis, Result, claim::Claim};
pub use file::Keeper;
use file::KeeperFile;
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    rc::Rc,
};

/// The instructions of a keeper. It reads them from its standard input: the address may contain a password, which must not be
/// visible in a list of processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Instructions {
    url: String,
    key: Option<String>,
    authority: Option<PathBuf>,
    run: String,
    /// The records of sessions in which the run's claims are remembered.
    #[serde(default)]
    records: Vec<String>,
    database_file: Option<DatabaseFile>,
    directory: PathBuf,
    owner: Owner,
    /// A user named the run, so that other sessions may share it.
    named: bool,
    /// How long the run lives without a renewal.
    lease: Millis,
}

/// The process for which a keeper renews a run, by its id and start time.
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

/// How often to try again if other keepers of the run start and stop at the same moment.
const TRIES: usize = 20;

/// The process whose life keeps the run. Call this before claiming; it may not exist.
pub fn owner(context: &Context) -> Result<Owner> {
    // A command that leads its own session, such as a job of cron, is gone when it is done.
    let owner = context.identity().owner.as_ref().filter(|owner| Some(owner.pid) != Process::own_id());
    if owner.is_some_and(Process::is_shared) {
        let message = "the client runs its sessions in a background process that outlives them, so no keeper renews the run";
        return Err(Error::new(Code::NotReady, message)
            .hint("every command under the claim renews it, and so do the client's hooks: fence setup"));
    }
    if sandbox().is_some() {
        let message =
            "the client's sandbox ends all processes of a command with it, so no keeper renews the run";
        return Err(Error::new(Code::NotReady, message).hint(
            "the tools of fence mcp, which run outside of it, keep a claim; every command under the claim renews it, and so do the client's hooks",
        ));
    }
    let owner = owner.ok_or_else(|| {
        Error::new(Code::Invalid, "there is no terminal and no agent for which a keeper could renew the run")
            .hint("name a run: fence claim --keep --run NAME keeps it while the program above lives; or claim without --keep, and use fence renew before the lease expires")
    })?;
    Ok(Owner { pid: owner.pid, started: owner.started })
}

/// Makes sure that the run of this claim has a keeper, and returns its process id.
pub fn keep(context: &Context, owner: Owner, claim: &Claim) -> Result<i32> {
    keep_run(context, owner, claim, context.is_run_named(), context.records())
}

/// The same for a run that is not this process's own. `named`: somebody chose its name, so that other sessions may share it.
pub fn keep_run(
    context: &Context,
    owner: Owner,
    claim: &Claim,
    named: bool,
    records: Vec<String>,
) -> Result<i32> {
    let location = context.location()?;
    let directory = make_directory(&location).map_err(|e| unwritable(&location, &e))?;
    let instructions = Instructions {
        url: location.absolute_url(),
        key: context.key(),
        authority: context.authority(),
        run: claim.run.clone(),
        records,
        database_file: location.database_file(),
        directory: directory.path().to_owned(),
        owner,
        named,
        lease: claim.expires_at.since(claim.claimed_at),
    };
    for _ in 0..TRIES {
        // If two processes start a keeper at once, one of the keepers finds the other and exits.
        let found = file::join(&directory, &file::file_name(&instructions.run), &instructions.owner)
            .map_err(|e| unwritable(&location, &e))?;
        if let Some(pid) = found.map_or_else(|| start(&instructions), |pid| Ok(Some(pid)))? {
            return Ok(pid);
        }
    }
    Err(Error::unavailable("other keepers of this run start and stop at the same time")
        .hint("fence claim ID --resume --keep tries again"))
}

/// Wakes the keepers of this fleet, because a claim ended: a keeper whose run holds nothing more exits.
pub fn wake_all(context: &Context) {
    let paths = context.location().map_or_else(|_| Vec::new(), |location| directories(&location));
    for directory in paths.iter().filter_map(|path| Directory::open(path).ok()) {
        for name in directory.names().unwrap_or_default() {
            // A keeper watches its file.
            let _ = directory.file(&name, Missing::Refuse).and_then(|file| private_files::touch(&file));
        }
    }
}

/// The keepers of a fleet.
#[derive(Debug, Default)]
pub struct Keepers {
    /// Living keepers, and files that dead keepers left behind.
    pub found: Vec<Keeper>,
    /// Entries that are no keeper's file, with the reason. They are not touched.
    pub left_alone: Vec<(PathBuf, io::Error)>,
}

pub fn all(location: &Location) -> Keepers {
    let mut keepers = Keepers::default();
    for path in directories(location) {
        let listed =
            Directory::open(&path).and_then(|directory| Ok((directory.names()?, Rc::new(directory))));
        match listed {
            Ok((names, directory)) => {
                for name in names {
                    match Keeper::read(&directory, &name) {
                        Ok(keeper) => keepers.found.push(keeper),
                        // The keeper exited meanwhile.
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

/// Runs a keeper: it locks its file, reports that it is ready, and renews the run until there is no more reason to.
pub async fn run(instructions: Instructions, ready: impl FnOnce()) {
    let Ok(directory) = Directory::open(&instructions.directory).map(Rc::new) else { return };
    // If another keeper has the file, the process that started us finds that keeper.
    let name = file::file_name(&instructions.run);
    if let Ok(Some(file)) = KeeperFile::lock(&directory, &name, std::slice::from_ref(&instructions.owner)) {
        ready();
        renewing::Renewing::new(instructions, directory).run(file).await;
    }
}

/// Starts a keeper in a session of its own, without our terminal, pipes and directory. `None` if another keeper was first.
fn start(instructions: &Instructions) -> Result<Option<i32>> {
    let failed = |e| Error::unavailable(format!("the keeper cannot be started: {e}"));
    let mut command = Command::new(process::own_program());
    // The search for processes that a session left behind must not find keepers.
    for variable in identity::variables() {
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
    let instructions = serde_json::to_vec(instructions).map_err(Error::internal)?;
    child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&instructions)).map_err(failed)?;
    let mut reply = String::new();
    child.stdout.take().map_or(Ok(0), |out| BufReader::new(out).read_line(&mut reply)).map_err(failed)?;
    Ok((reply == READY).then(|| i32::try_from(child.id()).unwrap_or(0)))
}

/// The line that a keeper writes when it has locked its file.
pub const READY: &str = "ready\n";

/// The directories that may hold keepers' files, in order of preference: beside the fleet's database; if others can write there
/// (a shared fleet), or if the fleet has no file, the directory of this login; else the temporary directory.
fn directories(location: &Location) -> Vec<PathBuf> {
    let file = location.file().and_then(|file| std::path::absolute(file).ok());
    let beside = file.map(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.with_file_name(format!("{name}-keepers"))
    });
    let login = variable("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("fence"));
    let temporary = std::env::temp_dir().join(format!("fence-{}", rustix::process::geteuid().as_raw()));
    let name = format!("keepers-{}", digest(&location.absolute_url()));
    let ours = login.into_iter().chain([temporary]).map(|directory| directory.join(&name));
    beside.into_iter().chain(ours).collect()
}

/// The first directory that only this user can write, or that can be created so.
fn make_directory(location: &Location) -> io::Result<Directory> {
    let mut refused = io::Error::other("there is no directory for them");
    for path in directories(location) {
        match Directory::create(&path) {
            Ok(directory) => return Ok(directory),
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

fn unwritable(location: &Location, e: &io::Error) -> Error {
    Error::unavailable(format!("there is no directory for the keepers of {}: {e}", location.shown())).hint(
        "a keeper needs a directory that only you can write, below directories that only you or root can write: beside the fleet's file, or XDG_RUNTIME_DIR",
    )
}
