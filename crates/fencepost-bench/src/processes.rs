//! Many processes on one file.

use crate::{baseline, engine};
use fencepost::{Fleet, Result};
use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// The main function of one process: claims and completes until its time is up, then prints how often.
pub async fn child(url: &str, span: Duration) -> Result<()> {
    let count = match url.strip_prefix("hand:") {
        Some(path) => baseline::loop_on_file(Path::new(path), span),
        None => {
            let fleet = Fleet::open(url).await?;
            let run = format!("process-{}", std::process::id());
            let start = Instant::now();
            let mut count = 0_u64;
            while start.elapsed() < span && engine::cycle(&fleet, "work", &run).await? {
                count += 1;
            }
            count
        }
    };
    let _ = writeln!(std::io::stdout(), "{count}");
    Ok(())
}

pub fn race(path: &Path, processes: usize, span: Duration) -> Vec<u64> {
    start(&path.display().to_string(), processes, span)
}

pub fn race_by_hand(path: &Path, processes: usize, span: Duration) -> Vec<u64> {
    start(&format!("hand:{}", path.display()), processes, span)
}

fn start(url: &str, processes: usize, span: Duration) -> Vec<u64> {
    let me = std::env::current_exe().expect("this program");
    let children: Vec<_> = (0..processes)
        .map(|_| {
            Command::new(&me)
                .args(["--child", url, "--seconds", &span.as_secs().to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child")
        })
        .collect();
    let counts = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("its output");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a count")
    });
    counts.collect()
}
