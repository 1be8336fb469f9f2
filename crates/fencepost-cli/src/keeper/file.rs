//! A keeper's file: its process, its owners, and a lock that shows whether it lives.

use super::Owner;
use crate::{
    identity::process::Process,
    private_files::{Directory, Missing},
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

/// The file of this keeper, which it holds locked.
#[derive(Debug)]
pub struct KeeperFile {
    directory: Rc<Directory>,
    name: String,
    file: File,
}

/// The content of a file: a line `keeper PID STARTED`, and a line `owner PID STARTED` for each owner.
#[derive(Debug, Default)]
struct Content {
    keeper: Option<Owner>,
    owners: Vec<Owner>,
}

/// A run's name may contain a slash, and never a percent sign.
pub fn file_name(run: &str) -> String {
    run.replace('/', "%")
}

/// Adds an owner to the living keeper, and returns the keeper's process id; `None` if there is none, or if it is exiting.
pub fn join(directory: &Directory, name: &str, owner: &Owner) -> io::Result<Option<i32>> {
    let mut file = match directory.file(name, Missing::Refuse) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if !is_locked(&file)? {
        return Ok(None);
    }
    let content = Content::read(&mut file)?;
    // The holder of the lock may be a keeper that has not written its line yet, or `doctor`, which removes a dead keeper's file.
    let Some(keeper) = content.keeper.filter(Owner::is_alive) else { return Ok(None) };
    if !content.owners.contains(owner) {
        file.write_all(line("owner", owner).as_bytes())?;
    }
    // An exiting keeper first removes its file, and then reads it once more. So an owner that was added before is seen.
    Ok(directory.has(name, &file)?.then_some(keeper.pid))
}

impl KeeperFile {
    /// Creates and locks the file for these owners; `None` if another keeper has it.
    pub fn lock(directory: &Rc<Directory>, name: &str, owners: &[Owner]) -> io::Result<Option<Self>> {
        loop {
            let file = directory.file(name, Missing::Create)?;
            if is_locked_or_lock(&file)? {
                return Ok(None);
            }
            if !directory.has(name, &file)? {
                // The directory was replaced, which is an error, or only the file was removed.
                directory.check_path()?;
                continue;
            }
            if file.metadata()?.len() > 0 {
                // A keeper that was killed left it behind.
                directory.remove(name)?;
                continue;
            }
            let mut locked = Self { directory: directory.clone(), name: name.to_owned(), file };
            let us = Process::own_id().and_then(|pid| Process::read(pid, &[]));
            let us = us.ok_or_else(|| io::Error::other("/proc does not know this process"))?;
            let mut text = line("keeper", &Owner { pid: us.pid, started: us.started });
            text.extend(owners.iter().map(|owner| line("owner", owner)));
            locked.file.write_all(text.as_bytes())?;
            return Ok(Some(locked));
        }
    }

    /// The owners that still live.
    pub fn owners(&mut self) -> Vec<Owner> {
        let mut owners = self.all_owners();
        owners.retain(Owner::is_alive);
        owners
    }

    pub fn all_owners(&mut self) -> Vec<Owner> {
        Content::read(&mut self.file).unwrap_or_default().owners
    }

    /// Is the file still where others look for it?
    pub fn is_in_place(&self) -> bool {
        self.directory.has(&self.name, &self.file).unwrap_or(false)
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Removes the file, and returns the living owners. Nobody can add an owner after that.
    pub fn remove(mut self) -> Vec<Owner> {
        if self.is_in_place() {
            let _ = self.directory.remove(&self.name);
        }
        self.owners()
    }
}

impl Keeper {
    pub fn read(directory: &Rc<Directory>, name: &str) -> io::Result<Self> {
        let mut file = directory.file(name, Missing::Refuse)?;
        let keeper = Content::read(&mut file)?.keeper;
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

    /// Removes the file of a dead keeper. If a new keeper has locked it by now, it stays.
    pub fn remove(&self) -> io::Result<()> {
        let file = self.directory.file(&self.name, Missing::Refuse)?;
        if !is_locked_or_lock(&file)? && self.directory.has(&self.name, &file)? {
            self.directory.remove(&self.name)?;
        }
        Ok(())
    }
}

impl Content {
    fn read(file: &mut File) -> io::Result<Self> {
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let mut content = Content::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (kind, pid, started) = (words.next(), words.next(), words.next());
            let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
            let (Some(pid), Some(started)) = (number(pid), number(started)) else { continue };
            let process = Owner { pid: i32::try_from(pid).unwrap_or(0), started };
            match kind {
                Some("keeper") => content.keeper = Some(process),
                Some("owner") if !content.owners.contains(&process) => content.owners.push(process),
                _ => {}
            }
        }
        Ok(content)
    }
}

fn line(kind: &str, process: &Owner) -> String {
    format!("{kind} {} {}\n", process.pid, process.started)
}

/// Does another process hold the lock? If not, this one holds it from now on.
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
