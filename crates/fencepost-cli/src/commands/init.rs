use crate::context::Context;
use clap::Args;
use fencepost::{Error, Result};
use serde::Serialize;
use std::{path::Path, process::ExitCode};

/// Make a fleet, in .fence/fence.db of this directory unless --db says otherwise
#[derive(Debug, Args)]
pub struct Init {}

#[derive(Debug, Serialize)]
struct Made {
    db: String,
}

impl Init {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let place = context.place();
        if !place.contains("://") {
            let path = place.strip_prefix("sqlite:").unwrap_or(&place);
            make_directory(Path::new(path))?;
        }
        context.open(&place).await?;
        context.print(&Made { db: place }, |made| format!("the fleet is at {}", made.db))
    }
}

/// A directory that we make ignores itself, so that the database stays out of git.
fn make_directory(database: &Path) -> Result<()> {
    let Some(dir) = database.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) else {
        return Ok(());
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(dir.join(".gitignore"), "*\n"))
        .map_err(|e| Error::unavailable(format!("cannot make the directory `{}`: {e}", dir.display())))
}
