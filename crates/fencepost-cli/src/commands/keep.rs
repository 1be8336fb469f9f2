use crate::{
    context::Context,
    keeper::{self, Order, READY},
};
use clap::Args;
use fencepost::{Error, Result};
use std::{
    fs::{self, File},
    io::{Read, Write},
    process::ExitCode,
};

/// What `claim --keep` leaves behind; nobody types it
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Keep {}

impl Keep {
    pub async fn run(self, _: &Context) -> Result<ExitCode> {
        // A session of our own: no terminal ends us, and no signal for the group we came from.
        let _ = rustix::process::setsid();
        close_inherited();
        let mut order = Vec::new();
        std::io::stdin().read_to_end(&mut order).map_err(Error::internal)?;
        let order: Order = serde_json::from_slice(&order).map_err(Error::internal)?;
        keeper::serve(order, || {
            let _ = std::io::stdout().write_all(READY.as_bytes()).and_then(|()| std::io::stdout().flush());
            // Whoever started us reads on until everybody has closed it.
            if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
                let _ =
                    rustix::stdio::dup2_stdin(&nothing).and_then(|()| rustix::stdio::dup2_stdout(&nothing));
            }
        })
        .await;
        Ok(ExitCode::SUCCESS)
    }
}

/// A shell hands down whatever it has open, and a pipe that we held would keep its reader waiting. What we opened
/// ourselves is marked to be closed on exec; what was handed down is not.
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
