use crate::{context::Context, supervise::watchdog};
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

/// Kill what standard input names when it closes: `lock` and `guard` start it for themselves
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Watchdog {}

impl Watchdog {
    pub async fn run(self, _: &Context) -> Result<ExitCode> {
        watchdog::run();
        Ok(ExitCode::SUCCESS)
    }
}
