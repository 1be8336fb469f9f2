//! Processes as `/proc` shows them: parent, start time, session, variables.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::HashMap,
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

/// The parent of the kernel's threads, which have no environment.
const KERNEL: i32 = 2;
/// How often to look for the environment of a process that has none, and of one that is in the middle of an `exec`.
const EMPTY_LOOKS: u32 = 10;
const EXEC_LOOKS: u32 = 1000;
/// The end of the environment's memory, counted from the state in `/proc/PID/stat`: 0 until an `exec` has copied it.
const ENV_END: usize = 48;

/// One process, as it was when it was read. A system uses ids again, so id and start time together identify a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// The id of its session's leader; 0 if the leader is in another pid namespace.
    pub session: i32,
    pub has_terminal: bool,
    /// Ticks since boot.
    pub started: u64,
    pub name: String,
    /// A shell that runs one command line only: `bash -c …`.
    pub is_throwaway: bool,
    /// The variables that were asked for, with the values that it was started with.
    pub variables: HashMap<&'static str, String>,
}

impl Process {
    pub fn read(pid: i32, variables: &[&'static str]) -> Option<Self> {
        let dir = Path::new("/proc").join(pid.to_string());
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The name is in parentheses and may have any character, even parentheses.
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = after.split_whitespace().collect();
        // A zombie has ended, and only waits for its parent.
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
        let words = |file: &str| fs::read(dir.join(file)).unwrap_or_default();
        let parent = i32::try_from(number(1)?).ok()?;
        let environment = match variables {
            [] => Vec::new(),
            _ => environment(&dir, pid == KERNEL || parent == KERNEL),
        };
        let variables = variables.iter().filter_map(|&name| {
            let entry = environment.split(|&b| b == 0).find(|entry| {
                entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
            })?;
            Some((name, String::from_utf8_lossy(&entry[name.len() + 1..]).into_owned()))
        });
        Some(Self {
            pid,
            parent,
            group: i32::try_from(number(2)?).ok()?,
            session: i32::try_from(number(3)?).ok()?,
            has_terminal: number(4)? != 0,
            started: fields.get(19)?.parse().ok()?,
            is_throwaway: is_throwaway(&words("cmdline")),
            variables: variables.collect(),
            name,
        })
    }

    /// The id of this process in `/proc`. If `/proc` is mounted from an outer pid namespace, it is another id than the one that
    /// the system calls return.
    pub fn own_id() -> Option<i32> {
        fs::read_link("/proc/self").ok()?.to_str()?.parse().ok()
    }

    /// Was it started with this word?
    pub fn has_argument(&self, word: &str) -> bool {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        line.split(|&b| b == 0).skip(1).any(|argument| argument == word.as_bytes())
    }

    /// Does it run several sessions, and outlive them? Codex 0.169 has such a process for terminals and editors: `codex app-server`.
    pub fn is_shared(&self) -> bool {
        self.has_argument("app-server")
    }

    /// Does this process still live?
    pub fn is_alive(&self) -> bool {
        Self::read(self.pid, &[]).is_some_and(|now| now.started == self.started)
    }
}

/// The variables of a process; none if it belongs to another user. In the middle of an `exec` a process has none for a moment, which
/// is long if other processes have the cores.
fn environment(dir: &Path, is_of_kernel: bool) -> Vec<u8> {
    let mut empty = 0;
    for _ in 0..EXEC_LOOKS {
        match fs::read(dir.join("environ")) {
            Ok(bytes) if bytes.is_empty() && !is_of_kernel && empty < EMPTY_LOOKS => {
                empty += u32::from(!is_in_exec(dir));
                look_again_later();
            }
            read => return read.unwrap_or_default(),
        }
    }
    Vec::new()
}

fn is_in_exec(dir: &Path) -> bool {
    let stat = fs::read_to_string(dir.join("stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(')').map_or("", |(_, after)| after).split_whitespace();
    !matches!(fields.next(), None | Some("Z" | "X")) && fields.nth(ENV_END - 1) == Some("0")
}

/// The time until the next look at `/proc`.
#[expect(clippy::disallowed_methods, reason = "/proc reports no events")]
pub fn look_again_later() {
    std::thread::sleep(Duration::from_millis(1));
}

/// The path of this program, to start it once more. If its file was removed, `/proc` still has it.
pub fn own_program() -> PathBuf {
    let file = std::env::current_exe().ok().filter(|path| path.exists());
    file.unwrap_or_else(|| "/proc/self/exe".into())
}

/// The scope in which ids with start times are unique: one boot of one machine, and one container of it.
pub fn realm() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// Every process that this one can see.
pub fn all(variables: &[&'static str]) -> impl Iterator<Item = Process> {
    ids().filter_map(|pid| Process::read(pid, variables))
}

fn ids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Processes outside of this group that have this run in their environment: they were started for it and left the group. A process
/// that cleared its environment, or that belongs to another user, is not found.
pub fn of_run(run: &str, group: i32) -> impl Iterator<Item = Straggler> {
    started_with(super::RUN, run, group)
}

/// Processes outside of this group that were started with this variable.
pub fn started_with(name: &'static str, value: &str, group: i32) -> impl Iterator<Item = Straggler> {
    let us = Process::own_id();
    ids()
        .filter_map(move |pid| Process::read(pid, &[name]))
        .filter(move |process| process.variables.get(name).is_some_and(|is| is == value))
        .filter(move |process| process.group != group && Some(process.pid) != us)
        .filter_map(|process| {
            // The handle is of the process that has the id now. If that is still the process that was read, it stays so.
            let handle = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
            process.is_alive().then_some(Straggler(handle))
        })
}

/// A process by a handle, which never means another process.
#[derive(Debug)]
pub struct Straggler(OwnedFd);

impl Straggler {
    pub fn send(&self, signal: Signal) {
        // It may have ended, which is what we wanted.
        let _ = pidfd_send_signal(&self.0, signal);
    }
}

/// Does a process of this group still live? Zombies do not count.
pub fn group_is_alive(group: i32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let mut fields = after.split_whitespace();
        let state = fields.next().unwrap_or("X");
        !matches!(state, "Z" | "X") && fields.nth(1).and_then(|field| field.parse().ok()) == Some(group)
    })
}

/// This process, its parent, and so on.
pub fn lineage(variables: &[&'static str]) -> Vec<Process> {
    let mut lineage: Vec<Process> = Vec::new();
    let mut pid = Process::own_id().unwrap_or(0);
    // If a parent ends and its id is used again, the chain could become a cycle.
    while let Some(process) = Process::read(pid, variables).filter(|_| lineage.len() < 1000) {
        pid = process.parent;
        lineage.push(process);
    }
    lineage
}

/// `bash -c …`, `/bin/zsh -lc …`, `bash -eo pipefail -c …`
fn is_throwaway(command_line: &[u8]) -> bool {
    let mut words = command_line.split(|&b| b == 0).map(String::from_utf8_lossy);
    let Some(program) = words.next() else { return false };
    let program = program.rsplit('/').next().unwrap_or_default().trim_start_matches('-').to_owned();
    if !["sh", "bash", "dash", "zsh", "ksh", "fish", "ash"].contains(&program.as_str()) {
        return false;
    }
    while let Some(option) = words.next().filter(|word| word.starts_with(['-', '+'])) {
        let letters = !option.starts_with("--");
        if option == "--command" || (letters && option.contains('c')) {
            return true;
        }
        // The next word is the value of these.
        if ["--rcfile", "--init-file"].contains(&&*option) || (letters && option.contains(['o', 'O'])) {
            words.next();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field before it is where the environment begins, so the two tell how long it is.
    #[test]
    fn the_end_of_an_environment_is_where_it_is_looked_for() {
        let stat = fs::read_to_string("/proc/self/stat").expect("our own");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        let at = |field: usize| fields[field].parse::<u64>().expect("an address");
        let length = fs::read("/proc/self/environ").expect("our own").len() as u64;
        assert_eq!(at(ENV_END) - at(ENV_END - 1), length);
        assert!(!is_in_exec(Path::new("/proc/self")) && !is_in_exec(Path::new("/proc/0")));
    }

    #[test]
    fn throwaway_shells() {
        let cases = [
            ("bash\0-c\0fence claim\0", true),
            ("/bin/zsh\0-lc\0fence claim\0", true),
            ("/usr/bin/sh\0-e\0-c\0x\0", true),
            ("bash\0-eo\0pipefail\0-c\0x\0", true),
            ("bash\0--rcfile\0x\0-c\0y\0", true),
            ("fish\0--command\0x\0", true),
            ("bash\0-eo\0pipefail\0script.sh\0", false),
            ("-bash\0", false),
            ("bash\0script.sh\0-c\0", false),
            ("bash\0--rcfile\0x\0", false),
            ("node\0-c\0", false),
            ("", false),
        ];
        for (line, expected) in cases {
            assert_eq!(is_throwaway(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn we_are_alive_and_have_ancestors() {
        let line = lineage(&["PATH"]);
        assert_eq!(Some(line[0].pid), Process::own_id());
        assert!(line[0].is_alive());
        assert_eq!(line[1].pid, line[0].parent);
        assert_eq!(line[0].variables.get("PATH"), std::env::var("PATH").ok().as_ref());
        assert!(!Process { started: 1, ..line[0].clone() }.is_alive());
    }
}
