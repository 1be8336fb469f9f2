use crate::{context::Context, supervise::watchdog};
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

/// Kill a process group when standard input closes; `lock` and `guard` start it
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Watchdog {}

impl Watchdog {
    pub async fn run(self, _: &Context) -> Result<ExitCode> {
        watchdog::run();
        Ok(ExitCode::SUCCESS)
    }
}
