use crate::{
    context::Context,
    keeper::{self, Instructions, READY},
};
use clap::Args;
use fencepost::{Error, Result};
use std::{
    fs::{self, File},
    io::{Read, Write},
    process::ExitCode,
};

/// Renew a run while its owner lives; `claim --keep` starts it
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Keep {}

impl Keep {
    pub async fn run(self, _: &Context) -> Result<ExitCode> {
        // A session of its own: neither the end of a terminal nor a signal for the old group reaches this process.
        let _ = rustix::process::setsid();
        close_inherited();
        let mut input = Vec::new();
        std::io::stdin().read_to_end(&mut input).map_err(Error::internal)?;
        let instructions: Instructions = serde_json::from_slice(&input).map_err(Error::internal)?;
        keeper::run(instructions, || {
            let _ = std::io::stdout().write_all(READY.as_bytes()).and_then(|()| std::io::stdout().flush());
            // The process that started this one reads until the pipe is closed.
            if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
                let _ =
                    rustix::stdio::dup2_stdin(&nothing).and_then(|()| rustix::stdio::dup2_stdout(&nothing));
            }
        })
        .await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Closes inherited files. A shell passes all its open files on, and the reader of a pipe would wait until this process closes
/// it, too. Files that this process opened itself are marked close-on-exec, and inherited ones are not.
fn close_inherited() {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let entries = fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    let inherited = entries.filter_map(|entry| {
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        let info = fs::read_to_string(entry.path()).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        (fd > 2 && flags & CLOSE_ON_EXEC == 0).then_some(fd)
    });
    for fd in inherited.collect::<Vec<_>>() {
        let _ = nix::unistd::close(fd);
    }
}
