use crate::context::Context;
use clap::Args;
use fencepost::Result;
use std::process::ExitCode;

/// Look for what is wrong with the fleet, and say what to do about it: exits 1 on a problem
#[derive(Debug, Args)]
pub struct Doctor {}

impl Doctor {
    pub async fn run(self, _: &Context) -> Result<ExitCode> {
        Ok(ExitCode::SUCCESS)
    }
}
