use super::import::Fleet;
use crate::{
    context::Context,
    output::{streams, untrusted::escaped_json},
    private_files::draft::Draft,
};
use clap::Args;
use fencepost::{Result, board};
use fencepost_import::{counted, jsonl};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Write the whole fleet as lines of JSON, to move it or to take it away
///
/// Tasks in every state with their notes and progress, agents, channels and what was posted there, how far everybody has
/// read, inboxes, mailboxes with their messages, and routes. `fence import jsonl` takes the file back, on SQLite or on
/// PostgreSQL; tasks keep their numbers, messages get new ones and keep their order. Fences go on above those of this fleet,
/// so that an old token fits no new claim.
///
/// Not in it: keys, runs, claims and locks (a lease does not travel: work that is held is free where it is imported, and
/// `owner` says who had it), request ids, hook deliveries, and the log. `fence --json events --since start` writes the log.
///
/// Others may go on meanwhile. Every item is read at one moment, but not all at the same one; what is added meanwhile may
/// be missing. To move a fleet, stop its agents first. Through a server it takes an admin's key.
///
/// Examples:
///   fence export fleet.jsonl
///   fence export --board auth | jq -r 'select(.type == "task") | .title'
///   fence --db postgres://localhost/fence import jsonl fleet.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Export {
    /// Where to, for you alone to read; standard output without it, or for -
    file: Option<PathBuf>,
    /// Only this board and its tasks; may be given several times
    #[arg(long)]
    board: Vec<String>,
    /// Replace the file if it is there
    #[arg(long, requires = "file")]
    force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    file: String,
    bytes: u64,
    /// How many items of each type.
    items: BTreeMap<String, usize>,
}

impl Export {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        // A typing error would give a file with nothing in it.
        for name in &self.board {
            context.call(board::Show { board: name.clone(), limit: Some(1) }).await?;
        }
        match self.file.as_deref().filter(|file| *file != Path::new("-")) {
            None => {
                let fleet = Fleet::new(context);
                jsonl::export(&fleet, &self.board, &mut |text| streams::say_json_lines(text)).await?;
                Ok(ExitCode::SUCCESS)
            }
            Some(path) => {
                let mut file = Draft::create(path, self.force)?;
                let mut write = |text: &str| file.write(&escaped_json(text)).map(|()| true);
                let counts = jsonl::export(&Fleet::new(context), &self.board, &mut write).await?;
                let bytes = file.publish()?;
                let items = counts.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
                let written = Written { file: path.display().to_string(), bytes, items };
                context.print(&written, |written| {
                    let items = written.items.iter().filter(|(kind, _)| *kind != "fleet");
                    let items = counted(&mut items.map(|(kind, count)| (kind.as_str(), *count)));
                    format!("exported to {}: {items}", written.file)
                })
            }
        }
    }
}
