//! A keeper's file: who it is, for whom it keeps, and a lock that says whether it lives.

use super::Owner;
use crate::{
    own::{Directory, Missing},
    process::Process,
};
use std::{
    fs::{File, TryLockError},
    io::{self, Read, Seek, Write},
    path::PathBuf,
    rc::Rc,
};

/// A keeper as its file shows it.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub run: String,
    pub pid: i32,
    pub alive: bool,
    directory: Rc<Directory>,
    name: String,
}

/// The file of a living keeper, locked.
#[derive(Debug)]
pub struct Post {
    directory: Rc<Directory>,
    name: String,
    file: File,
}

/// The lines of a file: `keeper PID STARTED`, and `owner PID STARTED` for each for whom it keeps.
#[derive(Debug, Default)]
struct Lines {
    keeper: Option<Owner>,
    owners: Vec<Owner>,
}

/// A run's name may hold a slash, and never a percent sign.
pub fn file_name(run: &str) -> String {
    run.replace('/', "%")
}

/// Adds an owner to the keeper that is there, and gives its process id; `None` if there is none, or it is going.
pub fn join(directory: &Directory, name: &str, owner: &Owner) -> io::Result<Option<i32>> {
    let mut file = match directory.file(name, Missing::Refuse) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if !is_locked(&file)? {
        return Ok(None);
    }
    let lines = Lines::read(&mut file)?;
    // Whoever holds the lock may be about to write its first line, or be `doctor` removing what a dead one left.
    let Some(keeper) = lines.keeper.filter(Owner::is_alive) else { return Ok(None) };
    if !lines.owners.contains(owner) {
        file.write_all(line("owner", owner).as_bytes())?;
    }
    // A keeper that goes takes its file away, and then reads it for the last time.
    Ok(directory.has(name, &file)?.then_some(keeper.pid))
}

impl Post {
    /// Takes the post for these owners; `None` if another keeper has it.
    pub fn take(directory: &Rc<Directory>, name: &str, owners: &[Owner]) -> io::Result<Option<Self>> {
        loop {
            let file = directory.file(name, Missing::Make)?;
            if is_locked_or_lock(&file)? {
                return Ok(None);
            }
            if !directory.has(name, &file)? {
                // Others look in another directory by now, or only the file was removed.
                directory.check_place()?;
                continue;
            }
            if file.metadata()?.len() > 0 {
                // One that was killed left it behind.
                directory.remove(name)?;
                continue;
            }
            let mut post = Self { directory: directory.clone(), name: name.to_owned(), file };
            let us = Process::own_id().and_then(|pid| Process::read(pid, &[]));
            let us = us.ok_or_else(|| io::Error::other("/proc does not know this process"))?;
            let mut text = line("keeper", &Owner { pid: us.pid, started: us.started });
            text.extend(owners.iter().map(|owner| line("owner", owner)));
            post.file.write_all(text.as_bytes())?;
            return Ok(Some(post));
        }
    }

    /// Those that are still there of those for whom it keeps.
    pub fn owners(&mut self) -> Vec<Owner> {
        let mut owners = self.all_owners();
        owners.retain(Owner::is_alive);
        owners
    }

    pub fn all_owners(&mut self) -> Vec<Owner> {
        Lines::read(&mut self.file).unwrap_or_default().owners
    }

    /// Is the file still where others look for it?
    pub fn is_known(&self) -> bool {
        self.directory.has(&self.name, &self.file).unwrap_or(false)
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Gives the post up. Whoever was added until now is given back: nobody can be added after.
    pub fn leave(mut self) -> Vec<Owner> {
        if self.is_known() {
            let _ = self.directory.remove(&self.name);
        }
        self.owners()
    }
}

impl Keeper {
    pub fn read(directory: &Rc<Directory>, name: &str) -> io::Result<Self> {
        let mut file = directory.file(name, Missing::Refuse)?;
        let keeper = Lines::read(&mut file)?.keeper;
        Ok(Self {
            run: name.replace('%', "/"),
            pid: keeper.map_or(0, |keeper| keeper.pid),
            alive: is_locked(&file)?,
            directory: directory.clone(),
            name: name.to_owned(),
        })
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Removes what a dead keeper left behind; one that lives by now is left alone.
    pub fn remove(&self) -> io::Result<()> {
        let file = self.directory.file(&self.name, Missing::Refuse)?;
        if !is_locked_or_lock(&file)? && self.directory.has(&self.name, &file)? {
            self.directory.remove(&self.name)?;
        }
        Ok(())
    }
}

impl Lines {
    fn read(file: &mut File) -> io::Result<Self> {
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let mut lines = Lines::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (kind, pid, started) = (words.next(), words.next(), words.next());
            let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
            let (Some(pid), Some(started)) = (number(pid), number(started)) else { continue };
            let process = Owner { pid: i32::try_from(pid).unwrap_or(0), started };
            match kind {
                Some("keeper") => lines.keeper = Some(process),
                Some("owner") if !lines.owners.contains(&process) => lines.owners.push(process),
                _ => {}
            }
        }
        Ok(lines)
    }
}

fn line(kind: &str, process: &Owner) -> String {
    format!("{kind} {} {}\n", process.pid, process.started)
}

/// Is somebody else holding it? If not, we are from now on.
fn is_locked_or_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn is_locked(file: &File) -> io::Result<bool> {
    let locked = is_locked_or_lock(file)?;
    if !locked {
        file.unlock()?;
    }
    Ok(locked)
}
